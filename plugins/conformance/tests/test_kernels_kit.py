"""The kit finds each way in which a kernel can be wrong, and passes correct ones."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mish
import numpy as np
import pytest
from remote_memory import Giver, kernels_inside

import demitasse
from demitasse import Candidate, Layout, Request
from demitasse_conformance import BrokenPromiseError, check_kernels
from demitasse_conformance.computing import shared_batches, updates
from demitasse_conformance.inquiry import Inquiry

PRODUCT = (
    'layer { name: "p" type: "InnerProduct" bottom: "x" top: "y" inner_product_param { num_output: 2 } }'
)
NORMALISED = 'layer { name: "n" type: "LRN" bottom: "x" top: "y" lrn_param { alpha: 0.1 } }'
CLASSES = """
layer { name: "l" type: "Input" top: "label" input_param { shape { dim: 6 } } }
layer { name: "s" type: "SoftmaxWithLoss" bottom: "x" bottom: "label" top: "y" }
"""


def odd(work: Callable[[Any, Any, Callable[[], None]], Any], **more: Any) -> Candidate:
    """Return a kernel that does ``work`` on its input and output; it also receives the right work."""

    def bind(inputs: Any, outputs: Any, workspace: Any) -> Callable[[], None]:
        right = mish.forward(inputs, outputs, workspace)
        return lambda: work(inputs[0], outputs[0], right)

    return Candidate("odd", bind, **more)


def scribble(array: Any, at: int) -> None:
    """Write to a byte beside an array."""
    ctypes.memset(array.ctypes.data + at, 0, 1)


def check(candidate: Candidate, precision: str = "f64", layer: str = mish.LAYER) -> list[str]:
    return check_kernels(
        [*mish.BASE, mish.Mish(mish=candidate)], "mish", layer, (2, 5), precision=precision
    )


@pytest.mark.parametrize("precision", ["f64", "f32", "tf32", "bf16"])
def test_right_kernels_are_right_in_every_precision(precision: str) -> None:
    tried = check_kernels([*mish.BASE, mish.Mish()], "mish", mish.BEHIND, (2, 5), precision=precision)
    assert tried == ["NumPy of mish", "NumPy of mish_backward"]


@pytest.mark.parametrize("precision", ["f64", "bf16"])
@pytest.mark.parametrize(
    ("work", "told"),
    [
        (lambda x, y, right: None, "in y 10 of 10 numbers differ from its own in f64: .* is nan"),
        (
            lambda x, y, right: (right(), y[1:].fill(np.nan)),
            "in y 5 of 10 numbers differ from its own in f64: .* is nan",
        ),
        (lambda x, y, right: (right(), scribble(y, y.nbytes)), "writes beside an array"),
        (lambda x, y, right: (right(), scribble(y, -1)), "writes beside an array"),
        (lambda x, y, right: (right(), x.fill(0)), "writes to an input"),
        (lambda x, y, right: np.copyto(y, x / 0), "raised FloatingPointError"),
    ],
    ids=["nothing", "not all", "behind", "before", "input", "error"],
)
def test_what_a_kernel_must_not_do_is_found(work: Any, told: str, precision: str) -> None:
    def strict(x: Any, y: Any, right: Callable[[], None]) -> None:
        with np.errstate(divide="raise", invalid="raise"):
            work(x, y, right)

    with pytest.raises(BrokenPromiseError, match=f"kernel 'odd' of mish in {precision}: .*{told}"):
        check(odd(strict), precision)


@pytest.mark.parametrize("precision", ["f64", "f32", "tf32", "bf16"])
def test_numbers_that_are_wrong_by_little_are_found(precision: str) -> None:
    """The numbers are wrong by ten times the rounding errors."""
    wrong = {"f64": 1e-7, "f32": 3e-3, "tf32": 0.05, "bf16": 0.2}[precision]
    relu = 'layer { name: "m" type: "ReLU" bottom: "x" top: "y" }'
    taken: list[str] = []

    class Nearly:
        manifest = {"name": "nearly", "api": ">=0.1,<0.2", "roles": {"kernels": {}}}

        @demitasse.hookimpl
        def kernels(self, request: Request) -> list[Candidate]:
            if request.operation.name != "relu":
                return []
            taken.append(request.precision)
            return [Candidate("relu", self.bind)]

        def bind(self, inputs: Any, outputs: Any, workspace: Any) -> Callable[[], None]:
            return lambda: np.maximum(inputs[0] * (1 + wrong), 0, out=outputs[0])

    with pytest.raises(BrokenPromiseError, match=r"in y \d of 10 numbers differ from the reference's"):
        check_kernels([*mish.BASE, Nearly()], "nearly", relu, (2, 5), precision=precision)
    assert precision in taken


def test_what_was_there_when_it_was_bound_is_not_what_is_computed() -> None:
    def bind(inputs: Any, outputs: Any, workspace: Any) -> Callable[[], None]:
        return mish.forward([inputs[0].copy()], outputs, workspace)

    with pytest.raises(BrokenPromiseError, match="in y 10 of 10 numbers differ"):
        check(Candidate("odd", bind))


def test_the_step_before_is_not_what_is_given() -> None:
    def bind(inputs: Any, outputs: Any, workspace: Any) -> Callable[[], None]:
        made = np.zeros(outputs[0].shape)
        right = mish.forward(inputs, [made], workspace)

        def work() -> None:
            outputs[0][...] = made
            right()

        return work

    with pytest.raises(BrokenPromiseError, match="in y 10 of 10 numbers differ"):
        check(Candidate("odd", bind))


@pytest.mark.parametrize("precision", ["f64", "f32", "bf16"])
def test_what_is_left_in_a_workspace_is_no_number(precision: str) -> None:
    def bind(inputs: Any, outputs: Any, workspace: Any) -> Callable[[], None]:
        right = mish.forward(inputs, outputs, workspace)

        def work() -> None:
            right()
            outputs[0][0, 0] += workspace.view(outputs[0].dtype)[0]

        return work

    with pytest.raises(BrokenPromiseError, match=r"in y 1 of 10 .* that at \[0, 0\] is nan"):
        check(Candidate("odd", bind, workspace=64), precision)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_kernel_of_ones_own_is_compared_with_itself_in_double_precision(threads: int) -> None:
    class Odd(mish.Mish):
        @demitasse.hookimpl
        def kernels(self, request: Request) -> list[Candidate]:
            offered = super().kernels(request=request)
            wrong = request.place.threads == threads and request.precision == "f32"
            if wrong and request.operation.name == "mish_backward":
                return [replace(each, bind=lambda i, o, w: _zeroed(o)) for each in offered]
            return offered

    with pytest.raises(BrokenPromiseError, match=r"in dx 10 of 10 numbers differ from its own in f64"):
        check_kernels([*mish.BASE, Odd()], "mish", mish.LAYER, (2, 5), precision="f32")


@pytest.mark.parametrize("precision", ["f64", "bf16"])
def test_a_kernel_alone_that_reads_beside_an_array_is_found(precision: str) -> None:
    """Its own kernel in double precision, with which it is compared, reads the same NaN."""

    def bind(inputs: Any, outputs: Any, workspace: Any) -> Callable[[], None]:
        right, (x, *_), (y,) = mish.forward(inputs, outputs, workspace), inputs, outputs
        wide = np.lib.stride_tricks.as_strided(x.reshape(-1), (x.size + 1,), x.strides[-1:])
        return lambda: (right(), y.reshape(-1)[:1].fill(wide[-1]))  # type: ignore[func-returns-value]

    class Alone(mish.Mish):
        @demitasse.hookimpl
        def kernels(self, request: Request) -> list[Candidate]:
            offered = super().kernels(request=request)
            return [Candidate("odd", bind)] if request.operation.name == "mish" else offered

    told = "kernel 'odd' of mish in .*: y has numbers that are not finite"
    with pytest.raises(BrokenPromiseError, match=told):
        check_kernels([*mish.BASE, Alone()], "mish", mish.LAYER, (2, 5), precision=precision)


UPDATES = {
    "decay": {"decay": 0.0},
    "momentum": {"momentum": 0.0},
    "regularization": {"regularization": "L2"},
    "delta": {"delta": 1e-8},
    "segments": {"segments": ((0, 74, 1.0, 1.0),)},
}


@pytest.mark.parametrize("ignored", UPDATES)
def test_what_an_update_ignores_is_found(ignored: str) -> None:
    class Odd:
        manifest = {"name": "odd", "api": ">=0.1,<0.2", "roles": {"kernels": {"spaces": ["host"]}}}

        @demitasse.hookimpl
        def kernels(self, request: Request) -> Any:
            from demitasse_reference import plugin as reference

            if request.operation.family != "update" or ignored not in request.attributes:
                return []
            attributes = {**request.attributes, **UPDATES[ignored]}
            return reference.kernels(request=replace(request, attributes=attributes))

    asked = Inquiry("odd", ("odd", *mish.BASE), precisions=("f32",))
    with demitasse.compose("auto", [Odd(), *mish.BASE]) as runtime:
        told = {trial.operation: trial.wrong for trial in updates(runtime, asked, "f32") if trial.wrong}
    having = {"momentum": {"momentum_update", "nesterov_update", "lars_update", "adam_update"}}
    expected = having.get(ignored, set(told))
    assert expected and expected <= set(told)
    of_layers = {"lars_update", "larc_update"}  # which are given a number for each segment
    assert all("differ from the reference's" in told[each] for each in expected - of_layers)


STATISTICS: dict[str, Callable[[Any], Any]] = {
    "channel_moments": lambda values: np.array([*values[:-1], 1.0]),  # how many there are
    "settle_moments": lambda values: values,
    "batch_norm_whole_backward": lambda values: -values,
    "count_labels": lambda values: values + 1,
    "over_divisor": lambda values: 4 * values,
}


@pytest.mark.parametrize("precision", ["f64", "f32"])
@pytest.mark.parametrize("wrong", ["", *STATISTICS])
def test_statistics_that_workers_share_are_compared(wrong: str, precision: str) -> None:
    """A kernel whose first output is another than the reference's is found."""

    class Odd:
        manifest = {"name": "odd", "api": ">=0.1,<0.2", "roles": {"kernels": {"spaces": ["host"]}}}

        @demitasse.hookimpl
        def kernels(self, request: Request) -> Any:
            from demitasse_reference import plugin as reference

            if request.operation.name not in STATISTICS:
                return []
            (right,) = reference.kernels(request=request)

            def bind(inputs: Any, outputs: Any, workspace: Any) -> Callable[[], None]:
                work, change = right.bind(inputs, outputs, workspace), STATISTICS.get(wrong)

                def run() -> None:
                    work()
                    if request.operation.name == wrong == "settle_moments":
                        inputs[1][...] += 1
                    elif request.operation.name == wrong and change is not None:
                        outputs[0][...] = change(outputs[0].copy())

                return run

            return [Candidate("odd", bind)]

    asked = Inquiry("odd", ("odd", *mish.BASE), precisions=(precision,))
    with demitasse.compose("auto", [Odd(), *mish.BASE]) as runtime:
        trials = list(shared_batches(runtime, asked, precision))
    assert {trial.operation for trial in trials} == set(STATISTICS)
    assert not any(trial.untried for trial in trials)
    assert {trial.operation for trial in trials if trial.wrong} == ({wrong} if wrong else set())


def test_a_workspace_has_an_end() -> None:
    def bind(inputs: Any, outputs: Any, workspace: Any) -> Callable[[], None]:
        right = mish.forward(inputs, outputs, None)
        return lambda: (right(), scribble(workspace, 24))[0]

    with pytest.raises(BrokenPromiseError, match="writes beside its workspace of 24 bytes"):
        check(Candidate("odd", bind, workspace=24))


def test_a_kernel_is_bound_more_than_once() -> None:
    bound: list[Any] = []

    def bind(inputs: Any, outputs: Any, workspace: Any) -> Callable[[], None]:
        bound.append((inputs, outputs))  # and always computes on the arrays to which it was bound first
        return mish.forward(*bound[0], workspace)

    with pytest.raises(BrokenPromiseError, match="bound again, in y 10 of 10 numbers differ"):
        check(Candidate("odd", bind))


def test_working_in_place_is_tried_where_it_is_promised() -> None:
    def work(x: Any, y: Any, right: Callable[[], None]) -> None:
        y[...] = 0  # which is x
        right()

    with pytest.raises(BrokenPromiseError, match=r"y in the memory of x \(in_place is true\): "):
        check(odd(work))
    assert "odd of mish" in check(odd(work, in_place=False))


@pytest.mark.parametrize("right", [True, False])
def test_parts_are_those_of_the_whole(right: bool) -> None:
    def part(number: int, inputs: Any, outputs: Any, workspace: Any) -> Callable[[], None]:
        x, y = inputs[0], np.empty(inputs[0].shape)
        work, count = mish.forward([x], [y], workspace), outputs[0].size
        number = number if right else 0

        def run() -> None:
            work()
            outputs[0][...] = y.reshape(-1)[number * count : (number + 1) * count]

        return run

    candidate = Candidate("odd", mish.forward, parts=5, bind_part=part)
    if right:
        assert "odd of mish" in check(candidate)
        return
    with pytest.raises(BrokenPromiseError, match="part 1 of 5 differs from that part of the whole"):
        check(candidate)


def test_what_a_candidate_says_is_checked_first() -> None:
    with pytest.raises(demitasse.PluginError, match=r"workspace = -1 \(valid: a number of bytes"):
        check(Candidate("odd", mish.forward, workspace=-1))


def test_candidates_are_given_the_layouts_that_they_ask_for() -> None:
    turned = Layout("turned", (1, 0))

    def bind(inputs: Any, outputs: Any, workspace: Any) -> Callable[[], None]:
        assert inputs[0].shape == (5, 2)
        return mish.forward(inputs, outputs, workspace)

    layouts: Any = {"input_layouts": (turned,), "output_layouts": (turned,)}
    assert "odd of mish" in check(Candidate("odd", bind, **layouts))


@pytest.mark.parametrize("plain", [True, False])
def test_kernels_are_asked_for_as_a_plan_of_bf16_does(plain: bool) -> None:
    """A tensor as it lies in bf16 takes half of the workspace that it takes as the kernel receives
    it."""

    def bind(inputs: Any, outputs: Any, workspace: Any) -> Callable[[], None]:
        between = workspace.view(inputs[0].dtype).reshape(inputs[0].shape)
        right = mish.forward(inputs, [between], None)
        return lambda: (right(), np.copyto(outputs[0], between))[0]

    class Sized(mish.Mish):
        @demitasse.hookimpl
        def kernels(self, request: Request) -> list[Candidate]:
            x = request.inputs[-1].plain if plain else request.inputs[-1]
            offered = super().kernels(request=request)
            return [
                replace(each, bind=bind, workspace=x.nbytes) if each.bind is mish.forward else each
                for each in offered
            ]

    plugins = [*mish.BASE, Sized()]
    if plain:
        assert check_kernels(plugins, "mish", mish.BEHIND, (2, 5), precision="bf16")
        return
    with pytest.raises(BrokenPromiseError, match="raised ValueError: cannot reshape array"):
        check_kernels(plugins, "mish", mish.BEHIND, (2, 5), precision="bf16")


def test_labels_are_classes_whoever_gives_them() -> None:
    plugins = [*mish.BASE]
    assert "numpy softmax_loss of softmax_loss" in check_kernels(plugins, "reference", CLASSES, (6, 3))
    values = {"label": [0, 1, 2, 2, 1, 0]}
    assert check_kernels(plugins, "reference", CLASSES, (6, 3), values=values)
    with pytest.raises(demitasse.ModelError, match="'lable'; did you mean 'label'"):
        check_kernels(plugins, "reference", CLASSES, (6, 3), values={"lable": [0] * 6})


def test_a_plugin_that_computes_nothing_of_a_net_is_told_of() -> None:
    with pytest.raises(BrokenPromiseError, match="plugin 'mish' computes nothing of this net in f64"):
        check_kernels([*mish.BASE, mish.Mish()], "mish", PRODUCT, (2, 3))


class Npu:
    """A device: memory that a host cannot address, and the reference's kernels in it. The kernel for
    ``odd`` updates nothing, or makes only zeros."""

    manifest = {
        "name": "npu",
        "api": ">=0.1,<0.2",
        "roles": {"allocator": {"spaces": ["npu:*"]}, "kernels": {"spaces": ["npu"]}},
    }

    def __init__(self, odd: str = "") -> None:
        self.odd = odd

    @demitasse.hookimpl
    def allocator(self, space: str) -> Giver:
        return Giver(space)

    @demitasse.hookimpl
    def kernels(self, request: Request) -> list[Candidate]:
        found = kernels_inside(request)
        if request.operation.name != self.odd:
            return found
        if self.odd == "accumulate":
            return [replace(each, bind=lambda *arrays: lambda: None) for each in found]
        return [replace(each, bind=lambda i, o, w: _zeroed(o)) for each in found]


def _zeroed(outputs: Any) -> Callable[[], None]:
    def work() -> None:
        for output in filter(lambda each: each is not None, outputs):
            output[...] = 0

    return work


@pytest.mark.parametrize("precision", ["f32", "f64"])
def test_kernels_in_a_devices_memory_are_tried_with_values_that_belong_together(precision: str) -> None:
    plugins = [*mish.BASE, Npu()]
    tried = check_kernels(plugins, "npu", NORMALISED, (2, 6, 3, 4), precision=precision)
    assert [each.partition(" of ")[2] for each in tried] == [
        "lrn_across_channels",
        "lrn_across_channels_backward",
    ]


def test_what_a_kernel_updates_is_compared() -> None:
    with pytest.raises(BrokenPromiseError, match=r"of accumulate in f64: in total .* differ"):
        check_kernels([*mish.BASE, Npu("accumulate")], "npu", PRODUCT, (2, 3))


@pytest.mark.parametrize("which", ["", "_backward_data", "_backward_weights"])
def test_no_kernel_makes_zeros_unnoticed(which: str) -> None:
    """A gradient arrives even at a blob that nothing reads."""
    name = f"inner_product{which}"
    with pytest.raises(BrokenPromiseError, match=f"of {name} in f64: in d?[xyw] .* is 0, not"):
        check_kernels([*mish.BASE, Npu(name)], "npu", PRODUCT, (2, 3))
