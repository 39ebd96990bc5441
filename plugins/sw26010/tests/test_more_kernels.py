"""Kernels of Caffe's further operations compared with their formulas in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mesh_problems import close, drawn, numbers

from demitasse import DataError

Run = Callable[..., list[Any]]

fixed = drawn(10)
extents = st.lists(st.integers(1, 9), min_size=2, max_size=4)


def logistic(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


FUNCTIONS: dict[str, tuple[dict[str, float], Any, Any, bool]] = {
    "absolute": ({}, np.abs, np.sign, False),
    "softplus": ({}, lambda x: np.log1p(np.exp(x)), logistic, False),
    "clip": (
        {"least": -0.5, "most": 0.75},
        lambda x: np.clip(x, -0.5, 0.75),
        lambda x: (x >= -0.5) & (x <= 0.75),
        False,
    ),
    "elu": (
        {"alpha": 0.7},
        lambda x: np.where(x > 0, x, 0.7 * np.expm1(x)),
        lambda x: np.where(x > 0, 1, 0.7 * np.exp(x)),
        True,
    ),
    "exponential": (
        {"scale": 0.5, "shift": -1.0},
        lambda x: np.exp(0.5 * x - 1),
        lambda x: 0.5 * np.exp(0.5 * x - 1),
        True,
    ),
    "logarithm": (
        {"factor": 2.0, "scale": 0.1, "shift": 1.0},
        lambda x: 2 * np.log(0.1 * x + 1),
        lambda x: 0.2 / (0.1 * x + 1),
        False,
    ),
    "power": (
        {"power": 2.5, "scale": 0.1, "shift": 1.0},
        lambda x: (0.1 * x + 1) ** 2.5,
        lambda x: 0.25 * (0.1 * x + 1) ** 1.5,
        False,
    ),
    "sigmoid": ({}, logistic, lambda x: logistic(x) * (1 - logistic(x)), True),
    "swish": (
        {"beta": 1.5},
        lambda x: x * logistic(1.5 * x),
        lambda x: logistic(1.5 * x) + 1.5 * x * logistic(1.5 * x) * (1 - logistic(1.5 * x)),
        False,
    ),
    "tanh": ({}, np.tanh, lambda x: 1 - np.tanh(x) ** 2, True),
}
"""Attributes, the function, its slope at x, and whether its gradient reads y."""


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("shape", [(5,), (3, 4, 5), (2, 33000)])
def test_functions_and_their_slopes(run: Run, name: str, shape: tuple[int, ...]) -> None:
    about, function, slope, from_y = FUNCTIONS[name]
    x, dy = numbers(*shape), numbers(*shape, seed=1)
    X = x.astype(float)
    (y,) = run(name, (x,), about)
    close(y, function(X))
    (dx,) = run(f"{name}_backward", (dy, y if from_y else x), about)
    close(dx, dy * slope(X), 1e-5)


def test_thresholds_and_powers_of_zero(run: Run) -> None:
    x, dy = numbers(50), numbers(50, seed=1)
    assert (run("greater", (x,), {"threshold": 0.2})[0] == (x > np.float32(0.2))).all()
    assert (run("power", (x,), {"power": 0.0, "shift": -1.0})[0] == 1).all()
    assert (run("power_backward", (dy, x), {"power": 0.0})[0] == 0).all()
    (y,) = run("leaky_relu", (x,), {"negative_slope": -0.5})
    close(y, np.where(x > 0, x, -0.5 * x))


@fixed
@given(extents, st.integers(2, 4), st.booleans())
def test_products(run: Run, shape: list[int], count: int, divides: bool) -> None:
    xs, dy = [numbers(*shape, seed=i) for i in range(count)], numbers(*shape, seed=9)
    wide = [x.astype(float) for x in xs]
    close(run("product", xs)[0], np.prod(wide, 0))
    about = {"by_division": divides, "shapes": tuple(x.shape for x in xs)}
    for i, dx in enumerate(run("product_backward", (dy, *xs), about)):
        close(dx, dy * np.prod(wide[:i] + wide[i + 1 :], 0), 1e-5)


def test_division_by_a_factor_of_zero_is_no_number(run: Run) -> None:
    xs = [np.array([0, 2], np.float32), np.array([3, 4], np.float32)]
    about = {"by_division": True, "shapes": ((2,), (2,))}
    first, second = run("product_backward", (np.ones(2, np.float32), *xs), about)
    assert np.isnan(first[0]) and first[1] == 4
    assert second.tolist() == [0, 2]


@fixed
@given(extents, st.integers(1, 4))
def test_maxima(run: Run, shape: list[int], count: int) -> None:
    xs, dy = [np.round(numbers(*shape, seed=i)) for i in range(count)], numbers(*shape, seed=9)
    y, argmax = run("maximum", xs)
    assert (y == np.max(xs, 0)).all()
    # Of equal values, the earliest wins, except that the second wins over the first.
    order = [1, 0, 2, 3][:count] if count > 1 else [0]
    right = np.array(order)[np.argmax([xs[i] for i in order], 0)]
    assert (argmax == right).all()
    shapes = {"shapes": tuple(x.shape for x in xs)}
    for i, dx in enumerate(run("maximum_backward", (dy, argmax), shapes)):
        assert (dx == np.where(right == i, dy, 0)).all()


@fixed
@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 40), st.booleans())
def test_learned_slopes(run: Run, n: int, c: int, inner: int, one: bool) -> None:
    x, dy = numbers(n, c, inner), numbers(n, c, inner, seed=1)
    w = numbers(*(() if one else (c,)), seed=2)
    factor = w if one else w[:, None]
    (y,) = run("parametric_relu", (x, w))
    close(y, np.where(x > 0, x, factor * x))
    dx, dw = run("parametric_relu_backward", (dy, x, w))
    close(dx, np.where(x > 0, dy, factor * dy))
    each = np.where(x > 0, 0.0, dy.astype(float) * x)
    close(dw, each.sum() if one else each.sum((0, 2)), 1e-5)


@fixed
@given(st.data())
def test_crops(run: Run, data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, 4))
    shape = [data.draw(st.integers(1, 7)) for _ in range(rank)]
    extent = [data.draw(st.integers(1, size)) for size in shape]
    offset = tuple(data.draw(st.integers(0, s - e)) for s, e in zip(shape, extent, strict=True))
    x, box = numbers(*shape), tuple(slice(o, o + e) for o, e in zip(offset, extent, strict=True))
    (y,) = run("crop", (x,), {"offset": offset, "extent": tuple(extent)})
    assert (y == x[box]).all()
    right = np.zeros(shape)
    right[box] = y
    (dx,) = run("crop_backward", (y,), {"offset": offset, "shape": tuple(shape)})
    assert (dx == right).all()


@fixed
@given(st.integers(0, 2), st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(1, 4))
def test_slices_and_tiles(run: Run, axis: int, sizes: list[int], other: int) -> None:
    shapes = [tuple(e if d == axis else other + d for d in range(3)) for e in sizes]
    xs = [numbers(*shape, seed=i) for i, shape in enumerate(shapes)]
    pieces = run("slice", (np.concatenate(xs, axis),), {"axis": axis, "shapes": tuple(shapes)})
    assert all((piece == x).all() for piece, x in zip(pieces, xs, strict=True))
    x, tiles = xs[0], len(sizes)
    about = {"axis": axis, "tiles": tiles}
    (y,) = run("tile", (x,), about)
    assert (y == np.concatenate([x] * tiles, axis)).all()
    dy = numbers(*y.shape, seed=5)
    (dx,) = run("tile_backward", (dy,), {**about, "shape": x.shape})
    close(dx, sum(np.split(dy.astype(float), tiles, axis)))


@fixed
@given(st.integers(1, 6), st.integers(1, 30))
def test_distances(run: Run, n: int, length: int) -> None:
    a, b = numbers(n, length), numbers(n, length, seed=1)
    apart, weight = a.astype(float) - b, np.array(0.7, np.float32)
    close(run("half_squared_distance", (a, b))[0], (apart**2).sum() / 2 / n)
    da, db = run("half_squared_distance_backward", (weight, a, b))
    close(da, 0.7 * apart / n)
    close(db, -0.7 * apart / n)


@fixed
@given(st.integers(1, 6), st.integers(1, 9), st.booleans(), st.sampled_from([0.5, 3.0]))
def test_contrasts(run: Run, n: int, length: int, legacy: bool, margin: float) -> None:
    a, b = numbers(n, length), numbers(n, length, seed=1)
    similar = np.random.default_rng(n).integers(0, 2, n).astype(np.float32)
    about = {"margin": margin, "legacy": legacy}
    apart = a.astype(float) - b
    square = (apart**2).sum(1)
    far = np.sqrt(square)
    unlike = np.maximum(0, margin - square) if legacy else np.maximum(0, margin - far) ** 2
    close(
        run("contrastive_loss", (a, b, similar), about)[0],
        np.where(similar, square, unlike).sum() / 2 / n,
    )
    push = 1.0 * (square < margin) if legacy else np.maximum(0, margin - far) / (far + 1e-4)
    right = 0.7 / n * apart * np.where(similar, 1, -push)[:, None]
    da, db = run("contrastive_loss_backward", (np.array(0.7, np.float32), a, b, similar), about)
    close(da, right)
    close(db, -right)


@fixed
@given(st.integers(1, 6), st.integers(1, 9), st.sampled_from(["valid", "full", "batch_size", "none"]))
def test_sigmoid_cross_entropies(run: Run, n: int, length: int, normalization: str) -> None:
    x = 5 * numbers(n, length)
    target = np.random.default_rng(n).integers(-1, 2, (n, length)).astype(np.float32)
    about = {"ignore_label": -1, "normalization": normalization}
    valid, p = target != -1, logistic(x.astype(float))
    by = {"valid": max(1, valid.sum()), "full": x.size, "batch_size": n, "none": 1}[normalization]
    each = -(target * np.log(p) + (1 - target) * np.log(1 - p))
    close(run("sigmoid_cross_entropy_loss", (x, target), about)[0], (each * valid).sum() / by, 1e-5)
    operands = (np.array(0.7, np.float32), x, target)
    (dx,) = run("sigmoid_cross_entropy_loss_backward", operands, about)
    close(dx, 0.7 * (p - target) * valid / by, 1e-5)


@fixed
@given(st.integers(1, 6), st.integers(2, 9), st.sampled_from(["L1", "L2"]))
def test_hinges(run: Run, n: int, classes: int, norm: str) -> None:
    x = numbers(n, classes)
    label = np.random.default_rng(n).integers(0, classes, n).astype(np.float32)
    sign = np.where(np.arange(classes) == label[:, None], -1.0, 1.0)
    opening = np.maximum(0, 1 + sign * x)
    loss = (opening if norm == "L1" else opening**2).sum() / n
    close(run("hinge_loss", (x, label), {"norm": norm})[0], loss)
    slope = (opening > 0) if norm == "L1" else 2 * opening
    (dx,) = run("hinge_loss_backward", (np.array(0.7, np.float32), x, label), {"norm": norm})
    close(dx, 0.7 / n * sign * slope)
    with pytest.raises(DataError, match="label 0 of the batch"):
        run("hinge_loss", (x, label + classes), {"norm": norm})


def test_responses_within_channels(run: Run) -> None:
    x, dy = numbers(2, 3, 6, 5), numbers(2, 3, 6, 5, seed=1)
    about = {"size": 3, "alpha": 0.3, "beta": 0.75, "k": 2.0}

    def around(values: Any) -> Any:
        wide = np.pad(values, ((0, 0), (0, 0), (1, 1), (1, 1)))
        return sum(wide[:, :, i : i + 6, j : j + 5] for i in range(3) for j in range(3))

    X = x.astype(float)
    scale = 2 + 0.3 / 9 * around(X * X)
    right = X * scale**-0.75
    y, kept = run("lrn_within_channel", (x,), about)
    close(y, right)
    close(kept, scale)
    (dx,) = run("lrn_within_channel_backward", (dy, x, y, kept), about)
    close(dx, dy * scale**-0.75 - 2 * 0.3 * 0.75 / 9 * X * around(dy * right / scale))
