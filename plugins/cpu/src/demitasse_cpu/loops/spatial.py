"""Windows over images: as columns of a matrix, pooled at random, and unpooled to where the maxima were.
A plane is one channel of one image."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from demitasse_cpu.loops.compiled import Array, compiled
from demitasse_cpu.loops.pooling import Windows as Windows
from demitasse_cpu.loops.random_numbers import _philox

_LOW, _HALF = np.uint64(2**32 - 1), np.uint64(32)


class Columns(NamedTuple):
    """Planes of up to three spatial dimensions, with leading 1 for those that are absent. Each tuple of
    three has the extents, the numbers of windows, or a property of the windows."""

    extents: tuple[int, int, int]
    outputs: tuple[int, int, int]
    kernel: tuple[int, int, int]
    stride: tuple[int, int, int]
    pad: tuple[int, int, int]
    dilation: tuple[int, int, int]


@compiled()
def _inside(first: int, stride: int, count: int, extent: int) -> tuple[int, int]:
    """Return the range of i below ``count`` for which first + i * stride is in 0 to ``extent``."""
    begin = 0 if first >= 0 else (stride - 1 - first) // stride
    end = 0 if first >= extent else (extent - 1 - first) // stride + 1
    begin, end = min(begin, count), min(end, count)
    return begin, max(begin, end)


@compiled()
def columns(g: Any, x: Array, y: Array, begin: int, end: int) -> None:
    """Copy images to columns. A tap's row of y is a row of x, or every stride-th element of it, or 0."""
    height, width = g.extents[1], g.extents[2]
    size = g.extents[0] * height * width
    area = g.kernel[1] * g.kernel[2]
    taps = g.kernel[0] * area
    lines = g.outputs[0] * g.outputs[1]
    count, stride = g.outputs[2], g.stride[2]
    for plane in range(begin, end):
        for tap in range(taps):
            first = tap % g.kernel[2] * g.dilation[2] - g.pad[2]
            left, right = _inside(first, stride, count, width)
            for line in range(lines):
                at = ((plane * taps + tap) * lines + line) * count
                result = y[at : at + count]
                deep = line // g.outputs[1] * g.stride[0] + tap // area * g.dilation[0] - g.pad[0]
                down = line % g.outputs[1] * g.stride[1] - g.pad[1]
                down += tap % area // g.kernel[2] * g.dilation[1]
                if deep < 0 or deep >= g.extents[0] or down < 0 or down >= height or left == right:
                    result[:] = 0
                    continue
                result[:left] = 0
                result[right:] = 0
                source = plane * size + (deep * height + down) * width + first + left * stride
                given, seen = x[source:], result[left:right]
                if stride == 1:
                    for i in range(seen.size):
                        seen[i] = given[i]
                else:
                    for i in range(seen.size):
                        seen[i] = given[i * stride]


@compiled()
def added_columns(g: Any, dy: Array, dx: Array, begin: int, end: int) -> None:
    height, width = g.extents[1], g.extents[2]
    size = g.extents[0] * height * width
    area = g.kernel[1] * g.kernel[2]
    taps = g.kernel[0] * area
    lines = g.outputs[0] * g.outputs[1]
    count, stride = g.outputs[2], g.stride[2]
    for plane in range(begin, end):
        dx[plane * size : (plane + 1) * size] = 0
        for tap in range(taps):
            first = tap % g.kernel[2] * g.dilation[2] - g.pad[2]
            left, right = _inside(first, stride, count, width)
            for line in range(lines):
                deep = line // g.outputs[1] * g.stride[0] + tap // area * g.dilation[0] - g.pad[0]
                down = line % g.outputs[1] * g.stride[1] - g.pad[1]
                down += tap % area // g.kernel[2] * g.dilation[1]
                if deep < 0 or deep >= g.extents[0] or down < 0 or down >= height or left == right:
                    continue
                at = ((plane * taps + tap) * lines + line) * count
                given = dy[at + left : at + right]
                target = plane * size + (deep * height + down) * width + first + left * stride
                result = dx[target:]
                if stride == 1:
                    for i in range(given.size):
                        result[i] += given[i]
                else:
                    for i in range(given.size):
                        result[i * stride] += given[i]


@compiled()
def stochastic(
    g: Any,
    x: Array,
    y: Array,
    choice: Array,
    keeps_choice: bool,
    iteration: Array,
    first_sample: Array,
    key: Array,
    channels: int,
    begin: int,
    end: int,
) -> None:
    """Pool at random. Sums are taken in float64, like those of the reference, so that both choose the
    same elements."""
    low, high = iteration[0] & _LOW, iteration[0] >> _HALF
    size = g.rows * g.columns
    for number in range(begin, end):
        sample = (first_sample[0] + np.uint64(number // channels)) & _LOW
        plane = number * g.height * g.width
        drawn = np.int64(-1)
        words = (np.uint64(0), np.uint64(0), np.uint64(0), np.uint64(0))
        for window in range(size):
            element = number % channels * size + window
            if element // 4 != drawn:
                drawn = element // 4
                words = _philox(np.uint64(drawn), sample, low, high, key[0], key[1])
            top = window // g.columns * g.stride_down
            left = window % g.columns * g.stride_across
            bottom, right = min(top + g.kernel_height, g.height), min(left + g.kernel_width, g.width)
            total = 0.0
            for i in range(top, bottom):
                for j in range(left, right):
                    total += x[plane + i * g.width + j]
            threshold = (np.float64(words[element % 4]) + 1.0) / 4294967296.0 * total
            found = (bottom - 1) * g.width + right - 1
            total, reached = 0.0, False
            for i in range(top, bottom):
                for j in range(left, right):
                    total += x[plane + i * g.width + j]
                    if not reached and total >= threshold:
                        found, reached = i * g.width + j, True
            y[number * size + window] = x[plane + found]
            if keeps_choice:
                choice[number * size + window] = found


@compiled()
def self_weighted(g: Any, x: Array, y: Array, begin: int, end: int) -> None:
    size = g.rows * g.columns
    for number in range(begin, end):
        plane = number * g.height * g.width
        for window in range(size):
            top = window // g.columns * g.stride_down
            left = window % g.columns * g.stride_across
            bottom, right = min(top + g.kernel_height, g.height), min(left + g.kernel_width, g.width)
            total, squares = 0.0, 0.0
            for i in range(top, bottom):
                for j in range(left, right):
                    value = np.float64(x[plane + i * g.width + j])
                    total += value
                    squares += value * value
            y[number * size + window] = squares / total if total > 0 else 0.0


@compiled()
def self_weighted_backward(
    g: Any, dy: Array, x: Array, y: Array, dx: Array, begin: int, end: int
) -> None:
    size = g.rows * g.columns
    for number in range(begin, end):
        plane = number * g.height * g.width
        dx[plane : plane + g.height * g.width] = 0
        for window in range(size):
            top = window // g.columns * g.stride_down
            left = window % g.columns * g.stride_across
            bottom, right = min(top + g.kernel_height, g.height), min(left + g.kernel_width, g.width)
            total = 0.0
            for i in range(top, bottom):
                for j in range(left, right):
                    total += x[plane + i * g.width + j]
            if total > 0:
                at = number * size + window
                for i in range(top, bottom):
                    for j in range(left, right):
                        place = plane + i * g.width + j
                        dx[place] += dy[at] * (2.0 * x[place] - y[at]) / total


@compiled()
def unpooled(x: Array, place: Array, y: Array, planes: int, begin: int, end: int) -> None:
    """Unpool planes ``begin`` to ``end``. Skip invalid places, which ``indexing.first_wrong``
    reports."""
    cells, plane = x.size // planes, y.size // planes
    for at in range(begin, end):
        y[at * plane : (at + 1) * plane] = 0
        for cell in range(at * cells, (at + 1) * cells):
            if place[cell] >= 0 and place[cell] < plane:
                y[at * plane + int(place[cell])] = x[cell]


@compiled()
def taken(dy: Array, place: Array, dx: Array, planes: int, begin: int, end: int) -> None:
    """Copy what is at the places, for planes ``begin`` to ``end``."""
    cells, plane = dx.size // planes, dy.size // planes
    for at in range(begin, end):
        for cell in range(at * cells, (at + 1) * cells):
            dx[cell] = dy[at * plane + int(place[cell])]
