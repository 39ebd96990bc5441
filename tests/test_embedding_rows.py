"""What docs/embedding.md says beside its program: frozen layers, memory beforehand, endless samples."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import demitasse
from demitasse import DataSource, DataSpec, Field, Runtime, hookimpl

NET = """
layer { name: "samples" type: "Data" top: "data" top: "label"
        data_param { source: "made:" batch_size: 10 } }
layer { name: "ip1" type: "InnerProduct" bottom: "data" top: "ip1"
        inner_product_param { num_output: 6 weight_filler { type: "xavier" } } }
layer { name: "ip2" type: "InnerProduct" bottom: "ip1" top: "ip2"
        inner_product_param { num_output: 2 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip2" bottom: "label" top: "loss" }
"""
SOLVER = 'net: "net.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 10 snapshot_after_train: false'


def made() -> Iterator[tuple[np.ndarray, int]]:
    for number in itertools.count():
        yield np.full(3, number % 7 - 3, np.float32), number % 2


class Reading:
    def __init__(self, cursor: int, count: int, step: int) -> None:
        self.cursor, self._count, self._step = cursor, count, step
        self._samples = itertools.islice(made(), cursor, None)

    def read(self, out: Mapping[str, np.ndarray]) -> None:
        for row, (data, label) in enumerate(itertools.islice(self._samples, self._count)):
            out["data"][row], out["label"][row] = data, label
        self.cursor += self._step

    def close(self) -> None:
        """Nothing is read ahead."""


class Endless:
    fields = {"data": Field((3,), "float32"), "label": Field((), "int64")}
    size = 2**62

    def stream(self, first: int, count: int, step: int) -> Reading:
        return Reading(first, count, step)

    def close(self) -> None:
        """There is no file."""


class Made:
    manifest = {
        "name": "made",
        "api": ">=0.1,<0.2",
        "roles": {"data_source": {"priority": 60, "kinds": ["made"]}},
    }

    @staticmethod
    @hookimpl
    def data_source(spec: DataSpec) -> DataSource | None:
        return Endless() if spec.source == "made:" else None


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runtime]:
    monkeypatch.chdir(tmp_path)
    Path("net.prototxt").write_text(NET)
    Path("solver.prototxt").write_text(SOLVER)
    with demitasse.compose(plugins=["+reference", Made]) as made:
        yield made


def test_layers_stay_as_they_are_by_overrides(runtime: Runtime) -> None:
    frozen = {"layer.ip1.param.0.lr_mult": 0, "layer.ip1.param.1.lr_mult": 0}
    trainer = runtime.trainer("solver.prototxt", overrides=frozen)
    before = {layer: [a.copy() for a in arrays] for layer, arrays in trainer.net.params.items()}
    trainer.step(3)
    same: dict[str, Any] = {
        layer: [np.array_equal(a, b) for a, b in zip(arrays, before[layer], strict=True)]
        for layer, arrays in trainer.net.params.items()
    }
    assert same == {"ip1": [True, True], "ip2": [False, False]}
    assert not [e for e in trainer.plan.entries if e.layer == "ip1" and e.phase == "backward"]


def test_what_a_trainer_will_take_is_known_before_it_is_made(runtime: Runtime) -> None:
    expected = runtime.simulate("solver.prototxt", samples={"data": (3,), "label": ()}).memory
    plan = runtime.trainer("solver.prototxt").plan
    assert (expected["arena"], expected["parameters"]) == (plan.arena_bytes, plan.parameters * 4)


def test_samples_without_an_end_are_trained_on(runtime: Runtime) -> None:
    assert runtime.trainer("solver.prototxt").run().iteration == 10
