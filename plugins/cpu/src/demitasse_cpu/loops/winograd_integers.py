"""Winograd's convolution with products of 16-bit integers, for images stored as bfloat16.

Tiles and weights are transformed in float32, as in ``winograd``. The factors are rounded to integers
that share a scale: the channels of a tile at a position have one, and so do the weights between these
channels and an output. Sums are exact, in 32 bits: the scales leave room for the largest possible sum.

If transformed numbers were rounded to bfloat16 instead, with 8 bits each, the errors would be 1% with
three taps and 4% with five, because the transform back takes differences of large sums. With 14 bits and
a scale they are 0.06 to 0.1% and 0.12 to 0.24% (root mean square, relative to the results). For
comparison, rounding the weights and the results of a direct convolution to bfloat16 makes 0.23%.

Channels are multiplied in pairs, at most 64 pairs at a time, and a scale is for that many. A small
channel beside a large one therefore keeps fewer digits, which shows in outputs that take nothing from
the large one.

numba keeps a compiled loop as long as its own file is unchanged. This file,
``winograd_integer_gradient`` and ``winograd_transposed`` use parts of ``winograd``, ``winograd_blocks``
and ``winograd_gradient``, and the other two use parts of this one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from demitasse_cpu.loops.compiled import Array, compiled, inlined
from demitasse_cpu.loops.tiles import ROWS
from demitasse_cpu.loops.vectors import LANES
from demitasse_cpu.loops.winograd import finish, transform_weights
from demitasse_cpu.loops.winograd_blocks import (
    PANEL,
    Lie,
    ahead_of,
    points_of,
    transform_images,
    vectors_of,
)
from demitasse_cpu.loops.winograd_pair_tiles import FETCHING_PAIR_TILES, PAIR_TILES
from demitasse_cpu.loops.winograd_rounding import extents, largest, round_line, round_pairs

DEPTH = 64
"""The number of pairs that are multiplied before their sums become float32: rows of a panel for the
first cache."""

LARGEST = np.float32(2**14 - 1)
"""The largest of the integers that tiles become."""

_LARGEST_SUM = np.float32(2**17 - 200)
"""The largest sum of the magnitudes of the integers by which those are multiplied. With 128 roundings
up, the products' sum is below 2^31."""

_LARGEST_OTHER = np.float32(2**15 - 1)

_TINY = np.float32(1e-30)
"""Smaller scales are zero, because they would have no inverse; so numbers that are all below 1e-26
become zero."""


@inlined
def pieces_of(channels: int) -> int:
    """Return into how many pieces of whole vectors the pairs of channels are divided for
    multiplication."""
    return (channels + 2 * DEPTH - 1) // (2 * DEPTH)


@inlined
def pair_up(
    x: Array,
    at: int,
    step: int,
    count: int,
    by_sum: bool,
    pairs: Array,
    pairs_at: int,
    pairs_step: int,
    scales: Array,
    scales_at: int,
    room: Array,
) -> None:
    """Round ``count`` vectors that are ``step`` apart to pairs, and compute the scales that turn these
    back into numbers. In each lane, the largest integer is LARGEST. With ``by_sum``, the integers' sum
    is instead the largest that may be multiplied by such integers, and none is larger than 16 bits hold.
    ``room`` has three vectors."""
    sums, most, factors = room[:LANES], room[LANES : 2 * LANES], room[2 * LANES : 3 * LANES]
    extents(x, at, step, count, sums, most)
    inverse = scales[scales_at : scales_at + LANES]
    for i in range(LANES):
        of_sum, of_most = sums[i] / _LARGEST_SUM, most[i] / _LARGEST_OTHER
        size = (of_sum if of_sum > of_most else of_most) if by_sum else most[i] / LARGEST
        usable = size >= _TINY and size < np.float32(np.inf)
        factors[i] = np.float32(1) / size if usable else np.float32(0)
        inverse[i] = size if usable else size * np.float32(0)
    round_pairs(x, at, step, count, factors, pairs, pairs_at, pairs_step)


def _multiplying_pairs(loops: Sequence[Any], fetching: bool) -> Any:
    tile_1, tile_2, tile_3, tile_4 = (*loops[:2], *loops[-2:])

    @inlined
    def multiply_pairs(
        a: Array,
        a_at: int,
        a_row: int,
        a_step: int,
        b: Array,
        b_at: int,
        b_step: int,
        c: Array,
        c_at: int,
        c_row: int,
        down: Array,
        down_at: int,
        across: Array,
        across_at: int,
        rows: int,
        count: int,
        more: int,
        vectors: int,
    ) -> None:
        height = ROWS[vectors]
        tiles = (rows + height - 1) // height
        for tile in range(tiles):
            m = tile * height
            at, out, scale = a_at + m * a_row, c_at + m * c_row, down_at + m
            operands = (a, at, a_row, a_step, b, b_at, b_step, c, out, c_row)
            scales = (down, scale, across, across_at)
            ahead = ahead_of(tile, tiles, count * b_step, vectors) if fetching else (0, 0)
            if vectors == 1:
                tile_1(*operands, *scales, count, more, *ahead, rows - m)
            elif vectors == 2:
                tile_2(*operands, *scales, count, more, *ahead, rows - m)
            elif vectors == 3:
                tile_3(*operands, *scales, count, more, *ahead, rows - m)
            else:
                tile_4(*operands, *scales, count, more, *ahead, rows - m)

    return multiply_pairs


multiply_pairs = _multiplying_pairs(PAIR_TILES, False)
_multiply_pairs_fetching = _multiplying_pairs(FETCHING_PAIR_TILES, True)
"""Compute the sums of ``rows`` rows over ``count`` pairs, at most DEPTH, tile by tile, with a scale for
each row and column. Rows of the last tile beyond ``rows`` are garbage. The second one meanwhile
prefetches what follows in b from memory."""


class Rounded(NamedTuple):
    """Transformed tiles as pairs of channels; those of position p and tile t begin at
    ``p * position + t * row``. The scales of piece q of the channels are at
    ``(q * positions + p) * scales_row + t``."""

    pairs: Array
    position: int
    row: int
    scales: Array
    scales_row: int


@inlined
def line_of(g: Any) -> Any:
    """Return the layout of the transform of one tile before it is rounded."""
    return Lie(PANEL, (g.channels + LANES - 1) // LANES * LANES + LANES, 0)


@inlined
def round_tile(g: Any, line: Array, v: Any, place: int, patch: Array) -> None:
    """Round a transformed tile, of which ``line`` has all positions in float32, to ``place`` of v."""
    vectors = (g.channels + LANES - 1) // LANES
    positions, pieces = points_of(g) ** 2, pieces_of(g.channels)
    position = line_of(g).position
    whole = (positions + LANES - 1) // LANES * LANES
    sizes, factors = patch[LANES : LANES + whole], patch[LANES + whole : LANES + 2 * whole]
    for piece in range(pieces):
        start, stop = vectors * piece // pieces, vectors * (piece + 1) // pieces
        largest(g.form, line, start * LANES, position, stop - start, sizes)
        for p in range(whole):
            size = sizes[p] / LARGEST
            usable = size >= _TINY and size < np.float32(np.inf)
            factors[p] = np.float32(1) / size if usable else np.float32(0)
            sizes[p] = size if usable else size * np.float32(0)
        for p in range(positions):
            v.scales[(piece * positions + p) * v.scales_row + place] = sizes[p]
            at, to = p * position + start * LANES, p * v.position + place * v.row
            round_line(line, at, stop - start, factors[p], v.pairs, to + start * LANES // 2)


@inlined
def round_images(
    g: Any, x: Array, v: Any, first: int, line: Array, patch: Array, begin: int, end: int
) -> None:
    """Compute B' x B of tiles ``begin`` to ``end``, from place ``first`` of v on. ``line`` has room for
    all positions of a tile in float32."""
    for tile in range(begin, end):
        transform_images(g, g.channels, x, line, line_of(g), patch, tile, tile + 1)
        round_tile(g, line, v, first + tile - begin, patch)


@inlined
def _round_weights(
    g: Any, w: Array, taps: Any, panel: int, j: int, u: Array, scales: Array, line: Array, patch: Array
) -> None:
    """Compute G w G' of vector ``j`` of a panel of outputs, which begins at u[0]."""
    vectors, pairs = (g.channels + LANES - 1) // LANES, (g.channels + 1) // 2
    positions, pieces = points_of(g) ** 2, pieces_of(g.channels)
    width = vectors_of(g.outputs, panel) * LANES
    line_position, position = 2 * DEPTH * LANES + LANES, pairs * width + LANES
    for piece in range(pieces):
        start = vectors * piece // pieces * LANES
        count = min(vectors * (piece + 1) // pieces * LANES, g.channels) - start
        part = w[start * taps.channel_step :]
        transform_weights(g, part, taps, panel * PANEL + j, count, line, 0, LANES, line_position, patch)
        for p in range(positions):
            to, back = p * position + start // 2 * width + j, (piece * positions + p) * PANEL + j
            pair_up(line, p * line_position, LANES, count, True, u, to, width, scales, back, patch)


def _products_by(multiply_pairs: Any) -> Any:
    @inlined
    def products(
        g: Any,
        v: Any,
        first: int,
        u: Array,
        scales: Array,
        m: Array,
        m_position: int,
        panel: int,
        tiles: int,
    ) -> None:
        vectors, pairs = (g.channels + LANES - 1) // LANES, (g.channels + 1) // 2
        positions, pieces = points_of(g) ** 2, pieces_of(g.channels)
        columns = vectors_of(g.outputs, panel)
        width = columns * LANES
        for p in range(positions):
            for piece in range(pieces):
                start = vectors * piece // pieces * LANES // 2
                count = min(vectors * (piece + 1) // pieces * LANES // 2, pairs) - start
                a = p * v.position + first * v.row + start
                b = p * (pairs * width + LANES) + start * width
                down = (piece * positions + p) * v.scales_row + first
                across = (piece * positions + p) * PANEL
                multiply_pairs(
                    v.pairs,
                    a,
                    v.row,
                    1,
                    u,
                    b,
                    width,
                    m,
                    p * m_position,
                    width,
                    v.scales,
                    down,
                    scales,
                    across,
                    tiles,
                    count,
                    piece,
                    columns,
                )

    return products


products, products_fetching = map(_products_by, (multiply_pairs, _multiply_pairs_fetching))
"""Multiply tiles from place ``first`` of v on by a panel of weights at each position. The second one
meanwhile prefetches the weights that follow from memory."""


@inlined
def panel_of(g: Any, u: Array, scales: Array, panel: int) -> tuple[Array, Array]:
    """Return where a panel's pairs and scales begin."""
    positions = points_of(g) ** 2
    at = panel * positions * ((g.channels + 1) // 2 * PANEL + LANES)
    return u[at:], scales[panel * pieces_of(g.channels) * positions * PANEL :]


@compiled()
def weights(
    g: Any, w: Array, taps: Any, u: Array, scales: Array, line: Array, patch: Array, begin: int, end: int
) -> None:
    """Transform the weights of the vectors ``begin`` to ``end`` of outputs to pairs."""
    for vector in range(begin, end):
        panel = vector * LANES // PANEL
        there, back = panel_of(g, u, scales, panel)
        _round_weights(g, w, taps, panel, vector * LANES - panel * PANEL, there, back, line, patch)


@compiled()
def images(g: Any, x: Array, v: Any, line: Array, patch: Array, begin: int, end: int) -> None:
    """Transform tiles ``begin`` to ``end`` to pairs, at the same places of v."""
    round_images(g, x, v, begin, line, patch, begin, end)


@compiled()
def by_tiles(
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
    begin: int,
    end: int,
) -> None:
    """Compute the results of tiles ``begin`` to ``end``, a block at a time through all panels."""
    position = block * PANEL + LANES
    for start in range(begin, end, block):
        stop = min(start + block, end)
        round_images(g, x, v, 0, line, patch, start, stop)
        for panel in range((g.outputs + PANEL - 1) // PANEL):
            there, back = panel_of(g, u, scales, panel)
            products(g, v, 0, there, back, m, position, panel, stop - start)
            finish(g, m, position, bias, floor, y, panel, patch, start, stop)


@compiled()
def by_panels(
    g: Any,
    w: Array,
    taps: Any,
    bias: Array,
    floor: float,
    y: Array,
    v: Any,
    u: Array,
    scales: Array,
    line: Array,
    m: Array,
    patch: Array,
    block: int,
    tiles: int,
    begin: int,
    end: int,
) -> None:
    """Compute the results of all ``tiles``, whose transforms are in v, in panels ``begin`` to ``end``.
    This is for few tiles with many weights, which are transformed and used up panel by panel."""
    position = block * PANEL + LANES
    for panel in range(begin, end):
        for j in range(0, vectors_of(g.outputs, panel) * LANES, LANES):
            _round_weights(g, w, taps, panel, j, u, scales, line, patch)
        for start in range(0, tiles, block):
            stop = min(start + block, tiles)
            products(g, v, start, u, scales, m, position, panel, stop - start)
            finish(g, m, position, bias, floor, y, panel, patch, start, stop)
