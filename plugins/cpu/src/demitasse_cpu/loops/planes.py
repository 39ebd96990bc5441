"""The gradient of the weights of a convolution of few channels, of images stored as bfloat16 with their
channels innermost, by products of pairs of pixels.

A channel of an image becomes a plane, in which pixels that two neighbouring results take are neighbours
too: with strides a plane for each remainder. So a tap's pixels lie in the same order as the results' dy,
if the rows of those are made as long as a plane's with zeros: dy of two pixels side by side in panels of
outputs, times the pairs of pixels of some taps, which stay in registers from row to row. The bias's
gradient is that of a plane of ones. ``g`` is what ``kernels.planes.Planes`` says of a convolution.

The zeros meet pixels of the same image that no window has there: one that is no number reaches weights
that it would not by the definition.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from demitasse_cpu.loops.compiled import Array, compiled, inlined
from demitasse_cpu.loops.pairs import WIDE, panel_of_pixels, panels_of_pixels, tile_of_places

_ONE = np.uint16(0x3F80)  # as bfloat16


@inlined
def _make_planes(g: Any, x: Array, image: int, phases: Array, planes: Array) -> None:
    """An image's planes; what is around it stays. Of each remainder of columns ``phases`` has the first
    column of x, its place in a plane's row, and how many there are."""
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
    """dy of a row of results, counted through all images, two pixels by two, an odd last one with zeros:
    to pair ``to`` of each panel. Numbers are read in whole panels, so the last rows' from a copy."""
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
    """dw of rows ``begin`` to ``end`` of results, counted through all images, by tap and output: of each
    tap in the table of ``places``, as many at a time as ``form`` has numbers."""
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
    """Of outputs ``begin`` to ``end`` dw, plain, and db, behind it in the sums of the parts."""
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
