"""Winograd's three passes of a 3 x 3 convolution against its definition in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demitasse import Place, Request, TensorSpec
from demitasse.operations import VOCABULARY
from demitasse_cpu.kernels import winograd

Passes = tuple[Any, Any, Any, Any]
Problem = tuple[Any, Any, Any, Any, dict[str, Any]]

ROUNDING = 2.0**-24
GROWTH = 12
"""By how much a sum's rounding errors may grow in the transforms; 5 to 8 were measured."""


def ask(
    name: str, operands: Sequence[Any], results: Sequence[Any], attributes: dict[str, Any], threads: int
) -> Request:
    """A request in plain layouts, for the shapes of arrays; None where an operand is absent."""

    def described(array: Any) -> TensorSpec | None:
        return None if array is None else TensorSpec(array.shape, array.dtype.name)

    return Request(
        VOCABULARY[name],
        tuple(map(described, operands)),
        tuple(map(described, results)),
        {**VOCABULARY[name].attributes, **attributes},
        Place("test", threads=threads),
    )


def compute(request: Request, operands: Sequence[Any], **options: Any) -> list[Any]:
    """What the kernel leaves in memory full of rubbish when it is called twice."""
    factory: Callable[..., Any] = winograd.FACTORIES[request.operation.name]
    (candidate,) = factory(request, **options)
    layouts = candidate.input_layouts
    given = [None if x is None else layout.pack(x) for x, layout in zip(operands, layouts, strict=True)]
    wanted = list(zip(request.outputs, candidate.output_layouts, strict=True))
    left = [
        None if s is None else np.full(layout.physical(s.shape), np.nan, s.dtype) for s, layout in wanted
    ]
    memory = np.full(candidate.workspace + 64, 255, np.uint8)
    start = -memory.ctypes.data % 64
    work = candidate.bind(given, left, memory[start : start + candidate.workspace])
    work()
    work()
    # The workspace is no larger than was asked for, and what lies behind it was not touched.
    assert (memory[start + candidate.workspace :] == 255).all()
    return [
        None if array is None or s is None else layout.unpack(array, s.shape)
        for array, (s, layout) in zip(left, wanted, strict=True)
    ]


def all_passes(problem: Problem, threads: int = 2) -> list[Any]:
    x, w, b, dy, attributes = problem
    data, weights = {**attributes, "shape": x.shape}, {**attributes, "shape": w.shape}
    forward = ask("convolution", [x, w, b], [dy], attributes, threads)
    to_data = ask("convolution_backward_data", [dy, w], [x], data, threads)
    to_weights = ask("convolution_backward_weights", [dy, x], [w, b], weights, threads)
    return [
        *compute(forward, [x, w, b]),
        *compute(to_data, [dy, w]),
        *compute(to_weights, [dy, x]),
    ]


def defined(problem: Problem) -> Passes:
    """y, dx, dw and db, tap by tap."""
    x, w, b, dy, attributes = problem
    x, w, b, dy = (array.astype(np.float64) for array in (x, w, b, dy))
    (top, left), groups = attributes["pad"], attributes["groups"]
    padded = np.pad(x, ((0, 0), (0, 0), (top, top), (left, left)))
    y, dx, dw = np.zeros(dy.shape), np.zeros(padded.shape), np.zeros(w.shape)
    inputs, outputs = w.shape[1], w.shape[0] // groups
    for g in range(groups):
        c, k = slice(g * inputs, (g + 1) * inputs), slice(g * outputs, (g + 1) * outputs)
        for i, j in np.ndindex(3, 3):
            window = (slice(None), c, slice(i, i + dy.shape[2]), slice(j, j + dy.shape[3]))
            taps = w[k, :, i, j]
            y[:, k] += np.einsum("nchw,kc->nkhw", padded[window], taps, optimize=True)
            dw[k, :, i, j] = np.einsum("nkhw,nchw->kc", dy[:, k], padded[window], optimize=True)
            dx[window] += np.einsum("nkhw,kc->nchw", dy[:, k], taps, optimize=True)
    dx = dx[:, :, top : top + x.shape[2], left : left + x.shape[3]]
    return y + b[:, None, None], dx, dw, dy.sum((0, 2, 3))


def random_problem(
    seed: int,
    samples: int,
    channels: int,
    outputs: int,
    result: tuple[int, int],
    pad: tuple[int, int] = (1, 1),
    groups: int = 1,
) -> Problem:
    random = np.random.default_rng(seed)
    image = [max(1, extent + 2 - 2 * p) for extent, p in zip(result, pad, strict=True)]
    result_shape = [extent + 2 * p - 2 for extent, p in zip(image, pad, strict=True)]
    shapes = (
        (samples, channels * groups, *image),
        (outputs * groups, channels, 3, 3),
        (outputs * groups,),
        (samples, outputs * groups, *result_shape),
    )
    x, w, b, dy = (random.standard_normal(shape).astype(np.float32) for shape in shapes)
    return x, w, b, dy, {"pad": pad, "groups": groups}


def check(found: Sequence[Any], problem: Problem) -> None:
    """Errors stay below what sums of so many terms of random sign make, times the growth."""
    _, w, _, dy, _ = problem
    result = dy.shape[0] * dy.shape[2] * dy.shape[3]
    terms = 9 * w.shape[1], 9 * w.shape[0], result, result
    for ours, theirs, count in zip(found, defined(problem), terms, strict=True):
        scale = max(np.sqrt(count), float(np.abs(theirs).max()))
        bound = GROWTH * ROUNDING * scale * max(4, np.log2(count))
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=bound)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 99),
    samples=st.integers(1, 4),
    channels=st.sampled_from([1, 3, 10, 16, 20, 50, 64, 70]),
    outputs=st.sampled_from([1, 3, 10, 20, 32, 50, 97]),
    result=st.tuples(st.integers(1, 14), st.integers(1, 14)),
    pad=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    groups=st.integers(1, 3),
    threads=st.integers(1, 3),
)
def test_any_geometry(threads: int, **numbers: Any) -> None:
    problem = random_problem(**numbers)
    check(all_passes(problem, threads), problem)


@pytest.mark.parametrize("channels", [(97, 97), (3, 64), (64, 3), (128, 192), (160, 48)])
def test_numbers_of_channels(channels: tuple[int, int]) -> None:
    problem = random_problem(1, 3, *channels, result=(13, 10))
    check(all_passes(problem), problem)


@pytest.mark.parametrize("samples", [1, 20])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_more_weights_than_a_cache_keeps(threads: int, samples: int) -> None:
    problem = random_problem(2, samples, 288, 352, result=(14, 13))
    check(all_passes(problem, threads), problem)


@pytest.mark.parametrize("pad", [0, 1, 2])
@pytest.mark.parametrize("extent", [1, 2, 3, 5, 6, 13, 14])
def test_images_in_one_tile_or_across_several(extent: int, pad: int) -> None:
    problem = random_problem(7, 12, 20, 33, result=(extent, 15 - extent), pad=(pad, 1))
    check(all_passes(problem), problem)


@pytest.mark.parametrize("channels", [(20, 24), (288, 320)])
def test_results_do_not_depend_on_the_number_of_threads(channels: tuple[int, int]) -> None:
    problem = random_problem(3, 3, *channels, result=(10, 14))
    alone, divided = all_passes(problem, 1), all_passes(problem, 2)
    assert np.array_equal(alone[0], divided[0])
    assert np.array_equal(alone[1], divided[1])


def test_activations_and_weights_of_a_vgg_layer() -> None:
    random = np.random.default_rng(4)
    x = np.maximum(random.standard_normal((1, 256, 28, 28)), 0).astype(np.float32)
    w = (random.standard_normal((64, 256, 3, 3)) * np.sqrt(2 / 2304)).astype(np.float32)
    b, dy = np.zeros(64, np.float32), np.zeros((1, 64, 28, 28), np.float32)
    attributes = {"pad": (1, 1), "groups": 1}
    y = defined((x, w, b, dy, attributes))[0]
    (found,) = compute(ask("convolution", [x, w, b], [dy], attributes, 2), [x, w, b])
    error = found - y
    assert np.abs(error).max() < 5e-6 * np.abs(y).max()
    assert np.sqrt(np.mean(error**2)) < 2e-6 * np.sqrt(np.mean(y**2))


def test_a_rectifier_keeps_what_is_above_zero_and_what_is_no_number() -> None:
    x, w, b, dy, attributes = random_problem(5, 2, 20, 40, (9, 11))
    request = ask("convolution", [x, w, b], [dy], attributes, 2)
    (y,), (rectified,) = compute(request, [x, w, b]), compute(request, [x, w, b], relu=True)
    assert (y < 0).any()
    assert np.array_equal(rectified, np.maximum(y, 0))
    x[0, 3, 5, 5] = np.nan
    (rectified,) = compute(request, [x, w, b], relu=True)
    assert np.isnan(rectified[0, :, 5, 5]).all()
    assert not np.isnan(rectified[1]).any()


def test_biases_and_their_gradients_may_be_absent() -> None:
    problem = random_problem(6, 2, 18, 36, (8, 8), groups=2)
    x, w, b, dy, attributes = problem
    y, _, dw, _ = defined((x, w, b * 0, dy, attributes))
    (found,) = compute(ask("convolution", [x, w, None], [dy], attributes, 2), [x, w, None])
    np.testing.assert_allclose(found, y, atol=1e-4)
    request = ask(
        "convolution_backward_weights", [dy, x], [w, None], {**attributes, "shape": w.shape}, 2
    )
    found, nothing = compute(request, [dy, x])
    assert nothing is None
    np.testing.assert_allclose(found, dw, atol=1e-4)


@pytest.mark.parametrize(
    ("kernel", "attributes", "dtype"),
    [
        ((3, 3), {"stride": (2, 2)}, "float32"),
        ((3, 3), {"stride": (1, 2)}, "float32"),
        ((3, 3), {"dilation": (2, 1)}, "float32"),
        ((3, 3), {"pad": (3, 1)}, "float32"),
        ((5, 5), {}, "float32"),
        ((1, 3), {}, "float32"),
        ((3, 3), {}, "float64"),
    ],
)
def test_other_convolutions_are_left_to_other_kernels(
    kernel: tuple[int, int], attributes: dict[str, Any], dtype: str
) -> None:
    x, w = np.zeros((1, 4, 12, 12), dtype), np.zeros((4, 4, *kernel), dtype)
    complete = {**VOCABULARY["convolution"].attributes, **attributes}
    shapes = VOCABULARY["convolution"].shapes({"x": x.shape, "w": w.shape, "b": None}, complete)
    dy = np.zeros(shapes[0], dtype)
    assert not list(winograd.forward(ask("convolution", [x, w], [dy], attributes, 1)))
    request = ask("convolution_backward_data", [dy, w], [x], {**attributes, "shape": x.shape}, 1)
    assert not list(winograd.backward_data(request))
    request = ask("convolution_backward_weights", [dy, x], [w], {**attributes, "shape": w.shape}, 1)
    assert not list(winograd.backward_weights(request))
