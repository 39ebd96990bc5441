"""Pooling compared with its definition, one window after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from demitasse import Candidate, Request
from demitasse.operations import VOCABULARY
from demitasse_cpu.kernels.layouts import NHWC, NHWC_BF16, PLAIN_BF16
from demitasse_cpu.kernels.pooling import FACTORIES

Compute = Callable[..., list[Any]]
Lying = Callable[..., tuple[Any, list[Any]]]


def windows(x: Any, y: Any, attributes: dict[str, Any]) -> Iterator[tuple[Any, list[slice], int]]:
    """Yield each output's place, its window in x, and the window's size including its part of the
    padding."""
    for place in np.ndindex(y):
        parts, size = [], 1
        for d in (0, 1):
            pad = attributes["pad"][d]
            start = place[d] * attributes["stride"][d] - pad
            stop = min(start + attributes["kernel"][d], x[d] + pad)
            size *= stop - start
            parts.append(slice(max(start, 0), min(stop, x[d])))
        yield place, parts, size


def extents(x: Any, attributes: dict[str, Any]) -> tuple[int, ...]:
    (y,) = VOCABULARY["pooling_average"].shapes({"x": x.shape}, attributes)
    return tuple(y[2:])


def candidates(request: Request) -> list[Candidate]:
    return [*FACTORIES[request.operation.name](request)]


@st.composite
def geometries(draw: Any) -> tuple[tuple[int, ...], dict[str, Any]]:
    kernel = draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    attributes = {
        "kernel": kernel,
        "stride": tuple(draw(st.integers(1, k)) for k in kernel),
        "pad": tuple(draw(st.integers(0, k - 1)) for k in kernel),
        "rounding": draw(st.sampled_from(["ceil", "floor"])),
    }
    image = [k + draw(st.integers(0, 12)) for k in kernel]
    return (draw(st.integers(1, 3)), draw(st.integers(1, 3)), *image), attributes


few = settings(max_examples=examples(50), suppress_health_check=[HealthCheck.function_scoped_fixture])
dtypes = st.sampled_from(["float32", "float64"])


@few
@given(geometry=geometries(), dtype=dtypes, seed=st.integers(0, 99))
def test_maxima_and_where_they_are(compute: Compute, geometry: Any, dtype: str, seed: int) -> None:
    shape, attributes = geometry
    # Few distinct values, so that the first of equal ones must be found.
    x = np.random.default_rng(seed).integers(-2, 3, shape).astype(dtype)
    y, argmax = compute("pooling_max", [x], attributes)
    plane = np.arange(shape[2] * shape[3]).reshape(shape[2:])
    for (i, j), (rows, columns), _ in windows(shape[2:], extents(x, attributes), attributes):
        part = x[:, :, rows, columns].reshape(*shape[:2], -1)
        first = part.argmax(-1)
        assert np.array_equal(y[:, :, i, j], part.max(-1))
        assert np.array_equal(argmax[:, :, i, j], plane[rows, columns].ravel()[first])
    (alone, nothing) = compute("pooling_max", [x], attributes, absent=[1])
    assert nothing is None
    assert np.array_equal(alone, y)


@few
@given(geometry=geometries(), dtype=dtypes, seed=st.integers(0, 99))
def test_averages(compute: Compute, geometry: Any, dtype: str, seed: int) -> None:
    shape, attributes = geometry
    random = np.random.default_rng(seed)
    x = random.standard_normal(shape).astype(dtype)
    output = extents(x, attributes)
    dy = random.standard_normal((*shape[:2], *output)).astype(dtype)
    (y,) = compute("pooling_average", [x], attributes)
    (dx,) = compute("pooling_average_backward", [dy], {**attributes, "shape": shape})
    expected = np.zeros(shape)
    for (i, j), (rows, columns), size in windows(shape[2:], output, attributes):
        mean = x[:, :, rows, columns].astype(np.float64).sum((2, 3)) / size
        np.testing.assert_allclose(y[:, :, i, j], mean, rtol=1e-5, atol=1e-5)
        expected[:, :, rows, columns] += dy[:, :, i, j, None, None].astype(np.float64) / size
    np.testing.assert_allclose(dx, expected, rtol=1e-5, atol=1e-5)


@few
@given(geometry=geometries(), channels=st.sampled_from([16, 19, 32]), seed=st.integers(0, 99))
def test_gradients_of_averages_may_have_channels_innermost_where_dy_lies_plain(
    requested: Callable[..., Request], geometry: Any, channels: int, seed: int
) -> None:
    """This pays from as many channels on as vectors have numbers, and for float32."""
    (samples, _, *image), attributes = geometry
    shape, about = (samples, channels, *image), {**attributes, "shape": (samples, channels, *image)}
    output = extents(np.empty(shape), attributes)
    dy = np.random.default_rng(seed).standard_normal((*shape[:2], *output)).astype(np.float32)
    first, second = candidates(requested("pooling_average_backward", [dy], about, 2, ()))
    assert not first.input_layouts and not first.output_layouts
    assert second.input_layouts == second.output_layouts == (NHWC,)
    dx, given = np.full((samples, *image, channels), 77, np.float32), NHWC.pack(dy).copy()
    second.bind([given], [dx], np.full(second.workspace, 255, np.uint8))()
    expected = np.zeros(shape)
    for (i, j), (rows, columns), size in windows(image, output, attributes):
        expected[:, :, rows, columns] += dy[:, :, i, j, None, None].astype(np.float64) / size
    np.testing.assert_allclose(NHWC.unpack(dx, shape), expected, rtol=1e-5, atol=1e-5)
    for other in (dy[:, :15], dy.astype(np.float64)):
        about = {**attributes, "shape": (samples, other.shape[1], *image)}
        assert len(candidates(requested("pooling_average_backward", [other], about, 2, ()))) == 1


@few
@given(geometry=geometries(), dtype=dtypes, seed=st.integers(0, 99))
def test_gradients_go_where_the_maxima_were(
    compute: Compute, geometry: Any, dtype: str, seed: int
) -> None:
    shape, attributes = geometry
    random = np.random.default_rng(seed)
    x = random.standard_normal(shape).astype(dtype)
    _, argmax = compute("pooling_max", [x], attributes)
    dy = random.standard_normal(argmax.shape).astype(dtype)
    (dx,) = compute("pooling_max_backward", [dy, argmax], {**attributes, "shape": shape})
    expected = np.zeros((shape[0], shape[1], shape[2] * shape[3]))
    for n, c, i, j in np.ndindex(argmax.shape):
        expected[n, c, argmax[n, c, i, j]] += dy[n, c, i, j]
    np.testing.assert_allclose(dx, expected.reshape(shape), rtol=1e-5, atol=1e-5)


@few
@given(
    geometry=geometries(),
    channels=st.sampled_from([1, 3, 10, 16, 20, 32, 50, 97]),
    precision=st.sampled_from(["f32", "bf16"]),
    seed=st.integers(0, 99),
)
def test_maxima_without_their_places(
    lying: Lying, geometry: Any, channels: int, precision: str, seed: int
) -> None:
    (samples, _, *image), attributes = geometry
    random = np.random.default_rng(seed)
    x = random.standard_normal((samples, channels, *image)).astype(np.float32)
    # Numbers that bfloat16 has, and those that comparing bits could get wrong.
    x = PLAIN_BF16.unpack(PLAIN_BF16.pack(x), x.shape)
    special = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-39, -1e-39], np.float32)
    places = random.integers(0, x.size, x.size // 20)
    x.reshape(-1)[places] = random.choice(special[:: random.choice([1, -1])], places.size)
    x = PLAIN_BF16.unpack(PLAIN_BF16.pack(x), x.shape)
    layout = NHWC_BF16 if precision == "bf16" else NHWC
    _, (y, nothing) = lying("pooling_max", [x], attributes, [layout], precision, absent=[1])
    assert nothing is None
    for (i, j), (rows, columns), _ in windows(image, extents(x, attributes), attributes):
        np.testing.assert_array_equal(y[:, :, i, j], x[:, :, rows, columns].max((2, 3)))


@few
@given(
    kernel=st.sampled_from([2, 3]),
    stride=st.sampled_from([1, 2, 3]),
    pad=st.sampled_from([0, 1]),
    channels=st.sampled_from([10, 16, 20, 32, 50, 97]),
    image=st.tuples(st.integers(3, 9), st.integers(3, 9)),
    precision=st.sampled_from(["f32", "bf16"]),
    seed=st.integers(0, 99),
)
def test_maxima_of_squares_and_their_places(
    lying: Lying,
    kernel: int,
    stride: int,
    pad: int,
    channels: int,
    image: tuple[int, int],
    precision: str,
    seed: int,
) -> None:
    """Of equal values, the first wins, including zeros of either sign; of NaNs, too."""
    random = np.random.default_rng(seed)
    values = np.array([0.0, -0.0, 1.0, -1.0, np.nan, np.inf, -np.inf, 1e-39], np.float32)
    x = random.choice(values, (3, channels, *image), p=[0.2, 0.2, 0.2, 0.2, 0.02, 0.05, 0.05, 0.08])
    x = PLAIN_BF16.unpack(PLAIN_BF16.pack(x.astype(np.float32)), x.shape)
    steps = {"stride": (min(stride, kernel),) * 2, "pad": (pad,) * 2, "rounding": "ceil"}
    attributes: dict[str, Any] = {"kernel": (kernel,) * 2, **steps}
    layout = NHWC_BF16 if precision == "bf16" else NHWC
    _, (y, argmax) = lying("pooling_max", [x], attributes, [layout], precision)
    plane = np.arange(image[0] * image[1]).reshape(image)
    for (i, j), (rows, columns), _ in windows(image, extents(x, attributes), attributes):
        part = x[:, :, rows, columns].reshape(*x.shape[:2], -1)
        np.testing.assert_array_equal(y[:, :, i, j], part.max(-1))
        assert np.array_equal(argmax[:, :, i, j], plane[rows, columns].ravel()[part.argmax(-1)])


def test_the_average_of_a_large_plane_keeps_its_digits(compute: Compute) -> None:
    """Added one after the other, a million equal numbers would be wrong in the third digit."""
    x = np.full((1, 1, 1024, 1024), 0.1, np.float32)
    window = {"kernel": (1024, 1024), "stride": (1, 1), "pad": (0, 0)}
    (y,) = compute("pooling_average", [x], window)
    np.testing.assert_allclose(y, np.float64(x[0, 0, 0, 0]), rtol=5e-5)


@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("shape", [(2, 20, 37, 900), (1, 320, 21, 65), (4, 64, 180, 190)])
def test_maxima_of_lines_that_no_cache_keeps(
    lying: Lying, shape: tuple[int, ...], precision: str
) -> None:
    x = np.random.default_rng(5).integers(-128, 128, shape).astype(np.float32)
    given = {"kernel": (3, 3), "stride": (2, 2), "pad": (1, 0)}
    layout = NHWC_BF16 if precision == "bf16" else NHWC
    _, (y, _) = lying("pooling_max", [x], given, [layout], precision, absent=[1])
    padded = np.pad(x, [(0, 0), (0, 0), (1, 2), (0, 2)], constant_values=-np.inf)
    best = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3)).max((4, 5))[:, :, ::2, ::2]
    assert np.array_equal(y, best[:, :, : y.shape[2], : y.shape[3]])


@pytest.mark.parametrize("kernel", [300_000, 299_998])
def test_a_window_may_be_as_wide_as_a_line(compute: Compute, kernel: int) -> None:
    """As a maximum over all of a blob is. With windows that nobody needs, it would take minutes."""
    width = 300_000
    x = np.random.default_rng(1).normal(size=(1, 2, 2, width)).astype(np.float32)
    attributes = {"kernel": (1, kernel), "stride": (1, 1), "pad": (0, 0), "rounding": "floor"}
    y, argmax = compute("pooling_max", [x], attributes)
    for column in range(width - kernel + 1):
        part = x[..., column : column + kernel]
        assert np.array_equal(y[..., column], part.max(-1))
        assert np.array_equal(argmax[..., column], part.argmax(-1) + column + np.array([0, width]))


@pytest.mark.parametrize("kernel", [2, 3, 4])
def test_a_nan_is_passed_on(compute: Compute, kernel: int) -> None:
    x = np.zeros((1, 1, 8, 8), np.float32)
    x[0, 0, 3, 4] = np.nan
    y, _ = compute("pooling_max", [x], {"kernel": (kernel,) * 2, "stride": (2, 2)})
    met = [
        (i, j)
        for (i, j), (rows, columns), _ in windows(
            (8, 8), y.shape[2:], {"kernel": (kernel,) * 2, "stride": (2, 2), "pad": (0, 0)}
        )
        if np.isnan(x[0, 0, rows, columns]).any()
    ]
    assert met
    assert sorted(met) == [tuple(place) for place in np.argwhere(np.isnan(y[0, 0]))]


def test_minus_infinity_is_a_value(compute: Compute) -> None:
    x = np.full((1, 2, 5, 5), -np.inf, np.float32)
    given = {"kernel": (3, 3), "stride": (2, 2), "pad": (1, 1)}
    y, argmax = compute("pooling_max", [x], given)
    assert (y == -np.inf).all()
    assert argmax.min() >= 0
    assert argmax.max() < 25
