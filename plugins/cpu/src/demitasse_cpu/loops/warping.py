"""Images warped by a flow, in which each pixel is taken from where the flow points, and the
gradients."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from demitasse_cpu.loops.compiled import Array, compiled, inlined


class Warped(NamedTuple):
    """Images of ``channels`` planes of ``height`` x ``width``; ``to_corners`` is as in the operation."""

    channels: int
    height: int
    width: int
    to_corners: bool


@inlined
def _inside(at: Any, extent: int, to_corners: bool) -> Any:
    return at >= 0 and (at <= extent - 1 if to_corners else at < extent)


@inlined
def _high(low: int, share: Any, extent: int, to_corners: bool) -> Any:
    """Return the pixel on the other side of a place that is ``share`` after ``low``."""
    if to_corners and share == 0:
        return low
    return min(low + 1, extent - 1)


@compiled()
def warped(g: Any, x: Array, flow: Array, y: Array, fill: float, begin: int, end: int) -> None:
    """Compute rows ``begin`` to ``end`` of y, counted through all planes."""
    plane = g.height * g.width
    for line in range(begin, end):
        number, row = line // g.height, line % g.height
        image = x[number * plane : (number + 1) * plane]
        place = number // g.channels * 2 * plane + row * g.width
        across = flow[place : place + g.width]
        down = flow[place + plane : place + plane + g.width]
        result = y[line * g.width : (line + 1) * g.width]
        for j in range(g.width):
            column, there = np.float32(j) + across[j], np.float32(row) + down[j]
            if _inside(column, g.width, g.to_corners) and _inside(there, g.height, g.to_corners):
                left, top = int(column), int(there)
                a, b = column - left, there - top
                right = _high(left, a, g.width, g.to_corners)
                bottom = _high(top, b, g.height, g.to_corners)
                upper = (1 - a) * image[top * g.width + left] + a * image[top * g.width + right]
                lower = (1 - a) * image[bottom * g.width + left] + a * image[bottom * g.width + right]
                result[j] = (1 - b) * upper + b * lower
            else:
                result[j] = fill


@compiled()
def to_image(g: Any, dy: Array, flow: Array, dx: Array, begin: int, end: int) -> None:
    """Compute planes ``begin`` to ``end`` of dx. Gradients are added where their values were taken from,
    in the order of places."""
    plane = g.height * g.width
    for number in range(begin, end):
        result = dx[number * plane : (number + 1) * plane]
        result[:] = 0
        given = dy[number * plane : (number + 1) * plane]
        place = number // g.channels * 2 * plane
        across, down = flow[place : place + plane], flow[place + plane : place + 2 * plane]
        for row in range(g.height):
            for j in range(g.width):
                i = row * g.width + j
                column, there = np.float32(j) + across[i], np.float32(row) + down[i]
                if _inside(column, g.width, g.to_corners) and _inside(there, g.height, g.to_corners):
                    left, top = int(column), int(there)
                    a, b = column - left, there - top
                    right = _high(left, a, g.width, g.to_corners)
                    bottom = _high(top, b, g.height, g.to_corners)
                    result[top * g.width + left] += (1 - a) * (1 - b) * given[i]
                    result[top * g.width + right] += a * (1 - b) * given[i]
                    result[bottom * g.width + left] += (1 - a) * b * given[i]
                    result[bottom * g.width + right] += a * b * given[i]


@inlined
def _slope(image: Array, low: int, high: int, share: Any, step: int, last: int, to_corners: bool) -> Any:
    """Return the difference between the pixels after and before a place; they are ``step`` numbers apart
    for each place from ``low`` to ``high``. At a whole place with ``to_corners``, return half of the
    difference of its two neighbours."""
    if to_corners and share == 0:
        before, behind = max(low - 1, 0), min(low + 1, last)
        return (image[behind * step] - image[before * step]) / 2
    return image[high * step] - image[low * step]


@compiled()
def to_flow(g: Any, dy: Array, x: Array, flow: Array, dflow: Array, begin: int, end: int) -> None:
    """Compute rows ``begin`` to ``end`` of both channels of dflow, counted through all images."""
    plane, width = g.height * g.width, g.width
    for line in range(begin, end):
        sample, row = line // g.height, line % g.height
        place = sample * 2 * plane + row * width
        across, down = flow[place : place + width], flow[place + plane : place + plane + width]
        to_right = dflow[place : place + width]
        downwards = dflow[place + plane : place + plane + width]
        to_right[:] = 0
        downwards[:] = 0
        for channel in range(g.channels):
            number = sample * g.channels + channel
            image = x[number * plane : (number + 1) * plane]
            given = dy[number * plane + row * width : number * plane + (row + 1) * width]
            for j in range(width):
                column, there = np.float32(j) + across[j], np.float32(row) + down[j]
                if _inside(column, width, g.to_corners) and _inside(there, g.height, g.to_corners):
                    left, top = int(column), int(there)
                    a, b = column - left, there - top
                    right = _high(left, a, width, g.to_corners)
                    bottom = _high(top, b, g.height, g.to_corners)
                    upper = _slope(image[top * width :], left, right, a, 1, width - 1, g.to_corners)
                    lower = _slope(image[bottom * width :], left, right, a, 1, width - 1, g.to_corners)
                    near = _slope(image[left:], top, bottom, b, width, g.height - 1, g.to_corners)
                    far = _slope(image[right:], top, bottom, b, width, g.height - 1, g.to_corners)
                    to_right[j] += given[j] * ((1 - b) * upper + b * lower)
                    downwards[j] += given[j] * ((1 - a) * near + a * far)
