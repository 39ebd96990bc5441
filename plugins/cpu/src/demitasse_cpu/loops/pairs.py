"""Products of pairs of bfloat16 by the processor's instruction for them (AVX512-BF16), which sums in
float32.

For each pair of terms, a panel has two vectors of 16 results, with the two terms side by side. All parts
are numba intrinsics. numba does not notice changes here, so a change that affects results needs a change
in the loops that use them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from demitasse_cpu.loops.bfloat16 import BFloat
from demitasse_cpu.loops.reorder import exchanged

ROWS = 8
"""The number of samples whose sums stay in registers, in two vectors each."""

WIDE = 32
"""The results of a panel."""

_LANES = 16


_I32, _I64, _F32, _BF16 = ir.IntType(32), ir.IntType(64), ir.FloatType(), BFloat()
_SUMS, _PAIRS = ir.VectorType(_F32, _LANES), ir.VectorType(_BF16, 2 * _LANES)
_WORDS = ir.VectorType(_I32, _LANES)


def _data(context: Any, builder: Any, signature: Any, args: Any, position: int, at: int) -> Any:
    """Return the address of a number of an array argument; the argument at ``at`` is its index."""
    array = context.make_array(signature.args[position])(context, builder, args[position])
    return builder.gep(array.data, [args[at]])


def _vector(builder: Any, pointer: Any, offset: Any, kind: Any) -> Any:
    return builder.bitcast(builder.gep(pointer, [offset]), kind.as_pointer())


def _loaded(builder: Any, pointer: Any, offset: Any, kind: Any, align: int) -> Any:
    value = builder.load(_vector(builder, pointer, offset, kind))
    value.align = align
    return value


def _rounded(builder: Any, first: Any, second: Any) -> Any:
    """Round two vectors of float32 to one of bfloat16, with the first one's numbers first."""
    kind = ir.FunctionType(_PAIRS, [_SUMS, _SUMS])
    name = "llvm.x86.avx512bf16.cvtne2ps2bf16.512"
    function = cgutils.get_or_insert_function(builder.module, kind, name)  # type: ignore[no-untyped-call]
    return builder.call(function, [second, first])


def _shuffled(builder: Any, pair: tuple[Any, Any], lanes: list[int]) -> Any:
    mask = ir.Constant(ir.VectorType(_I32, len(lanes)), lanes)
    return builder.shuffle_vector(*pair, mask)


def _pairs_of_rows_typed(
    context: Any, w: Any, at: Any, step: Any, panel: Any, to: Any, count: Any
) -> Any:
    """Round pairs of rows of two vectors, ``step`` apart, to a panel: ``count`` pairs of rows to as many
    of the panel."""
    signature = types.void(w, types.int64, types.int64, panel, types.int64, types.int64)
    side_by_side = [lane // 2 + lane % 2 * _LANES for lane in range(2 * _LANES)]

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source = _data(context, builder, signature, args, 0, 1)
        target = _data(context, builder, signature, args, 3, 4)
        step, words = args[2], ir.VectorType(ir.IntType(16), 2 * _LANES)
        with cgutils.for_range(builder, args[5]) as loop:
            row = builder.mul(loop.index, builder.mul(step, _I64(2)))
            for j in range(2):
                first = builder.add(row, _I64(j * _LANES))
                both = [
                    _loaded(builder, source, place, _SUMS, 4)
                    for place in (first, builder.add(first, step))
                ]
                bits = builder.bitcast(_rounded(builder, *both), words)
                value = _shuffled(builder, (bits, bits), side_by_side)
                place = builder.add(builder.mul(loop.index, _I64(4 * _LANES)), _I64(j * 2 * _LANES))
                builder.store(value, _vector(builder, target, place, words)).align = 2
        return context.get_dummy_value()

    return signature, generate


def _pairs_in_rows_typed(context: Any, w: Any, at: Any, step: Any, panel: Any, to: Any) -> Any:
    """Transpose sixteen rows of 32 terms, ``step`` apart, as a square of 16 pairs, to one vector of 16
    pairs of a panel."""
    signature = types.void(w, types.int64, types.int64, panel, types.int64)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source = _data(context, builder, signature, args, 0, 1)
        target = _data(context, builder, signature, args, 3, 4)
        rows = []
        for i in range(_LANES):
            at = builder.mul(args[2], _I64(i))
            both = [
                _loaded(builder, source, builder.add(at, _I64(j * _LANES)), _SUMS, 4) for j in range(2)
            ]
            rows.append(builder.bitcast(_rounded(builder, *both), _WORDS))
        exchanged(builder, rows)
        for i, row in enumerate(rows):
            place = _vector(builder, target, _I64(i * 4 * _LANES), _WORDS)
            builder.store(row, place).align = 2
        return context.get_dummy_value()

    return signature, generate


def _pixels_typed(width: int) -> Any:
    """Return an intrinsic that interleaves ``count`` times 32 numbers of two rows of bfloat16, ``step``
    apart, into panels of ``width`` pairs that are ``panel_step`` numbers apart. A ``step`` of 0 stands
    for a second row of zeros."""

    def typed(
        context: Any, x: Any, at: Any, step: Any, panel: Any, to: Any, panel_step: Any, count: Any
    ) -> Any:
        n = types.int64
        signature = types.void(x, n, n, panel, n, n, n)
        halves = ir.VectorType(ir.IntType(16), 2 * _LANES)

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            source = _data(context, builder, signature, args, 0, 1)
            target = _data(context, builder, signature, args, 3, 4)
            is_there = builder.icmp_signed("!=", args[2], _I64(0))
            nothing = ir.Constant(halves, None)
            with cgutils.for_range(builder, args[6]) as loop:
                first = builder.mul(loop.index, _I64(2 * _LANES))
                even = _loaded(builder, source, first, halves, 2)
                odd = _loaded(builder, source, builder.add(first, args[2]), halves, 2)
                rows = even, builder.select(is_there, odd, nothing)
                stores = max(1, 2 * _LANES // width), min(width, _LANES)
                for j in range(0, 2 * _LANES, stores[1]):
                    lanes = [j + k // 2 + k % 2 * 2 * _LANES for k in range(2 * stores[1])]
                    panels = builder.mul(loop.index, _I64(stores[0]))
                    to = builder.mul(builder.add(panels, _I64(j // width)), args[5])
                    value = _shuffled(builder, rows, lanes)
                    place = _vector(builder, target, builder.add(to, _I64(j % width * 2)), value.type)
                    builder.store(value, place).align = 2
            return context.get_dummy_value()

        return signature, generate

    return typed


def _panel_of_pixels_typed(
    context: Any, x: Any, at: Any, step: Any, panel: Any, to: Any, count: Any
) -> Any:
    """Interleave pairs of rows of 32 bfloat16 numbers, ``step`` apart: ``count`` pairs of rows to as
    many of a panel."""
    n = types.int64
    signature = types.void(x, n, n, panel, n, n)
    halves = ir.VectorType(ir.IntType(16), 2 * _LANES)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source = _data(context, builder, signature, args, 0, 1)
        target = _data(context, builder, signature, args, 3, 4)
        with cgutils.for_range(builder, args[5]) as loop:
            first = builder.mul(builder.mul(loop.index, _I64(2)), args[2])
            places = first, builder.add(first, args[2])
            rows = [_loaded(builder, source, place, halves, 2) for place in places]
            for j in range(2):
                lanes = [j * _LANES + k // 2 + k % 2 * 2 * _LANES for k in range(2 * _LANES)]
                to = builder.add(builder.mul(loop.index, _I64(2 * WIDE)), _I64(2 * _LANES * j))
                value = _shuffled(builder, (rows[0], rows[1]), lanes)
                builder.store(value, _vector(builder, target, to, halves)).align = 2
        return context.get_dummy_value()

    return signature, generate


class _Tile:
    """The code of a tile while it is built: sums of some rows, in two vectors each, over pairs of terms.
    Pair t of a row is at ``row`` plus ``term(t)``."""

    def __init__(self, builder: Any, out: Any, out_row: Any, rows: Sequence[Any]) -> None:
        self.builder, self._out, self._rows = builder, out, rows
        self._cells = [
            builder.add(builder.mul(out_row, _I64(r)), _I64(j * _LANES))
            for r in range(len(rows))
            for j in range(2)
        ]

    def sum(
        self,
        source: Any,
        term: Callable[[Any], Any],
        panel: Any,
        pairs: Any,
        more: Any,
        beside: Callable[[Any], None] = lambda t: None,
    ) -> None:
        """Build the loop over ``pairs``, at least one. ``more`` adds to the sums in memory. ``beside``
        adds code for each pair."""
        builder, cells = self.builder, self._cells
        kind = ir.FunctionType(_SUMS, [_SUMS, _PAIRS, _PAIRS])
        name = "llvm.x86.avx512bf16.dpbf16ps.512"
        dot = cgutils.get_or_insert_function(builder.module, kind, name)  # type: ignore[no-untyped-call]
        entry = builder.block
        resumed, body, done = (builder.append_basic_block(name) for name in ("resumed", "terms", "done"))
        builder.cbranch(builder.icmp_signed("!=", more, _I64(0)), resumed, body)
        builder.position_at_end(resumed)
        before = [_loaded(builder, self._out, cell, _SUMS, 4) for cell in cells]
        builder.branch(body)
        builder.position_at_end(body)
        t = builder.phi(_I64)
        totals = [builder.phi(_SUMS) for _ in cells]
        beside(t)
        first = builder.mul(t, _I64(2 * WIDE))
        others = [
            _loaded(builder, panel, builder.add(first, _I64(j * 2 * _LANES)), _PAIRS, 2)
            for j in range(2)
        ]
        place = term(t)
        after = []
        for r, row in enumerate(self._rows):
            pair = _loaded(builder, source, builder.add(row, place), _I32, 2)
            nothing = ir.Constant(_WORDS, ir.Undefined)
            lane = builder.insert_element(nothing, pair, _I32(0))
            everywhere = builder.bitcast(_shuffled(builder, (lane, nothing), [0] * _LANES), _PAIRS)
            for j in range(2):
                after.append(builder.call(dot, [totals[2 * r + j], everywhere, others[j]]))
        following = builder.add(t, _I64(1))
        zero = ir.Constant(_SUMS, [0.0] * _LANES)
        t.add_incoming(_I64(0), entry)
        t.add_incoming(_I64(0), resumed)
        t.add_incoming(following, body)
        for total, old, new in zip(totals, before, after, strict=True):
            total.add_incoming(zero, entry)
            total.add_incoming(old, resumed)
            total.add_incoming(new, body)
        builder.cbranch(builder.icmp_signed("<", following, pairs), body, done)
        builder.position_at_end(done)
        for cell, total in zip(cells, after, strict=True):
            builder.store(total, _vector(builder, self._out, cell, _SUMS)).align = 4


def _tile(by_table: bool) -> Any:
    """Return an intrinsic for sums[r, :32] (+)= sum over pairs of x[r, pair] * panel[pair, :32].
    ``more`` adds to the sums in memory. Rows of x are ``x_row`` numbers apart. ``terms`` is the distance
    between pairs or, with ``by_table``, a table of where a row's pairs are. Meanwhile, one line of w is
    prefetched for each pair, from ``ahead`` on."""

    def typed(
        context: Any,
        x: Any,
        x_at: Any,
        x_row: Any,
        terms: Any,
        panel: Any,
        sums: Any,
        sums_at: Any,
        sums_row: Any,
        pairs: Any,
        more: Any,
        w: Any,
        ahead: Any,
    ) -> Any:
        n = types.int64
        along = terms if by_table else n
        signature = types.void(x, n, n, along, panel, sums, n, n, n, n, w, n)

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            source = _data(context, builder, signature, args, 0, 1)
            weights = context.make_array(signature.args[4])(context, builder, args[4]).data
            out = _data(context, builder, signature, args, 5, 6)
            coming = _data(context, builder, signature, args, 10, 11)
            byte = ir.IntType(8).as_pointer()
            fetch = builder.module.declare_intrinsic(
                "llvm.prefetch", [byte], ir.FunctionType(ir.VoidType(), [byte, _I32, _I32, _I32])
            )

            def fetched(t: Any) -> None:
                place = builder.gep(coming, [builder.mul(t, _I64(_LANES))])
                builder.call(fetch, [builder.bitcast(place, byte), _I32(0), _I32(2), _I32(1)])

            def term(t: Any) -> Any:
                if not by_table:
                    return builder.mul(t, args[3])
                places = context.make_array(signature.args[3])(context, builder, args[3]).data
                return builder.load(builder.gep(places, [t]))

            rows = [builder.mul(args[2], _I64(r)) for r in range(ROWS)]
            made = _Tile(builder, out, args[7], rows)
            made.sum(source, term, weights, args[8], args[9], fetched)
            return context.get_dummy_value()

        return signature, generate

    return intrinsic(typed)


def _tile_of_places_typed(
    context: Any,
    form: Any,
    x: Any,
    x_at: Any,
    places: Any,
    first: Any,
    panel: Any,
    panel_at: Any,
    sums: Any,
    sums_at: Any,
    sums_row: Any,
    pairs: Any,
    more: Any,
) -> Any:
    """Build an intrinsic for the same sums over adjacent pairs. The tuple ``form`` has as many members
    as there are rows, and the table ``places`` says, from ``first`` on, where they are."""
    n = types.int64
    signature = types.void(form, x, n, places, n, panel, n, sums, n, n, n, n)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source = _data(context, builder, signature, args, 1, 2)
        table = _data(context, builder, signature, args, 3, 4)
        weights = _data(context, builder, signature, args, 5, 6)
        out = _data(context, builder, signature, args, 7, 8)
        rows = [builder.load(builder.gep(table, [_I64(r)])) for r in range(form.count)]
        made = _Tile(builder, out, args[9], rows)
        made.sum(source, lambda t: builder.mul(t, _I64(2)), weights, args[10], args[11])
        return context.get_dummy_value()

    return signature, generate


pairs_of_rows: Any = intrinsic(_pairs_of_rows_typed)
pairs_in_rows: Any = intrinsic(_pairs_in_rows_typed)
panels_of_pixels: Any = intrinsic(_pixels_typed(WIDE))
rows_of_pixels: Any = intrinsic(_pixels_typed(ROWS))
panel_of_pixels: Any = intrinsic(_panel_of_pixels_typed)
tile, tile_by_table = _tile(False), _tile(True)
tile_of_places: Any = intrinsic(_tile_of_places_typed)
