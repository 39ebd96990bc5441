"""Sums, joins, constants, images and the solver's update compared with NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from demitasse import crop_and_mirror

Compute = Callable[..., list[Any]]


@pytest.mark.parametrize("coefficients", [(), (2.0, -1.0, 0.5, 3.0, -0.25, 1.5)])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6])
def test_sum_and_its_gradients(compute: Compute, count: int, coefficients: tuple[float, ...]) -> None:
    random = np.random.default_rng(9)
    xs = [random.standard_normal((4, 5)) for _ in range(count)]
    factors = coefficients[:count] or (1.0,) * count
    (y,) = compute("sum", xs, {"coefficients": coefficients[:count]})
    np.testing.assert_allclose(y, sum(c * x for c, x in zip(factors, xs, strict=True)), atol=1e-15)
    given = {"coefficients": coefficients[:count], "shapes": tuple(x.shape for x in xs)}
    for dx, factor in zip(compute("sum_backward", [y], given), factors, strict=True):
        np.testing.assert_allclose(dx, factor * y)


@pytest.mark.parametrize(("count", "taken"), [(3, 0), (3, 1), (3, 2), (1, 0), (5, 4)])
def test_a_sum_may_take_the_memory_of_any_of_its_inputs(
    asked: Callable[..., Any], count: int, taken: int
) -> None:
    xs = [np.arange(6.0) + i for i in range(count)]
    _, candidate = asked("sum", xs, {})
    expected = sum(xs)
    candidate.bind(xs, [xs[taken]], None)()
    assert np.array_equal(xs[taken], expected)


@pytest.mark.parametrize("axis", [0, 1, 3])
def test_concat_and_its_gradient(compute: Compute, axis: int) -> None:
    random = np.random.default_rng(10)
    shapes = [tuple(e if d == axis else 3 for d in range(4)) for e in (2, 5, 1)]
    xs = [random.standard_normal(shape).astype(np.float32) for shape in shapes]
    (y,) = compute("concat", xs, {"axis": axis})
    assert np.array_equal(y, np.concatenate(xs, axis))
    given = {"axis": axis, "shapes": tuple(shapes)}
    first, nothing, last = compute("concat_backward", [y], given, absent=[1])
    assert nothing is None
    assert np.array_equal(first, xs[0])
    assert np.array_equal(last, xs[2])


def test_fill_and_accumulate(compute: Compute) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert (compute("fill", [x], {"value": -3.0})[0] == -3).all()
    total, unchanged = compute("accumulate", [x, 2 * x], {})
    assert np.array_equal(total, 3 * x)
    assert np.array_equal(unchanged, 2 * x)


def test_a_fused_sum_leaves_nothing_below_zero(compute: Compute) -> None:
    xs = [np.random.default_rng(i).standard_normal((3, 7, 5)).astype(np.float32) for i in range(3)]
    (y,) = compute("sum_relu", xs, {"coefficients": (1.0, -1.0, 2.0)})
    np.testing.assert_allclose(y, np.maximum(xs[0] - xs[1] + 2 * xs[2], 0), atol=1e-6)
    (y,) = compute("sum_relu", [np.array([-1, np.nan, 2], np.float32)] * 2)
    assert np.array_equal(y, np.array([0, np.nan, 4], np.float32), equal_nan=True)


@pytest.mark.parametrize("kind", ["float32", "float64", "int32", "uint64"])
def test_fill_of_any_type(compute: Compute, kind: str) -> None:
    assert (compute("fill", [np.zeros((), kind)], {"value": 3.0})[0] == 3).all()


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    shape=st.tuples(st.integers(1, 6), st.integers(1, 3), st.integers(3, 9), st.integers(3, 9)),
    kind=st.sampled_from(["uint8", "int32", "float32", "float64"]),
    mean=st.sampled_from(["none", "image", "channel", "number"]),
    crop=st.integers(0, 3),
    mirror=st.booleans(),
    random=st.booleans(),
    numbers=st.tuples(*(st.integers(0, 2**40) for _ in range(4))),
)
def test_image_transform(
    compute: Compute,
    shape: tuple[int, int, int, int],
    kind: str,
    mean: str,
    crop: int,
    mirror: bool,
    random: bool,
    numbers: tuple[int, int, int, int],
) -> None:
    values = np.random.default_rng(11)
    x = values.integers(0, 256, shape).astype(kind)
    real = "float64" if kind == "float64" else "float32"
    kinds = {"image": shape[1:], "channel": (shape[1], 1, 1), "number": (1, 1, 1)}
    subtracted = values.standard_normal(kinds[mean]).astype(real) if mean in kinds else None
    seed, stream, iteration, sample = numbers
    given = {"scale": 0.5, "crop": crop, "mirror": mirror, "random": random}
    counters = [np.array([iteration], np.uint64), np.array([sample], np.uint64)]
    (y,) = compute(
        "image_transform", [x, subtracted, *counters], {**given, "seed": seed, "stream": stream}
    )
    size = (crop or shape[2], crop or shape[3])
    rows, columns = shape[2] - size[0], shape[3] - size[1]
    places = crop_and_mirror(seed, stream, iteration, sample, shape[0], rows, columns)
    whole = 0.5 * (x.astype(np.float64) - (0 if subtracted is None else subtracted))
    for n, (top, left, flipped) in enumerate(places):
        if not random:
            top, left, flipped = rows // 2, columns // 2, 0
        part = whole[n, :, top : top + size[0], left : left + size[1]]
        part = part[:, :, ::-1] if mirror and flipped else part
        np.testing.assert_allclose(y[n], part, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("regularization", ["L1", "L2"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_momentum_update(compute: Compute, dtype: str, regularization: str) -> None:
    random = np.random.default_rng(12)
    parameter, gradient, history = (random.standard_normal(50).astype(dtype) for _ in range(3))
    parameter[7] = 0
    segments = ((0, 13, 1.0, 1.0), (13, 14, 2.0, 0.0), (14, 50, 0.5, 3.0))
    given = {
        "momentum": 0.9,
        "decay": 0.01,
        "regularization": regularization,
        "segments": segments,
    }
    rate = np.array([0.1])
    after, same, velocity, _ = compute("momentum_update", [parameter, gradient, history, rate], given)
    assert np.array_equal(same, gradient)
    for start, stop, rate_multiplier, decay_multiplier in segments:
        for i in range(start, stop):
            value = float(parameter[i])
            pull = value if regularization == "L2" else float(np.sign(value))
            step = float(gradient[i]) + 0.01 * decay_multiplier * pull
            change = 0.9 * float(history[i]) + 0.1 * rate_multiplier * step
            assert velocity[i] == pytest.approx(change, rel=1e-5, abs=1e-6)
            assert after[i] == pytest.approx(value - change, rel=1e-5, abs=1e-6)
