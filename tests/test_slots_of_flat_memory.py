"""What a synchronisation is told of flat memory: where each parameter lies, in what shape, and what is
nobody's. One that sends signs and a mean needs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import demitasse
from demitasse import FlatMemory, GradientSync, Level, Machine, SyncSpec, Work, hookimpl

NET = """
    layer { name: "d" type: "Data" top: "data" top: "label"
            data_param { source: "given" batch_size: 8 } }
    layer { name: "ip1" type: "InnerProduct" bottom: "data" top: "ip1"
            param { lr_mult: 0 } param { lr_mult: 1 }
            inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }
    layer { name: "relu" type: "ReLU" bottom: "ip1" top: "ip1" }
    layer { name: "ip2" type: "InnerProduct" bottom: "ip1" top: "ip2"
            inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
    layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip2" bottom: "label" top: "loss" }
"""


def held(memory: FlatMemory) -> np.ndarray[Any, np.dtype[np.bool]]:
    """Which elements of flat memory are a parameter's."""
    found = np.zeros(len(memory.gradients), bool)
    for slot in memory.slots:
        mask = slot.spec.layout.pack(np.ones(slot.spec.shape, bool)).ravel()
        found[slot.span.start : slot.span.start + mask.size] |= mask
    return found


class Signs(GradientSync):
    """The signs of gradients times their mean size, without error feedback; what it saw is kept."""

    seen: dict[int, Signs] = {}

    def __init__(self, group: Any) -> None:
        self.index, self.size, self.team = group.index, group.team.size, group.team
        self.strays = 0
        self.seen[self.index] = self

    def bind(self, memory: FlatMemory) -> None:
        self.memory, self.held = memory, held(memory)

    def reduce(self, bucket: Any, span: demitasse.Span) -> Work:
        part = slice(span.start, span.stop)

        def work() -> None:
            gradient, mine = self.memory.gradients[part], self.held[part]
            self.strays += np.count_nonzero(gradient[~mine])
            gradient[mine] = np.sign(gradient[mine]) * np.abs(gradient[mine]).mean()
            self.team.barrier.wait()
            total = np.sum([each.gradients[part] for each in self.team.memory], 0)
            self.team.barrier.wait()
            gradient[...] = total

        return work


class Plugin:
    manifest = {"name": "signs", "api": ">=0.1,<0.2", "roles": {"gradient_sync": {}}}

    @staticmethod
    @hookimpl
    def gradient_sync(group: Any) -> GradientSync:
        return Signs(group)


@pytest.mark.parametrize("kernels", ["reference", "cpu"])
def test_every_trained_parameter_has_a_slot_and_the_rest_of_flat_memory_stays_zero(
    tmp_path: Path, kernels: str
) -> None:
    (tmp_path / "net.prototxt").write_text(NET)
    solver = tmp_path / "solver.prototxt"
    solver.write_text('net: "net.prototxt" base_lr: 0.1 momentum: 0.9 lr_policy: "fixed" max_iter: 9')
    random = np.random.default_rng(3)
    data = {"data": random.normal(size=(16, 7)), "label": random.integers(0, 3, 16)}
    level = Level("node", count=2, cores=1, workers="threads", sync=SyncSpec("signs"))
    plugins = [kernels, "caffe", "datasets", "training", "reference", Plugin]
    with demitasse.compose(Machine("two", (level,), fingerprint="any"), plugins) as runtime:
        trainer = runtime.trainer(solver, data={"train": data}, precision="f32")
        before = [array.copy() for row in trainer.net.params.values() for array in row]
        trainer.step(4)
        after = [array.copy() for row in trainer.net.params.values() for array in row]
        first = Signs.seen[0]
        shapes = sorted(slot.spec.shape for slot in first.memory.slots)
        assert shapes == [(3,), (3, 5), (5,)]  # ip1's weights are frozen
        assert np.count_nonzero(first.held) == 3 + 15 + 5 < len(first.held)
        assert first.strays == Signs.seen[1].strays == 0
        for array in (first.memory.gradients, *first.memory.state.values()):
            assert not np.asarray(array)[~first.held].any()
        moved = [not np.array_equal(*pair) for pair in zip(before, after, strict=True)]
        assert moved == [False, True, True, True]
