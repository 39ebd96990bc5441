"""Matrix products as tiles: rows and terms at regular distances, in blocks that the caches hold."""

from __future__ import annotations

from typing import Any, NamedTuple

from demitasse_cpu.loops.compiled import Array, compiled, inlined
from demitasse_cpu.loops.tiles import MAX_ROWS, ROWS, STRIP, copy, multiply_tile, transpose


class MatrixProduct(NamedTuple):
    """c[i, j] = sum over t of a[i, t] * b[t, j], each matrix with strides of its own.

    ``base`` and ``steps`` say where the rows and the columns of a start. A block has at most
    ``block_rows`` rows of c and ``block_columns`` columns, in whole groups of vectors. Its sums over
    ``block_terms`` terms at a time are held meanwhile.
    """

    terms: int
    base: Array
    steps: Array
    b_down: int
    b_across: int
    c_down: int
    c_across: int
    block_rows: int
    block_columns: int
    block_terms: int


@compiled()
def multiply(
    g: Any,
    a: Array,
    b: Array,
    c: Array,
    bias_of_row: Array,
    bias_of_column: Array,
    panel: Array,
    sums: Array,
    widest: int,
    row_begin: int,
    row_end: int,
    begin: int,
    end: int,
) -> None:
    """Compute columns ``begin`` to ``end`` of the given rows of c, plus biases (empty arrays for none).

    ``widest`` is the widest group of columns, in as many vectors as a tile can have. ``panel`` has room
    for block_terms x block_columns elements of b, and ``sums`` for block_rows and one more tile.
    """
    vectors = len(ROWS) - 1
    lanes = widest // vectors
    for left in range(begin, end, g.block_columns):
        right = min(left + g.block_columns, end)
        for top in range(row_begin, row_end, g.block_rows):
            bottom = min(top + g.block_rows, row_end)
            held = bottom - top + MAX_ROWS
            sums[: held * g.block_columns] = 0
            for first in range(0, g.terms, g.block_terms):
                count = min(g.block_terms, g.terms - first)
                steps = g.steps[first : first + count]
                if top == row_begin or g.terms > g.block_terms:
                    _pack_block(g, b, panel, first, count, left, right, widest, lanes)
                # The full groups of columns come first, all under one row of tiles while its part of a
                # is in the first cache; then the last group, which is narrower and has its own number of
                # rows.
                full = (right - left) // widest
                rows = ROWS[vectors]
                for m in range(top, bottom, rows):
                    for group in range(full):
                        at = (group * held + m - top) * widest
                        source = group * count * widest
                        multiply_tile(a, g.base, m, steps, panel, source, sums, at, vectors)
                rest = (right - left - full * widest + lanes - 1) // lanes
                if rest > 0:
                    for m in range(top, bottom, ROWS[rest]):
                        at = full * held * widest + (m - top) * rest * lanes
                        source = full * count * widest
                        multiply_tile(a, g.base, m, steps, panel, source, sums, at, rest)
            for column in range(left, right, widest):
                live = min(widest, right - column)
                width = (live + lanes - 1) // lanes * lanes
                at = (column - left) * held
                if bias_of_row.size > 0:
                    for i in range(bottom - top):
                        line = sums[at + i * width : at + (i + 1) * width]
                        for j in range(width):
                            line[j] += bias_of_row[top + i]
                if bias_of_column.size > 0:
                    bias = bias_of_column[column : column + live]
                    for i in range(bottom - top):
                        line = sums[at + i * width : at + i * width + live]
                        for j in range(live):
                            line[j] += bias[j]
                target = top * g.c_down + column * g.c_across
                if g.c_across == 1:
                    for i in range(bottom - top):
                        copy(sums, at + i * width, c, target + i * g.c_down, live)
                else:
                    for i in range(0, bottom - top, STRIP):
                        n = min(STRIP, bottom - top - i)
                        out = target + i * g.c_down
                        transpose(sums, at + i * width, width, c, out, g.c_across, n, live)


@inlined
def _pack_block(
    g: Any,
    b: Array,
    panel: Array,
    first: int,
    count: int,
    left: int,
    right: int,
    widest: int,
    lanes: int,
) -> None:
    """Copy terms from ``first`` on, of columns ``left`` to ``right`` of b, into the order in which tiles
    read them."""
    for column in range(left, right, widest):
        live = min(widest, right - column)
        width = (live + lanes - 1) // lanes * lanes
        out = (column - left) * count
        source = first * g.b_down + column * g.b_across
        if g.b_across == 1:
            for t in range(count):
                copy(b, source + t * g.b_down, panel, out + t * width, live)
        else:
            for t in range(0, count, STRIP):
                n = min(STRIP, count - t)
                at = source + t * g.b_down
                transpose(b, at, g.b_across, panel, out + t * width, width, live, n)
        if live < width:
            for t in range(count):
                panel[out + t * width + live : out + (t + 1) * width] = 0


@compiled()
def column_sums(x: Array, sums: Array, width: int) -> None:
    """Sum the rows of x, in their order."""
    sums[:] = 0
    for start in range(0, x.size, width):
        row = x[start : start + width]
        for i in range(width):
            sums[i] += row[i]
