"""Local response normalisation: each value over a power of the energy around it."""

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


KERNELS: Kernels = {
    "lrn_across_channels": lrn_across_channels,
    "lrn_across_channels_backward": lrn_across_channels_backward,
    "lrn_within_channel": lrn_within_channel,
    "lrn_within_channel_backward": lrn_within_channel_backward,
}
