"""Convolution compared with loops written from its definition, and its passes with each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import assume, given, settings
from hypothesis import strategies as st

Apply = Callable[..., Any]


def by_definition(x: np.ndarray, w: np.ndarray, b: np.ndarray | None, a: dict[str, Any]) -> np.ndarray:
    """Compute one output and one product at a time, without padding any array."""
    groups, per_group = a["groups"], w.shape[1]
    extents = [
        (extent + 2 * p - (d * (k - 1) + 1)) // s + 1
        for extent, k, s, p, d in zip(
            x.shape[2:], w.shape[2:], a["stride"], a["pad"], a["dilation"], strict=True
        )
    ]
    y = np.zeros((x.shape[0], w.shape[0], *extents))
    for n, k, *out in np.ndindex(*y.shape):
        first = k // (w.shape[0] // groups) * per_group
        total = 0.0 if b is None else float(b[k])
        for c, *tap in np.ndindex(*w.shape[1:]):
            at = [
                o * s - p + t * d
                for o, t, s, p, d in zip(out, tap, a["stride"], a["pad"], a["dilation"], strict=True)
            ]
            if all(0 <= i < extent for i, extent in zip(at, x.shape[2:], strict=True)):
                total += float(x[(n, first + c, *at)]) * float(w[(k, c, *tap)])
        y[(n, k, *out)] = total
    return y


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
    spatial = draw(st.integers(1, 2))

    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(spatial))

    groups, c, k = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.integers(1, 2))
    extents, kernel = each(1, 5), each(1, 3)
    attributes: dict[str, Any] = {
        "stride": each(1, 3),
        "pad": each(0, 2),
        "dilation": each(1, 2),
        "groups": groups,
    }
    for extent, tap, p, d in zip(
        extents, kernel, attributes["pad"], attributes["dilation"], strict=True
    ):
        assume(extent + 2 * p >= d * (tap - 1) + 1)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    x = rng.normal(size=(draw(st.integers(1, 2)), groups * c, *extents))
    return x, rng.normal(size=(groups * k, c, *kernel)), rng.normal(size=groups * k), attributes


@settings(max_examples=examples(60))
@given(case=convolutions(), biased=st.booleans())
def test_convolution_is_its_definition(apply: Apply, case: Any, biased: bool) -> None:
    x, w, b, attributes = case
    b = b if biased else None
    expected = by_definition(x, w, b, attributes)
    assert np.allclose(apply("convolution", x, w, b, **attributes), expected, rtol=1e-12, atol=1e-13)


def test_convolution_in_three_dimensions(apply: Apply) -> None:
    rng = np.random.default_rng(1)
    x, w = rng.normal(size=(1, 2, 4, 3, 4)), rng.normal(size=(2, 2, 2, 3, 2))
    attributes = {"stride": (1, 2, 2), "pad": (0, 1, 1), "dilation": (2, 1, 1), "groups": 1}
    expected = by_definition(x, w, None, attributes)
    assert np.allclose(apply("convolution", x, w, None, **attributes), expected, rtol=1e-12)


@settings(max_examples=examples(60))
@given(case=convolutions())
def test_backward_passes_are_the_adjoints_of_forward(apply: Apply, case: Any) -> None:
    """<dy, convolution(x, w)> = <dx, x> = <dw, w>, because convolution is linear in both."""
    x, w, b, attributes = case
    y = apply("convolution", x, w, None, **attributes)
    dy = np.random.default_rng(7).normal(size=y.shape)
    dx = apply("convolution_backward_data", dy, w, shape=x.shape, **attributes)
    dw, db = apply("convolution_backward_weights", dy, x, shape=w.shape, **attributes)
    product = (dy * y).sum()
    assert (dx * x).sum() == pytest.approx(product, rel=1e-10, abs=1e-10)
    assert (dw * w).sum() == pytest.approx(product, rel=1e-10, abs=1e-10)
    assert np.allclose(db, [dy[:, k].sum() for k in range(len(b))], rtol=1e-12, atol=1e-13)
