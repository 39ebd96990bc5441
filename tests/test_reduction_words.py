"""Sums over trailing axes, the largest along one, and normalised rows: words against formulas in
float64, with both plugins that compute them."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from agreement import WORDS
from drawn_examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from word_results import PLUGINS, WITHIN, compute

Formula = Callable[..., np.ndarray]


TOTALS: dict[str, tuple[Formula, Formula]] = {
    "total": (lambda x: x, np.ones_like),
    "absolute_total": (np.abs, np.sign),
    "square_total": (np.square, lambda x: 2 * x),
}


def spread(values: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Values of leading axes, shaped to meet x."""
    return np.reshape(values, (*values.shape, *[1] * (x.ndim - values.ndim)))


@pytest.mark.parametrize("plugin", PLUGINS)
@pytest.mark.parametrize("name", TOTALS)
@settings(max_examples=examples(20), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_totals_and_their_gradients_are_their_formulas(
    name: str, plugin: str, data: st.DataObject
) -> None:
    dtype = data.draw(st.sampled_from(sorted(WITHIN)))
    shape = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=5).map(tuple))
    axis, coefficient = data.draw(st.integers(0, len(shape) - 1)), data.draw(st.sampled_from([1, -0.3]))
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    x, (term, slope) = random.standard_normal(shape).astype(dtype), TOTALS[name]
    given = {"axis": axis, "coefficient": coefficient}
    exact = x.astype(np.float64)
    (y,) = compute(plugin, name, x, **given)
    wanted = coefficient * term(exact).sum(tuple(range(axis, x.ndim)))
    np.testing.assert_allclose(y, wanted, rtol=WITHIN[dtype], atol=10 * WITHIN[dtype])
    dy = random.standard_normal(shape[:axis]).astype(dtype)
    wanted = coefficient * spread(dy.astype(np.float64), x) * slope(exact)
    if name == "total":
        (dx,) = compute(plugin, "total_backward", dy, shape=shape, **given)
    else:
        in_place = data.draw(st.booleans())
        (dx,) = compute(plugin, f"{name}_backward", dy, x, in_place=in_place, **given)
    np.testing.assert_allclose(dx, wanted, rtol=WITHIN[dtype])


@pytest.mark.parametrize("name", TOTALS)
def test_a_long_row_is_summed_to_the_same_bits_by_any_number_of_threads(name: str) -> None:
    x = np.random.default_rng(1).uniform(0, 1, (2, 700_000)).astype(np.float32)
    one, three = (compute("cpu", name, x, threads=n, axis=0)[0] for n in (1, 3))
    assert one.tobytes() == three.tobytes()
    np.testing.assert_allclose(one, TOTALS[name][0](x.astype(np.float64)).sum(), rtol=1e-6)
    dy = np.full((), 0.5, np.float32)
    inputs = (dy,) if name == "total" else (dy, x)
    more = {"shape": x.shape} if name == "total" else {}
    (dx,) = compute("cpu", f"{name}_backward", *inputs, threads=3, axis=0, **more)
    np.testing.assert_allclose(dx, 0.5 * TOTALS[name][1](x), rtol=1e-6)


@pytest.mark.parametrize("plugin", PLUGINS)
@settings(max_examples=examples(40), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_the_largest_come_in_falling_order_and_of_equals_the_last_first(
    plugin: str, data: st.DataObject
) -> None:
    dtype = data.draw(st.sampled_from(sorted(WITHIN)))
    shape = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4).map(tuple))
    axis = data.draw(st.integers(0, len(shape) - 1))
    count = data.draw(st.integers(1, shape[axis]))
    x = np.random.default_rng(data.draw(st.integers(0, 2**32))).integers(-3, 4, shape).astype(dtype)
    given = {"axis": axis, "count": count}
    (places,) = compute(plugin, "largest", x, give="places", **given)
    (values,) = compute(plugin, "largest", x, give="values", **given)
    (both,) = compute(plugin, "largest", x, give="both", **given)
    assert np.array_equal(both, np.stack([places, values], axis))
    rows = np.moveaxis(x, axis, -1).reshape(-1, shape[axis])
    for row, found, best in zip(
        rows,
        np.moveaxis(places, axis, -1).reshape(-1, count),
        np.moveaxis(values, axis, -1).reshape(-1, count),
        strict=True,
    ):
        pairs = sorted(((value, place) for place, value in enumerate(row)), reverse=True)[:count]
        assert [(value, int(place)) for value, place in zip(best, found, strict=True)] == pairs


def test_the_largest_of_long_rows_are_found_by_parts() -> None:
    x = np.random.default_rng(2).standard_normal((64, 3000)).astype(np.float32)
    (places,) = compute("cpu", "largest", x, count=1500, threads=3)
    last_of_equals_first = 2999 - np.argsort(-x[:, ::-1], axis=1, kind="stable")
    assert np.array_equal(places, last_of_equals_first[:, :1500])


def test_more_than_there_are_cannot_be_the_largest() -> None:
    with pytest.raises(ValueError, match="cannot take the 4 largest of the 3"):
        WORDS["largest"].shapes({"x": (2, 3)}, {"axis": 1, "count": 4, "give": "places"})


def standardized(x: np.ndarray, axis: int, epsilon: float) -> tuple[np.ndarray, np.ndarray]:
    over = tuple(range(axis, x.ndim))
    return (x - x.mean(over, keepdims=True)) / (x.std(over, keepdims=True) + epsilon), x.std(over)


@pytest.mark.parametrize("plugin", PLUGINS)
@settings(max_examples=examples(30), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_rows_are_centred_and_standardized(plugin: str, data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(sorted(WITHIN)))
    shape = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=5).map(tuple))
    axis, epsilon = data.draw(st.integers(0, len(shape))), data.draw(st.sampled_from([1e-9, 0.5]))
    in_place = data.draw(st.booleans())
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    x, dy = (random.standard_normal(shape).astype(dtype) for _ in range(2))
    exact, over = x.astype(np.float64), tuple(range(axis, x.ndim))
    (y,) = compute(plugin, "centre", x, axis=axis, in_place=in_place)
    within = WITHIN[dtype]
    np.testing.assert_allclose(y, exact - exact.mean(over, keepdims=True), atol=within)
    wanted, deviation = standardized(exact, axis, epsilon)
    if math.prod(shape[axis:]) == 1 or (deviation < 0.05).any():
        return  # what is left of a constant row is rounding; see below
    y, found = compute(plugin, "standardize", x, axis=axis, epsilon=epsilon, in_place=in_place)
    np.testing.assert_allclose(y, wanted, atol=20 * within)
    np.testing.assert_allclose(found, deviation, rtol=within)
    only, nothing = compute(plugin, "standardize", x, axis=axis, epsilon=epsilon, absent=[1])
    assert nothing is None
    np.testing.assert_array_equal(only, y)
    given = {"axis": axis, "epsilon": epsilon, "in_place": in_place}
    (dx,) = compute(plugin, "standardize_backward", dy, y, found, **given)
    for index in list(np.ndindex(shape))[:: max(1, x.size // 4)]:
        sides = []
        for change in (1e-6, -1e-6):
            moved = exact.copy()
            moved[index] += change
            sides.append((dy * standardized(moved, axis, epsilon)[0]).sum())
        slope = (sides[0] - sides[1]) / 2e-6
        assert dx[index] == pytest.approx(slope, rel=2e-4, abs=2e-4 / deviation.min())


@pytest.mark.parametrize("plugin", PLUGINS)
def test_constant_rows_become_zeros_and_their_gradients_are_numbers(plugin: str) -> None:
    x = np.full((2, 3, 8), 0.1, np.float32) * np.arange(1, 4, dtype=np.float32)[:, None]
    x = x.round(1).astype(np.float32)
    y, deviation = compute(plugin, "standardize", x, axis=2, epsilon=0.5)
    np.testing.assert_allclose(y, 0, atol=1e-6)
    np.testing.assert_allclose(deviation, 0, atol=1e-6)
    dy = np.random.default_rng(3).standard_normal(x.shape).astype(np.float32)
    zeros = np.zeros_like(y), np.zeros_like(deviation)
    (dx,) = compute(plugin, "standardize_backward", dy, *zeros, axis=2, epsilon=0.5)
    np.testing.assert_allclose(dx, 2 * (dy - dy.mean(2, keepdims=True)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("plugin", PLUGINS)
def test_the_mean_of_large_numbers_does_not_drown_their_deviation(plugin: str) -> None:
    random = np.random.default_rng(4).integers(-64, 64, (2, 200_000)) / 64
    x = (random + 4096).astype(np.float32)
    y, _ = compute(plugin, "standardize", x, axis=1)
    np.testing.assert_allclose(y, standardized(x.astype(np.float64), 1, 1e-9)[0], atol=1e-3)
