"""Changes of layout and of stored type. The place of an element is a sum of one term for each dimension,
in any order and with any blocks, so tables of those terms serve all layouts."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from demitasse_cpu.loops.bfloat16 import narrow, narrowed_vector, widen, widened_vector
from demitasse_cpu.loops.compiled import Array, compiled

TILE = 16
"""The number of rows and columns that are transposed together: a cache line of float32 in both
directions."""

SPAN = 1024
"""The number of columns, of a matrix with few rows, in a piece of work."""


def exchanged(builder: Any, rows: list[Any]) -> None:
    """Transpose a square of TILE vectors, by exchanging halves, quarters and so on."""
    mask, far = ir.VectorType(ir.IntType(32), TILE), TILE // 2
    while far:
        kept = [lane + TILE - far if lane & far else lane for lane in range(TILE)]
        other = [lane + TILE if lane & far else lane + far for lane in range(TILE)]
        for i in (i for i in range(TILE) if not i & far):
            pair = rows[i], rows[i + far]
            rows[i] = builder.shuffle_vector(*pair, ir.Constant(mask, kept))
            rows[i + far] = builder.shuffle_vector(*pair, ir.Constant(mask, other))
        far //= 2


def _turned_typed(context: Any, x: Any, at: Any, stride: Any, y: Any, y_at: Any, y_stride: Any) -> Any:
    """Transpose a square of TILE x TILE numbers in registers."""
    signature = types.void(x, types.int64, types.int64, y, types.int64, types.int64)
    moved_only = x.dtype == y.dtype

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        def row(position: int, i: int) -> Any:
            kind = signature.args[position]
            data = context.make_array(kind)(context, builder, args[position]).data
            along = builder.mul(args[position + 2], ir.IntType(64)(i))
            place = builder.gep(data, [builder.add(args[position + 1], along)])
            vector = ir.VectorType(data.type.pointee, TILE)
            return builder.bitcast(place, vector.as_pointer())

        rows = []
        for i in range(TILE):
            rows.append(builder.load(row(0, i)))
            rows[i].align = x.dtype.bitwidth // 8
            if not moved_only:
                rows[i] = widened_vector(builder, rows[i], x.dtype)
        exchanged(builder, rows)
        for i in range(TILE):
            value = rows[i] if moved_only else narrowed_vector(builder, rows[i], y.dtype)
            builder.store(value, row(3, i)).align = y.dtype.bitwidth // 8
        return context.get_dummy_value()

    return signature, generate


def _pairs_turned_typed(
    context: Any, x: Any, at: Any, stride: Any, y: Any, y_at: Any, y_far: Any, y_stride: Any
) -> Any:
    """Transpose TILE rows, ``stride`` apart, of TILE pairs. The numbers at one position in all pairs
    become rows of bfloat16, two of which are interleaved as pairs. Half of the rows are stored ``y_far``
    numbers after the first half."""
    n = types.int64
    signature = types.void(x, n, n, y, n, n, n)
    words, halves = ir.VectorType(ir.IntType(32), TILE), ir.VectorType(ir.IntType(16), 2 * TILE)
    mask = ir.VectorType(ir.IntType(32), 2 * TILE)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        def vector(position: int, place: Any, kind: Any) -> Any:
            data = context.make_array(signature.args[position])(context, builder, args[position]).data
            return builder.bitcast(builder.gep(data, [place]), kind.as_pointer())

        rows = []
        for i in range(TILE):
            place = builder.add(args[1], builder.mul(args[2], ir.IntType(64)(i)))
            given = ir.VectorType(ir.FloatType(), 2 * TILE) if x.dtype == types.float32 else halves
            value = builder.load(vector(0, place, given))
            value.align = x.dtype.bitwidth // 8
            if x.dtype == types.float32:
                value = narrowed_vector(builder, value, y.dtype)
            rows.append(builder.bitcast(value, words))
        exchanged(builder, rows)
        for i in range(0, TILE, 2):
            pair = [builder.bitcast(row, halves) for row in rows[i : i + 2]]
            place = builder.add(args[4], builder.mul(args[6], ir.IntType(64)(i // 2)))
            for half in range(2):
                lanes = [half * TILE + lane // 2 + lane % 2 * 2 * TILE for lane in range(2 * TILE)]
                value = builder.shuffle_vector(*pair, ir.Constant(mask, lanes))
                where = builder.add(place, args[5]) if half else place
                builder.store(value, vector(3, where, halves)).align = 2
        return context.get_dummy_value()

    return signature, generate


def _side_by_side_typed(rows: int) -> Any:
    """Return an intrinsic that interleaves TILE numbers of each of ``rows`` rows, so that columns are
    contiguous."""

    def typed(context: Any, x: Any, at: Any, stride: Any, y: Any, to: Any) -> Any:
        signature = types.void(x, types.int64, types.int64, y, types.int64)

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            source, target = (
                context.make_array(signature.args[i])(context, builder, args[i]).data for i in (0, 3)
            )
            read, mask = ir.VectorType(source.type.pointee, TILE), ir.IntType(32)
            pieces = []
            for i in range(rows):
                along = builder.mul(args[2], ir.IntType(64)(i))
                place = builder.gep(source, [builder.add(args[1], along)])
                value = builder.load(builder.bitcast(place, read.as_pointer()))
                value.align = x.dtype.bitwidth // 8
                if x.dtype != y.dtype:
                    value = narrowed_vector(builder, widened_vector(builder, value, x.dtype), y.dtype)
                pieces.append(value)

            def joined(one: Any, other: Any, lanes: list[int]) -> Any:
                return builder.shuffle_vector(
                    one, other, ir.Constant(ir.VectorType(mask, len(lanes)), lanes)
                )

            pairs = [
                joined(pieces[i], pieces[min(i + 1, rows - 1)], list(range(2 * TILE)))
                for i in range(0, rows, 2)
            ]
            lanes = [row * TILE + column for column in range(TILE) for row in range(rows)]
            value = joined(pairs[0], pairs[-1], lanes)
            place = builder.gep(target, [args[4]])
            kind = ir.VectorType(target.type.pointee, rows * TILE)
            builder.store(value, builder.bitcast(place, kind.as_pointer())).align = y.dtype.bitwidth // 8
            return context.get_dummy_value()

        return signature, generate

    return intrinsic(typed)


turned: Any = intrinsic(_turned_typed)
_pairs_turned: Any = intrinsic(_pairs_turned_typed)
_TWO, _THREE, _FOUR = map(_side_by_side_typed, (2, 3, 4))


@compiled()
def transposed(x: Array, y: Array, rows: int, columns: int, begin: int, end: int) -> None:
    """Transpose matrices of ``rows`` x ``columns``, in bands of TILE along the longer side. ``begin``
    and ``end`` count the bands of all matrices. Squares that would stick out overlap their neighbours
    instead."""
    short = min(rows, columns)
    bands = (short + TILE - 1) // TILE
    for number in range(begin, end):
        start, band = number // bands * rows * columns, number % bands * TILE
        if short < TILE:
            for i in range(rows):
                for j in range(columns):
                    y[start + j * rows + i] = narrow(widen(x[start + i * columns + j]), y)
        elif rows < columns:
            i = min(band, rows - TILE)
            for left in range(0, columns, TILE):
                j = min(left, columns - TILE)
                turned(x, start + i * columns + j, columns, y, start + j * rows + i, rows)
        else:
            j = min(band, columns - TILE)
            for top in range(0, rows, TILE):
                i = min(top, rows - TILE)
                turned(x, start + i * columns + j, columns, y, start + j * rows + i, rows)


@compiled()
def interleaved(x: Array, y: Array, rows: int, columns: int, begin: int, end: int) -> None:
    """Transpose matrices of two to four rows; ``begin`` and ``end`` count their pieces of SPAN
    columns."""
    pieces = (columns + SPAN - 1) // SPAN
    for number in range(begin, end):
        start, first = number // pieces * rows * columns, number % pieces * SPAN
        last = min(first + SPAN, columns)
        for left in range(first, last, TILE):
            j = min(left, columns - TILE)
            if rows == 2:
                _TWO(x, start + j, columns, y, start + j * rows)
            elif rows == 3:
                _THREE(x, start + j, columns, y, start + j * rows)
            else:
                _FOUR(x, start + j, columns, y, start + j * rows)


@compiled()
def gathered(
    x: Array,
    y: Array,
    x_lead: Array,
    x_row: Array,
    x_column: Array,
    y_lead: Array,
    y_row: Array,
    y_column: Array,
    begin: int,
    end: int,
) -> None:
    """Move elements between any two layouts. The tables have the terms of an element's place: those of
    the last two dimensions, and the sum of the others, of which ``begin`` to ``end`` are moved."""
    for n in range(begin, end):
        for r in range(x_row.size):
            source, target = x_lead[n] + x_row[r], y_lead[n] + y_row[r]
            for c in range(x_column.size):
                y[target + y_column[c]] = narrow(widen(x[source + x_column[c]]), y)


@compiled()
def side_by_side(x: Array, y: Array, width: int, begin: int, end: int) -> None:
    """Interleave every two rows of ``width`` numbers, so that columns are contiguous. ``begin`` and
    ``end`` count the pairs of rows."""
    for pair in range(begin, end):
        first, second = x[2 * pair * width :][:width], x[(2 * pair + 1) * width :][:width]
        target = y[2 * pair * width :][: 2 * width]
        for i in range(width):
            target[2 * i] = narrow(widen(first[i]), y)
            target[2 * i + 1] = narrow(widen(second[i]), y)


@compiled()
def pairs_turned(
    x: Array, y: Array, rows: int, columns: int, taps: int, width: int, height: int, begin: int, end: int
) -> None:
    """Move weights of ``rows`` outputs and ``columns`` inputs to bfloat16. x has pairs of inputs in
    blocks of ``width`` outputs, and y has pairs of outputs in blocks of ``height`` inputs. ``begin`` and
    ``end`` count bands of TILE outputs, which are done tap by tap. Rows are whole tiles, and columns
    whole tiles of pairs."""
    for band in range(begin, end):
        row, tap = band // taps * TILE, band % taps
        source = (row // width * taps + tap) * (columns // 2) * 2 * width + row % width * 2
        for column in range(0, columns, 2 * TILE):
            to = (column // height * taps + tap) * rows * height + row * height + column % height * 2
            other = column + TILE
            far = (other // height * taps + tap) * rows * height + row * height + other % height * 2
            _pairs_turned(x, source + column * width, 2 * width, y, to, far - to, 2 * height)


@compiled()
def rows_in_pairs(x: Array, y: Array, rows: int, columns: int, width: int, begin: int, end: int) -> None:
    """As blocks_in_pairs, but from plain rows of inputs, for one tap; each number is a pair of
    weights."""
    for band in range(begin, end):
        row = band * TILE
        for column in range(0, columns, TILE):
            to = (row // width * columns + column) * width + row % width
            turned(x, row * columns + column, columns, y, to, width)


@compiled()
def blocks_in_pairs(
    x: Array, y: Array, rows: int, columns: int, taps: int, width: int, begin: int, end: int
) -> None:
    """Move weights of ``rows`` outputs and ``columns`` inputs. x has squares of TILE inputs by TILE
    outputs, and y has pairs of inputs in blocks of ``width`` outputs. ``begin`` and ``end`` count bands
    of TILE outputs, which are done tap by tap. Rows and columns are whole tiles."""
    for band in range(begin, end):
        row, tap = band // taps * TILE, band % taps
        to = (row // width * taps + tap) * columns * width + row % width * 2
        for column in range(0, columns, 2):
            square = (row // TILE * (columns // TILE) + column // TILE) * taps + tap
            at = (square * TILE + column % TILE) * TILE
            _TWO(x, at, TILE, y, to + column * width)


@compiled()
def columns(x: Array, first: int, y: Array) -> None:
    """Copy columns of x, from column ``first`` on, to y, which has as many rows as x."""
    for row in range(y.shape[0]):
        source, target = x[row, first : first + y.shape[1]], y[row]
        for i in range(target.size):
            target[i] = source[i]
