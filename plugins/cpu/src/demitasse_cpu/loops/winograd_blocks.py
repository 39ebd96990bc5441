"""What the loops of Winograd's convolution share: the positions of tiles, and a block's transforms and
products.

numba keeps a compiled loop as long as its own file is unchanged. If you change a part here, also touch
``winograd``, ``winograd_gradient``, ``winograd_integers``, ``winograd_integer_gradient``,
``winograd_kept`` and ``winograd_transposed``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from numba import types
from numba.extending import intrinsic

from demitasse_cpu.loops.compiled import Array, inlined
from demitasse_cpu.loops.tiles import ROWS
from demitasse_cpu.loops.vectors import I64, LANES
from demitasse_cpu.loops.winograd_tiles import FETCHING_TILES, TILES
from demitasse_cpu.loops.winograd_transforms import IMAGE, IMAGE_EDGE, IMAGE_PART, RESULTS, TAPS

PANEL = (len(ROWS) - 1) * LANES
"""The number of channels that are multiplied together: as many vectors as a tile of sums can have."""

_DEPTH = 128
"""The number of terms that a tile of sums takes at a time: as many rows of a panel as the first cache
holds."""

BATCH = 8
"""The number of channels whose weights are put in order together."""


class Tiles(NamedTuple):
    """The positions of tiles in images of ``channels`` and results of ``outputs``, with channels
    innermost.

    ``form`` has as many members as a tile has pixels along an axis; loops are compiled for each count.
    Tile t is in tile row t // across and tile column t % across. The lines of x that tile row r reads,
    ``lines`` of them, begin at ``rows[lines * r + i]``, and its pixels in a line at ``columns``. The
    lines and pixels of its results in y begin at ``result_rows`` and ``result_columns``. A negative
    entry stands for zeros in x, and for places that do not exist in y. Neighbours are ``down_step`` and
    ``across_step`` apart unless an edge is between them.
    """

    form: tuple[int, ...]
    channels: int
    outputs: int
    across: int
    rows: Array
    columns: Array
    down_step: int
    across_step: int
    result_rows: Array
    result_columns: Array
    result_down_step: int
    result_across_step: int


class Lie(NamedTuple):
    """The layout of transformed tiles: those of panel q of channels, position p and tile t begin at
    ``q * panel + p * position + t * row``."""

    panel: int
    position: int
    row: int


class Taps(NamedTuple):
    """The distances in w between channels and between outputs of the weights of a pair, and whether the
    weights are taken backwards, as for the gradient of the data."""

    channel_step: int
    output_step: int
    turned: bool


@inlined
def ahead_of(tile: int, tiles: int, part: int, vectors: int) -> tuple[int, int]:
    """Return how far ahead of its own reads of b a tile of rows, of ``tiles``, prefetches two vectors.
    The part of b that follows is ``part`` numbers further. The last tiles prefetch it, each about the
    same number of vectors, or the same one twice; those before prefetch only what they read themselves.
    With all of it in the last two of three tiles, 16 rows from memory took a twelfth longer."""
    fetching = min(tiles, vectors)
    k, twice = tile - tiles + fetching, vectors - fetching
    if k < 0:
        return 0, 0
    first = part + (k + min(k, twice)) * LANES
    return first, first + LANES if k < twice else first


def _multiplying(loops: Sequence[Any], fetching: bool) -> Any:
    tile_1, tile_2, tile_3, tile_4 = (*loops[:2], *loops[-2:])

    @inlined
    def multiply(
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
        rows: int,
        count: int,
        more: int,
        vectors: int,
    ) -> None:
        height = ROWS[vectors]
        tiles = (rows + height - 1) // height
        for start in range(0, count, _DEPTH):
            n = min(_DEPTH, count - start)
            from_a, from_b, adding = a_at + start * a_step, b_at + start * b_step, more + start
            for tile in range(tiles):
                m = tile * height
                at, out = from_a + m * a_row, c_at + m * c_row
                operands = (a, at, a_row, a_step, b, from_b, b_step, c, out, c_row)
                ahead = ahead_of(tile, tiles, n * b_step, vectors) if fetching else (0, 0)
                if vectors == 1:
                    tile_1(*operands, n, adding, *ahead, rows - m)
                elif vectors == 2:
                    tile_2(*operands, n, adding, *ahead, rows - m)
                elif vectors == 3:
                    tile_3(*operands, n, adding, *ahead, rows - m)
                else:
                    tile_4(*operands, n, adding, *ahead, rows - m)

    return multiply


multiply, multiply_fetching = _multiplying(TILES, False), _multiplying(FETCHING_TILES, True)
"""Compute the sums of ``rows`` rows over ``count`` terms, tile by tile, so that all rows use a part of b
while the first cache holds it. Rows of the last tile beyond ``rows`` are garbage. The second one
meanwhile prefetches what follows in b from memory."""


@inlined
def vectors_of(channels: int, panel: int) -> int:
    return min(PANEL // LANES, (channels - panel * PANEL + LANES - 1) // LANES)


def _of_form(number: Callable[[int], int]) -> Callable[[Any], int]:
    """Return an intrinsic for a number that the type of a ``Tiles`` alone determines. This takes numba a
    hundredth of the time that inlining a function does."""

    def typed(context: Any, g: Any) -> Any:
        value = number(len(g[0]))

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return I64(value)

        return types.int64(g), generate

    made: Any = intrinsic(typed)
    return made  # type: ignore[no-any-return]


points_of = _of_form(lambda points: points)
"""Pixels along an axis of a tile."""

taps_of = _of_form(lambda points: TAPS[points])
"""Taps along an axis."""

results_of = _of_form(lambda points: RESULTS[points])
"""Results along an axis of a tile."""


@inlined
def is_whole(table: Array, first: int, count: int, step: int) -> bool:
    """Return whether ``count`` lines from ``first`` on exist and are ``step`` apart."""
    whole: bool = table[first] >= 0
    for i in range(1, count):
        whole &= table[first + i] - table[first] == i * step
    return whole


@inlined
def transform_images(
    g: Any, channels: int, x: Array, v: Array, lie: Any, patch: Array, begin: int, end: int
) -> None:
    """Compute B' x B of the first ``channels`` in tiles ``begin`` to ``end``. ``patch`` has room for a
    vector of zeros."""
    form, down, across = g.form, g.down_step, g.across_step
    points = points_of(g)
    out_down = points * lie.position
    whole = channels // LANES * LANES
    rows, columns = g.rows, g.columns
    patch[:LANES] = 0
    for tile in range(begin, end):
        r, k = points * (tile // g.across), points * (tile % g.across)
        out = (tile - begin) * lie.row
        if is_whole(rows, r, points, down) and is_whole(columns, k, points, across):
            at = rows[r] + columns[k]
            for c in range(0, whole, LANES):
                to = out + c // PANEL * lie.panel + c % PANEL
                IMAGE(form, x, at + c, down, across, v, to, out_down, lie.position)
        else:
            for c in range(0, whole, LANES):
                to = out + c // PANEL * lie.panel + c % PANEL
                IMAGE_EDGE(form, x, c, LANES, rows, r, columns, k, v, to, out_down, lie.position, patch)
        live = channels - whole
        if live > 0:
            to = out + whole // PANEL * lie.panel + whole % PANEL
            IMAGE_PART(form, x, whole, live, rows, r, columns, k, v, to, out_down, lie.position, patch)
