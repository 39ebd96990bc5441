"""Gathers every n-th pixel of images whose channels are innermost, and scatters them back. Numbers are
moved as they are stored."""

from __future__ import annotations

from typing import Any, NamedTuple

from demitasse_cpu.loops.compiled import Array, compiled


class Grid(NamedTuple):
    """``rows`` x ``columns`` of the pixels of images of ``height`` x ``width``, ``down`` and ``across``
    apart."""

    channels: int
    height: int
    width: int
    rows: int
    columns: int
    down: int
    across: int


@compiled()
def gathered(g: Any, x: Array, y: Array, begin: int, end: int) -> None:
    """Gather rows ``begin`` to ``end`` of y, counted through all images, from the pixels of x."""
    n = g.channels
    for row in range(begin, end):
        image, down = row // g.rows, row % g.rows
        source = (image * g.height + down * g.down) * g.width * n
        target = row * g.columns * n
        for column in range(g.columns):
            from_pixel, pixel = source + column * g.across * n, target + column * n
            given, result = x[from_pixel : from_pixel + n], y[pixel : pixel + n]
            for i in range(n):
                result[i] = given[i]


@compiled()
def spread(g: Any, y: Array, x: Array, begin: int, end: int) -> None:
    """Scatter pixels of y to rows ``begin`` to ``end`` of x, counted through all images, with zeros
    elsewhere."""
    n = g.channels
    for row in range(begin, end):
        image, down = row // g.height, row % g.height
        target = row * g.width * n
        line = x[target : target + g.width * n]
        is_met = down % g.down == 0 and down // g.down < g.rows
        if not is_met:
            line[:] = 0
            continue
        source = (image * g.rows + down // g.down) * g.columns * n
        for column in range(g.width):
            result = line[column * n : (column + 1) * n]
            if column % g.across == 0 and column // g.across < g.columns:
                pixel = source + column // g.across * n
                given = y[pixel : pixel + n]
                for i in range(n):
                    result[i] = given[i]
            else:
                result[:] = 0
