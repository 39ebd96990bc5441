"""Local response normalisation. scale^-beta for Caffe's usual beta of 0.75 is two square roots and a
division, which are vector instructions; a power is not."""

from __future__ import annotations

from typing import Any

import numpy as np

from demitasse_cpu.loops.compiled import Array, compiled


@compiled()
def _inverse_power(value: Any, beta: Any, one: Any) -> Any:
    """``one`` is 1 in the type of value: 1 / value would be float64."""
    if beta == 0.75:
        root = np.sqrt(value)
        return one / (root * np.sqrt(root))
    return value**-beta


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
    """Images ``begin`` to ``end``; ``share`` is alpha / n. ``scale`` has room for one plane when it
    is not kept."""
    real = x.dtype.type
    one, factor, beta = real(1), real(share), real(exponent)
    for n in range(begin, end):
        for c in range(channels):
            at = (n * channels + c) * plane
            sums = scale[at : at + plane] if keeps_scale else scale[:plane]
            sums[:] = offset
            for other in range(max(0, c - reach), min(channels, c + reach + 1)):
                source = (n * channels + other) * plane
                for i in range(plane):
                    sums[i] += factor * (x[source + i] * x[source + i])
            for i in range(plane):
                y[at + i] = x[at + i] * _inverse_power(sums[i], beta, one)


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
    """``share`` is 2 alpha beta / n; ``ratio`` has room for one image."""
    real = x.dtype.type
    one, factor, beta = real(1), real(share), real(exponent)
    for n in range(begin, end):
        image = n * channels * plane
        for i in range(channels * plane):
            ratio[i] = dy[image + i] * y[image + i] / scale[image + i]
        for c in range(channels):
            at = image + c * plane
            target = dx[at : at + plane]
            target[:] = 0
            for other in range(max(0, c - reach), min(channels, c + reach + 1)):
                for i in range(plane):
                    target[i] += ratio[other * plane + i]
            for i in range(plane):
                direct = dy[at + i] * _inverse_power(scale[at + i], beta, one)
                target[i] = direct - factor * x[at + i] * target[i]


@compiled()
def _square_sums(values: Array, lines: Array, sums: Array, height: int, width: int, reach: int) -> None:
    """At each point the sum over the square around it: first along the lines, then across them."""
    for row in range(height):
        at = row * width
        for i in range(width):
            lines[at + i] = values[at + i]
        for d in range(1, reach + 1):
            for i in range(width - d):
                lines[at + i] += values[at + i + d]
            for i in range(d, width):
                lines[at + i] += values[at + i - d]
    for row in range(height):
        at = row * width
        for i in range(width):
            sums[at + i] = lines[at + i]
        for d in range(1, reach + 1):
            if row + d < height:
                for i in range(width):
                    sums[at + i] += lines[at + d * width + i]
            if row - d >= 0:
                for i in range(width):
                    sums[at + i] += lines[at - d * width + i]


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
    """Planes ``begin`` to ``end``; ``room`` holds two, ``scale`` one when it is not kept."""
    real = x.dtype.type
    one, factor, beta = real(1), real(share), real(exponent)
    plane = height * width
    values, lines = room[:plane], room[plane : 2 * plane]
    for number in range(begin, end):
        at = number * plane
        sums = scale[at : at + plane] if keeps_scale else scale[:plane]
        for i in range(plane):
            values[i] = x[at + i] * x[at + i]
        _square_sums(values, lines, sums, height, width, reach)
        for i in range(plane):
            sums[i] = real(offset) + factor * sums[i]
            y[at + i] = x[at + i] * _inverse_power(sums[i], beta, one)


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
    """``room`` holds two planes."""
    real = x.dtype.type
    one, factor, beta = real(1), real(share), real(exponent)
    plane = height * width
    values, lines = room[:plane], room[plane : 2 * plane]
    for number in range(begin, end):
        at = number * plane
        for i in range(plane):
            values[i] = dy[at + i] * y[at + i] / scale[at + i]
        target = dx[at : at + plane]
        _square_sums(values, lines, target, height, width, reach)
        for i in range(plane):
            direct = dy[at + i] * _inverse_power(scale[at + i], beta, one)
            target[i] = direct - factor * x[at + i] * target[i]
