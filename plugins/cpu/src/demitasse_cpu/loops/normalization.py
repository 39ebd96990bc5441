"""Local response normalisation of planes, with vectors that run along the points of a plane."""

from __future__ import annotations

from typing import Any

from demitasse_cpu.loops.compiled import Array, compiled, inlined
from demitasse_cpu.loops.powers import inverse_power_75


@inlined
def _inverse_power(value: Any, beta: Any) -> Any:
    return inverse_power_75(value) if beta == 0.75 else value**-beta


@compiled()
def across_channels(
    x: Array,
    y: Array,
    scale: Array,
    keeps_scale: bool,
    channels: int,
    plane: int,
    reach: int,
    share: float,
    exponent: float,
    offset: float,
    begin: int,
    end: int,
) -> None:
    """Normalise images ``begin`` to ``end``. ``share`` is alpha / n. ``scale`` has room for one plane if
    it is not kept."""
    real = x.dtype.type
    factor, beta = real(share), real(exponent)
    for n in range(begin, end):
        for c in range(channels):
            at = (n * channels + c) * plane
            sums = scale[at : at + plane] if keeps_scale else scale[:plane]
            sums[:] = offset
            for other in range(max(0, c - reach), min(channels, c + reach + 1)):
                near = x[(n * channels + other) * plane : (n * channels + other + 1) * plane]
                for i in range(plane):
                    sums[i] += factor * (near[i] * near[i])
            given, result = x[at : at + plane], y[at : at + plane]
            for i in range(plane):
                result[i] = given[i] * _inverse_power(sums[i], beta)


@compiled()
def across_channels_backward(
    dy: Array,
    x: Array,
    y: Array,
    scale: Array,
    dx: Array,
    ratio: Array,
    channels: int,
    plane: int,
    reach: int,
    share: float,
    exponent: float,
    begin: int,
    end: int,
) -> None:
    """Compute the gradient. ``share`` is 2 alpha beta / n; ``ratio`` has room for one image."""
    real = x.dtype.type
    factor, beta = real(share), real(exponent)
    size = channels * plane
    for n in range(begin, end):
        start, stop = n * size, (n + 1) * size
        given, result, scales = dy[start:stop], y[start:stop], scale[start:stop]
        for i in range(size):
            ratio[i] = given[i] * result[i] / scales[i]
        for c in range(channels):
            start, stop = n * size + c * plane, n * size + (c + 1) * plane
            target, input_ = dx[start:stop], x[start:stop]
            given, scales = dy[start:stop], scale[start:stop]
            target[:] = 0
            for other in range(max(0, c - reach), min(channels, c + reach + 1)):
                near = ratio[other * plane : (other + 1) * plane]
                for i in range(plane):
                    target[i] += near[i]
            for i in range(plane):
                direct = given[i] * _inverse_power(scales[i], beta)
                target[i] = direct - factor * input_[i] * target[i]


@inlined
def _add(source: Array, source_at: int, target: Array, target_at: int, n: int) -> None:
    given, sums = source[source_at : source_at + n], target[target_at : target_at + n]
    for i in range(n):
        sums[i] += given[i]


@compiled()
def _square_sums(values: Array, lines: Array, sums: Array, height: int, width: int, reach: int) -> None:
    """Sum over the square around each point: first along the lines, then across them."""
    plane = height * width
    for i in range(plane):
        lines[i] = values[i]
    for d in range(1, min(reach, width - 1) + 1):
        for row in range(height):
            at = row * width
            _add(values, at + d, lines, at, width - d)
            _add(values, at, lines, at + d, width - d)
    for i in range(plane):
        sums[i] = lines[i]
    for d in range(1, min(reach, height - 1) + 1):
        _add(lines, d * width, sums, 0, plane - d * width)
        _add(lines, 0, sums, d * width, plane - d * width)


@compiled()
def within_channel(
    x: Array,
    y: Array,
    scale: Array,
    keeps_scale: bool,
    room: Array,
    height: int,
    width: int,
    reach: int,
    share: float,
    exponent: float,
    offset: float,
    begin: int,
    end: int,
) -> None:
    """Normalise planes ``begin`` to ``end``. ``room`` holds two planes, and ``scale`` one if it is not
    kept."""
    real = x.dtype.type
    factor, beta = real(share), real(exponent)
    plane = height * width
    values, lines = room[:plane], room[plane : 2 * plane]
    for number in range(begin, end):
        at = number * plane
        sums = scale[at : at + plane] if keeps_scale else scale[:plane]
        given, result = x[at : at + plane], y[at : at + plane]
        for i in range(plane):
            values[i] = given[i] * given[i]
        _square_sums(values, lines, sums, height, width, reach)
        for i in range(plane):
            sums[i] = real(offset) + factor * sums[i]
            result[i] = given[i] * _inverse_power(sums[i], beta)


@compiled()
def within_channel_backward(
    dy: Array,
    x: Array,
    y: Array,
    scale: Array,
    dx: Array,
    room: Array,
    height: int,
    width: int,
    reach: int,
    share: float,
    exponent: float,
    begin: int,
    end: int,
) -> None:
    """Compute the gradient; ``room`` holds two planes."""
    real = x.dtype.type
    factor, beta = real(share), real(exponent)
    plane = height * width
    values, lines = room[:plane], room[plane : 2 * plane]
    for number in range(begin, end):
        start, stop = number * plane, (number + 1) * plane
        given, input_, result = dy[start:stop], x[start:stop], y[start:stop]
        scales, target = scale[start:stop], dx[start:stop]
        for i in range(plane):
            values[i] = given[i] * result[i] / scales[i]
        _square_sums(values, lines, target, height, width, reach)
        for i in range(plane):
            direct = given[i] * _inverse_power(scales[i], beta)
            target[i] = direct - factor * input_[i] * target[i]
