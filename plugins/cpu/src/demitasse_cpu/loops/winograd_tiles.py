"""Tiles of matrix products for ``loops.winograd``, written in vectors.

As in ``winograd_transforms``, these are numba intrinsics: a change here that affects results needs a
change in the loops that use them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from demitasse_cpu.loops.tiles import ROWS
from demitasse_cpu.loops.vectors import I64, LANES, Vectors

SHORT = (2, 4)
"""Heights of the tiles that end a block if the widest tile would compute too many rows: 16 rows are 6, 6
and 4."""


def for_rows(builder: Any, left: Any, rows: int, vectors: int, tile: Callable[[int], None]) -> None:
    """Build the smallest ``tile`` that has as many rows as are left; the largest has ``rows``."""
    done = builder.append_basic_block("computed")
    for short in SHORT if vectors == len(ROWS) - 1 else ():
        this, others = builder.append_basic_block("short"), builder.append_basic_block("longer")
        builder.cbranch(builder.icmp_signed("<=", left, I64(short)), this, others)
        builder.position_at_end(this)
        tile(short)
        builder.branch(done)
        builder.position_at_end(others)
    tile(rows)
    builder.branch(done)
    builder.position_at_end(done)


def _tile(rows: int, vectors: int, fetching: bool) -> Any:
    """Return an intrinsic for c[r, v] (+)= sum over t of a[r, t] * b[t, v]. Rows of c are ``c_row``
    apart, rows of a ``a_row``, and terms of a and b ``a_step`` and ``b_step``. ``more`` adds to what c
    holds. It computes ``rows`` rows, or fewer if only ``left`` are left. With ``fetching``, what is
    ``ahead`` of each term of b, and what is ``also`` ahead, is meanwhile prefetched from memory."""

    def products(module: Any, kind: Any, name: str, rows: int) -> Any:
        function = ir.Function(module, kind, name)
        function.linkage = "internal"
        # Within a loop's other code, 8 rows of 3 vectors reached 165 GFLOP/s on one core; as a function
        # of its own, 250.
        function.attributes.add("noinline")
        builder = ir.IRBuilder(function.append_basic_block())
        v, index = Vectors(builder), I64
        source, panel, out, a_row, a_step, b_step, c_row, count, more, *fetched = function.args
        cells = [(r, j) for r in range(rows) for j in range(vectors)]
        row = [builder.gep(source, [builder.mul(a_row, index(r))]) for r in range(rows)]
        place = {(r, j): builder.add(builder.mul(c_row, index(r)), index(j * LANES)) for r, j in cells}

        entry = builder.block
        resumed = builder.append_basic_block("resumed")
        body = builder.append_basic_block("terms")
        done = builder.append_basic_block("done")
        builder.cbranch(builder.icmp_signed("!=", more, index(0)), resumed, body)
        builder.position_at_end(resumed)
        before = [v.load(out, place[cell]) for cell in cells]
        # If there are many weights, the next tile's sums come from a far cache. For gradients of 256 x
        # 256 channels, two cores took 28 ms with this and 32 to 36 ms without.
        tile = builder.mul(c_row, index(rows))
        for cell in cells:
            v.fetch(out, builder.add(place[cell], tile), to_write=True)
        builder.branch(body)

        builder.position_at_end(body)
        t, at, b_at = builder.phi(index), builder.phi(index), builder.phi(index)
        sums = [builder.phi(v.kind) for _ in cells]
        channel = [v.load(panel, builder.add(b_at, index(j * LANES))) for j in range(vectors)]
        for ahead in fetched if fetching else ():
            v.fetch(panel, builder.add(b_at, ahead), near=False)
        after = []
        for r in range(rows):
            value = v.splat(builder.load(builder.gep(row[r], [at])))
            for j in range(vectors):
                after.append(v.multiply_add(value, channel[j], sums[r * vectors + j]))
        following = builder.add(t, index(1))
        for phi, step in ((t, index(1)), (at, a_step), (b_at, b_step)):
            new = following if phi is t else builder.add(phi, step)
            phi.add_incoming(index(0), entry)
            phi.add_incoming(index(0), resumed)
            phi.add_incoming(new, body)
        for total, old, new in zip(sums, before, after, strict=True):
            total.add_incoming(v.constant(0.0), entry)
            total.add_incoming(old, resumed)
            total.add_incoming(new, body)
        v.as_written(builder.cbranch(builder.icmp_signed("<", following, count), body, done))

        builder.position_at_end(done)
        for cell, total in zip(cells, after, strict=True):
            v.store(total, out, place[cell])
        builder.ret_void()
        return function

    def typed(
        context: Any,
        a: Any,
        a_at: Any,
        a_row: Any,
        a_step: Any,
        b: Any,
        b_at: Any,
        b_step: Any,
        c: Any,
        c_at: Any,
        c_row: Any,
        count: Any,
        more: Any,
        ahead: Any,
        also: Any,
        left: Any,
    ) -> Any:
        n = types.int64
        signature = types.void(a, n, n, n, b, n, n, c, n, n, n, n, n, n, n)

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            v = Vectors(builder)
            data = [v.data(context, signature, args, i) for i in (0, 4, 7)]
            starts = [builder.gep(x, [args[i]]) for x, i in zip(data, (1, 5, 8), strict=True)]
            given = [*starts, *(args[i] for i in (2, 3, 6, 9, 10, 11, 12, 13))]
            kind = ir.FunctionType(ir.VoidType(), [value.type for value in given])

            def tile(rows: int) -> None:
                name = f"winograd_{'fetching_' if fetching else ''}tile_{rows}_{vectors}"
                module = builder.module
                builder.call(module.globals.get(name) or products(module, kind, name, rows), given)

            for_rows(builder, args[14], rows, vectors, tile)
            return context.get_dummy_value()

        return signature, generate

    return intrinsic(typed)


def _tiles(fetching: bool) -> list[Any]:
    return [_tile(ROWS[vectors], vectors, fetching) for vectors in range(1, len(ROWS))]


TILES, FETCHING_TILES = _tiles(False), _tiles(True)
"""By their number of vectors, starting at one."""
