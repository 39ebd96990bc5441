"""Batch normalisation and scales of channels in planes, one channel after the other: what the sums have
read is mostly still in a near cache when it is read again to be normalised. Sums are taken in the
tensor's own precision over a few hundred elements, in float64 over those."""

from __future__ import annotations

from typing import Any

import numpy as np

from demitasse_cpu.loops.compiled import Array, compiled, inlined

_CHUNK = 512


@inlined
def _keep(
    mean: Array, variance: Array, channel: int, centre: float, spread: float, keep: float, n: int
) -> None:
    real = mean.dtype.type
    unbiased = spread * (n / (n - 1.0)) if n > 1 else spread
    mean[channel] = real(keep * mean[channel] + centre)
    variance[channel] = real(keep * variance[channel] + unbiased)


@inlined
def _plane(array: Array, image: int, channel: int, channels: int, plane: int) -> Array:
    at = (image * channels + channel) * plane
    return array[at : at + plane]


@inlined
def _plane_products(dy: Array, x: Array, c: int, channels: int, plane: int, images: int) -> Any:
    """Of a channel, the sums of dy and of dy * x."""
    real = dy.dtype.type
    total, products = 0.0, 0.0
    for image in range(images):
        slopes, values = _plane(dy, image, c, channels, plane), _plane(x, image, c, channels, plane)
        for start in range(0, plane, _CHUNK):
            slope, value = slopes[start : start + _CHUNK], values[start : start + _CHUNK]
            first, second = real(0), real(0)
            for i in range(slope.size):
                first += slope[i]
                second += slope[i] * value[i]
            total += first
            products += second
    return total, products


@compiled(reassociate=True)
def plane_batch_norm(
    x: Array,
    mean: Array,
    variance: Array,
    y: Array,
    inverse: Array,
    plane: int,
    images: int,
    keep: float,
    epsilon: float,
    begin: int,
    end: int,
) -> None:
    """Channels ``begin`` to ``end``."""
    real, channels, n = x.dtype.type, mean.size, images * plane
    for c in range(begin, end):
        near = x[c * plane : (c + 1) * plane]
        total = 0.0
        for i in range(plane):
            total += near[i]
        shift = real(total / plane)
        sums, squares = 0.0, 0.0
        for image in range(images):
            values = _plane(x, image, c, channels, plane)
            for start in range(0, plane, _CHUNK):
                part = values[start : start + _CHUNK]
                first, second = real(0), real(0)
                for i in range(part.size):
                    value = part[i] - shift
                    first += value
                    second += value * value
                sums += first
                squares += second
        off = sums / n
        spread = max(0.0, squares / n - off * off)
        centre, slope = real(shift + off), real(1.0 / np.sqrt(spread + epsilon))
        inverse[c] = slope
        _keep(mean, variance, c, shift + off, spread, keep, n)
        for image in range(images):
            given, result = _plane(x, image, c, channels, plane), _plane(y, image, c, channels, plane)
            for i in range(plane):
                result[i] = (given[i] - centre) * slope


@compiled()
def counted(factor: Array, keep: float) -> None:
    factor[0] = keep * factor[0] + 1.0


@compiled(reassociate=True)
def plane_batch_norm_backward(
    dy: Array, y: Array, inverse: Array, dx: Array, plane: int, images: int, begin: int, end: int
) -> None:
    """Channels ``begin`` to ``end``."""
    real, channels, n = dy.dtype.type, inverse.size, images * plane
    for c in range(begin, end):
        sums, products = _plane_products(dy, y, c, channels, plane, images)
        direct = inverse[c]
        level, slope = real(direct * (sums / n)), real(direct * (products / n))
        for image in range(images):
            arriving = _plane(dy, image, c, channels, plane)
            value, result = _plane(y, image, c, channels, plane), _plane(dx, image, c, channels, plane)
            for i in range(plane):
                result[i] = direct * arriving[i] - level - slope * value[i]


@compiled()
def plane_normalised(
    x: Array, y: Array, mean: Array, inverse: Array, channels: int, plane: int, begin: int, end: int
) -> None:
    """Planes ``begin`` to ``end``."""
    for which in range(begin, end):
        centre, slope = mean[which % channels], inverse[which % channels]
        at = which * plane
        given, result = x[at : at + plane], y[at : at + plane]
        for i in range(plane):
            result[i] = (given[i] - centre) * slope


@compiled()
def plane_scaled(
    x: Array, y: Array, w: Array, b: Array, least: float, channels: int, plane: int, begin: int, end: int
) -> None:
    """Planes ``begin`` to ``end``; ``least`` as for lines."""
    floor = x.dtype.type(least)
    for which in range(begin, end):
        slope, level = w[which % channels], b[which % channels]
        at = which * plane
        given, result = x[at : at + plane], y[at : at + plane]
        for i in range(plane):
            value = given[i] * slope + level
            result[i] = floor if value < floor else value


@compiled(reassociate=True)
def plane_scaled_backward(
    dy: Array,
    x: Array,
    w: Array,
    dx: Array,
    dw: Array,
    db: Array,
    gives_dx: bool,
    plane: int,
    images: int,
    begin: int,
    end: int,
) -> None:
    """Channels ``begin`` to ``end``."""
    channels = w.size
    for c in range(begin, end):
        sums, products = _plane_products(dy, x, c, channels, plane, images)
        db[c], dw[c] = sums, products
        slope = w[c]
        for image in range(images if gives_dx else 0):
            given, result = _plane(dy, image, c, channels, plane), _plane(dx, image, c, channels, plane)
            for i in range(plane):
                result[i] = slope * given[i]
