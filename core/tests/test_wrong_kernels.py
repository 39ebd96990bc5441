"""Kernels that are wrong: errors name the layer, the plugin, the kernel and its operation."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import pytest

from demitasse import Candidate, DataError, Layout, PluginError

CHANNELS_LAST = Layout("NHWC", (0, 2, 3, 1))


def nothing() -> None:
    """A work that does nothing."""


def failing(*given: Any) -> Any:
    return {}["tile"]


class Failing:
    """A work that is a callable object rather than a function."""

    def __call__(self) -> None:
        raise IndexError("tile 9")


@pytest.fixture
def step(toy: ModuleType, train: Callable[..., Any]) -> Callable[[Candidate], None]:
    """Return ``step(candidate)``: an iteration in which it does the affine map of layer ``scores``."""

    def run(candidate: Candidate) -> None:
        def kernels(request: Any) -> Any:
            return [candidate] if request.operation.name == "inner_product" else []

        net = toy.net(
            toy.layer("samples", "Samples", "", "data label", batch=4),
            toy.layer("scores", "InnerProduct", "data", "scores", outputs=3),
            toy.layer("loss", "SoftmaxLoss", "scores label", "loss"),
        )
        train(net, kernels=[toy.plugin("stranger", kernels=kernels)]).step(1)

    return run


@pytest.mark.parametrize(
    ("layouts", "told"),
    [
        ({"input_layouts": (CHANNELS_LAST, CHANNELS_LAST, Layout("plain"))}, "input layouts NHWC, NHWC"),
        (
            {"input_layouts": (Layout("plain"),)},
            "input layouts plain .valid: one of the same rank for each",
        ),
        ({"output_layouts": (CHANNELS_LAST,)}, "output layouts NHWC"),
        ({"output_layouts": (Layout("blocked", blocks=((2, 8),)),)}, "output layouts blocked"),
        ({"output_layouts": ("NHWC",)}, "output layouts NHWC"),
    ],
    ids=["rank of an input", "count", "rank of an output", "blocks", "no layout"],
)
def test_layouts_of_another_rank_or_count_are_refused(
    step: Callable[[Candidate], None], layouts: Any, told: str
) -> None:
    who = "layer 'scores': plugin 'stranger', kernel 'mine' of inner_product: "
    with pytest.raises(PluginError, match=who + told):
        step(Candidate("mine", lambda *given: nothing, **layouts))


@pytest.mark.parametrize(
    ("bind", "told"),
    [
        (failing, "raised KeyError binding: 'tile'"),
        (lambda *given: None, "bind returned None (valid: a function without arguments)"),
        (lambda *given: failing, "raised KeyError at work: 'tile'"),
        (lambda *given: partial(failing, 1), "raised KeyError at work: 'tile'"),
        (lambda *given: Failing(), "raised IndexError at work: tile 9"),
    ],
    ids=["binding", "nothing bound", "a function", "a partial", "an object"],
)
def test_what_a_kernel_raises_names_it_and_the_layer(
    step: Callable[[Candidate], None], bind: Any, told: str
) -> None:
    with pytest.raises(PluginError) as caught:
        step(Candidate("mine", bind))
    who = "layer 'scores': plugin 'stranger', kernel 'mine' of inner_product"
    words = re.sub(r" \(tests/test_wrong_kernels\.py:\d+\)$", "", str(caught.value))
    assert words == f"{who}: {told}"
    assert ("raised" in told) == (words != str(caught.value))


@pytest.mark.parametrize("when", ["binding", "at work"])
def test_a_lack_of_memory_stays_one_and_names_them(step: Callable[[Candidate], None], when: str) -> None:
    def full(*given: Any) -> Any:
        raise MemoryError("9 bytes of scratch")

    with pytest.raises(MemoryError) as caught:
        step(Candidate("mine", full if when == "binding" else lambda *given: full))
    who = "layer 'scores': plugin 'stranger', kernel 'mine' of inner_product"
    assert str(caught.value) == f"{who}: not enough memory {when}: 9 bytes of scratch"


def test_an_error_about_samples_names_the_layer_alone(step: Callable[[Candidate], None]) -> None:
    def work() -> None:
        raise DataError("label 7 is not one of the 3 classes")

    with pytest.raises(DataError, match=r"^layer 'scores': label 7 is not one"):
        step(Candidate("mine", lambda *given: work))


class Named:
    """A work that receives its layer's name, for its errors about samples."""

    def __init__(self, error: Exception) -> None:
        self._error, self._layer = error, ""

    def named(self, layer: str) -> None:
        self._layer = layer

    def __call__(self) -> None:
        if isinstance(self._error, DataError):
            raise DataError(f"{self._layer}: {self._error}")
        raise self._error


def test_a_work_that_names_its_layer_does_so_once_and_its_faults_are_named_for_it(
    step: Callable[[Candidate], None],
) -> None:
    with pytest.raises(DataError, match=r"^scores: label 7$"):
        step(Candidate("mine", lambda *given: Named(DataError("label 7"))))
    who = "layer 'scores': plugin 'stranger', kernel 'mine' of inner_product"
    with pytest.raises(PluginError, match=f"^{who}: raised KeyError at work: 't'"):
        step(Candidate("mine", lambda *given: Named(KeyError("t"))))


def test_a_wrong_update_is_named_with_the_solver(toy: ModuleType, train: Callable[..., Any]) -> None:
    def kernels(request: Any) -> Any:
        updates = request.operation.family == "update"
        return [Candidate("mine", lambda *given: failing)] if updates else []

    trainer = train(toy.classifier(), kernels=[toy.plugin("stranger", kernels=kernels)])
    words = (
        "layer 'solver': plugin 'stranger', kernel 'mine' of momentum_update: raised KeyError at work"
    )
    with pytest.raises(PluginError, match=words):
        trainer.step(1)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"bind": None}, "bind = None (valid: a function of inputs, outputs, workspace)"),
        ({"kernel": None}, "kernel = None (valid: a string)"),
        ({"workspace": -5}, "workspace = -5 (valid: a number of bytes, 0 or more)"),
        ({"workspace": 1e3}, "workspace = 1000.0 (valid: a number of bytes, 0 or more)"),
        ({"workspace": "1 KiB"}, "workspace = '1 KiB' (valid: a number of bytes, 0 or more)"),
        ({"seconds": "1"}, "seconds = '1' (valid: seconds, 0 or more, or None)"),
        ({"seconds": True}, "seconds = True (valid: seconds, 0 or more, or None)"),
        ({"seconds": -1.0}, "seconds = -1.0 (valid: seconds, 0 or more, or None)"),
        ({"seconds": float("nan")}, "seconds = nan (valid: seconds, 0 or more, or None)"),
        ({"parts": 0}, "parts = 0 (valid: a whole number, 1 or more)"),
        ({"parts": 3}, "parts = 3 without a function bind_part; give it one"),
        (
            {"input_layouts": (Layout("half", stored="bflaot16"), Layout(""), Layout(""))},
            "input layouts half stored as bflaot16, , ",
        ),
    ],
)
def test_what_a_candidate_says_is_checked_before_it_is_planned_with(
    step: Callable[[Candidate], None], given: dict[str, Any], told: str
) -> None:
    right: dict[str, Any] = {"kernel": "direct", "bind": lambda *arrays: nothing}
    with pytest.raises(PluginError) as caught:
        step(Candidate(**right | given))
    at = f"plugin 'stranger', kernel {(right | given)['kernel']!r} of inner_product"
    assert str(caught.value).startswith(f"layer 'scores': {at}: {told}")
