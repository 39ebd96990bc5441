"""Images sampled at the places that an affine transformation of a grid gives, and the gradients. Places
are computed in float64."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from demitasse_cpu.loops.compiled import Array, compiled, inlined


class Sampled(NamedTuple):
    """Images of ``channels`` planes of ``height`` x ``width``, sampled at ``rows`` x ``columns`` places.
    Each sample has ``learned`` numbers of its own in the transformation."""

    channels: int
    height: int
    width: int
    rows: int
    columns: int
    learned: int


@inlined
def _number(theta: Array, slots: Array, fixed: Array, first: int, which: int) -> Any:
    """Return one of the six numbers: the sample's own, or the fixed one."""
    slot = slots[which]
    return float(theta[first + slot]) if slot >= 0 else fixed[which]


@inlined
def _along(theta: Array, slots: Array, fixed: Array, first: int, line: int, u: Any, v: Any) -> Any:
    """Return the coordinate along one axis, from -1 to 1, at which a place of the grid is sampled."""
    a = _number(theta, slots, fixed, first, 3 * line)
    b = _number(theta, slots, fixed, first, 3 * line + 1)
    return a * u + b * v + _number(theta, slots, fixed, first, 3 * line + 2)


@inlined
def _place(g: Any, theta: Array, slots: Array, fixed: Array, sample: int, u: Any, v: Any) -> Any:
    """Return the fractional row and column at which a place of the grid is sampled."""
    first = sample * g.learned
    down = (_along(theta, slots, fixed, first, 0, u, v) + 1.0) / 2.0 * g.height
    across = (_along(theta, slots, fixed, first, 1, u, v) + 1.0) / 2.0 * g.width
    return down, across


@inlined
def _pixel(image: Array, row: int, column: int, height: int, width: int) -> Any:
    """Return a pixel as float64, or 0 outside the image."""
    if row < 0 or row >= height or column < 0 or column >= width:
        return 0.0
    return float(image[row * width + column])


@inlined
def _add(image: Array, row: int, column: int, height: int, width: int, value: Any) -> None:
    if row >= 0 and row < height and column >= 0 and column < width:
        image[row * width + column] += value


@inlined
def _beyond(at: Any, extent: int) -> Any:
    """Return whether a coordinate is so far outside that no pixel counts there, or is NaN."""
    return not (at > -1.0 and at < extent)


@compiled()
def sampled(
    g: Any, slots: Array, fixed: Array, x: Array, theta: Array, y: Array, begin: int, end: int
) -> None:
    """Compute rows ``begin`` to ``end`` of y, counted through all samples."""
    plane, made = g.height * g.width, g.rows * g.columns
    for line in range(begin, end):
        sample, i = line // g.rows, line % g.rows
        u = 2.0 * i / g.rows - 1.0
        for j in range(g.columns):
            v = 2.0 * j / g.columns - 1.0
            down, across = _place(g, theta, slots, fixed, sample, u, v)
            outside = _beyond(down, g.height) or _beyond(across, g.width)
            top = 0 if outside else math.floor(down)
            left = 0 if outside else math.floor(across)
            b, a = down - top, across - left
            for channel in range(g.channels):
                number = sample * g.channels + channel
                target = number * made + i * g.columns + j
                if outside:
                    y[target] = 0
                    continue
                image = x[number * plane : (number + 1) * plane]
                upper = (1 - a) * _pixel(image, top, left, g.height, g.width)
                upper += a * _pixel(image, top, left + 1, g.height, g.width)
                lower = (1 - a) * _pixel(image, top + 1, left, g.height, g.width)
                lower += a * _pixel(image, top + 1, left + 1, g.height, g.width)
                y[target] = (1 - b) * upper + b * lower


@compiled()
def to_images(
    g: Any, slots: Array, fixed: Array, dy: Array, theta: Array, dx: Array, begin: int, end: int
) -> None:
    """Compute samples ``begin`` to ``end`` of dx. Gradients are added where their values were sampled,
    in the order of places."""
    plane, made = g.height * g.width, g.rows * g.columns
    for sample in range(begin, end):
        dx[sample * g.channels * plane : (sample + 1) * g.channels * plane] = 0
        for i in range(g.rows):
            u = 2.0 * i / g.rows - 1.0
            for j in range(g.columns):
                v = 2.0 * j / g.columns - 1.0
                down, across = _place(g, theta, slots, fixed, sample, u, v)
                if _beyond(down, g.height) or _beyond(across, g.width):
                    continue
                top, left = math.floor(down), math.floor(across)
                b, a = down - top, across - left
                for channel in range(g.channels):
                    number = sample * g.channels + channel
                    given = float(dy[number * made + i * g.columns + j])
                    image = dx[number * plane : (number + 1) * plane]
                    _add(image, top, left, g.height, g.width, (1 - b) * (1 - a) * given)
                    _add(image, top, left + 1, g.height, g.width, (1 - b) * a * given)
                    _add(image, top + 1, left, g.height, g.width, b * (1 - a) * given)
                    _add(image, top + 1, left + 1, g.height, g.width, b * a * given)


@compiled()
def to_numbers(
    g: Any,
    slots: Array,
    fixed: Array,
    dy: Array,
    x: Array,
    theta: Array,
    dtheta: Array,
    sums: Array,
    begin: int,
    end: int,
) -> None:
    """Compute samples ``begin`` to ``end`` of dtheta. ``sums`` has room for six float64 for each
    sample."""
    plane, made = g.height * g.width, g.rows * g.columns
    for sample in range(begin, end):
        first = sample * g.learned
        total = sums[6 * sample : 6 * sample + 6]
        total[:] = 0
        for i in range(g.rows):
            u = 2.0 * i / g.rows - 1.0
            for j in range(g.columns):
                v = 2.0 * j / g.columns - 1.0
                down, across = _place(g, theta, slots, fixed, sample, u, v)
                if _beyond(down, g.height) or _beyond(across, g.width):
                    continue
                top, left = math.floor(down), math.floor(across)
                b, a = down - top, across - left
                slope_down, slope_across = 0.0, 0.0
                for channel in range(g.channels):
                    number = sample * g.channels + channel
                    given = float(dy[number * made + i * g.columns + j])
                    image = x[number * plane : (number + 1) * plane]
                    p00 = _pixel(image, top, left, g.height, g.width)
                    p01 = _pixel(image, top, left + 1, g.height, g.width)
                    p10 = _pixel(image, top + 1, left, g.height, g.width)
                    p11 = _pixel(image, top + 1, left + 1, g.height, g.width)
                    slope_down += given * ((1 - a) * (p10 - p00) + a * (p11 - p01))
                    slope_across += given * ((1 - b) * (p01 - p00) + b * (p11 - p10))
                slope_down *= g.height / 2.0
                slope_across *= g.width / 2.0
                total[0] += slope_down * u
                total[1] += slope_down * v
                total[2] += slope_down
                total[3] += slope_across * u
                total[4] += slope_across * v
                total[5] += slope_across
        for which in range(6):
            if slots[which] >= 0:
                dtheta[first + slots[which]] = total[which]
