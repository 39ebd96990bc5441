"""The words that the plugin onnx brings, by the reference's kernels and the cpu plugin's: formulas in
float64, and gradients that are slopes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from agreement import WORDS
from drawn_examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from word_results import PLUGINS, WITHIN
from word_results import compute as computed

PROPERTY = settings(max_examples=examples(15), suppress_health_check=list(HealthCheck))


def compute(plugin: str, name: str, *inputs: np.ndarray, **attributes: Any) -> np.ndarray:
    """The first result of a plugin's kernel."""
    first: np.ndarray = computed(plugin, name, *inputs, **attributes)[0]
    return first


def slope_at(
    word: Callable[[np.ndarray], np.ndarray], x: np.ndarray, dy: np.ndarray, place: int
) -> float:
    sides = []
    for change in (1e-5, -1e-5):
        moved = x.copy()
        moved.flat[place] += change
        sides.append(float((dy * word(moved)).sum()))
    return (sides[0] - sides[1]) / 2e-5


def erf(x: np.ndarray) -> np.ndarray:
    return np.vectorize(math.erf)(x)


def gate(x: np.ndarray, scale: float = 1 / 6, shift: float = 0.5) -> np.ndarray:
    return np.clip(scale * x + shift, 0, 1)


FUNCTIONS: list[tuple[str, dict[str, float], Callable[[np.ndarray], np.ndarray]]] = [
    ("hard_sigmoid", {}, gate),
    ("hard_sigmoid", {"scale": 0.2, "shift": 0.4}, lambda x: gate(x, 0.2, 0.4)),
    ("hard_swish", {}, lambda x: x * gate(x)),
    ("error_function", {}, erf),
    ("gelu", {}, lambda x: x * (1 + erf(x / math.sqrt(2))) / 2),
    ("sine", {}, np.sin),
    ("sine", {"scale": 0.25, "shift": 0.5}, lambda x: np.sin(0.25 * x + 0.5)),
]


@pytest.mark.parametrize("dtype", sorted(WITHIN))
@pytest.mark.parametrize("plugin", PLUGINS)
@pytest.mark.parametrize(("name", "attributes", "formula"), FUNCTIONS)
def test_gates_are_their_formulas_and_their_gradients_slopes(
    plugin: str,
    dtype: str,
    name: str,
    attributes: dict[str, float],
    formula: Callable[[np.ndarray], np.ndarray],
) -> None:
    random = np.random.default_rng(1)
    x, dy = ((3 * random.standard_normal((3, 5, 7, 11))).astype(dtype) for _ in range(2))
    exact = x.astype(np.float64)
    y = compute(plugin, name, x, **attributes)
    np.testing.assert_allclose(y, formula(exact), rtol=WITHIN[dtype], atol=2e-7)
    dx = compute(plugin, f"{name}_backward", dy, x, **attributes)
    slopes = dy * (formula(exact + 1e-6) - formula(exact - 1e-6)) / 2e-6
    np.testing.assert_allclose(dx, slopes, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", sorted(WITHIN))
@pytest.mark.parametrize("plugin", PLUGINS)
@pytest.mark.parametrize(("word", "rounding"), [("floor", np.floor), ("round", np.rint)])
def test_numbers_are_rounded_to_whole_ones(
    plugin: str, dtype: str, word: str, rounding: Callable[[np.ndarray], np.ndarray]
) -> None:
    """Halves too, and what is whole already or beyond all fractions."""
    random = np.random.default_rng(1).normal(0, 3, 200)
    x = np.concatenate([random, np.arange(-8, 9) / 2, [1e9 + 0.5, -3e20, np.inf]]).astype(dtype)
    assert np.array_equal(compute(plugin, word, x), rounding(x))


@pytest.mark.parametrize("plugin", PLUGINS)
@PROPERTY
@given(data=st.data())
def test_axes_are_put_in_order_and_back(plugin: str, data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=6).map(tuple))
    order = tuple(data.draw(st.permutations(range(len(shape)))))
    x = np.random.default_rng(3).normal(size=shape).astype(np.float32)
    y = compute(plugin, "permute", x, order=order)
    assert np.array_equal(y, x.transpose(order))
    assert np.array_equal(compute(plugin, "permute_backward", y, order=order, shape=shape), x)


@pytest.mark.parametrize("plugin", PLUGINS)
@PROPERTY
@given(data=st.data())
def test_an_axis_is_resampled_by_a_matrix_of_few_numbers(plugin: str, data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(sorted(WITHIN)))
    shape = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple))
    axis = data.draw(st.integers(0, len(shape) - 1))
    rows, taps = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 3))
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    places = random.integers(0, shape[axis], (rows, taps))
    weights = random.normal(size=(rows, taps))
    matrix = np.zeros((rows, shape[axis]))
    np.add.at(matrix, (np.arange(rows)[:, None], places), weights)
    x = random.normal(size=shape).astype(dtype)
    constants = (places.astype(dtype), weights.astype(dtype))
    y = compute(plugin, "resample", x, *constants, axis=axis)
    wanted = np.moveaxis(np.tensordot(matrix, x.astype(np.float64), (1, axis)), 0, axis)
    np.testing.assert_allclose(y, wanted, rtol=WITHIN[dtype], atol=WITHIN[dtype])
    dx = compute(plugin, "resample_backward", y, *constants, axis=axis, shape=shape)
    wanted = np.moveaxis(np.tensordot(matrix.T, y.astype(np.float64), (1, axis)), 0, axis)
    np.testing.assert_allclose(dx, wanted, rtol=WITHIN[dtype], atol=2 * WITHIN[dtype])


@pytest.mark.parametrize("precision", ["f32", "bf16", "f64"])
@pytest.mark.parametrize("plugin", PLUGINS)
def test_what_a_condition_chooses_is_what_it_is(plugin: str, precision: str) -> None:
    """Whatever the other is; and the gradient goes where the number came from."""
    random = np.random.default_rng(6)
    dtype = "float64" if precision == "f64" else "float32"
    # Whole numbers of 8 bits, which bfloat16 has exactly.
    c = random.integers(-1, 2, (3, 4, 5, 7)).astype(dtype)
    a, b, dy = (random.integers(-99, 100, c.shape).astype(dtype) for _ in range(3))
    a[c == 0], b[c != 0] = -np.inf, np.nan
    a.flat[np.flatnonzero(c)[0]] = -np.inf
    (y,) = computed(plugin, "select", c, a, b, precision=precision)
    assert np.array_equal(y, np.where(c != 0, a.astype(np.float64), b))
    da, db = computed(plugin, "select_backward", dy, c, precision=precision)
    assert np.array_equal(da, np.where(c != 0, dy, 0))
    assert np.array_equal(db, np.where(c != 0, 0, dy))


def test_shapes_that_do_not_fit_are_refused_with_what_was_given() -> None:
    with pytest.raises(ValueError, match=r"\(0, 0\) is not an order of the 2 axes of x \(2, 3\)"):
        WORDS["permute"].shapes({"x": (2, 3)}, {"order": (0, 0)})
    with pytest.raises(
        ValueError, match=r"places \(4, 2\) and weights \(4, 1\) need rows of the same length"
    ):
        shapes = {"x": (2, 3), "places": (4, 2), "weights": (4, 1)}
        WORDS["resample"].shapes(shapes, {"axis": 1})
    with pytest.raises(ValueError, match=r"element by element: \(2,\), \(2,\), \(3,\)"):
        WORDS["select"].shapes({"c": (2,), "a": (2,), "b": (3,)}, {})


def test_zeros_around_a_blob_have_the_gradient_of_its_box() -> None:
    (rule,) = WORDS["crop_backward"].gradients
    assert set(WORDS[rule.operation].attributes) <= set(WORDS["crop_backward"].attributes)
    x = np.random.default_rng(1).normal(size=(2, 3))
    attributes = {"offset": (1, 2), "extent": (2, 3)}
    y = compute("reference", "crop_backward", x, shape=(4, 6), **attributes)
    assert np.array_equal(y, np.pad(x, [(1, 1), (2, 1)]))
    assert np.array_equal(compute("reference", "crop", y, **attributes), x)


def test_a_word_is_what_its_gradient_says() -> None:
    """Central differences of every differentiable word here, by the reference."""
    random = np.random.default_rng(5)
    x = random.normal(size=(3, 4, 5))
    places, weights = random.integers(0, 4, (6, 2)).astype(float), random.normal(size=(6, 2))
    for name, others, attributes in (
        ("permute", (), {"order": (2, 0, 1)}),
        ("resample", (places, weights), {"axis": 1}),
    ):
        y = compute("reference", name, x, *others, **attributes)
        dy = random.normal(size=y.shape)
        dx = compute("reference", f"{name}_backward", dy, *others, **attributes, shape=x.shape)
        for place in random.permutation(x.size)[:6]:
            slope = slope_at(
                lambda moved, name=name, others=others, attributes=attributes: compute(
                    "reference", name, moved, *others, **attributes
                ),
                x,
                dy,
                place,
            )
            assert dx.flat[place] == pytest.approx(slope, rel=1e-6, abs=1e-8)
