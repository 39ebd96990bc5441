"""The three passes of a convolution compared with their definition in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

TOLERANCE = {"float32": 1e-5, "float64": 1e-13}


def windows(attributes: dict[str, Any], w: Any, y: Any) -> Any:
    """Return, for each tap, the part of a padded image that it meets."""
    (sy, sx), (dy, dx) = attributes["stride"], attributes["dilation"]
    for i in range(w.shape[2]):
        for j in range(w.shape[3]):
            rows = slice(i * dy, i * dy + sy * (y.shape[2] - 1) + 1, sy)
            yield i, j, (..., rows, slice(j * dx, j * dx + sx * (y.shape[3] - 1) + 1, sx))


def expected(x: Any, w: Any, b: Any, dy: Any, attributes: dict[str, Any]) -> tuple[Any, ...]:
    """Return y, dx, dw and db by the definition, group by group and tap by tap."""
    x, w, b, dy = (a.astype(np.float64) for a in (x, w, b, dy))
    (py, px), groups = attributes["pad"], attributes["groups"]
    padded = np.pad(x, ((0, 0), (0, 0), (py, py), (px, px)))
    y, dx, dw = np.zeros(dy.shape), np.zeros(padded.shape), np.zeros(w.shape)
    inputs, outputs = w.shape[1], w.shape[0] // groups
    for g in range(groups):
        c, k = slice(g * inputs, (g + 1) * inputs), slice(g * outputs, (g + 1) * outputs)
        for i, j, window in windows(attributes, w, dy):
            part = padded[:, c][window]
            y[:, k] += np.einsum("nchw,kc->nkhw", part, w[k, :, i, j])
            dw[k, :, i, j] = np.einsum("nkhw,nchw->kc", dy[:, k], part)
            dx[:, c][window] += np.einsum("nkhw,kc->nchw", dy[:, k], w[k, :, i, j])
    dx = dx[:, :, py : py + x.shape[2], px : px + x.shape[3]]
    return y + b[:, None, None], dx, dw, dy.sum((0, 2, 3))


def problem(
    seed: int, dtype: str, samples: int, channels: tuple[int, int], groups: int, **numbers: Any
) -> tuple[Any, ...]:
    """Return x, w, b, dy and attributes. An image has ``spare`` rows and columns beyond the kernel."""
    random = np.random.default_rng(seed)
    kernel, spare = numbers.pop("kernel"), numbers.pop("spare")
    attributes = {"groups": groups, "stride": (1, 1), "pad": (0, 0), "dilation": (1, 1), **numbers}
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, attributes["dilation"], strict=True)]
    image = [r + s for r, s in zip(reach, spare, strict=True)]
    sizes = zip(image, attributes["pad"], reach, attributes["stride"], strict=True)
    result = [(e + 2 * p - r) // s + 1 for e, p, r, s in sizes]
    shapes = (
        (samples, channels[0] * groups, *image),
        (channels[1] * groups, channels[0], *kernel),
        (channels[1] * groups,),
        (samples, channels[1] * groups, *result),
    )
    return *(random.standard_normal(shape).astype(dtype) for shape in shapes), attributes


def check(compute: Callable[..., list[Any]], x: Any, w: Any, b: Any, dy: Any, given: Any) -> None:
    y, dx, dw, db = expected(x, w, b, dy, given)
    found = [
        *compute("convolution", [x, w, b], given),
        *compute("convolution_backward_data", [dy, w], {**given, "shape": x.shape}),
        *compute("convolution_backward_weights", [dy, x], {**given, "shape": w.shape}),
    ]
    for ours, theirs in zip(found, (y, dx, dw, db), strict=True):
        bound = TOLERANCE[x.dtype.name] * max(1.0, float(np.abs(theirs).max()))
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=bound)


pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 99),
    dtype=st.sampled_from(["float32", "float64"]),
    samples=st.integers(1, 4),
    channels=st.tuples(st.integers(1, 5), st.sampled_from([1, 3, 10, 20])),
    groups=st.integers(1, 3),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    spare=st.tuples(st.integers(0, 7), st.integers(0, 7)),
    stride=pairs,
    pad=st.tuples(st.integers(0, 4), st.integers(0, 4)),
    dilation=pairs,
)
def test_any_geometry(compute: Callable[..., list[Any]], **numbers: Any) -> None:
    check(compute, *problem(**numbers))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("channels", [(3, 97), (97, 3), (20, 50), (10, 64), (50, 20)])
def test_odd_numbers_of_channels(
    compute: Callable[..., list[Any]], channels: tuple[int, int], dtype: str
) -> None:
    numbers: dict[str, Any] = {"kernel": (3, 3), "spare": (6, 5), "pad": (1, 1)}
    check(compute, *problem(1, dtype, 5, channels, 1, **numbers))


def test_alexnet_first_layer_in_small(compute: Callable[..., list[Any]]) -> None:
    numbers: dict[str, Any] = {"kernel": (11, 11), "spare": (24, 28), "stride": (4, 4)}
    check(compute, *problem(2, "float32", 3, (3, 96), 1, **numbers))


def test_biases_and_their_gradients_may_be_absent(compute: Callable[..., list[Any]]) -> None:
    x, w, b, dy, given = problem(3, "float64", 2, (2, 5), 1, kernel=(3, 3), spare=(4, 4))
    y, _, dw, _ = expected(x, w, np.zeros_like(b), dy, given)
    (found,) = compute("convolution", [x, w, None], given)
    np.testing.assert_allclose(found, y, atol=1e-12)
    gradient, nothing = compute(
        "convolution_backward_weights", [dy, x], {**given, "shape": w.shape}, absent=[1]
    )
    assert nothing is None
    np.testing.assert_allclose(gradient, dw, atol=1e-12)


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_any_number_of_threads_computes_the_same_images(
    compute: Callable[..., list[Any]], threads: int
) -> None:
    x, w, b, dy, given = problem(4, "float32", 7, (16, 40), 1, kernel=(5, 5), spare=(15, 15))
    operands = "convolution", [x, w, b], given
    (alone,), (divided,) = compute(*operands, threads=1), compute(*operands, threads=threads)
    assert np.array_equal(alone, divided)
    operands = "convolution_backward_data", [dy, w], {**given, "shape": x.shape}
    (alone,), (divided,) = compute(*operands, threads=1), compute(*operands, threads=threads)
    assert np.array_equal(alone, divided)
