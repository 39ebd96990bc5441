"""Winograd's convolution with fixed weights, which are transformed once and kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from winograd_problems import (
    BFLOAT16,
    INTEGERS,
    ROUNDING,
    Problem,
    ask,
    check_sums,
    compute,
    defined,
    is_kept,
    needs_products_of_pairs,
    packed,
    random_problem,
    stored,
)

from demitasse import PLAIN, Layout, Place, Request, TensorSpec
from demitasse.operations import VOCABULARY
from demitasse_cpu.kernels import candidates, winograd, winograd_integers, winograd_kept

pytestmark = pytest.mark.usefixtures("however_few_channels")


def kept_forward(
    problem: Problem,
    threads: int = 2,
    biased: bool = True,
    fixed: bool = True,
    precision: str = "bf16",
    **options: Any,
) -> Any:
    """Return what a net computes that only runs forward or, unless ``fixed``, any other net."""
    x, w, b, dy, attributes = problem
    operands = [x, w, b if biased else None]
    request = ask("convolution", operands, [dy], attributes, threads, precision, fixed)
    (candidate,) = winograd.forward(request, **options)
    assert is_kept(candidate.input_layouts[1]) == fixed
    (y,) = compute(request, operands, **options)
    return y


def check_kept(
    problem: Problem, threads: int, biased: bool, relu: bool, precision: str = "bf16"
) -> None:
    problem = stored(problem) if precision == "bf16" else problem
    x, w, b, dy, attributes = problem
    y = kept_forward(problem, threads, biased, precision=precision, relu=relu)
    expected = defined((x, w, b * biased, dy, attributes))[0]
    expected = np.maximum(expected, 0) if relu else expected
    terms = w.shape[1] * w.shape[2] * w.shape[3]
    rounding, step = (INTEGERS, 2.0**-8) if precision == "bf16" else (ROUNDING, 0)
    check_sums(y, expected, terms, w.shape[2], rounding, step)
    request = ask("convolution", [x, w, None], [dy], attributes, threads, precision, True)
    if "F(4x4" in kernel_of(request):
        same = kept_forward(problem, threads, biased, fixed=False, precision=precision, relu=relu)
        assert y.tobytes() == same.tobytes(), "another kernel transforms the same weights itself"


def kernel_of(request: Request) -> str:
    """Return the name of the kernel that keeps weights, or "" if there is none."""
    kernels = winograd.forward(request)
    return next((each.kernel for each in kernels if is_kept(each.input_layouts[1])), "")


PRECISIONS = ["f32", pytest.param("bf16", marks=needs_products_of_pairs)]


WINDOWS = pytest.mark.parametrize(
    ("precision", "taps"),
    [
        ("f32", 3),
        ("f32", 5),
        pytest.param("bf16", 3, marks=needs_products_of_pairs),
        pytest.param("bf16", 5, marks=[needs_products_of_pairs, pytest.mark.slow]),
    ],
)
"""Compiling this takes half a minute, so it is left to the slow tests."""


@WINDOWS
@settings(max_examples=examples(30))
@given(
    seed=st.integers(0, 99),
    channels=st.sampled_from([1, 3, 10, 16, 50, 64, 97, 130]),
    outputs=st.sampled_from([1, 3, 10, 20, 32, 50, 97, 130]),
    images=st.one_of(
        st.tuples(st.integers(1, 3), st.tuples(st.integers(9, 20), st.integers(9, 20))),
        st.tuples(st.integers(8, 12), st.tuples(st.integers(1, 8), st.integers(1, 8))),
        st.tuples(st.integers(1, 4), st.tuples(st.integers(3, 8), st.integers(3, 8))),
    ),
    pad=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    threads=st.sampled_from([1, 2, 5]),
    biased=st.booleans(),
    relu=st.booleans(),
)
def test_any_geometry_with_kept_weights(
    precision: str,
    taps: int,
    images: tuple[int, tuple[int, int]],
    threads: int,
    biased: bool,
    relu: bool,
    **numbers: Any,
) -> None:
    samples, result = images
    problem = random_problem(samples=samples, result=result, taps=taps, **numbers)
    x, w, _, dy, attributes = problem
    request = ask("convolution", [x, w, None], [dy], attributes, threads, precision, True)
    assume(kernel_of(request))
    check_kept(problem, threads, biased, relu, precision)


@WINDOWS
@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize(
    ("channels", "samples"),
    [((97, 130), 2), ((130, 97), 3), ((257, 64), 2), ((64, 257), 1), ((288, 352), 1)],
)
def test_kept_weights_of_many_channels(
    channels: tuple[int, int], samples: int, taps: int, threads: int, precision: str
) -> None:
    """More than 128 channels, whose products are summed as integers; more than a panel, and than a cache
    keeps; few tiles, for which panels are divided among threads, and more."""
    problem = random_problem(2, samples, *channels, result=(14, 13), taps=taps)
    check_kept(problem, threads, biased=True, relu=threads == 2, precision=precision)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize(
    ("channels", "samples", "result"),
    [((97, 130), 1, (7, 7)), ((257, 64), 2, (5, 6)), ((64, 257), 3, (3, 5)), ((288, 352), 1, (6, 9))],
)
def test_kept_weights_of_few_tiles(
    channels: tuple[int, int], samples: int, result: tuple[int, int], threads: int, precision: str
) -> None:
    """These tiles are smaller, so more of them use the weights."""
    problem = random_problem(2, samples, *channels, result=result)
    x, w, _, dy, attributes = problem
    request = ask("convolution", [x, w, None], [dy], attributes, threads, precision, True)
    assert "F(2x2, 3x3)" in kernel_of(request)
    check_kept(problem, threads, biased=True, relu=threads == 2, precision=precision)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("outputs", "samples"), [(64, 1), (128, 1), (64, 5)])
def test_kept_weights_of_groups(outputs: int, samples: int, precision: str) -> None:
    """Their outputs fill whole panels, so that each group's weights begin with a panel."""
    problem = random_problem(4, samples, 20, outputs, result=(13, 14), groups=3)
    check_kept(problem, 2, biased=True, relu=False, precision=precision)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("channels", [(20, 24), (257, 130)])
@pytest.mark.parametrize("samples", [1, 3])
def test_kept_weights_and_results_do_not_depend_on_the_number_of_threads(
    channels: tuple[int, int], samples: int, precision: str
) -> None:
    problem = stored(random_problem(3, samples, *channels, result=(10, 14)))
    x, w, _, dy, attributes = problem
    request = ask("convolution", [x, w, None], [dy], attributes, 1, precision, True)
    (candidate,) = winograd.forward(request)
    layout = candidate.input_layouts[1]
    alone = kept_forward(problem, 1, precision=precision).tobytes()
    for threads in (2, 5):
        assert alone == kept_forward(problem, threads, precision=precision).tobytes()
        one, more = (packed(w, layout, count, precision) for count in (1, threads))
        assert one.tobytes() == more.tobytes()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("none", [np.nan, np.inf])
def test_kept_weights_that_are_no_numbers_stay_so(none: float, precision: str) -> None:
    x, w, b, dy, attributes = stored(random_problem(5, 2, 20, 40, (9, 11)))
    w[7, 3, 1, 1] = none
    y = kept_forward((x, w, b, dy, attributes), precision=precision)
    assert not np.isfinite(y[:, 7]).any()
    assert np.isfinite(np.delete(y, 7, axis=1)).all()


@needs_products_of_pairs
def test_weights_are_kept_where_they_are_fixed_and_enough_tiles_use_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def form(
        result: tuple[int, int],
        groups: int = 1,
        fixed: bool = True,
        precision: str = "bf16",
        samples: int = 1,
        taps: int = 3,
    ) -> str:
        x, w, b, dy, attributes = random_problem(1, samples, 16, 32, result, groups=groups, taps=taps)
        request = ask("convolution", [x, w, b], [dy], attributes, 2, precision, fixed)
        return kernel_of(request).removeprefix("Winograd ").removesuffix(", int16")

    eight, seven, two = (8, 16), (4, 28), (2, 8)
    for precision in ("f32", "bf16"):
        assert form(eight, precision=precision) == "F(4x4, 3x3)"
        assert form(seven, precision=precision) == "F(2x2, 3x3)"
        assert form(two, precision=precision) == "", "four tiles of 2 x 2"
        assert form(eight, precision=precision, taps=5) == "F(4x4, 5x5)"
        assert form(seven, precision=precision, taps=5) == ""
        assert form(eight, precision=precision, groups=2) == ""
        assert form(eight, precision=precision, fixed=False) == ""
    assert form((64, 64), precision="f32") == "F(4x4, 3x3)"
    assert form((64, 64), precision="f32", samples=2) == "", "as long as to transform them first"
    assert form((64, 64), samples=2) == "F(4x4, 3x3)"
    for module in (winograd_kept, winograd_integers):
        monkeypatch.setattr(module, "are_quick", lambda: False)
    assert form(eight) == ""
    assert form(eight, precision="f32") == "F(4x4, 3x3)"


def weights(
    shape: tuple[int, ...],
    layout: Layout,
    dtype: str = "float32",
    given: Layout = PLAIN,
    precision: str = "bf16",
) -> Request:
    """Return a request to change weights to a layout."""
    specs = TensorSpec(shape, dtype, given), TensorSpec(shape, dtype, layout)
    about = {}, Place("test", threads=2), precision, True
    return Request(VOCABULARY["reorder"], specs[:1], specs[1:], *about)


@needs_products_of_pairs
def test_only_their_own_layout_is_made_of_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = (32, 16, 3, 3)
    x, w, b, dy, attributes = random_problem(1, 1, 16, 32, (8, 16))
    assert w.shape == shape
    (candidate,) = winograd.forward(ask("convolution", [x, w, b], [dy], attributes, 2, "bf16", True))
    kept = candidate.input_layouts[1]
    assert list(winograd_kept.transformation(weights(shape, kept)))
    larger = Layout(kept.name, stored=f"V{int(kept.stored[1:]) + 1}")
    turned = Layout("HWIO", (2, 3, 1, 0))
    for request in (
        weights(shape, larger),
        weights(shape, Layout(kept.name, stored="V4")),
        weights(shape, Layout(kept.name, turned.order, stored=kept.stored)),
        weights(shape, BFLOAT16),
        weights(shape, PLAIN),
        weights(shape, kept, dtype="float64"),
        weights(shape[:3], kept),
        weights((32, 16, 5, 5), kept),
    ):
        assert not list(winograd_kept.transformation(request))
        if request.outputs[0].layout.stored.startswith("V"):
            assert not list(candidates(request))
    monkeypatch.setattr(winograd_kept, "are_quick", lambda: False)
    assert not list(winograd_kept.transformation(weights(shape, kept)))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("result", [(8, 16), (7, 7)])
@pytest.mark.parametrize(
    "given",
    [Layout("HWIO", (2, 3, 1, 0)), Layout("acdb64a2b", (0, 2, 3, 1), ((0, 64), (1, 2))), BFLOAT16],
)
def test_weights_that_lie_otherwise_are_kept_alike(
    given: Layout, result: tuple[int, int], precision: str
) -> None:
    """This is the layout that another layer uses which shares the parameter."""
    x, w, b, dy, attributes = random_problem(1, 1, 18, 40, result)
    w = BFLOAT16.unpack(BFLOAT16.pack(w), w.shape)
    (forward,) = winograd.forward(ask("convolution", [x, w, b], [dy], attributes, 2, precision, True))
    kept, found = forward.input_layouts[1], []
    for layout in (PLAIN, given):
        (candidate,) = candidates(weights(w.shape, kept, given=layout, precision=precision))
        target = np.zeros(kept.physical(w.shape), kept.stored)
        room = np.full(candidate.workspace + 64, 255, np.uint8)
        start = -room.ctypes.data % 64
        candidate.bind([layout.pack(w)], [target], room[start : start + candidate.workspace])()
        found.append(target.tobytes())
    assert found[0] == found[1]
    assert any(found[0])
