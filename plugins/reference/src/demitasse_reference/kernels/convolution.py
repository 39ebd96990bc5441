"""Convolution and its two backward passes: one sum over the kernel's taps, read in three ways.

For each tap (one element of the kernel's window), all outputs see a strided slice of the padded x.
Forward reads that slice, backward for data adds to it, and backward for weights correlates with it.

x is (samples, channels, *image), w (outputs, channels / groups, *window), b (outputs,) and y (samples,
outputs, *places); ``stride``, ``pad`` and ``dilation`` have a number for each axis of the image. Along
an axis there are floor((extent + 2 pad - dilation (window - 1) - 1) / stride) + 1 places.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from demitasse_reference.kernels.arrays import Extents, Index, Kernels, Reals


def convolution(
    x: Reals,
    w: Reals,
    b: Reals | None,
    *,
    stride: Extents,
    pad: Extents,
    dilation: Extents,
    groups: int,
) -> Reals:
    padded = _padded(x, pad)
    outputs = [
        (extent - d * (kernel - 1) - 1) // s + 1
        for extent, kernel, s, d in zip(padded.shape[2:], w.shape[2:], stride, dilation, strict=True)
    ]
    y = np.zeros((x.shape[0], w.shape[0], *outputs))
    for c, k in _groups(x.shape[1], w.shape[0], groups):
        for tap, seen in _taps(w.shape[2:], outputs, stride, dilation):
            y[:, k] += _einsum("nc...,kc->nk...", padded[:, c][seen], w[k][tap])
    if b is not None:
        y += b.reshape(-1, *[1] * len(outputs))
    return y


def convolution_backward_data(
    dy: Reals,
    w: Reals,
    *,
    stride: Extents,
    pad: Extents,
    dilation: Extents,
    groups: int,
    shape: Extents,
) -> Reals:
    padded = _padded(np.zeros(shape), pad)
    for c, k in _groups(shape[1], w.shape[0], groups):
        for tap, seen in _taps(w.shape[2:], dy.shape[2:], stride, dilation):
            padded[:, c][seen] += _einsum("nk...,kc->nc...", dy[:, k], w[k][tap])
    inner = (slice(p, p + extent) for p, extent in zip(pad, shape[2:], strict=True))
    unpadded: Index = (..., *inner)
    return padded[unpadded]


def convolution_backward_weights(
    dy: Reals,
    x: Reals,
    *,
    stride: Extents,
    pad: Extents,
    dilation: Extents,
    groups: int,
    shape: Extents,
) -> tuple[Reals, Reals]:
    padded = _padded(x, pad)
    dw = np.zeros(shape)
    for c, k in _groups(x.shape[1], shape[0], groups):
        for tap, seen in _taps(shape[2:], dy.shape[2:], stride, dilation):
            dw[k][tap] = _einsum("nk...,nc...->kc", dy[:, k], padded[:, c][seen])
    return dw, dy.sum(axis=(0, *range(2, dy.ndim)))


def _padded(x: Reals, pad: Extents) -> Reals:
    return np.pad(x, [(0, 0), (0, 0), *((p, p) for p in pad)])


def _groups(inputs: int, outputs: int, groups: int) -> Iterator[tuple[slice, slice]]:
    """Yield the input and the output channels of each group."""
    c, k = inputs // groups, outputs // groups
    for group in range(groups):
        yield slice(group * c, (group + 1) * c), slice(group * k, (group + 1) * k)


def _taps(
    kernel: Extents, outputs: Extents, stride: Extents, dilation: Extents
) -> Iterator[tuple[Index, Index]]:
    """Yield each element of the kernel's window, and the part of padded x that the outputs see there."""
    for tap in np.ndindex(*kernel):
        seen = (
            slice(t * d, t * d + (extent - 1) * s + 1, s)
            for t, d, extent, s in zip(tap, dilation, outputs, stride, strict=True)
        )
        yield (..., *tap), (..., *seen)


def _einsum(subscripts: str, *operands: Reals) -> Reals:
    result: Reals = np.einsum(subscripts, *operands, optimize=True)
    return result


KERNELS: Kernels = {
    "convolution": convolution,
    "convolution_backward_data": convolution_backward_data,
    "convolution_backward_weights": convolution_backward_weights,
}
