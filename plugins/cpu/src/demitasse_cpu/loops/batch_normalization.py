"""Batch normalisation and scales of channels that lie innermost.

They are worked on in lines: so many pixels that a line is long, however few its channels
are, with the channels' numbers repeated along it. Then every loop runs over lines and vectorises; sums
are taken in each lane of a line, in float32 over a few lines and in float64 over those. The pixels left
over make a short last line.

Squares are summed of differences from a shift near the mean: a mean that is large beside the deviation
costs no digits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from demitasse_cpu.loops.bfloat16 import narrow, number, widen
from demitasse_cpu.loops.compiled import Array, compiled, inlined

_NEAR = 8  # pixels whose mean is the shift
_FOLD = 16  # lines summed in the tensor's own precision


@inlined
def _emptied(sums: Array, n: int) -> None:
    part = sums[:n]
    for i in range(n):
        part[i] = 0


@inlined
def _fold(near: Array, far: Array, n: int) -> None:
    """Add sums in float32 to those in float64, and begin them anew."""
    near, far = near[:n], far[:n]
    for i in range(n):
        far[i] += near[i]
        near[i] = 0


@inlined
def _total(sums: Array, channel: int, channels: int, width: int, parts: int) -> Any:
    """Of a channel, over its places in a line and over the parts' sums, each of ``width``."""
    total = 0.0
    for part in range(parts):
        for i in range(part * width + channel, (part + 1) * width, channels):
            total += sums[i]
    return total


@inlined
def _repeat(values: Array, channels: int, width: int) -> None:
    """The first ``channels`` values along the whole line."""
    for i in range(channels, width):
        values[i] = values[i - channels]


@inlined
def _keep(
    mean: Array, variance: Array, channel: int, centre: float, spread: float, keep: float, n: int
) -> None:
    real = mean.dtype.type
    unbiased = spread * (n / (n - 1.0)) if n > 1 else spread
    mean[channel] = real(keep * mean[channel] + centre)
    variance[channel] = real(keep * variance[channel] + unbiased)


@compiled()
def line_shift(x: Array, shift: Array, channels: int, width: int) -> None:
    real = shift.dtype.type
    pixels = min(_NEAR, x.size // channels)
    for c in range(channels):
        total = 0.0
        for i in range(pixels):
            total += widen(x[i * channels + c])
        shift[c] = real(total / pixels)
    _repeat(shift, channels, width)


@compiled()
def line_moments(
    x: Array,
    shift: Array,
    near: Array,
    near_squares: Array,
    sums: Array,
    squares: Array,
    width: int,
    begin: int,
    end: int,
) -> None:
    """Of lines ``begin`` to ``end``, the sums of x - shift and of its square in each lane."""
    for each in (near, near_squares):
        _emptied(each, width)
    for each in (sums, squares):
        _emptied(each, width)
    for line in range(begin, end):
        at = line * width
        n = min(width, x.size - at)
        given, origin, first, second = x[at : at + n], shift[:n], near[:n], near_squares[:n]
        for i in range(n):
            value = widen(given[i]) - origin[i]
            first[i] += value
            second[i] += value * value
        if (line - begin) % _FOLD == _FOLD - 1 or line == end - 1:
            _fold(near, sums, width)
            _fold(near_squares, squares, width)


@compiled()
def line_products(
    dy: Array,
    x: Array,
    w: Array,
    dx: Array,
    gives_dx: bool,
    near: Array,
    near_products: Array,
    sums: Array,
    products: Array,
    width: int,
    begin: int,
    end: int,
) -> None:
    """Of lines ``begin`` to ``end``, the sums of dy and of dy * x in each lane; and, where it is
    asked for, dx = dy * w (which may take dy's memory)."""
    for each in (near, near_products):
        _emptied(each, width)
    for each in (sums, products):
        _emptied(each, width)
    for line in range(begin, end):
        at = line * width
        n = min(width, x.size - at)
        slope, given = dy[at : at + n], x[at : at + n]
        first, second = near[:n], near_products[:n]
        for i in range(n):
            value = widen(slope[i])
            first[i] += value
            second[i] += value * widen(given[i])
        if gives_dx:
            result, factor = dx[at : at + n], w[:n]
            for i in range(n):
                result[i] = narrow(factor[i] * widen(slope[i]), dx)
        if (line - begin) % _FOLD == _FOLD - 1 or line == end - 1:
            _fold(near, sums, width)
            _fold(near_products, products, width)


@compiled()
def settled(
    shift: Array,
    sums: Array,
    squares: Array,
    mean: Array,
    variance: Array,
    factor: Array,
    inverse: Array,
    line_mean: Array,
    line_inverse: Array,
    width: int,
    parts: int,
    n: int,
    keep: float,
    epsilon: float,
) -> None:
    """The batch's statistics from the parts' sums over ``n`` pixels, along a line; the kept ones."""
    real, channels = mean.dtype.type, mean.size
    for c in range(channels):
        off = _total(sums, c, channels, width, parts) / n
        spread = max(0.0, _total(squares, c, channels, width, parts) / n - off * off)
        centre = shift[c] + off
        line_mean[c] = real(centre)
        inverse[c] = line_inverse[c] = real(1.0 / np.sqrt(spread + epsilon))
        _keep(mean, variance, c, centre, spread, keep, n)
    factor[0] = real(keep * factor[0] + 1.0)
    _repeat(line_mean, channels, width)
    _repeat(line_inverse, channels, width)


@compiled()
def gathered(sums: Array, target: Array, width: int, parts: int) -> None:
    """The parts' sums as one for each channel."""
    for c in range(target.size):
        target[c] = _total(sums, c, target.size, width, parts)


@compiled()
def slopes(
    sums: Array,
    products: Array,
    inverse: Array,
    direct: Array,
    level: Array,
    slope: Array,
    width: int,
    parts: int,
    n: int,
) -> None:
    """dx = direct * dy - level - slope * y: those three along a line."""
    real, channels = inverse.dtype.type, inverse.size
    for c in range(channels):
        direct[c] = inverse[c]
        level[c] = real(inverse[c] * (_total(sums, c, channels, width, parts) / n))
        slope[c] = real(inverse[c] * (_total(products, c, channels, width, parts) / n))
    for each in (direct, level, slope):
        _repeat(each, channels, width)


@compiled()
def kept(
    mean: Array, variance: Array, factor: Array, line_mean: Array, inverse: Array, epsilon: float
) -> None:
    """The kept statistics along a line as long as ``inverse``."""
    real, channels = mean.dtype.type, mean.size
    share = 1.0 / factor[0] if factor[0] != 0 else 0.0
    for c in range(channels):
        line_mean[c] = real(share * mean[c])
        inverse[c] = real(1.0 / np.sqrt(share * variance[c] + epsilon))
    _repeat(line_mean, channels, inverse.size)
    _repeat(inverse, channels, inverse.size)


@compiled()
def emptied(values: Array) -> None:
    values[:] = 0


@compiled()
def repeated(values: Array, line: Array) -> None:
    line[: values.size] = values
    _repeat(line, values.size, line.size)


@compiled()
def line_normalised(
    x: Array, y: Array, mean: Array, inverse: Array, width: int, begin: int, end: int
) -> None:
    for line in range(begin, end):
        at = line * width
        n = min(width, x.size - at)
        given, result, centre, slope = x[at : at + n], y[at : at + n], mean[:n], inverse[:n]
        for i in range(n):
            result[i] = narrow((widen(given[i]) - centre[i]) * slope[i], y)


@compiled()
def line_normalised_backward(
    dy: Array,
    y: Array,
    dx: Array,
    direct: Array,
    level: Array,
    slope: Array,
    width: int,
    begin: int,
    end: int,
) -> None:
    for line in range(begin, end):
        at = line * width
        n = min(width, y.size - at)
        arriving, value, result = dy[at : at + n], y[at : at + n], dx[at : at + n]
        a, b, c = direct[:n], level[:n], slope[:n]
        for i in range(n):
            result[i] = narrow(a[i] * widen(arriving[i]) - b[i] - c[i] * widen(value[i]), dx)


@compiled()
def line_scaled(
    x: Array, y: Array, w: Array, b: Array, least: float, width: int, begin: int, end: int
) -> None:
    """``least`` is the smallest result there is: 0 for a rectified one, else minus infinity."""
    floor = number(least, x)
    for line in range(begin, end):
        at = line * width
        n = min(width, x.size - at)
        given, result, slope, level = x[at : at + n], y[at : at + n], w[:n], b[:n]
        for i in range(n):
            value = widen(given[i]) * slope[i] + level[i]
            result[i] = narrow(floor if value < floor else value, y)
