"""Element-wise operations, dropout and softmax against their formulas in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from demitasse import keep_mask

Compute = Callable[..., list[Any]]
PRECISION = {"float32": 1e-6, "float64": 1e-14}


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("slope", [0.0, 0.25])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_relu_and_its_gradient(compute: Compute, dtype: str, slope: float, in_place: bool) -> None:
    random = np.random.default_rng(1)
    x, dy = (random.standard_normal((3, 50, 77, 10)).astype(dtype) for _ in range(2))
    given = {"negative_slope": slope}
    (y,) = compute("relu", [x], given, in_place=in_place)
    assert np.array_equal(y, np.where(x > 0, x, x.dtype.type(slope) * x))
    (dx,) = compute("relu_backward", [dy, y], given, in_place=in_place)
    assert np.array_equal(dx, np.where(x > 0, dy, x.dtype.type(slope) * dy))


def test_relu_passes_a_nan_on(compute: Compute) -> None:
    (y,) = compute("relu", [np.array([-1, np.nan, 2], np.float32)])
    assert np.array_equal(y, np.array([0, np.nan, 2], np.float32), equal_nan=True)


@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(-(2**63), 2**63 - 1),
    stream=st.integers(0, 1000),
    iteration=st.integers(0, 2**40),
    sample=st.integers(0, 2**33),
    shape=st.tuples(st.integers(1, 5), st.integers(1, 13), st.integers(1, 3)),
    ratio=st.sampled_from([0.0, 0.1, 0.5, 0.9]),
    dtype=st.sampled_from(["float32", "float64"]),
    in_place=st.booleans(),
)
def test_dropout_draws_the_mask_of_the_core(
    compute: Compute,
    seed: int,
    stream: int,
    iteration: int,
    sample: int,
    shape: tuple[int, ...],
    ratio: float,
    dtype: str,
    in_place: bool,
) -> None:
    x = np.random.default_rng(2).standard_normal(shape).astype(dtype)
    counters = [np.array([iteration], np.uint64), np.array([sample], np.uint64)]
    given = {"ratio": ratio, "seed": seed, "stream": stream}
    y, mask = compute("dropout", [x, *counters], given, in_place=in_place)
    expected = keep_mask(seed, stream, iteration, sample, shape, ratio)
    assert np.array_equal(mask, expected)
    wanted = x.astype(np.float64) * expected / (1 - ratio)
    np.testing.assert_allclose(y, wanted, rtol=PRECISION[dtype])
    (dx,) = compute("dropout_backward", [x, mask], given, in_place=in_place)
    np.testing.assert_allclose(dx, wanted, rtol=PRECISION[dtype])
    again, nothing = compute("dropout", [x, *counters], given, absent=[1])
    assert nothing is None
    assert np.array_equal(again, y)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(("axis", "inner"), [(1, 5), (2, 5), (1, 150), (0, 7)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_softmax_and_its_gradient(
    compute: Compute, dtype: str, axis: int, inner: int, in_place: bool
) -> None:
    random = np.random.default_rng(4)
    x = (random.standard_normal((7, 11, inner)) * 40).astype(dtype)
    powers = np.exp(x.astype(np.float64) - x.max(axis, keepdims=True))
    expected = powers / powers.sum(axis, keepdims=True)
    (y,) = compute("softmax", [x], {"axis": axis}, in_place=in_place)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-12)
    dy = random.standard_normal(x.shape).astype(dtype)
    (dx,) = compute("softmax_backward", [dy, y], {"axis": axis}, in_place=in_place)
    y64, dy64 = y.astype(np.float64), dy.astype(np.float64)
    wanted = y64 * (dy64 - (dy64 * y64).sum(axis, keepdims=True))
    np.testing.assert_allclose(dx, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("inner", [1, 150])
def test_what_is_no_number_makes_none_of_its_own_prediction_alone(compute: Compute, inner: int) -> None:
    x = np.random.default_rng(5).standard_normal((4, 9, inner)).astype(np.float32)
    x[1, 0, 0], x[2, 5, 0], x[3, 8, 0] = np.nan, np.nan, -np.inf
    powers = np.exp(x.astype(np.float64))
    expected = powers / powers.sum(1, keepdims=True)
    (y,) = compute("softmax", [x], {"axis": 1})
    assert np.isnan(y[1:3, :, 0]).all()
    assert y[3, 8, 0] == 0
    np.testing.assert_allclose(y, expected, rtol=1e-5)
