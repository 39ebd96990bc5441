"""Normalisation: by a power of the energy around each value, or by the statistics of its channel."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from demitasse_reference.kernels.arrays import Kernels, Reals

Window = Callable[[Reals, int], Reals]


def across_channels(values: Reals, size: int) -> Reals:
    """At each channel, the sum of ``values`` over the ``size`` channels around it."""
    return _sum_around(values, size, axis=1)


def within_channel(values: Reals, size: int) -> Reals:
    """At each point, the sum of ``values`` over the ``size`` x ``size`` square around it."""
    for axis in range(2, values.ndim):
        values = _sum_around(values, size, axis)
    return values


def _sum_around(values: Reals, size: int, axis: int) -> Reals:
    """The sum over ``size`` values along an axis, each in its middle, zero beyond the edge."""
    padding = [(0, 0)] * values.ndim
    padding[axis] = (size // 2, size // 2)
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(values, padding), size, axis)
    result: Reals = windows.sum(axis=-1)
    return result


def _lrn(
    window: Window, elements: int, x: Reals, size: int, alpha: float, beta: float, k: float
) -> tuple[Reals, Reals]:
    scale = k + alpha / elements * window(x * x, size)
    return x * scale**-beta, scale


def _lrn_backward(
    window: Window,
    elements: int,
    dy: Reals,
    x: Reals,
    y: Reals,
    scale: Reals,
    size: int,
    alpha: float,
    beta: float,
) -> Reals:
    shared = window(dy * y / scale, size)
    dx: Reals = dy * scale**-beta - 2 * alpha * beta / elements * x * shared
    return dx


def lrn_across_channels(
    x: Reals, *, size: int, alpha: float, beta: float, k: float
) -> tuple[Reals, Reals]:
    return _lrn(across_channels, size, x, size, alpha, beta, k)


def lrn_across_channels_backward(
    dy: Reals,
    x: Reals,
    y: Reals,
    scale: Reals,
    *,
    size: int,
    alpha: float,
    beta: float,
) -> Reals:
    return _lrn_backward(across_channels, size, dy, x, y, scale, size, alpha, beta)


def lrn_within_channel(
    x: Reals, *, size: int, alpha: float, beta: float, k: float
) -> tuple[Reals, Reals]:
    return _lrn(within_channel, size * size, x, size, alpha, beta, k)


def lrn_within_channel_backward(
    dy: Reals,
    x: Reals,
    y: Reals,
    scale: Reals,
    *,
    size: int,
    alpha: float,
    beta: float,
) -> Reals:
    return _lrn_backward(within_channel, size * size, dy, x, y, scale, size, alpha, beta)


def per_channel(values: Reals, rank: int) -> Reals:
    """One value for each channel, in a shape that meets tensors of ``rank`` dimensions at axis 1."""
    return values.reshape(-1, *[1] * (rank - 2))


def _of_channels(values: Reals) -> tuple[int, ...]:
    """The axes that a channel's statistics are taken over."""
    return (0, *range(2, values.ndim))


def batch_norm(
    x: Reals, mean: Reals, variance: Reals, factor: Reals, *, keep: float, epsilon: float
) -> tuple[Reals, ...]:
    """Ioffe and Szegedy 2015, algorithm 1. The kept sums are Caffe's: ``factor`` is what to divide them
    by, and the variance that enters them is the unbiased one."""
    axes = _of_channels(x)
    centre, spread = x.mean(axis=axes), x.var(axis=axes)
    n = x.size // x.shape[1]
    inverse = 1 / np.sqrt(spread + epsilon)
    y = (x - per_channel(centre, x.ndim)) * per_channel(inverse, x.ndim)
    unbiased = spread * (n / (n - 1) if n > 1 else 1)
    return keep * mean + centre, keep * variance + unbiased, keep * factor + 1, y, inverse


def batch_norm_backward(dy: Reals, y: Reals, inverse: Reals) -> Reals:
    axes = _of_channels(dy)
    shift, slope = dy.mean(axis=axes, keepdims=True), (dy * y).mean(axis=axes, keepdims=True)
    dx: Reals = per_channel(inverse, dy.ndim) * (dy - shift - y * slope)
    return dx


def _kept(sums: Reals, factor: Reals, rank: int) -> Reals:
    """Statistics from their sums; of nothing yet, 0."""
    return per_channel(sums / factor if factor[0] else np.zeros_like(sums), rank)


def batch_norm_inference(
    x: Reals, mean: Reals, variance: Reals, factor: Reals, *, epsilon: float
) -> Reals:
    deviation = np.sqrt(_kept(variance, factor, x.ndim) + epsilon)
    y: Reals = (x - _kept(mean, factor, x.ndim)) / deviation
    return y


def batch_norm_inference_backward(dy: Reals, variance: Reals, factor: Reals, *, epsilon: float) -> Reals:
    dx: Reals = dy / np.sqrt(_kept(variance, factor, dy.ndim) + epsilon)
    return dx


KERNELS: Kernels = {
    "batch_norm": batch_norm,
    "batch_norm_backward": batch_norm_backward,
    "batch_norm_inference": batch_norm_inference,
    "batch_norm_inference_backward": batch_norm_inference_backward,
    "lrn_across_channels": lrn_across_channels,
    "lrn_across_channels_backward": lrn_across_channels_backward,
    "lrn_within_channel": lrn_within_channel,
    "lrn_within_channel_backward": lrn_within_channel_backward,
}
