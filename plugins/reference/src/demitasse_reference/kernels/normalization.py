"""Normalisation: by a power of the energy around each value (Krizhevsky, Sutskever and Hinton 2012,
section 3.3), or by the statistics of its channel (Ioffe and Szegedy 2015).

x, y and ``scale`` are (samples, channels, *image). Everything else has a number for each channel:
``mean``, ``variance``, ``average`` (the batch's mean), ``inverse`` (one over the standard deviation),
``w`` and ``b``; ``factor`` is (1,).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from demitasse_reference.kernels.arrays import Kernels, Reals

Window = Callable[[Reals, int], Reals]


def across_channels(values: Reals, size: int) -> Reals:
    """Return at each channel the sum of ``values`` over the ``size`` channels around it."""
    return _sum_around(values, size, axis=1)


def within_channel(values: Reals, size: int) -> Reals:
    """Return at each point the sum of ``values`` over the ``size`` x ``size`` square around it."""
    for axis in range(2, values.ndim):
        values = _sum_around(values, size, axis)
    return values


def _sum_around(values: Reals, size: int, axis: int) -> Reals:
    """Return sums over ``size`` values along an axis, each at the middle one, with zeros outside."""
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
    """Return one value per channel, shaped to broadcast with ``rank`` dimensions at axis 1."""
    return values.reshape(-1, *[1] * (rank - 2))


def _of_channels(values: Reals) -> tuple[int, ...]:
    """Return the axes over which a channel's statistics are taken."""
    return (0, *range(2, values.ndim))


def _affine(values: Reals, inverse: Reals, w: Reals | None, b: Reals | None, relu: bool) -> Reals:
    """Return what batch_norm makes of values minus their mean, by the inverse of their deviation."""
    y = values * per_channel(inverse if w is None else w * inverse, values.ndim)
    if b is not None:
        y = y + per_channel(b, y.ndim)
    return np.maximum(y, 0) if relu else y


def batch_norm(
    x: Reals,
    mean: Reals,
    variance: Reals,
    factor: Reals,
    w: Reals | None,
    b: Reals | None,
    *,
    keep: float,
    averaged: bool,
    epsilon: float,
    relu: bool,
) -> tuple[Reals, ...]:
    """Ioffe and Szegedy 2015, algorithm 1. The kept sums are Caffe's: ``factor`` is their divisor, and
    they sum the unbiased variance. If ``averaged``, moving averages of the batches' own statistics are
    kept instead."""
    axes = _of_channels(x)
    average, spread = x.mean(axis=axes), x.var(axis=axes)
    n = x.size // x.shape[1]
    inverse = 1 / np.sqrt(spread + epsilon)
    y = _affine(x - per_channel(average, x.ndim), inverse, w, b, relu)
    kept = _updated(mean, variance, factor, average, spread, n, keep, averaged)
    return *kept, y, average, inverse


def _updated(
    mean: Reals,
    variance: Reals,
    factor: Reals,
    average: Reals,
    spread: Reals,
    n: float,
    keep: float,
    averaged: bool,
) -> tuple[Reals, Reals, Reals]:
    """Return the kept statistics once those of a batch of ``n`` numbers a channel are included."""
    if averaged:
        return keep * mean + (1 - keep) * average, keep * variance + (1 - keep) * spread, factor
    unbiased = spread * (n / (n - 1) if n > 1 else 1)
    return keep * mean + average, keep * variance + unbiased, keep * factor + 1


def _sums(
    dy: Reals, centred: Reals, inverse: Reals, w: Reals | None, b: Reals | None, relu: bool
) -> tuple[Reals, Reals, Reals]:
    """Return the gradient before the ReLU, and its sums dw (times the normalised values) and db."""
    axes = _of_channels(dy)
    dz = np.where(_affine(centred, inverse, w, b, relu) == 0, 0, dy) if relu else dy
    return dz, inverse * (dz * centred).sum(axis=axes), dz.sum(axis=axes)


def batch_norm_backward(
    dy: Reals,
    x: Reals,
    w: Reals | None,
    b: Reals | None,
    average: Reals,
    inverse: Reals,
    *,
    relu: bool,
) -> tuple[Reals, ...]:
    centred, n = x - per_channel(average, x.ndim), x.size // x.shape[1]
    dz, dw, db = _sums(dy, centred, inverse, w, b, relu)
    normalised = centred * per_channel(inverse, x.ndim)
    level, tilt = (per_channel(sums / n, x.ndim) for sums in (db, dw))
    slope = per_channel(inverse if w is None else w * inverse, x.ndim)
    return slope * (dz - level - normalised * tilt), dw, db


def _kept(mean: Reals, variance: Reals, factor: Reals, epsilon: float) -> tuple[Reals, Reals]:
    """Return the mean and the inverse deviation from the kept sums, which are 0 at the beginning."""
    share = 1 / factor[0] if factor[0] else 0.0
    return share * mean, 1 / np.sqrt(share * variance + epsilon)


def batch_norm_inference(
    x: Reals,
    mean: Reals,
    variance: Reals,
    factor: Reals,
    w: Reals | None,
    b: Reals | None,
    *,
    epsilon: float,
    relu: bool,
) -> Reals:
    average, inverse = _kept(mean, variance, factor, epsilon)
    return _affine(x - per_channel(average, x.ndim), inverse, w, b, relu)


def batch_norm_inference_backward(
    dy: Reals,
    x: Reals,
    mean: Reals,
    variance: Reals,
    factor: Reals,
    w: Reals | None,
    b: Reals | None,
    *,
    epsilon: float,
    relu: bool,
) -> tuple[Reals, ...]:
    average, inverse = _kept(mean, variance, factor, epsilon)
    dz, dw, db = _sums(dy, x - per_channel(average, x.ndim), inverse, w, b, relu)
    return dz * per_channel(inverse if w is None else w * inverse, x.ndim), dw, db


def _clipped(y: Reals, least: float, most: float) -> Reals:
    return np.minimum(np.maximum(y, least), most)


def _between(z: Reals, dy: Reals, least: float, most: float) -> Reals:
    """Return the gradient of a clip; it passes at the limits, too."""
    return np.where((z >= least) & (z <= most), dy, 0)


def batch_norm_clip(
    x: Reals,
    mean: Reals,
    variance: Reals,
    factor: Reals,
    w: Reals | None,
    b: Reals | None,
    *,
    keep: float,
    averaged: bool,
    epsilon: float,
    relu: bool,
    least: float,
    most: float,
) -> tuple[Reals, ...]:
    *kept, y, average, inverse = batch_norm(
        x, mean, variance, factor, w, b, keep=keep, averaged=averaged, epsilon=epsilon, relu=relu
    )
    return *kept, _clipped(y, least, most), average, inverse


def batch_norm_clip_backward(
    dy: Reals,
    x: Reals,
    w: Reals | None,
    b: Reals | None,
    average: Reals,
    inverse: Reals,
    *,
    relu: bool,
    least: float,
    most: float,
) -> tuple[Reals, ...]:
    z = _affine(x - per_channel(average, x.ndim), inverse, w, b, relu)
    inside = _between(z, dy, least, most)
    return batch_norm_backward(inside, x, w, b, average, inverse, relu=relu)


def batch_norm_inference_clip(
    x: Reals,
    mean: Reals,
    variance: Reals,
    factor: Reals,
    w: Reals | None,
    b: Reals | None,
    *,
    epsilon: float,
    relu: bool,
    least: float,
    most: float,
) -> Reals:
    y = batch_norm_inference(x, mean, variance, factor, w, b, epsilon=epsilon, relu=relu)
    return _clipped(y, least, most)


def batch_norm_inference_clip_backward(
    dy: Reals,
    x: Reals,
    mean: Reals,
    variance: Reals,
    factor: Reals,
    w: Reals | None,
    b: Reals | None,
    *,
    epsilon: float,
    relu: bool,
    least: float,
    most: float,
) -> tuple[Reals, ...]:
    kept = mean, variance, factor, w, b
    z = batch_norm_inference(x, *kept, epsilon=epsilon, relu=relu)
    inside = _between(z, dy, least, most)
    return batch_norm_inference_backward(inside, x, *kept, epsilon=epsilon, relu=relu)


def fold_normalization(
    w: Reals,
    b: Reals | None,
    mean: Reals | None,
    variance: Reals | None,
    factor: Reals | None,
    slope: Reals | None,
    level: Reals | None,
    *,
    axis: int,
    epsilon: float,
) -> tuple[Reals, Reals]:
    """Return weights and biases that do a product and the normalisation, or scale, of its results."""
    total = np.ones(w.shape[axis]) if slope is None else slope
    bias = np.zeros(w.shape[axis]) if b is None else b
    if mean is not None and variance is not None and factor is not None:
        average, inverse = _kept(mean, variance, factor, epsilon)
        total, bias = total * inverse, bias - average
    shaped = total.reshape([-1 if i == axis else 1 for i in range(w.ndim)])
    return w * shaped, bias * total + (0.0 if level is None else level)


def channel_moments(x: Reals) -> Reals:
    axes = _of_channels(x)
    return np.concatenate([x.sum(axis=axes), (x * x).sum(axis=axes), [x.size // x.shape[1]]])


def settle_moments(
    moments: Reals,
    mean: Reals,
    variance: Reals,
    factor: Reals,
    *,
    keep: float,
    averaged: bool,
    epsilon: float,
) -> tuple[Reals, ...]:
    """As ``batch_norm`` settles the statistics of its own batch."""
    n = moments[-1]
    average, squares = moments[:-1].reshape(2, -1) / n
    spread = np.maximum(squares - average**2, 0)
    inverse = 1 / np.sqrt(spread + epsilon)
    kept = _updated(mean, variance, factor, average, spread, n, keep, averaged)
    return *kept, average, spread, inverse


def batch_norm_whole_backward(
    dy: Reals,
    x: Reals,
    w: Reals | None,
    b: Reals | None,
    average: Reals,
    inverse: Reals,
    sums: Reals,
    moments: Reals,
    *,
    relu: bool,
    least: float,
    most: float,
) -> Reals:
    """Ioffe and Szegedy 2015, section 3: a sample's gradient depends on the sums of the whole batch."""
    centred = x - per_channel(average, x.ndim)
    inside = _between(_affine(centred, inverse, w, b, relu), dy, least, most)
    dz, _, _ = _sums(inside, centred, inverse, w, b, relu)
    tilt, level = (per_channel(each / moments[-1], x.ndim) for each in sums.reshape(2, -1))
    slope = per_channel(inverse if w is None else w * inverse, x.ndim)
    dx: Reals = slope * (dz - level - centred * per_channel(inverse, x.ndim) * tilt)
    return dx


KERNELS: Kernels = {
    "channel_moments": channel_moments,
    "settle_moments": settle_moments,
    "batch_norm_whole_backward": batch_norm_whole_backward,
    "batch_norm": batch_norm,
    "batch_norm_backward": batch_norm_backward,
    "batch_norm_clip": batch_norm_clip,
    "batch_norm_clip_backward": batch_norm_clip_backward,
    "batch_norm_inference": batch_norm_inference,
    "batch_norm_inference_backward": batch_norm_inference_backward,
    "batch_norm_inference_clip": batch_norm_inference_clip,
    "batch_norm_inference_clip_backward": batch_norm_inference_clip_backward,
    "fold_normalization": fold_normalization,
    "lrn_across_channels": lrn_across_channels,
    "lrn_across_channels_backward": lrn_across_channels_backward,
    "lrn_within_channel": lrn_within_channel,
    "lrn_within_channel_backward": lrn_within_channel_backward,
}
