"""Every other kernel compared with its formula in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mesh_problems import close, drawn, numbers

from demitasse import DataError, crop_and_mirror, keep_mask

Run = Callable[..., list[Any]]

fixed = drawn(15)
extents = st.lists(st.integers(1, 9), min_size=2, max_size=4)


@fixed
@given(st.integers(1, 70), st.integers(1, 300), st.integers(1, 90), st.booleans(), st.booleans())
def test_inner_products(run: Run, rows: int, inputs: int, outputs: int, turned: bool, way: bool) -> None:
    x, b = numbers(rows, inputs), numbers(outputs, seed=2)
    w = numbers(inputs, outputs) if turned else numbers(outputs, inputs)
    dy, kernel, about = numbers(rows, outputs), "gemm, turned" if way else "gemm", {"transpose": turned}
    W, X, DY = (a.astype(float) for a in (w.T if turned else w, x, dy))
    (y,) = run("inner_product", (x, w, b), about, kernel)
    close(y, X @ W.T + b)
    (dx,) = run("inner_product_backward_data", (dy, w), {**about, "shape": x.shape}, kernel)
    close(dx, DY @ W)
    dw, db = run("inner_product_backward_weights", (dy, x), {**about, "shape": w.shape}, kernel)
    close(dw, X.T @ DY if turned else DY.T @ X)
    close(db, DY.sum(0))


@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(256, 512, 64), (5, 700, 1700), (300, 20, 10)])
@pytest.mark.parametrize("kernel", ["gemm", "gemm, turned"])
def test_inner_products_are_blocked(run: Run, rows: int, inputs: int, outputs: int, kernel: str) -> None:
    x, w = numbers(rows, inputs), numbers(outputs, inputs)
    (y,) = run("inner_product", (x, w, None), {}, kernel)
    close(y, x.astype(float) @ w.T.astype(float))


@fixed
@given(extents, st.sampled_from([0.0, 0.1]))
def test_rectifiers(run: Run, shape: list[int], slope: float) -> None:
    x, dy = numbers(*shape), numbers(*shape, seed=1)
    about = {"negative_slope": slope}
    (y,) = run("relu", (x,), about)
    close(y, np.where(x > 0, x, slope * x))
    (dx,) = run("relu_backward", (dy, x), about)
    close(dx, np.where(x > 0, dy, slope * dy))


@fixed
@given(extents, st.integers(0, 2**60 - 1), st.integers(0, 1000), st.sampled_from([0.2, 0.5, 0.9]))
def test_dropout_draws_the_mask_of_all_backends(
    run: Run, shape: list[int], iteration: int, sample: int, ratio: float
) -> None:
    x, dy = numbers(*shape), numbers(*shape, seed=1)
    scalars = np.array([iteration], np.uint64), np.array([sample], np.uint64)
    about = {"ratio": ratio, "seed": 2**40 + 7, "stream": 3}
    y, mask = run("dropout", (x, *scalars), about)
    right = keep_mask(2**40 + 7, 3, iteration, sample, tuple(shape), ratio)
    assert (mask == right).all()
    close(y, x * right / (1 - ratio))
    (dx,) = run("dropout_backward", (dy, mask), {"ratio": ratio})
    close(dx, dy * right / (1 - ratio))


def test_sums_and_what_they_pass_back(run: Run) -> None:
    a, b, c = (numbers(3, 4, 5, seed=i) for i in range(3))
    (y,) = run("sum", (a, b, c), {"coefficients": (1.0, -2.0, 0.5)})
    close(y, a - 2 * b + 0.5 * c)
    (y,) = run("sum", (a, b), {})
    close(y, a + b)
    shapes = {"coefficients": (1.0, -2.0), "shapes": (a.shape, b.shape)}
    first, second = run("sum_backward", (a,), shapes)
    close(first, a)
    close(second, -2 * a)


@fixed
@given(st.integers(0, 2), st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(1, 4))
def test_joins(run: Run, axis: int, extents: list[int], other: int) -> None:
    shapes = [tuple(e if d == axis else other + d for d in range(3)) for e in extents]
    xs = [numbers(*shape, seed=i) for i, shape in enumerate(shapes)]
    (y,) = run("concat", xs, {"axis": axis})
    assert (y == np.concatenate(xs, axis)).all()
    parts = run("concat_backward", (y,), {"axis": axis, "shapes": tuple(shapes)})
    assert all((part == x).all() for part, x in zip(parts, xs, strict=True))


def test_fills_and_running_totals(run: Run) -> None:
    total, x = numbers(4, 5), numbers(4, 5, seed=1)
    right = total + x
    run("accumulate", (total, x))
    close(total, right)
    run("fill", (total,), {"value": 3.0})
    assert (total == 3).all()


@pytest.mark.parametrize("regularization", ["L2", "L1"])
@pytest.mark.parametrize("scaled", [True, False])
def test_updates(run: Run, regularization: str, scaled: bool) -> None:
    p, g, h = (numbers(100, seed=i) for i in range(3))
    segments = ((0, 30, 1.0, 1.0), (30, 100, 2.0, 0.5))
    rate, scale = np.array([0.1]), np.array([0.25]) if scaled else None
    lr = np.repeat([0.1, 0.2], [30, 70])
    decay = 0.01 * np.repeat([1.0, 0.5], [30, 70]) * (np.sign(p) if regularization == "L1" else p)
    history = 0.9 * h.astype(float) + lr * ((0.25 if scaled else 1) * g.astype(float) + decay)
    parameter = p - history
    about = {"momentum": 0.9, "decay": 0.01, "regularization": regularization, "segments": segments}
    run("momentum_update", (p, g, h, rate, scale), about)
    close(h, history)
    close(p, parameter)


def windows(x: Any, y: tuple[int, ...], about: dict[str, Any]) -> Any:
    """Yield each output's place, its window in x, and the window's size including padding."""
    for p, q in np.ndindex(*y[2:]):
        sides = []
        size = 1
        for at, extent, k, s, pad in zip(
            (p, q), x.shape[2:], about["kernel"], about["stride"], about["pad"], strict=True
        ):
            start = at * s - pad
            stop = min(start + k, extent + pad)
            size *= stop - start
            sides.append(slice(max(0, start), min(stop, extent)))
        yield p, q, *sides, size


@fixed
@given(st.data())
def test_pooling(run: Run, data: st.DataObject) -> None:
    draw = data.draw
    kernel = (draw(st.integers(1, 4)), draw(st.integers(1, 3)))
    about: dict[str, Any] = {
        "kernel": kernel,
        "stride": (draw(st.integers(1, 3)), draw(st.integers(1, 3))),
        "pad": tuple(draw(st.integers(0, k - 1)) for k in kernel),
        "rounding": draw(st.sampled_from(["ceil", "floor"])),
    }
    x = numbers(
        draw(st.integers(1, 2)), draw(st.integers(1, 3)), *(k + draw(st.integers(0, 6)) for k in kernel)
    )
    y, where = run("pooling_max", (x,), about)
    average = run("pooling_average", (x,), about)[0]
    dy = numbers(*y.shape, seed=1)
    largest, means = np.zeros(y.shape), np.zeros(y.shape)
    d_largest, d_means = np.zeros(x.shape), np.zeros(x.shape)
    index = np.arange(x.shape[2] * x.shape[3]).reshape(x.shape[2:])
    places = np.zeros(y.shape, int)
    for p, q, rows, columns, size in windows(x, y.shape, about):
        part = x[:, :, rows, columns].astype(float)
        flat = part.reshape(*part.shape[:2], -1)
        largest[:, :, p, q], means[:, :, p, q] = flat.max(-1), flat.sum(-1) / size
        places[:, :, p, q] = index[rows, columns].ravel()[flat.argmax(-1)]
        d_means[:, :, rows, columns] += dy[:, :, p, q, None, None].astype(float) / size
        for n, c in np.ndindex(*x.shape[:2]):
            d_largest[n, c].reshape(-1)[places[n, c, p, q]] += dy[n, c, p, q]
    close(y, largest)
    assert (where == places).all()
    close(average, means)
    close(run("pooling_max_backward", (dy, where), {**about, "shape": x.shape})[0], d_largest)
    close(run("pooling_average_backward", (dy,), {**about, "shape": x.shape})[0], d_means)


@fixed
@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 6), *[st.booleans()] * 3)
def test_batch_normalisation(
    run: Run, n: int, c: int, w: int, affine: bool, relu: bool, averaged: bool
) -> None:
    x, dy = numbers(n + 1, c, w, 2), numbers(n + 1, c, w, 2, seed=1)
    slope, shift = (numbers(c, seed=2), numbers(c, seed=3)) if affine else (None, None)
    kept = [np.abs(numbers(c, seed=4)), np.abs(numbers(c, seed=5)), np.ones(1, np.float32)]
    before = [k.astype(float) for k in kept]
    about = {"keep": 0.9, "averaged": averaged, "epsilon": 1e-3}
    y, average, inverse = run("batch_norm", (x, *kept, slope, shift), {**about, "relu": relu})
    X, axes, each = x.astype(float), (0, 2, 3), (1, -1, 1, 1)
    count = x.size // c
    middle, spread = X.mean(axes), X.var(axes)
    deviation = (spread + 1e-3) ** -0.5
    normal = (X - middle.reshape(each)) * deviation.reshape(each)
    made = normal if slope is None else normal * slope.reshape(each) + shift.reshape(each)
    close(y, np.maximum(made, 0) if relu else made, 1e-5)
    close(average, middle, 1e-5)
    close(inverse, deviation, 1e-5)
    entering = 0.1 * middle, 0.1 * spread, 0.1
    if not averaged:
        entering = middle, spread * count / (count - 1), 1.0
    for kept_one, right in zip(
        kept, (0.9 * each + more for each, more in zip(before, entering, strict=True)), strict=True
    ):
        close(kept_one, right, 1e-5)
    # Numbers close to zero may be on either side of the ReLU.
    dz = np.where(made > 0, dy, 0.0) if relu else dy.astype(float)
    clear = not relu or (np.abs(made) > 1e-4).all()
    wanted = (dz * normal).sum(axes), dz.sum(axes)
    inner = dz - wanted[1].reshape(each) / count - normal * wanted[0].reshape(each) / count
    right = inner * deviation.reshape(each) * (1 if slope is None else slope.reshape(each))
    operands = (dy, x, slope, shift, middle.astype(np.float32), deviation.astype(np.float32))
    dx, dw, db = run("batch_norm_backward", operands, {"relu": relu})
    if clear:
        close(dx, right, 1e-4)
        close(dw, wanted[0], 1e-4)
        close(db, wanted[1], 1e-4)
    (z,) = run("batch_norm_inference", (x, *kept, slope, shift), {"epsilon": 1e-3, "relu": relu})
    M, V = kept[0] / kept[2], kept[1] / kept[2]
    known = (X - M.reshape(each)) * ((V + 1e-3) ** -0.5).reshape(each)
    known = known if slope is None else known * slope.reshape(each) + shift.reshape(each)
    close(z, np.maximum(known, 0) if relu else known, 1e-5)


def test_scales(run: Run) -> None:
    x, dy, w, b = numbers(3, 4, 5), numbers(3, 4, 5, seed=1), numbers(4), numbers(4, seed=1)
    (y,) = run("scale", (x, w, b), {"axis": 1})
    close(y, x * w[:, None] + b[:, None])
    dx, dw, db = run("scale_backward", (dy, x, w), {"axis": 1})
    close(dx, dy * w[:, None])
    close(dw, (dy * x).sum((0, 2)))
    close(db, dy.sum((0, 2)))


def test_local_responses(run: Run) -> None:
    x, dy = numbers(2, 7, 3, 2), numbers(2, 7, 3, 2, seed=1)
    about = {"size": 5, "alpha": 0.3, "beta": 0.75, "k": 2.0}

    def around(values: Any) -> Any:
        return sum(np.pad(values, ((0, 0), (2, 2), (0, 0), (0, 0)))[:, i : i + 7] for i in range(5))

    X = x.astype(float)
    scale = 2 + 0.3 / 5 * around(X * X)
    right = X * scale**-0.75
    y, kept = run("lrn_across_channels", (x,), about)
    close(y, right)
    close(kept, scale)
    (dx,) = run("lrn_across_channels_backward", (dy, x, y, kept), about)
    close(dx, dy * scale**-0.75 - 2 * 0.3 * 0.75 / 5 * X * around(dy * right / scale))


@fixed
@given(
    st.integers(1, 5), st.integers(1, 7), st.integers(1, 3), st.sampled_from(["valid", "full", "none"])
)
def test_softmax_and_its_loss(run: Run, n: int, classes: int, inner: int, normalization: str) -> None:
    x, dy = numbers(n, classes, inner) * 5, numbers(n, classes, inner, seed=1)
    label = np.random.default_rng(n).integers(-1, classes, (n, inner)).astype(np.float32)
    X = x.astype(float)
    powers = np.exp(X - X.max(1, keepdims=True))
    right = powers / powers.sum(1, keepdims=True)
    (y,) = run("softmax", (x,))
    close(y, right)
    (dx,) = run("softmax_backward", (dy, y))  # differences of numbers that may be nearly equal
    Y = y.astype(float)
    slope = Y * (dy - (dy * Y).sum(1, keepdims=True))
    np.testing.assert_allclose(dx, slope, rtol=0, atol=2e-6 * np.abs(dy).max())
    about = {"ignore_label": -1, "normalization": normalization}
    loss, probability = run("softmax_loss", (x, label), about)
    valid, picked = label >= 0, np.maximum(label, 0).astype(int)
    by = {"valid": max(1, valid.sum()), "full": label.size, "none": 1}[normalization]
    own = np.take_along_axis(np.log(right), picked[:, None], 1)[:, 0]
    close(loss, -(own * valid).sum() / by, 1e-5)
    close(probability, right)
    one = (np.arange(classes)[None, :, None] == picked[:, None]).astype(float)
    weight = np.array(0.7, np.float32)
    (dx,) = run("softmax_loss_backward", (weight, probability, label), about)
    close(dx, 0.7 * (probability.astype(float) - one) * valid[:, None] / by)


def test_a_label_that_is_no_class_is_refused(run: Run) -> None:
    x, label = numbers(3, 4), np.array([0, 7, 1], np.float32)
    for word in ("softmax_loss", "accuracy"):
        with pytest.raises(DataError, match="label 1 of the batch"):
            run(word, (x, label))


@pytest.mark.parametrize("top", [1, 2])
def test_accuracy(run: Run, top: int) -> None:
    x = np.array([[1, 2, 3], [3, 3, 1], [5, 1, 4], [0, 9, np.nan]], np.float32)
    label = np.array([2, 0, 2, 1], np.float32)
    share, by_class = run("accuracy", (x, label), {"top_k": top})
    right = {1: [1, 0, 0, 0], 2: [1, 1, 1, 1]}[top]
    assert share == pytest.approx(np.mean(right))
    assert by_class.tolist() == pytest.approx([right[1], right[3], (right[0] + right[2]) / 2])


@pytest.mark.parametrize("random", [True, False])
@pytest.mark.parametrize("mean", [None, (3, 6, 7), (3, 1, 1)])
def test_images_are_made_into_blobs(run: Run, random: bool, mean: Any) -> None:
    x = np.random.default_rng(0).integers(0, 256, (4, 3, 6, 7)).astype(np.uint8)
    less = None if mean is None else numbers(*mean)
    scalars = np.array([2**40 + 5], np.uint64), np.array([9], np.uint64)
    about = {"scale": 0.5, "crop": 4, "mirror": True, "random": random, "seed": 11, "stream": 2}
    (y,) = run("image_transform", (x, less, *scalars), about)
    drawn = crop_and_mirror(11, 2, 2**40 + 5, 9, 4, 2, 3) if random else [(1, 1, 0)] * 4
    whole = (x - (0 if less is None else less.astype(float))) * 0.5
    for n, (row, column, turned) in enumerate(drawn):
        part = whole[n, :, row : row + 4, column : column + 4]
        close(y[n], part[:, :, ::-1] if turned else part)
