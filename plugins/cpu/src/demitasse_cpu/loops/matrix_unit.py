"""Products of bfloat16 by the processor's matrix unit (AMX), as parts of loops.

A tile is 16 rows of 64 bytes: 32 terms in each row of the left factor, 16 pairs of terms by 16 results
of the right factor, and 16 x 16 sums in float32. All parts are numba intrinsics. numba does not notice
changes here, so a change that affects results needs a change in the loops that use them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from demitasse_cpu.loops.compiled import Array
from demitasse_cpu.loops.reorder import exchanged

ROWS = 16
"""The rows of a tile."""

TERMS = 32
"""The number of terms that a product of tiles sums."""

WIDE = 32
"""The results of a panel, which is two tiles wide."""


def words(rows: int = ROWS) -> Array:
    """Return the memory that the unit needs: the configuration of tiles, with ``rows`` rows except in
    the right factor; room for the previous configuration; zeros; and, from index 128 on, a tile of
    ones."""
    made = np.zeros(128 + ROWS * TERMS, np.uint16)
    made[0], made[8:16] = 1, 2 * TERMS
    made[24:27], made[27] = rows << 8 | rows, ROWS << 8 | ROWS
    made[128:] = 0x3F80  # 1 as bfloat16
    return made


_I8, _I16, _I32, _I64 = map(ir.IntType, (8, 16, 32, 64))
_BYTES, _NOTHING = _I8.as_pointer(), ir.VoidType()
_HALVES, _WORDS = ir.VectorType(_I16, ROWS), ir.VectorType(_I32, ROWS)
_PAIRS = ir.VectorType(_I16, 2 * ROWS)
_LEFT, _RIGHT = (4, 5), (6, 7)  # numbers of tiles; those before hold sums


def _place(context: Any, builder: Any, signature: Any, args: Any, position: int, at: Any) -> Any:
    """Return the address of number ``at`` of an array argument."""
    array = context.make_array(signature.args[position])(context, builder, args[position])
    return builder.gep(array.data, [at])


def _call(builder: Any, name: str, *arguments: Any) -> Any:
    kind = ir.FunctionType(_NOTHING, [argument.type for argument in arguments])
    function = cgutils.get_or_insert_function(builder.module, kind, name)  # type: ignore[no-untyped-call]
    return builder.call(function, arguments)


def _configured_typed(context: Any, wanted: Any, before: Any) -> Any:
    """Configure the unit's tiles with the 64 bytes of ``wanted``. ``before`` receives the previous
    configuration. The contents of the tiles are lost."""
    signature = types.void(wanted, before)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        first, second = (
            builder.bitcast(_place(context, builder, signature, args, i, _I64(0)), _BYTES)
            for i in (0, 1)
        )
        _call(builder, "llvm.x86.sttilecfg", second)
        _call(builder, "llvm.x86.ldtilecfg", first)
        return context.get_dummy_value()

    return signature, generate


def _products_typed(
    context: Any,
    left: Any,
    right: Any,
    a: Any,
    a_at: Any,
    a_row: Any,
    a_step: Any,
    b: Any,
    b_at: Any,
    b_row: Any,
    b_step: Any,
    sums: Any,
    sums_at: Any,
    sums_row: Any,
    steps: Any,
    more: Any,
) -> Any:
    """Compute sums (+)= a times b. The tuple ``left`` has as many members as a has tiles, 16 rows below
    each other, and ``right`` as b has, 16 results beside each other: one or two each. Rows of a are
    ``a_row`` numbers apart, and pairs of terms of b ``b_row``. ``a_step`` and ``b_step`` lead 32 terms
    further. There is at least one step. ``more`` adds to the sums in memory."""
    n = types.int64
    signature = types.void(left, right, a, n, n, n, b, n, n, n, sums, n, n, n, n)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        rows, columns = range(left.count), range(right.count)

        def address(position: int, at: Any) -> Any:
            return builder.bitcast(_place(context, builder, signature, args, position, at), _BYTES)

        def added(at: Any, step: Any, count: int) -> Any:
            return builder.add(at, builder.mul(step, _I64(count)))

        a_bytes, b_bytes = (builder.mul(args[i], _I64(2)) for i in (4, 8))
        sums_bytes = builder.mul(args[12], _I64(4))
        cells = [
            (
                _I8(2 * i + j),
                address(10, builder.add(added(args[11], args[12], ROWS * i), _I64(ROWS * j))),
            )
            for i in rows
            for j in columns
        ]
        resumed, fresh, body, done = (
            builder.append_basic_block(name) for name in ("resumed", "fresh", "steps", "done")
        )
        builder.cbranch(builder.icmp_signed("!=", args[14], _I64(0)), resumed, fresh)
        builder.position_at_end(resumed)
        for tile, place in cells:
            _call(builder, "llvm.x86.tileloadd64", tile, place, sums_bytes)
        builder.branch(body)
        builder.position_at_end(fresh)
        for tile, _ in cells:
            _call(builder, "llvm.x86.tilezero", tile)
        builder.branch(body)
        builder.position_at_end(body)
        step = builder.phi(_I64)
        a_first = builder.add(args[3], builder.mul(step, args[5]))
        b_first = builder.add(args[7], builder.mul(step, args[9]))
        for j in columns:
            place = address(6, builder.add(b_first, _I64(2 * ROWS * j)))
            _call(builder, "llvm.x86.tileloadd64", _I8(_RIGHT[j]), place, b_bytes)
        for i in rows:
            place = address(2, added(a_first, args[4], ROWS * i))
            _call(builder, "llvm.x86.tileloadd64", _I8(_LEFT[i]), place, a_bytes)
            for j in columns:
                tiles = _I8(2 * i + j), _I8(_LEFT[i]), _I8(_RIGHT[j])
                _call(builder, "llvm.x86.tdpbf16ps", *tiles)
        following = builder.add(step, _I64(1))
        step.add_incoming(_I64(0), resumed)
        step.add_incoming(_I64(0), fresh)
        step.add_incoming(following, body)
        builder.cbranch(builder.icmp_signed("<", following, args[13]), body, done)
        builder.position_at_end(done)
        for tile, place in cells:
            _call(builder, "llvm.x86.tilestored64", tile, place, sums_bytes)
        return context.get_dummy_value()

    return signature, generate


def _row(builder: Any, given: tuple[Any, Any, Any], offset: Any, lanes: Any, kind: Any) -> Any:
    """Load as many numbers as ``lanes`` says from ``offset`` on, followed by zeros; all are zeros if the
    offset is negative. ``given`` is where the numbers are, where zeros are, and the index in both at
    which to start."""
    numbers, zeros, at = given
    there = builder.icmp_signed(">=", offset, _I64(0))
    pointer = builder.select(there, builder.gep(numbers, [builder.add(offset, at)]), zeros)
    mask = ir.VectorType(ir.IntType(1), kind.count)
    pointer = builder.bitcast(pointer, kind.as_pointer())
    name, none = f"llvm.masked.load.v{kind.count}i16.p0", ir.Constant(kind, None)
    function = ir.FunctionType(kind, [pointer.type, _I32, mask, kind])
    load = cgutils.get_or_insert_function(builder.module, function, name)  # type: ignore[no-untyped-call]
    return builder.call(load, [pointer, _I32(2), lanes, none])


def _lanes(builder: Any, count: Any, kind: Any) -> Any:
    """Return a mask of the first ``count`` numbers."""
    order = ir.Constant(ir.VectorType(_I16, kind.count), list(range(kind.count)))
    lane = builder.insert_element(
        ir.Constant(order.type, ir.Undefined), builder.trunc(count, _I16), _I32(0)
    )
    zeros = ir.Constant(ir.VectorType(_I32, kind.count), None)
    everywhere = builder.shuffle_vector(lane, ir.Constant(order.type, ir.Undefined), zeros)
    return builder.icmp_signed("<", order, everywhere)


def _stored(builder: Any, value: Any, pointer: Any) -> None:
    builder.store(value, builder.bitcast(pointer, value.type.as_pointer())).align = 2


def _by_turns(builder: Any, one: Any, other: Any, first: int = 0) -> Any:
    """Interleave 16 numbers of each of two vectors, from number ``first`` on."""
    lanes = [first + k // 2 + k % 2 * one.type.count for k in range(2 * ROWS)]
    return builder.shuffle_vector(one, other, ir.Constant(ir.VectorType(_I32, 2 * ROWS), lanes))


def _columns_typed(
    context: Any,
    x: Any,
    at: Any,
    count: Any,
    zeros: Any,
    offsets: Any,
    first: Any,
    y: Any,
    to: Any,
    row: Any,
) -> Any:
    """Turn numbers ``at`` to ``at`` + 16 of 32 pixels into 16 rows of 32. The table of ``offsets``, from
    ``first`` on, says where the pixels are. Only ``count`` numbers of a pixel are read, and the other
    rows are zeros; a pixel with a negative offset is all zeros."""
    n = types.int64
    signature = types.void(x, n, n, zeros, offsets, n, y, n, n)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        def place(position: int, at: Any) -> Any:
            return _place(context, builder, signature, args, position, at)

        given = place(0, _I64(0)), place(3, _I64(0)), args[1]
        lanes = _lanes(builder, args[2], _HALVES)
        rows = []
        for i in range(0, 2 * ROWS, 2):
            entries = [place(4, builder.add(args[5], _I64(i + k))) for k in range(2)]
            one, other = (_row(builder, given, builder.load(entry), lanes, _HALVES) for entry in entries)
            rows.append(builder.bitcast(_by_turns(builder, one, other), _WORDS))
        exchanged(builder, rows)
        for i, value in enumerate(rows):
            along = builder.add(args[7], builder.mul(args[8], _I64(i)))
            _stored(builder, value, place(6, along))
        return context.get_dummy_value()

    return signature, generate


def _panel_typed(
    context: Any,
    x: Any,
    at: Any,
    count: Any,
    zeros: Any,
    offsets: Any,
    first: Any,
    y: Any,
    to: Any,
    pairs: Any,
) -> Any:
    """Interleave numbers ``at`` to ``at`` + 32 of pixels two by two, as ``pairs`` pairs of a panel. The
    table of ``offsets``, from ``first`` on, says where the pixels are. Only ``count`` numbers of a pixel
    are read, and the others are zeros; a pixel with a negative offset is all zeros."""
    n = types.int64
    signature = types.void(x, n, n, zeros, offsets, n, y, n, n)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        def place(position: int, at: Any) -> Any:
            return _place(context, builder, signature, args, position, at)

        given = place(0, _I64(0)), place(3, _I64(0)), args[1]
        lanes = _lanes(builder, args[2], _PAIRS)
        with cgutils.for_range(builder, args[8]) as loop:
            entry = builder.add(args[5], builder.mul(loop.index, _I64(2)))
            entries = [place(4, builder.add(entry, _I64(k))) for k in range(2)]
            one, other = (_row(builder, given, builder.load(each), lanes, _PAIRS) for each in entries)
            target = builder.add(args[7], builder.mul(loop.index, _I64(2 * WIDE)))
            for j in range(2):
                value = _by_turns(builder, one, other, j * ROWS)
                _stored(builder, value, place(6, builder.add(target, _I64(j * 2 * ROWS))))
        return context.get_dummy_value()

    return signature, generate


configured: Any = intrinsic(_configured_typed)
products: Any = intrinsic(_products_typed)
columns_of_pixels: Any = intrinsic(_columns_typed)
panel_of_pairs: Any = intrinsic(_panel_typed)
