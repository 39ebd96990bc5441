"""Pooling, one window after the other.

x is (samples, channels, *image) and y (samples, channels, *places); ``kernel``, ``stride`` and ``pad``
have a number for each axis of the image. The number of places follows Caffe's rule, and so do averages,
which count the pad and nothing beyond it. ``argmax`` (int32, in y's shape) is the flat index of a
maximum in its plane.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from demitasse.operations import VOCABULARY
from demitasse_reference.kernels.arrays import Extents, Index, Kernels, Reals, Values


def pooling_max(
    x: Reals, *, kernel: Extents, stride: Extents, pad: Extents, rounding: str
) -> tuple[Reals, Values]:
    outputs = output_extents(x.shape, kernel, stride, pad, rounding)
    y = np.zeros((*x.shape[:2], *outputs))
    argmax = np.zeros(y.shape, np.int32)
    plane = np.arange(prod(x.shape[2:])).reshape(x.shape[2:])
    for output, window, _ in _windows(x.shape, outputs, kernel, stride, pad):
        values = x[window].reshape(*x.shape[:2], -1)
        # argmax takes the first of equal values, and NaN as the largest, so a NaN is passed on.
        largest = values.argmax(axis=-1)
        y[output] = np.take_along_axis(values, largest[..., None], -1)[..., 0]
        argmax[output] = plane[window].ravel()[largest]
    return y, argmax


def pooling_max_backward(dy: Reals, argmax: Values, *, shape: Extents) -> Reals:
    dx = np.zeros((shape[0], shape[1], prod(shape[2:])))
    planes = (shape[0], shape[1], -1)
    n, c = np.ogrid[: shape[0], : shape[1]]
    np.add.at(dx, (n[..., None], c[..., None], argmax.reshape(planes)), dy.reshape(planes))
    return dx.reshape(shape)


def pooling_average(x: Reals, *, kernel: Extents, stride: Extents, pad: Extents, rounding: str) -> Reals:
    outputs = output_extents(x.shape, kernel, stride, pad, rounding)
    y = np.zeros((*x.shape[:2], *outputs))
    spatial = tuple(range(2, x.ndim))
    for output, window, size in _windows(x.shape, outputs, kernel, stride, pad):
        y[output] = x[window].sum(axis=spatial) / size
    return y


def pooling_average_backward(
    dy: Reals, *, kernel: Extents, stride: Extents, pad: Extents, shape: Extents
) -> Reals:
    dx = np.zeros(shape)
    for output, window, size in _windows(shape, dy.shape[2:], kernel, stride, pad):
        dx[window] += dy[output].reshape(*shape[:2], *[1] * len(kernel)) / size
    return dx


def output_extents(
    shape: Extents, kernel: Extents, stride: Extents, pad: Extents, rounding: str
) -> tuple[int, ...]:
    """Return the number of windows along each spatial dimension, by the vocabulary's rule."""
    attributes = {"kernel": kernel, "stride": stride, "pad": pad, "rounding": rounding}
    (y,) = VOCABULARY["pooling_average"].shapes({"x": shape}, attributes)
    return y[2:]


def _windows(
    shape: Extents, outputs: Extents, kernel: Extents, stride: Extents, pad: Extents
) -> Iterator[tuple[Index, Index, int]]:
    """Yield each output, its window's part in x, and the window's size including the padding that it
    covers, which reaches one pad beyond x and no further."""
    for position in np.ndindex(*outputs):
        window: list[slice] = []
        size = 1
        for p, extent, k, s, padding in zip(position, shape[2:], kernel, stride, pad, strict=True):
            start = p * s - padding
            stop = min(start + k, extent + padding)
            window.append(slice(max(start, 0), min(stop, extent)))
            size *= stop - start
        yield (..., *position), (..., *window), size


KERNELS: Kernels = {
    "pooling_max": pooling_max,
    "pooling_max_backward": pooling_max_backward,
    "pooling_average": pooling_average,
    "pooling_average_backward": pooling_average_backward,
}
