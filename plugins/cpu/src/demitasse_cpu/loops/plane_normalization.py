"""Batch normalisation and scales of channels in planes, one channel after the other, so that the numbers
read for the sums are mostly still in a near cache when they are read again to be normalised. Sums are
taken in the tensor's own precision over a few hundred elements, and in float64 over those."""

from __future__ import annotations

from typing import Any

import numpy as np

from demitasse_cpu.loops.batch_normalization import keep_moments
from demitasse_cpu.loops.bfloat16 import got, put
from demitasse_cpu.loops.compiled import Array, compiled, inlined

_CHUNK = 512


@inlined
def _plane(array: Array, image: int, channel: int, channels: int, plane: int) -> Array:
    at = (image * channels + channel) * plane
    return array[at : at + plane]


@inlined
def _plane_products(dy: Array, x: Array, c: int, channels: int, plane: int, images: int) -> Any:
    """Return a channel's sums of dy and of dy * x."""
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


@inlined
def plane_moments(x: Array, c: int, channels: int, plane: int, images: int) -> Any:
    """Return the mean of a channel's first plane, and the sums of the channel's numbers less that and of
    their squares."""
    real = x.dtype.type
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
    return shift, sums, squares


@compiled(reassociate=True)
def plane_batch_norm(
    x: Array,
    mean: Array,
    variance: Array,
    average: Array,
    inverse: Array,
    w: Array,
    b: Array,
    has_w: bool,
    has_b: bool,
    y: Array,
    least: float,
    most: float,
    plane: int,
    images: int,
    keep: float,
    centre_share: float,
    spread_share: float,
    epsilon: float,
    begin: int,
    end: int,
) -> None:
    """Normalise channels ``begin`` to ``end``; ``least`` and ``most`` are as for lines."""
    real, channels, n = x.dtype.type, mean.size, images * plane
    floor, ceiling = real(least), real(most)
    for c in range(begin, end):
        shift, sums, squares = plane_moments(x, c, channels, plane, images)
        off = sums / n
        spread = max(0.0, squares / n - off * off)
        average[c] = centre = real(shift + off)
        inverse[c] = real(1.0 / np.sqrt(spread + epsilon))
        keep_moments(mean, variance, c, shift + off, spread, keep, centre_share, spread_share)
        slope = inverse[c] * w[c] if has_w else inverse[c]
        level = b[c] if has_b else real(0)
        for image in range(images):
            given, result = _plane(x, image, c, channels, plane), _plane(y, image, c, channels, plane)
            for i in range(plane):
                value = (got(given, i) - centre) * slope + level
                value = ceiling if value > ceiling else value
                put(result, i, floor if value < floor else value)


@compiled(reassociate=True)
def plane_batch_norm_backward(
    dy: Array,
    x: Array,
    dx: Array,
    dw: Array,
    db: Array,
    inverse: Array,
    centres: Array,
    slopes: Array,
    levels: Array,
    least: float,
    most: float,
    gives_dx: bool,
    n: int,
    plane: int,
    images: int,
    begin: int,
    end: int,
) -> None:
    """Compute the gradients of channels ``begin`` to ``end``; ``least``, ``most`` and ``n`` are as for
    lines."""
    real, channels = x.dtype.type, inverse.size
    zero, floor, ceiling = real(0), real(least), real(most)
    for c in range(begin, end):
        centre, slope, level = centres[c], slopes[c], levels[c]
        total, product = 0.0, 0.0
        for image in range(images):
            arriving = _plane(dy, image, c, channels, plane)
            given = _plane(x, image, c, channels, plane)
            for start in range(0, plane, _CHUNK):
                part, values = arriving[start : start + _CHUNK], given[start : start + _CHUNK]
                first, second = zero, zero
                for i in range(part.size):
                    off, arrived = values[i] - centre, part[i]
                    made = off * slope + level
                    value = zero if (made <= floor) | (made >= ceiling) else arrived
                    first += value
                    second += value * off
                total += first
                product += second
        product *= inverse[c]
        db[c], dw[c] = real(total), real(product)
        share = slope / n if n > 0 else 0.0
        offset, tilt = real(share * total), real(share * inverse[c] * product)
        for image in range(images if gives_dx else 0):
            arriving, given = _plane(dy, image, c, channels, plane), _plane(x, image, c, channels, plane)
            result = _plane(dx, image, c, channels, plane)
            for i in range(plane):
                off, arrived = got(given, i) - centre, got(arriving, i)
                made = off * slope + level
                value = zero if (made <= floor) | (made >= ceiling) else arrived
                put(result, i, slope * value - offset - tilt * off)


@compiled()
def plane_normalised(
    x: Array,
    y: Array,
    centres: Array,
    slopes: Array,
    levels: Array,
    least: float,
    most: float,
    channels: int,
    plane: int,
    begin: int,
    end: int,
) -> None:
    """Normalise planes ``begin`` to ``end``."""
    floor, ceiling = x.dtype.type(least), x.dtype.type(most)
    for which in range(begin, end):
        c = which % channels
        centre, slope, level = centres[c], slopes[c], levels[c]
        at = which * plane
        given, result = x[at : at + plane], y[at : at + plane]
        for i in range(plane):
            value = (got(given, i) - centre) * slope + level
            value = ceiling if value > ceiling else value
            put(result, i, floor if value < floor else value)


@compiled()
def plane_normalised_backward(
    dy: Array,
    x: Array,
    dx: Array,
    centres: Array,
    slopes: Array,
    levels: Array,
    offsets: Array,
    tilts: Array,
    least: float,
    most: float,
    channels: int,
    plane: int,
    begin: int,
    end: int,
) -> None:
    """Compute dx in planes ``begin`` to ``end``; dx may be dy."""
    zero, floor, ceiling = x.dtype.type(0), x.dtype.type(least), x.dtype.type(most)
    for which in range(begin, end):
        c = which % channels
        centre, slope, level, offset, tilt = centres[c], slopes[c], levels[c], offsets[c], tilts[c]
        at = which * plane
        arriving, given, result = dy[at : at + plane], x[at : at + plane], dx[at : at + plane]
        for i in range(plane):
            off, arrived = got(given, i) - centre, got(arriving, i)
            made = off * slope + level
            value = zero if (made <= floor) | (made >= ceiling) else arrived
            put(result, i, slope * value - offset - tilt * off)


@compiled()
def plane_scaled(
    x: Array, y: Array, w: Array, b: Array, least: float, channels: int, plane: int, begin: int, end: int
) -> None:
    """Scale planes ``begin`` to ``end``; ``least`` is as for lines."""
    floor = x.dtype.type(least)
    for which in range(begin, end):
        slope, level = w[which % channels], b[which % channels]
        at = which * plane
        given, result = x[at : at + plane], y[at : at + plane]
        for i in range(plane):
            value = got(given, i) * slope + level
            put(result, i, floor if value < floor else value)


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
    """Compute the gradients of channels ``begin`` to ``end``."""
    channels = w.size
    for c in range(begin, end):
        sums, products = _plane_products(dy, x, c, channels, plane, images)
        db[c], dw[c] = sums, products
        slope = w[c]
        for image in range(images if gives_dx else 0):
            given, result = _plane(dy, image, c, channels, plane), _plane(dx, image, c, channels, plane)
            for i in range(plane):
                put(result, i, slope * got(given, i))
