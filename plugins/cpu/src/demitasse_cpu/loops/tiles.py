"""The tile from which convolutions and matrix products are made: rows of gathered values times vectors
of channels, ``out[row, channel] += x[base[row] + step[t]] * panel[t, channel]``, summed over t with the
results in registers. On a processor with AVX-512, it reached 220 of 230 GFLOP/s of one core in
float32."""

from __future__ import annotations

import itertools
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from demitasse_cpu.loops.compiled import Array, compiled, inlined
from demitasse_cpu.loops.processor import FEATURES


def _vector_bytes_and_registers(features: frozenset[str]) -> tuple[int, int]:
    if "avx512f" in features:
        return 64, 32
    if "avx" in features:
        return 32, 16
    return 16, 32 if "neon" in features else 16


_VECTOR_BYTES, _REGISTERS = _vector_bytes_and_registers(FEATURES)

MANY_REGISTERS = _REGISTERS == 32
"""Whether there are 32 vector registers rather than 16."""

MULTIPLIES_PAIRS = {"avx512f", "avx512vnni"} <= FEATURES
"""Whether one instruction sums products of pairs of 16-bit integers."""

# Rows of a tile by its number of vectors: enough sums for two fused multiply-adds a cycle over their
# latency which, with a row of the panel and one value, fit the registers. Eight rows have as many
# addresses as a processor with sixteen general registers can hold besides the loop's own.
ROWS = (0, 8, 8, 8, 6) if MANY_REGISTERS else (0, 8, 6)
MAX_ROWS = max(ROWS)

STRIP = 48
"""Rows that are finished before they are written: whole tiles whose sums stay in the first cache."""


def lanes(itemsize: int) -> int:
    """Return how many real numbers of ``itemsize`` bytes a vector has here."""
    return _VECTOR_BYTES // itemsize


def columns(channels: int, itemsize: int) -> list[tuple[int, int]]:
    """Divide channels into groups of vectors that a tile can have: (first vector, vectors)."""
    vectors = -(-channels // lanes(itemsize))
    groups = -(-vectors // (len(ROWS) - 1))
    edges = [vectors * i // groups for i in range(groups + 1)]
    return [(a, b - a) for a, b in itertools.pairwise(edges)]


def _tile(rows: int, vectors: int) -> Any:
    """Return the innermost loop for this many rows and vectors, written as LLVM vector code."""

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
def multiply_tile(
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
    """Add the terms ``steps`` to the sums of rows from ``first`` on, ``vectors`` vectors wide."""
    if vectors == 1:
        _TILE_1(x, base, first, steps, panel, at, sums, sums_at)
    elif vectors == 2:
        _TILE_2(x, base, first, steps, panel, at, sums, sums_at)
    elif vectors == 3:
        _TILE_3(x, base, first, steps, panel, at, sums, sums_at)
    else:
        _TILE_4(x, base, first, steps, panel, at, sums, sums_at)


def _turn_typed(context: Any, x: Any, at: Any, stride: Any, y: Any, y_at: Any, y_stride: Any) -> Any:
    """Transpose 8 x 8 elements from rows ``stride`` apart to rows ``y_stride`` apart, in three rounds
    that exchange the off-diagonal quarters of ever smaller squares."""
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


@compiled(literals=False)
def transpose(
    x: Array, at: int, stride: int, y: Array, y_at: int, y_stride: int, rows: int, width: int
) -> None:
    """Compute y[j, i] = x[i, j] for i below ``rows`` and j below ``width``. Squares that would stick out
    overlap their neighbours instead."""
    if rows < 8 or width < 8:
        for i in range(rows):
            for j in range(width):
                y[y_at + j * y_stride + i] = x[at + i * stride + j]
        return
    # The innermost loop runs along the rows that are far apart, because those may share a set of the
    # cache.
    down = stride > y_stride
    for k in range(0, rows if down else width, 8):
        for m in range(0, width if down else rows, 8):
            i = min(k if down else m, rows - 8)
            j = min(m if down else k, width - 8)
            _turn(x, at + i * stride + j, stride, y, y_at + j * y_stride + i, y_stride)


@compiled(reassociate=True)
def total_of(x: Array) -> Any:
    total = x.dtype.type(0)
    for i in range(x.size):
        total += x[i]
    return total


@inlined
def copy(x: Array, at: int, y: Array, y_at: int, n: int) -> None:
    # Assigning to a slice would first check for overlaps, which costs more than short copies.
    source, target = x[at : at + n], y[y_at : y_at + n]
    for i in range(n):
        target[i] = source[i]
