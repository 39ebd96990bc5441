"""Pooling compared with loops written from its definition, and windows at the edge done by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

Apply = Callable[..., Any]


def extent(size: int, kernel: int, stride: int, pad: int, rounding: str) -> int:
    """Return the number of windows that start in x or its left pad and, when rounding down, end before
    the right pad does."""
    starts = [o * stride - pad for o in range(size + 2 * pad + 1)]
    if rounding == "floor":
        return sum(start + kernel <= size + pad for start in starts)
    uncovered = [i for i, start in enumerate(starts) if start + kernel >= size + pad]
    return sum(start < size for start in starts[: uncovered[0] + 1])


def by_definition(x: np.ndarray, a: dict[str, Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the largest value, its place and the average, computed cell by cell."""
    sizes = zip(x.shape[2:], a["kernel"], a["stride"], a["pad"], strict=True)
    shape = (*x.shape[:2], *(extent(*size, a["rounding"]) for size in sizes))
    largest, place, average = np.full(shape, -math.inf), np.zeros(shape, int), np.zeros(shape)
    for n, c, *out in np.ndindex(*shape):
        total, cells = 0.0, 0
        for tap in np.ndindex(*a["kernel"]):
            at = [o * s - p + t for o, t, s, p in zip(out, tap, a["stride"], a["pad"], strict=True)]
            cells += all(
                -p <= i < size + p for i, size, p in zip(at, x.shape[2:], a["pad"], strict=True)
            )
            if all(0 <= i < size for i, size in zip(at, x.shape[2:], strict=True)):
                value = float(x[(n, c, *at)])
                total += value
                if value > largest[(n, c, *out)]:
                    largest[(n, c, *out)] = value
                    place[(n, c, *out)] = np.ravel_multi_index(at, x.shape[2:])
        average[(n, c, *out)] = total / cells
    return largest, place, average


@st.composite
def poolings(draw: st.DrawFn) -> tuple[np.ndarray, dict[str, Any]]:
    spatial = draw(st.integers(1, 2))
    kernel = tuple(draw(st.integers(1, 4)) for _ in range(spatial))
    pad = tuple(draw(st.integers(0, k - 1)) for k in kernel)
    sizes = tuple(draw(st.integers(max(1, k - 2 * p), 7)) for k, p in zip(kernel, pad, strict=True))
    attributes = {
        "kernel": kernel,
        "stride": tuple(draw(st.integers(1, 4)) for _ in range(spatial)),
        "pad": pad,
        "rounding": draw(st.sampled_from(["ceil", "floor"])),
    }
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    # Only few different values, so that there are ties.
    values = rng.integers(-3, 4, (draw(st.integers(1, 2)), 2, *sizes)).astype(np.float64)
    return values, attributes


@settings(max_examples=examples(80))
@given(case=poolings())
def test_pooling_is_its_definition(apply: Apply, case: Any) -> None:
    x, attributes = case
    largest, place, average = by_definition(x, attributes)
    y, argmax = apply("pooling_max", x, **attributes)
    assert argmax.dtype == np.int32
    assert np.array_equal(y, largest)
    assert np.array_equal(argmax, place)
    assert np.allclose(apply("pooling_average", x, **attributes), average, rtol=1e-14, atol=1e-15)


@settings(max_examples=examples(40))
@given(case=poolings())
def test_backward_passes_return_every_gradient_to_where_it_came_from(apply: Apply, case: Any) -> None:
    x, attributes = case
    y, argmax = apply("pooling_max", x, **attributes)
    dy = np.random.default_rng(3).normal(size=y.shape)
    dx = apply("pooling_max_backward", dy, argmax, shape=x.shape, **attributes)
    expected = np.zeros((*x.shape[:2], math.prod(x.shape[2:])))
    for n, c, *out in np.ndindex(*y.shape):
        expected[n, c, argmax[(n, c, *out)]] += dy[(n, c, *out)]
    assert np.allclose(dx, expected.reshape(x.shape), rtol=1e-13, atol=1e-14)
    average = apply("pooling_average", x, **attributes)
    spread = apply("pooling_average_backward", dy, shape=x.shape, **attributes)
    assert (spread * x).sum() == pytest.approx((dy * average).sum(), rel=1e-10, abs=1e-10)


def test_a_window_over_the_edge_averages_over_the_padding_up_to_one_pad(apply: Apply) -> None:
    x = np.ones((1, 1, 4, 4))
    y = apply("pooling_average", x, kernel=(3, 3), stride=(2, 2), pad=(1, 1))
    # The last window of a row starts at 3 and would end at 6; x and its pad end at 5.
    assert y[0, 0].tolist() == [[4 / 9, 6 / 9, 2 / 6], [6 / 9, 1.0, 3 / 6], [2 / 6, 3 / 6, 1 / 4]]


def test_padding_is_never_the_largest(apply: Apply) -> None:
    x = np.full((1, 1, 2, 2), -5.0)
    y, argmax = apply("pooling_max", x, kernel=(3, 3), stride=(2, 2), pad=(1, 1))
    assert y[0, 0].tolist() == [[-5.0, -5.0], [-5.0, -5.0]]
    assert argmax[0, 0].tolist() == [[0, 1], [2, 3]]


def test_no_window_lies_wholly_beyond_x(apply: Apply) -> None:
    x = np.arange(4.0).reshape(1, 1, 4)
    attributes = {"kernel": (1,), "stride": (2,), "pad": (0,)}
    assert apply("pooling_max", x, **attributes)[0].tolist() == [[[0.0, 2.0]]]
    assert apply("pooling_average", x, **attributes).tolist() == [[[0.0, 2.0]]]


def test_a_nan_is_passed_on_from_the_window_that_holds_it(apply: Apply) -> None:
    x = np.array([[[1.0, math.nan, 3.0, math.nan, 5.0, 6.0]]])
    y, argmax = apply("pooling_max", x, kernel=(2,), stride=(2,), pad=(0,))
    assert np.array_equal(y, [[[math.nan, math.nan, 6.0]]], equal_nan=True)
    assert argmax.tolist() == [[[1, 3, 5]]]
