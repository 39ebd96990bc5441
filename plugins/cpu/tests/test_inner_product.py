"""Inner products against NumPy's, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

Compute = Callable[..., list[Any]]
TOLERANCE = {"float32": 1e-5, "float64": 1e-13}


def check(
    compute: Compute, dtype: str, samples: int, inputs: int, outputs: int, transpose: bool
) -> None:
    random = np.random.default_rng(5)
    x, w, b, dy = (
        random.standard_normal(shape).astype(dtype)
        for shape in ((samples, inputs), (outputs, inputs), (outputs,), (samples, outputs))
    )
    attributes = {"transpose": transpose}
    stored = np.ascontiguousarray(w.T) if transpose else w
    x64, w64, dy64 = (a.astype(np.float64) for a in (x, w, dy))
    dw = dy64.T @ x64
    expected = [x64 @ w64.T + b, x64 @ w64.T, dy64 @ w64, dw.T if transpose else dw, dy64.sum(0)]
    found = [
        *compute("inner_product", [x, stored, b], attributes),
        *compute("inner_product", [x, stored, None], attributes),
        *compute("inner_product_backward_data", [dy, stored], {**attributes, "shape": x.shape}),
        *compute("inner_product_backward_weights", [dy, x], {**attributes, "shape": stored.shape}),
    ]
    for ours, theirs in zip(found, expected, strict=True):
        bound = TOLERANCE[dtype] * max(1.0, float(np.abs(theirs).max()))
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=bound)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    dtype=st.sampled_from(["float32", "float64"]),
    samples=st.integers(1, 70),
    inputs=st.integers(1, 90),
    outputs=st.integers(1, 130),
    transpose=st.booleans(),
)
def test_any_shape(
    compute: Compute, dtype: str, samples: int, inputs: int, outputs: int, transpose: bool
) -> None:
    check(compute, dtype, samples, inputs, outputs, transpose)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("sizes", [(3, 600, 1100), (1100, 300, 10), (300, 97, 333)])
def test_several_blocks_of_each_extent(
    compute: Compute, sizes: tuple[int, int, int], transpose: bool, dtype: str
) -> None:
    check(compute, dtype, *sizes, transpose)


def test_axes_before_and_behind_are_flattened(compute: Compute) -> None:
    random = np.random.default_rng(6)
    x, w = random.standard_normal((2, 3, 4, 5)), random.standard_normal((7, 20))
    (y,) = compute("inner_product", [x, w, None], {"axis": 2})
    np.testing.assert_allclose(y, x.reshape(2, 3, 20) @ w.T, atol=1e-12)


def test_bias_gradient_may_be_absent(compute: Compute) -> None:
    dy, x = np.ones((4, 3)), np.ones((4, 2))
    dw, nothing = compute("inner_product_backward_weights", [dy, x], {"shape": (3, 2)}, absent=[1])
    assert nothing is None
    assert np.array_equal(dw, np.full((3, 2), 4.0))
