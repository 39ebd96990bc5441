"""Winograd's convolution of few tiles with weights that were transformed before, in float32 or as pairs
of integers; see ``winograd`` and ``winograd_integers``.

Such weights come from memory, and reading them takes as long as their products. They are therefore read
once, by the thread that has their panel, and prefetched while those before are multiplied. Each thread
transforms all tiles for itself. If threads shared that work, they would wait for each other, and for
cache lines that one writes and the other reads: with two threads, 16 tiles of 256 channels then took
0.13 ms instead of 0.04 ms.

numba keeps a compiled loop as long as its own file is unchanged. This file uses parts of those two and
of ``winograd_blocks``.
"""

from __future__ import annotations

from typing import Any

from demitasse_cpu.loops.compiled import Array, compiled
from demitasse_cpu.loops.vectors import LANES
from demitasse_cpu.loops.winograd import finish, products_fetching
from demitasse_cpu.loops.winograd_blocks import PANEL, points_of, transform_images
from demitasse_cpu.loops.winograd_integers import panel_of, round_images
from demitasse_cpu.loops.winograd_integers import products_fetching as integer_products


@compiled()
def by_panels(
    g: Any,
    x: Array,
    u: Array,
    bias: Array,
    floor: float,
    y: Array,
    v: Array,
    lie: Any,
    m: Array,
    patch: Array,
    block: int,
    tiles: int,
    begin: int,
    end: int,
) -> None:
    """Compute the results of all ``tiles``, for whose transforms v has room, in panels ``begin`` to
    ``end``."""
    position = block * PANEL + LANES
    transform_images(g, g.channels, x, v, lie, patch, 0, tiles)
    for panel in range(begin, end):
        at = panel * points_of(g) ** 2 * (g.channels * PANEL + LANES)
        for start in range(0, tiles, block):
            stop = min(start + block, tiles)
            products_fetching(g, v, start * lie.row, lie, u, at, m, position, panel, stop - start)
            finish(g, m, position, bias, floor, y, panel, patch, start, stop)


@compiled()
def integers_by_panels(
    g: Any,
    x: Array,
    u: Array,
    scales: Array,
    bias: Array,
    floor: float,
    y: Array,
    v: Any,
    line: Array,
    m: Array,
    patch: Array,
    block: int,
    tiles: int,
    begin: int,
    end: int,
) -> None:
    """Compute the same with weights as pairs and their scales."""
    position = block * PANEL + LANES
    round_images(g, x, v, 0, line, patch, 0, tiles)
    for panel in range(begin, end):
        there, back = panel_of(g, u, scales, panel)
        for start in range(0, tiles, block):
            stop = min(start + block, tiles)
            integer_products(g, v, start, there, back, m, position, panel, stop - start)
            finish(g, m, position, bias, floor, y, panel, patch, start, stop)
