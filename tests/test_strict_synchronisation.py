"""Steps keep to what a synchronisation is promised, and no more: one that spoils whatever nobody should
look at trains as any other does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import cv2
import numpy as np
import pytest
from small_nets import WORKERS

import demitasse.planning
from demitasse import (
    Bucket,
    FlatMemory,
    GradientSync,
    Group,
    NetDefinition,
    NumericsError,
    Span,
    Team,
    Work,
    compose,
)
from demitasse_caffe.operations.update import OPERATIONS
from demitasse_training.reading import Reading

FAR = 1e30
"""What a parameter never is. It is finite, as trainers look whether parameters are."""


class Board:
    """The parameters as they are, and the sums of gradients: nowhere in a worker's memory."""

    def __init__(self) -> None:
        self.parameters: np.ndarray[Any, Any] = np.empty(0)
        self.sums: np.ndarray[Any, Any] = np.empty(0)
        self.leads = False


BOARDS: WeakKeyDictionary[Team, Board] = WeakKeyDictionary()


class Strict(GradientSync):
    """Threads whose parameters are FAR from the moment when a bucket's gradients are final until they
    are first read, and whose gradients are NaN but for the time from their first write to then. The
    first of them owns everything, and updates parameters that are nobody's."""

    joined = False
    meanwhile: Callable[[Bucket], None] | None = None
    """Reads the next samples as soon as it may."""

    def __init__(self, group: Group) -> None:
        assert group.team is not None
        self.team, self.index, self.size = group.team, group.index, group.team.size
        self.board = BOARDS.setdefault(group.team, Board())
        self.waited = 0

    def bind(self, memory: FlatMemory) -> None:
        self.memory, count = memory, memory.gradients.size
        self.real = np.zeros(count, bool)
        for slot in memory.slots:
            inside = slot.spec.layout.pack(np.ones(slot.spec.shape, memory.gradients.dtype))
            self.real[slot.span.start : slot.span.start + inside.size] = inside.ravel() != 0
        if self.index == 0:
            self.board.parameters = np.empty(count, memory.parameters.dtype)
            self.board.sums = np.zeros_like(self.board.parameters)

    def update_memory(self, memory: FlatMemory) -> FlatMemory:
        return FlatMemory(self.board.parameters, self.board.sums, memory.state, memory.numbers)

    def owned(self, span: Span) -> Span:
        return span if self.index == 0 else Span(span.start, span.start)

    def total(self, mine: Any, total: Any) -> Work | None:
        return None  # who owns all has measured all

    def begin(self) -> Work:
        def spoil() -> None:
            if self.index == 0 and not self.board.leads:
                self.board.parameters[:] = self.memory.parameters[: self.real.size]
                self.board.leads = True
            self.team.barrier.wait()
            self._spoil(Span(0, self.real.size))

        return spoil

    def before_forward(self, bucket: Bucket) -> Work:
        part = slice(bucket.span.start, bucket.span.stop)

        def come() -> None:
            self.memory.parameters[part] = self.board.parameters[part]
            self.waited += 1

        return come

    def reduce(self, bucket: Bucket, span: Span) -> Work:
        part, team, board = slice(span.start, span.stop), self.team, self.board

        def add() -> None:
            if self.meanwhile is not None:
                self.meanwhile(bucket)
            team.barrier.wait()
            if self.index == 0:
                board.sums[part] = np.sum([each.gradients[part] for each in team.memory], axis=0)
            team.barrier.wait()
            self._spoil(span)

        return add

    def quiesce(self) -> None:
        """A test looks at each worker's parameters."""
        if self.board.leads and self.index == 0:
            for memory in self.team.memory:
                memory.parameters[: self.real.size] = self.board.parameters
            self.board.leads = False

    def _spoil(self, span: Span) -> None:
        part = slice(span.start, span.stop)
        self.memory.parameters[part][self.real[part]] = FAR
        self.memory.gradients[part][self.real[part]] = np.nan


def strict(toy: ModuleType) -> Any:
    def gradient_sync(group: Group) -> GradientSync:
        return Strict(group)

    return toy.plugin("strict", gradient_sync=gradient_sync)


def sizes(toy: ModuleType) -> Any:
    """The word that measures gradients, which an update needs that clips them."""
    words = [word for word in OPERATIONS if word.name == "squares"]
    return toy.plugin("sizes", operations=lambda: words)


def branching(toy: ModuleType, *, phase: str = "train") -> NetDefinition:
    """Shared and frozen parameters, memory in place, two losses."""
    last = "loss SoftmaxLoss" if phase == "train" else "accuracy Accuracy"
    name, kind = last.split()
    return toy.net(  # type: ignore[no-any-return]
        toy.layer("samples", "Samples", "", "data label", batch=8),
        toy.layer("first", "Convolution", "data", "first", outputs=4),
        toy.layer("rectified", "ReLU", "first", "first"),
        toy.layer("second", "Convolution", "first", "second", outputs=4, share="both"),
        toy.layer("frozen", "Convolution", "second", "frozen", outputs=4, rate=0.0),
        toy.layer("third", "Convolution", "frozen", "third", outputs=4, share="both"),
        toy.layer("sum", "Sum", "third first", "sum"),
        *(
            (
                toy.layer("side", "InnerProduct", "second", "side", outputs=3),
                toy.layer("side loss", "SoftmaxLoss", "side label", "beside"),
            )
            if phase == "train"
            else ()
        ),
        toy.layer("scores", "InnerProduct", "sum", "scores", outputs=3),
        toy.layer(name, kind, "scores label", name),
        phase=phase,
    )


def trained(toy: ModuleType, sync: str, **solver: Any) -> tuple[list[float], dict[str, Any], Any]:
    """Losses of some steps with a test in between, the parameters then, and the scores."""
    plugins = [strict(toy), sizes(toy), "reference", "training", toy.toy()]
    with compose(toy.machine(2, sync=[sync]), plugins) as runtime:
        record = toy.solver(branching(toy), branching(toy, phase="test"), rate=0.05, **solver)
        trainer: Any = runtime.trainer(record, precision="f64")
        losses = [trainer.step(1).loss for _ in range(3)]
        scores = trainer.test()
        losses += [trainer.step(2).loss, trainer.step(3).loss]
        scores = [scores, trainer.test()]
        parameters = {
            f"{name} {i}": np.array(array)
            for name, arrays in trainer.net.params.items()
            for i, array in enumerate(arrays)
        }
    return losses, parameters, scores


SOLVERS = ({}, {"passes": 2}, {"clip": 0.05}, {"passes": 2, "clip": 0.05})


@pytest.mark.parametrize("solver", SOLVERS, ids=["plain", "two passes", "clipped", "both"])
def test_nobody_looks_at_what_a_synchronisation_has_in_its_hands(
    toy: ModuleType, solver: dict[str, Any]
) -> None:
    losses, parameters, scores = trained(toy, "strict", **solver)
    expected = trained(toy, "reference", **solver)
    assert np.allclose(losses, expected[0], rtol=1e-12)
    assert scores == expected[2]
    for name, array in expected[1].items():
        assert np.allclose(parameters[name], array, rtol=1e-9, atol=1e-12), name


# With the kernels that users have.

SAMPLES = """
layer { name: "data" type: "Data" top: "data" top: "label" data_param { source: "given" batch_size: 8 } }
"""
IMAGES = """
layer { name: "data" type: "ImageData" top: "data" top: "label" transform_param { scale: 0.01 }
  image_data_param { source: "list.txt" batch_size: 1 } }
"""
LAYERS = """
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 8 kernel_size: 3 weight_filler { type: "gaussian" std: 0.2 } } }
layer { name: "norm" type: "BatchNorm" bottom: "conv" top: "conv" }
layer { name: "scale" type: "Scale" bottom: "conv" top: "conv" scale_param { bias_term: true } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "one" type: "Convolution" bottom: "conv" top: "one" param { name: "w" } param { name: "b" }
  convolution_param { num_output: 8 kernel_size: 1 weight_filler { type: "gaussian" std: 0.2 } } }
layer { name: "two" type: "Convolution" bottom: "one" top: "two" param { name: "w" } param { name: "b" }
  convolution_param { num_output: 8 kernel_size: 1 } }
layer { name: "sum" type: "Eltwise" bottom: "conv" bottom: "two" top: "sum" }
layer { name: "mean" type: "Pooling" bottom: "sum" top: "mean"
  pooling_param { pool: AVE global_pooling: true } }
layer { name: "ip" type: "InnerProduct" bottom: "mean" top: "ip"
  inner_product_param { num_output: 3 weight_filler { type: "gaussian" std: 0.5 } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""


@pytest.mark.parametrize("more", ["", "iter_size: 2", "clip_gradients: 0.1"])
@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("samples", [SAMPLES, IMAGES], ids=["of one size", "of sizes of their own"])
def test_nobody_does_with_the_kernels_that_users_have(
    toy: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    samples: str,
    precision: str,
    more: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    dice = np.random.default_rng(3)
    for number, size in enumerate([(9, 12), (12, 9), (9, 12), (15, 15), (8, 20), (9, 9)]):
        cv2.imwrite(f"{number}.png", dice.integers(0, 256, (*size, 3), np.uint8))
    Path("list.txt").write_text("".join(f"{number}.png {number % 3}\n" for number in range(6)))
    Path("net.prototxt").write_text(samples + LAYERS)
    Path("solver.prototxt").write_text(
        f'net: "net.prototxt" base_lr: 0.5 lr_policy: "fixed" max_iter: 9 {more}'
    )
    given = {"data": dice.normal(size=(40, 3, 10, 10)).astype("f4"), "label": np.arange(40) % 3}
    data = {} if samples is IMAGES else {"data": {"train": given}, "scaling": "strong"}
    options = {"precision": precision, "scaling": "weak", **data}
    found = []
    for sync in ("strict", "reference"):
        plugins = [strict(toy), "caffe", "training", "datasets", "cpu", "reference"]
        Path("hw.toml").write_text(WORKERS.format(count=2).replace("reference", sync))
        with compose("hw.toml", plugins) as runtime:
            trainer: Any = runtime.trainer("solver.prototxt", **options)
            found.append([trainer.step(count).loss for count in (1, 1, 2, 3)])
    assert found[0] == pytest.approx(found[1], rel=1e-4)


# Plans that are wrong, and steps.


def test_samples_that_are_read_too_early_are_found_out(
    toy: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over those that a gradient of weights is still to be made of."""
    expected, *_ = trained(toy, "reference")
    monkeypatch.setattr(Reading, "_last_look", -1)
    losses, *_ = trained(toy, "strict")
    assert losses[:3] == pytest.approx(expected[:3], rel=1e-12), "a step at a time"
    assert losses[3:] != pytest.approx(expected[3:], rel=1e-6)


def early(original: Callable[..., Any]) -> Callable[..., Any]:
    def uses(self: Any, groups: Any) -> Any:
        """Each bucket's parameters are given away before the last entry that has a part in it."""
        return [(sorted(entries)[:-1], made) for entries, made in original(self, groups)]

    return uses


def late(original: Callable[..., Any]) -> Callable[..., Any]:
    def uses(self: Any, groups: Any) -> Any:
        """Each bucket is waited for when it has been read already."""
        return [([i for i in e if i > min(e)], made) for e, made in original(self, groups)]

    return uses


@pytest.mark.parametrize("wrong", [early, late])
def test_a_plan_that_gives_away_too_early_or_waits_too_late_is_found_out(
    toy: ModuleType, monkeypatch: pytest.MonkeyPatch, wrong: Any
) -> None:
    planner: Any = demitasse.planning._Planner
    expected = trained(toy, "reference")
    monkeypatch.setattr(planner, "_uses", wrong(planner._uses))
    try:
        losses, parameters, _ = trained(toy, "strict")
    except NumericsError:
        return
    same = all(np.allclose(parameters[k], v, rtol=1e-9) for k, v in expected[1].items())
    assert not (same and np.allclose(losses, expected[0]))
