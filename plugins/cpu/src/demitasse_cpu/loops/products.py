"""Convolution and matrix products from one tile: rows of gathered values times vectors of channels.

All three passes of a convolution are one sum over t,
``out[row, channel] += x[base[row] + step[t]] * panel[t, channel]``:

- forward: rows are output positions, t runs over the taps (c, ky, kx), channels are outputs;
- backward to the data: rows are positions of dx, t runs over (k, ky, kx), channels are inputs. Of a
  strided convolution each phase (position modulo stride) has taps of its own;
- backward to the weights: rows are the taps, t runs over the positions, channels are outputs.

A matrix product is the same, with rows and terms at regular distances.

So there are no columns to write and read: a row's value is loaded from the (padded) image where it
lies and multiplied into several vectors of channels, whose sums stay in registers. On a processor
with AVX-512 this loop reached 220 of 230 GFLOP/s of one core in float32.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import llvmlite.binding
from llvmlite import ir
from numba import types
from numba.core import cgutils, config
from numba.extending import intrinsic

from demitasse_cpu.loops.compiled import Array, compiled, inlined


def _vector_bytes_and_registers() -> tuple[int, int]:
    """Of the processor that numba compiles for: this one, unless NUMBA_CPU_FEATURES names others."""
    chosen: str | None = config.CPU_FEATURES  # type: ignore[attr-defined]
    if chosen is None:
        features = {name for name, has in llvmlite.binding.get_host_cpu_features().items() if has}
    else:
        features = {name[1:] for name in chosen.split(",") if name.startswith("+")}
    if "avx512f" in features:
        return 64, 32
    if "avx" in features:
        return 32, 16
    return 16, 32 if "neon" in features else 16


_VECTOR_BYTES, _REGISTERS = _vector_bytes_and_registers()

# Rows of a tile by its number of vectors: sums for two fused multiply-adds a cycle over their
# latency, which with a row of the panel and one value fit the registers. Eight rows have as many
# addresses as a processor of sixteen general registers can hold beside the loop's own.
ROWS = (0, 8, 8, 8, 6) if _REGISTERS == 32 else (0, 8, 6)
MAX_ROWS = max(ROWS)

STRIP = 48
"""Rows that are finished before they are written: whole tiles, whose sums stay in the first cache."""


def lanes(itemsize: int) -> int:
    """How many real numbers of ``itemsize`` bytes a vector has here."""
    return _VECTOR_BYTES // itemsize


def columns(channels: int, itemsize: int) -> list[tuple[int, int]]:
    """Channels cut into groups of vectors that a tile can have: (first vector, vectors)."""
    vectors = -(-channels // lanes(itemsize))
    groups = -(-vectors // (len(ROWS) - 1))
    edges = [vectors * i // groups for i in range(groups + 1)]
    return [(a, b - a) for a, b in itertools.pairwise(edges)]


class Correlation(NamedTuple):
    """The numbers and tables of a forward pass or a backward pass to the data.

    A source image has ``groups`` groups of ``channels`` planes of ``height`` x ``width``; it is
    padded to ``padded_height`` x ``padded_width``, with ``top`` and ``left``, unless that changes
    nothing. A result has ``groups`` groups of ``outputs`` planes of ``plane`` elements. Phase f has
    the taps from ``phase_taps[f]`` and the rows from ``phase_rows[f]`` on; row m goes to element
    ``target[m]`` of a plane, which is m itself when ``in_order``.
    """

    groups: int
    channels: int
    height: int
    width: int
    top: int
    left: int
    padded_height: int
    padded_width: int
    outputs: int
    plane: int
    in_order: bool
    phase_taps: Array
    phase_rows: Array
    base: Array
    target: Array
    steps: Array
    weight_of_tap: Array
    weights_of_group: int
    weights_of_output: int
    columns: Array


class WeightGradient(NamedTuple):
    """The numbers and tables of a backward pass to the weights; see Correlation."""

    groups: int
    channels: int
    height: int
    width: int
    top: int
    left: int
    padded_height: int
    padded_width: int
    outputs: int
    taps: int
    base: Array
    steps: Array
    columns: Array


def _tile(rows: int, vectors: int) -> Any:
    """The innermost loop, for so many rows and vectors, written as LLVM vector code."""

    def typed(
        context: Any,
        x: Any,
        base: Any,
        first: Any,
        steps: Any,
        panel: Any,
        at: Any,
        sums: Any,
        sums_at: Any,
    ) -> Any:
        real = x.dtype
        size = real.bitwidth // 8
        signature = types.void(x, base, types.int64, steps, panel, types.int64, sums, types.int64)

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            def array(position: int) -> Any:
                kind = signature.args[position]
                return context.make_array(kind)(context, builder, args[position])

            index = ir.IntType(64)
            vector = ir.VectorType(context.get_value_type(real), lanes(size))
            splat = ir.Constant(ir.VectorType(ir.IntType(32), lanes(size)), [0] * lanes(size))
            nothing = ir.Constant(vector, ir.Undefined)
            multiply_add = cgutils.get_or_insert_function(  # type: ignore[no-untyped-call]
                builder.module,
                ir.FunctionType(vector, [vector] * 3),
                f"llvm.fmuladd.v{lanes(size)}f{8 * size}",
            )
            cells = [(r, v) for r in range(rows) for v in range(vectors)]

            def vector_at(pointer: Any, element: int) -> Any:
                moved = builder.gep(pointer, [index(element)])
                return builder.bitcast(moved, vector.as_pointer())

            def load(pointer: Any, element: int) -> Any:
                value = builder.load(vector_at(pointer, element))
                value.align = size
                return value

            image, offsets, taps = array(0).data, array(1).data, array(3)
            count = builder.extract_value(taps.shape, 0)
            row = []
            for r in range(rows):
                place = builder.gep(offsets, [builder.add(args[2], index(r))])
                row.append(builder.gep(image, [builder.load(place)]))
            weights = builder.gep(array(4).data, [args[5]])
            out = builder.gep(array(6).data, [args[7]])
            before = [load(out, (r * vectors + v) * lanes(size)) for r, v in cells]

            entry = builder.block
            body = builder.append_basic_block("taps")
            done = builder.append_basic_block("done")
            builder.cbranch(builder.icmp_signed(">", count, index(0)), body, done)

            builder.position_at_end(body)
            t = builder.phi(index)
            sums = [builder.phi(vector) for _ in cells]
            step = builder.load(builder.gep(taps.data, [t]))
            here = builder.gep(weights, [builder.mul(t, index(vectors * lanes(size)))])
            channel = [load(here, v * lanes(size)) for v in range(vectors)]
            after = []
            for r in range(rows):
                value = builder.load(builder.gep(row[r], [step]))
                first_lane = builder.insert_element(nothing, value, ir.IntType(32)(0))
                value = builder.shuffle_vector(first_lane, nothing, splat)
                for v in range(vectors):
                    total = sums[r * vectors + v]
                    after.append(builder.call(multiply_add, [value, channel[v], total]))
            following = builder.add(t, index(1))
            t.add_incoming(index(0), entry)
            t.add_incoming(following, body)
            for total, old, new in zip(sums, before, after, strict=True):
                total.add_incoming(old, entry)
                total.add_incoming(new, body)
            builder.cbranch(builder.icmp_signed("<", following, count), body, done)

            builder.position_at_end(done)
            for (r, v), old, new in zip(cells, before, after, strict=True):
                total = builder.phi(vector)
                total.add_incoming(old, entry)
                total.add_incoming(new, body)
                after[r * vectors + v] = total
            for (r, v), total in zip(cells, after, strict=True):
                builder.store(total, vector_at(out, (r * vectors + v) * lanes(size))).align = size
            return context.get_dummy_value()

        return signature, generate

    return intrinsic(typed)


_TILE_1, _TILE_2 = _tile(ROWS[1], 1), _tile(ROWS[2], 2)
_TILE_3, _TILE_4 = (_tile(ROWS[3], 3), _tile(ROWS[4], 4)) if len(ROWS) > 3 else (_TILE_1, _TILE_1)


@inlined
def _multiply(
    x: Array,
    base: Array,
    first: int,
    steps: Array,
    panel: Array,
    at: int,
    sums: Array,
    sums_at: int,
    vectors: int,
) -> None:
    if vectors == 1:
        _TILE_1(x, base, first, steps, panel, at, sums, sums_at)
    elif vectors == 2:
        _TILE_2(x, base, first, steps, panel, at, sums, sums_at)
    elif vectors == 3:
        _TILE_3(x, base, first, steps, panel, at, sums, sums_at)
    else:
        _TILE_4(x, base, first, steps, panel, at, sums, sums_at)


def _turn_typed(context: Any, x: Any, at: Any, stride: Any, y: Any, y_at: Any, y_stride: Any) -> Any:
    """Transpose 8 x 8 elements from rows ``stride`` apart to rows ``y_stride`` apart, in three
    rounds that exchange the off-diagonal quarters of ever smaller squares."""
    real = x.dtype
    size = real.bitwidth // 8
    signature = types.void(x, types.int64, types.int64, y, types.int64, types.int64)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        index = ir.IntType(64)
        vector = ir.VectorType(context.get_value_type(real), 8)
        mask = ir.VectorType(ir.IntType(32), 8)

        def row(position: int, i: int) -> Any:
            kind = signature.args[position]
            data = context.make_array(kind)(context, builder, args[position]).data
            moved = builder.mul(args[position + 2], index(i))
            place = builder.gep(data, [builder.add(args[position + 1], moved)])
            return builder.bitcast(place, vector.as_pointer())

        rows = []
        for i in range(8):
            rows.append(builder.load(row(0, i)))
            rows[i].align = size
        for far in (4, 2, 1):
            kept = [lane + 8 - far if lane & far else lane for lane in range(8)]
            other = [lane + 8 if lane & far else lane + far for lane in range(8)]
            for i in (i for i in range(8) if not i & far):
                pair = rows[i], rows[i + far]
                rows[i] = builder.shuffle_vector(*pair, ir.Constant(mask, kept))
                rows[i + far] = builder.shuffle_vector(*pair, ir.Constant(mask, other))
        for i in range(8):
            builder.store(rows[i], row(3, i)).align = size
        return context.get_dummy_value()

    return signature, generate


_turn: Any = intrinsic(_turn_typed)


@compiled()
def _transpose(
    x: Array, at: int, stride: int, y: Array, y_at: int, y_stride: int, rows: int, width: int
) -> None:
    """y[j, i] = x[i, j] for i below ``rows`` and j below ``width``. Squares that would stick out lie
    over their neighbours instead."""
    if rows < 8 or width < 8:
        for i in range(rows):
            for j in range(width):
                y[y_at + j * y_stride + i] = x[at + i * stride + j]
        return
    # The innermost loop runs along the rows that lie far apart: those may share a set of the cache.
    down = stride > y_stride
    for k in range(0, rows if down else width, 8):
        for m in range(0, width if down else rows, 8):
            i = min(k if down else m, rows - 8)
            j = min(m if down else k, width - 8)
            _turn(x, at + i * stride + j, stride, y, y_at + j * y_stride + i, y_stride)


@compiled(reassociate=True)
def _sum(x: Array) -> Any:
    total = x.dtype.type(0)
    for i in range(x.size):
        total += x[i]
    return total


@inlined
def _copy(x: Array, at: int, y: Array, y_at: int, n: int) -> None:
    # An assignment to a slice would look for overlaps first, which costs more than short copies.
    source, target = x[at : at + n], y[y_at : y_at + n]
    for i in range(n):
        target[i] = source[i]


@inlined
def _pad(g: Any, x: Array, at: int, padded: Array) -> None:
    """Copy a group's planes into the middle of larger ones, whose edges stay zero."""
    for c in range(g.channels):
        for row in range(g.height):
            source = at + (c * g.height + row) * g.width
            out = (c * g.padded_height + g.top + row) * g.padded_width + g.left
            _copy(x, source, padded, out, g.width)


@compiled()
def pack(g: Any, w: Array, b: Array, panel: Array, biases: Array, lanes: int) -> None:
    """Weights as tiles read them, channels innermost and padded with zeros; biases (an empty array
    for none) padded likewise."""
    zero = w.dtype.type(0)
    total = g.weight_of_tap.size
    padded = biases.size // g.groups
    for group in range(g.groups):
        for j in range(padded):
            given = j < g.outputs and b.size > 0
            biases[group * padded + j] = b[group * g.outputs + j] if given else zero
        for f in range(g.phase_taps.size - 1):
            start, stop = g.phase_taps[f], g.phase_taps[f + 1]
            for c in range(g.columns.shape[0]):
                first, width = g.columns[c, 0] * lanes, g.columns[c, 1] * lanes
                out = (group * total + start) * padded + (stop - start) * first
                live = min(width, g.outputs - first)
                for t in range(start, stop):
                    source = group * g.weights_of_group + g.weight_of_tap[t]
                    source += first * g.weights_of_output
                    for j in range(live):
                        panel[out + j] = w[source + j * g.weights_of_output]
                    for j in range(live, width):
                        panel[out + j] = zero
                    out += width


@compiled()
def correlate(
    g: Any,
    x: Array,
    y: Array,
    panel: Array,
    biases: Array,
    room: Array,
    lanes: int,
    begin: int,
    end: int,
) -> None:
    """The results of images ``begin`` to ``end``. ``room`` holds a padded group of planes, then a
    strip of rows, which are finished channels innermost and written channels outermost."""
    source_size = g.channels * g.height * g.width
    padded_size = g.channels * g.padded_height * g.padded_width
    is_padded = padded_size != source_size
    strip = room[padded_size:] if is_padded else room
    total = g.weight_of_tap.size
    width_of_group = biases.size // g.groups
    if is_padded:
        room[:padded_size] = 0
    for unit in range(begin * g.groups, end * g.groups):
        group = unit % g.groups
        source = x[unit * source_size : (unit + 1) * source_size]
        if is_padded:
            _pad(g, x, unit * source_size, room)
            source = room[:padded_size]
        for f in range(g.phase_taps.size - 1):
            start, stop = g.phase_taps[f], g.phase_taps[f + 1]
            for c in range(g.columns.shape[0]):
                vectors = g.columns[c, 1]
                first, width = g.columns[c, 0] * lanes, vectors * lanes
                at = (group * total + start) * width_of_group + (stop - start) * first
                live = min(width, g.outputs - first)
                rows = ROWS[vectors]
                taps = g.steps[start:stop]
                out = (unit * g.outputs + first) * g.plane
                for start_row in range(g.phase_rows[f], g.phase_rows[f + 1], STRIP):
                    stop_row = min(start_row + STRIP, g.phase_rows[f + 1])
                    for m in range(start_row, stop_row, rows):
                        sums = strip[(m - start_row) * width :]
                        for r in range(rows):
                            for j in range(width):
                                sums[r * width + j] = biases[group * width_of_group + first + j]
                        _multiply(source, g.base, m, taps, panel, at, sums, 0, vectors)
                    if g.in_order:
                        count = stop_row - start_row
                        _transpose(strip, 0, width, y, out + start_row, g.plane, count, live)
                    else:
                        for m in range(start_row, stop_row):
                            for j in range(live):
                                place = out + j * g.plane + g.target[m]
                                y[place] = strip[(m - start_row) * width + j]


@compiled()
def weight_gradient(
    g: Any,
    dy: Array,
    x: Array,
    sums: Array,
    bias_sums: Array,
    room: Array,
    lanes: int,
    begin: int,
    end: int,
) -> None:
    """Add up what images ``begin`` to ``end`` give. ``room`` holds a padded group of planes of x,
    then a group of dy with its channels innermost."""
    source_size = g.channels * g.height * g.width
    padded_size = g.channels * g.padded_height * g.padded_width
    is_padded = padded_size != source_size
    positions = g.steps.size
    panel = room[padded_size:] if is_padded else room
    width_of_group = bias_sums.size // g.groups
    sums[:] = 0
    bias_sums[:] = 0
    if is_padded:
        room[:padded_size] = 0
    for unit in range(begin * g.groups, end * g.groups):
        group = unit % g.groups
        source = x[unit * source_size : (unit + 1) * source_size]
        if is_padded:
            _pad(g, x, unit * source_size, room)
            source = room[:padded_size]
        for c in range(g.columns.shape[0]):
            vectors = g.columns[c, 1]
            first, width = g.columns[c, 0] * lanes, vectors * lanes
            live = min(width, g.outputs - first)
            given = (unit * g.outputs + first) * positions
            for j in range(live):
                plane = dy[given + j * positions : given + (j + 1) * positions]
                bias_sums[group * width_of_group + first + j] += _sum(plane)
            for p in range(0, positions, STRIP):
                count = min(STRIP, positions - p)
                _transpose(dy, given + p, positions, panel, p * width, width, live, count)
            if live < width:
                for p in range(positions):
                    panel[p * width + live : (p + 1) * width] = 0
            out = (g.taps + MAX_ROWS) * (group * width_of_group + first)
            for m in range(0, g.taps, ROWS[vectors]):
                _multiply(source, g.base, m, g.steps, panel, 0, sums, out + m * width, vectors)


@compiled()
def add_up(
    g: Any,
    sums: Array,
    bias_sums: Array,
    dw: Array,
    db: Array,
    lanes: int,
) -> None:
    """Weight and bias gradients (an empty ``db`` for none) from the sums of each part of the images,
    in their order."""
    width_of_group = bias_sums.shape[1] // g.groups
    for group in range(g.groups):
        for c in range(g.columns.shape[0]):
            first, width = g.columns[c, 0] * lanes, g.columns[c, 1] * lanes
            live = min(width, g.outputs - first)
            at = (g.taps + MAX_ROWS) * (group * width_of_group + first)
            for t in range(g.taps):
                for j in range(live):
                    total = dw.dtype.type(0)
                    for part in range(sums.shape[0]):
                        total += sums[part, at + t * width + j]
                    dw[(group * g.outputs + first + j) * g.taps + t] = total
            if db.size > 0:
                for j in range(live):
                    total = dw.dtype.type(0)
                    for part in range(sums.shape[0]):
                        total += bias_sums[part, group * width_of_group + first + j]
                    db[group * g.outputs + first + j] = total


class MatrixProduct(NamedTuple):
    """c[i, j] = sum over t of a[i, t] * b[t, j], each element at a stride of its own.

    ``base`` and ``steps`` are where the rows and the columns of a begin. A block has at most
    ``block_rows`` rows of c, and ``block_columns`` columns in whole groups of vectors; its sums
    over ``block_terms`` terms at a time are held meanwhile.
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
    """Columns ``begin`` to ``end`` of the given rows of c, plus biases (empty arrays for none).

    ``widest`` is the widest group of columns, in vectors as many as a tile has; ``panel`` has room
    for block_terms x block_columns elements of b, ``sums`` for block_rows and a tile more.
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
                # Full groups of columns first, all under one row of tiles while its part of a is
                # in the first cache; then the last group, narrower and with rows of its own.
                full = (right - left) // widest
                rows = ROWS[vectors]
                for m in range(top, bottom, rows):
                    for group in range(full):
                        at = (group * held + m - top) * widest
                        source = group * count * widest
                        _multiply(a, g.base, m, steps, panel, source, sums, at, vectors)
                rest = (right - left - full * widest + lanes - 1) // lanes
                if rest > 0:
                    for m in range(top, bottom, ROWS[rest]):
                        at = full * held * widest + (m - top) * rest * lanes
                        source = full * count * widest
                        _multiply(a, g.base, m, steps, panel, source, sums, at, rest)
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
                        _copy(sums, at + i * width, c, target + i * g.c_down, live)
                else:
                    for i in range(0, bottom - top, STRIP):
                        n = min(STRIP, bottom - top - i)
                        out = target + i * g.c_down
                        _transpose(sums, at + i * width, width, c, out, g.c_across, n, live)


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
    """Terms ``first`` and on of columns ``left`` to ``right`` of b, as tiles read them."""
    for column in range(left, right, widest):
        live = min(widest, right - column)
        width = (live + lanes - 1) // lanes * lanes
        out = (column - left) * count
        source = first * g.b_down + column * g.b_across
        if g.b_across == 1:
            for t in range(count):
                _copy(b, source + t * g.b_down, panel, out + t * width, live)
        else:
            for t in range(0, count, STRIP):
                n = min(STRIP, count - t)
                at = source + t * g.b_down
                _transpose(b, at, g.b_across, panel, out + t * width, width, live, n)
        if live < width:
            for t in range(count):
                panel[out + t * width + live : out + (t + 1) * width] = 0


@compiled()
def column_sums(x: Array, sums: Array, width: int) -> None:
    """The sum of x's rows, in their order."""
    sums[:] = 0
    for start in range(0, x.size, width):
        row = x[start : start + width]
        for i in range(width):
            sums[i] += row[i]
