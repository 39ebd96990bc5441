"""The gradient of the weights of a convolution of few channels, for images stored as bfloat16 with
channels innermost, by products of pairs of pixels.

A channel of an image becomes a plane in which pixels that two neighbouring results read are neighbours
too; with strides, there is a plane for each remainder. A tap's pixels then have the same order as the
results' dy, once the rows of dy are padded with zeros to the length of a plane's rows. Two adjacent
pixels of dy, in panels of outputs, are multiplied by the pairs of pixels of some taps, whose sums stay
in registers from row to row. The bias's gradient is that of a plane of ones. ``g`` is the
``kernels.planes.Planes`` of a convolution.

The zeros are multiplied by pixels of the same image that no window has there. If such a pixel is NaN, it
reaches weights that it would not reach by the definition.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from demitasse_cpu.loops.compiled import Array, compiled, inlined
from demitasse_cpu.loops.pairs import WIDE, panel_of_pixels, panels_of_pixels, tile_of_places

_ONE = np.uint16(0x3F80)  # as bfloat16


@inlined
def _make_planes(g: Any, x: Array, image: int, phases: Array, planes: Array) -> None:
    """Write an image's planes; numbers around them are not changed. For each remainder of columns,
    ``phases`` has the first column of x, its place in a plane's row, and the number of columns."""
    step, line = g.across * g.channels, g.width * g.channels
    for row in range(g.height):
        start = (image * g.height + row) * line
        given = x[start : start + line]
        down = (row + g.top) // g.down
        below = (row + g.top - down * g.down) * g.across
        for phase in range(g.across):
            first, column, count = phases[3 * phase], phases[3 * phase + 1], phases[3 * phase + 2]
            for channel in range(g.channels):
                plane = channel * g.down * g.across + below + phase
                to = plane * g.plane + down * g.pitch + column
                result, at = planes[to : to + count], first * g.channels + channel
                if step == 1:
                    for i in range(count):
                        result[i] = given[i]
                else:
                    for i in range(count):
                        result[i] = given[at + i * step]


@inlined
def _put_side_by_side(g: Any, dy: Array, row: int, last_row: Array, pairs: Array, to: int) -> None:
    """Interleave dy of a row of results, counted through all images, two pixels by two, to pair ``to``
    of each panel; an odd last pixel is paired with zeros. Numbers are read in whole panels, so the last
    row is read from a copy."""
    size, panels, whole = g.columns * g.outputs, (g.outputs + WIDE - 1) // WIDE, g.columns // 2
    given = dy[row * size :]
    if given.size < size + panels * WIDE:
        for i in range(size):
            last_row[i] = given[i]
        given = last_row
    for panel in range(panels):
        place = (panel * g.held + to) * 2 * WIDE
        panel_of_pixels(given, panel * WIDE, g.outputs, pairs, place, whole)
    if g.columns % 2:
        at, place = (g.columns - 1) * g.outputs, (to + whole) * 2 * WIDE
        panels_of_pixels(given, at, 0, pairs, place, g.held * 2 * WIDE, panels)


@compiled()
def gradient(
    g: Any,
    form: Any,
    dy: Array,
    x: Array,
    phases: Array,
    places: Array,
    sums: Array,
    planes: Array,
    last_row: Array,
    pairs: Array,
    begin: int,
    end: int,
) -> None:
    """Add up dw over rows ``begin`` to ``end`` of results, counted through all images, by tap and
    output. The taps are those in the table of ``places``, as many at a time as ``form`` has members."""
    panels = (g.outputs + WIDE - 1) // WIDE
    wide, half = panels * WIDE, g.pitch // 2
    planes[:] = 0
    planes[g.ones :] = _ONE
    pairs[:] = 0
    sums[:] = 0
    held, row = -1, begin
    while row < end:
        image, first = row // g.rows, row % g.rows
        count = min(g.held // half, end - row, g.rows - first)
        if image != held:
            held = image
            _make_planes(g, x, image, phases, planes)
        for i in range(count):
            _put_side_by_side(g, dy, row + i, last_row, pairs, i * half)
        for panel in range(panels):
            near = panel * g.held * 2 * WIDE
            for tap in range(0, places.size, len(form)):
                to = tap * wide + panel * WIDE
                tile_of_places(
                    form,
                    planes,
                    first * g.pitch,
                    places,
                    tap,
                    pairs,
                    near,
                    sums,
                    to,
                    wide,
                    count * half,
                    1,
                )
        row += count


@compiled()
def add_up(
    g: Any, sums: Array, parts: int, wide: int, dw: Array, db: Array, begin: int, end: int
) -> None:
    """Add up dw of outputs ``begin`` to ``end``, in the plain layout, and db, which follows it in the
    parts' sums."""
    size, taps = sums.size // parts, dw.size // g.outputs
    for output in range(begin, end):
        result = dw[output * taps : (output + 1) * taps]
        for tap in range(taps):
            total = sums[tap * wide + output]
            for part in range(1, parts):
                total += sums[part * size + tap * wide + output]
            result[tap] = total
        if db.size > 0:
            total = sums[taps * wide + output]
            for part in range(1, parts):
                total += sums[part * size + taps * wide + output]
            db[output] = total
