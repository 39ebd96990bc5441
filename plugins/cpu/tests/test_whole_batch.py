"""Parts of a batch that are normalised by the statistics of the whole, in planes and with channels
innermost, compared with NumPy in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from agreement import make_request, run

from demitasse import PLAIN, Layout
from demitasse_cpu.kernels import FACTORIES

NHWC = Layout("NHWC", (0, 2, 3, 1))
NHWC_BF16 = replace(NHWC, stored="bfloat16")
PLACES = [
    ((2, 3, 5, 7), PLAIN, "float32"),
    ((2, 3, 5, 7), NHWC, "float32"),
    ((1, 1, 1, 1), NHWC, "float64"),
    ((4, 20, 8, 8), NHWC, "float64"),
    ((3, 97, 13, 13), PLAIN, "float64"),
    ((3, 97, 13, 13), NHWC, "float32"),
    ((7, 128, 15, 13), NHWC, "float32"),  # lines that the loops in vectors take
    ((7, 128, 15, 13), NHWC_BF16, "float32"),
    ((16, 16, 32, 32), PLAIN, "float32"),
    ((33, 97), PLAIN, "float32"),
    ((1, 3), PLAIN, "float64"),
]
places = pytest.mark.parametrize(("shape", "layout", "dtype"), PLACES, ids=str)


def computed(name: str, inputs: list[Any], layout: Layout, images: int, **given: Any) -> list[Any]:
    """The updated inputs and the outputs. The first ``images`` operands lie in ``layout``."""
    dtype = next(x.dtype.name for x in inputs[images - 1 :] if x is not None)
    if dtype == "float64" and name == "settle_moments":
        dtype = inputs[1].dtype.name
    request = make_request(name, inputs, given, dtype)
    lying = [spec and replace(spec, layout=layout) for spec in request.inputs[:images]]
    precision = "bf16" if layout.stored else "f32"
    request = replace(request, inputs=(*lying, *request.inputs[images:]), precision=precision)
    (candidate,) = FACTORIES[name](request)
    assert candidate.input_layouts[:images] == (layout,) * images
    return run(candidate, request, inputs)


def rounded(x: Any, layout: Layout) -> Any:
    """The numbers that are stored in the layout."""
    return layout.unpack(layout.pack(x), x.shape).reshape(x.shape).copy()


def along(values: Any, x: Any) -> Any:
    return np.asarray(values, np.float64).reshape(-1, *[1] * (x.ndim - 2))


def axes(x: Any) -> tuple[int, ...]:
    return (0, *range(2, x.ndim))


@places
@pytest.mark.parametrize("mean", [0.0, 1000.0])
def test_moments_are_sums_of_the_numbers_themselves(
    shape: tuple[int, ...], layout: Layout, dtype: str, mean: float
) -> None:
    """Even if the mean is large, the variance is right, as sums are of differences from a shift."""
    drawn = np.random.default_rng(3).normal(mean, 2, shape).astype(dtype)
    x = rounded(drawn, layout)
    *_, moments = computed("channel_moments", [x], layout, 1)
    wide, n = x.astype(np.float64), x.size / shape[1]
    assert moments.dtype == np.float64 and moments[-1] == n
    sums, squares = moments[:-1].reshape(2, -1)
    within = 1e-12 if dtype == "float64" else 1e-6
    np.testing.assert_allclose(sums / n, wide.mean(axes(x)), rtol=within, atol=within)
    variance = squares / n - (sums / n) ** 2
    np.testing.assert_allclose(variance, wide.var(axes(x)), rtol=1e3 * within, atol=1e3 * within)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("averaged", [False, True])
@pytest.mark.parametrize("n", [1, 50])
def test_moments_become_statistics(dtype: str, averaged: bool, n: int) -> None:
    random = np.random.default_rng(4)
    x = random.normal(3, 2, (n, 7))
    moments = np.concatenate([x.sum(0), (x**2).sum(0), [n]])
    mean, variance = random.uniform(1, 2, (2, 7)).astype(dtype)
    kept = [mean, variance, np.array([1.5], dtype)]
    given = {"keep": 0.9, "averaged": averaged, "epsilon": 0.01}
    request = make_request("settle_moments", [moments, *kept], given, dtype)
    (candidate,) = FACTORIES["settle_moments"](request)
    _, *found = run(candidate, request, [moments, *kept])
    average, spread = x.mean(0), x.var(0)
    expected: list[Any] = [
        0.9 * mean + (0.1 if averaged else 1) * average,
        0.9 * variance + (0.1 * spread if averaged else spread * n / max(1, n - 1)),
        [1.5 if averaged else 2.35],
        average,
        spread,
        1 / np.sqrt(spread.astype(dtype) + 0.01),
    ]
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == dtype
        np.testing.assert_allclose(ours, theirs, rtol=1e-6 if dtype == "float32" else 1e-9, atol=1e-9)
    assert np.array_equal(found[-1], (1 / np.sqrt(found[-2].astype(float) + 0.01)).astype(dtype))


@places
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("learned", [False, True])
def test_the_gradient_by_sums_of_the_whole_batch(
    shape: tuple[int, ...], layout: Layout, dtype: str, relu: bool, learned: bool
) -> None:
    random, channels = np.random.default_rng(5), shape[1]
    dy, x = (rounded(random.normal(0.5, 2, shape).astype(dtype), layout) for _ in range(2))
    average, inverse = random.uniform(1, 2, (2, channels)).astype(dtype)
    w, b = random.uniform(0.5, 2, (2, channels)).astype(dtype) if learned else (None, None)
    sums, n = random.normal(0, 50, 2 * channels), 3.0 * x.size / channels
    moments = np.concatenate([random.normal(size=2 * channels), [n]])
    centred = x.astype(np.float64) - along(average, x)
    slope = along(inverse, x) * (along(w, x) if learned else 1)
    z = centred * slope + (along(b, x) if learned else 0)
    dy = np.where(np.abs(z) < 1e-4, 0, dy).astype(dtype)  # rounding could put z beyond the kink
    dz = np.where((z > 0) | (not relu), dy, 0).astype(np.float64)
    tilt, level = (along(each / n, x) for each in sums.reshape(2, -1))
    expected = slope * (dz - level - centred * along(inverse, x) * tilt)
    inputs = [dy, x, w, b, average, inverse, sums, moments]
    *_, dx = computed("batch_norm_whole_backward", inputs, layout, 2, relu=relu)
    within = 1e-2 if layout.stored else 1e-12 if dtype == "float64" else 1e-5
    np.testing.assert_allclose(dx, expected, rtol=within, atol=within * np.abs(expected).max())


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "uint8"])
def test_labels_are_counted_without_those_ignored(dtype: str) -> None:
    label = np.array([0, 1, 255, 2, 255, 255], dtype)
    for ignored, count in ((255, 3.0), (1, 5.0), (7, 6.0)):
        request = make_request("count_labels", [label], {"ignore_label": ignored}, "float32")
        (candidate,) = FACTORIES["count_labels"](request)
        *_, found = run(candidate, request, [label])
        assert found.dtype == np.float64 and found.tolist() == [count]
