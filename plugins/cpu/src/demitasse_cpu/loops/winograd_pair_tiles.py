"""Tiles of matrix products of pairs of 16-bit integers for ``loops.winograd_integers``, in vectors.

A processor with AVX-512 VNNI multiplies twice as many 16-bit integers in an instruction as float32
numbers, and adds the two products of a pair to a 32-bit integer. As in ``winograd_tiles``, these are
numba intrinsics: a change here that affects results needs a change in the loops that use them.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from demitasse_cpu.loops.tiles import ROWS
from demitasse_cpu.loops.vectors import I64, LANES, Vectors
from demitasse_cpu.loops.winograd_tiles import for_rows

_WORDS = ir.VectorType(ir.IntType(32), LANES)
_ZEROS = ir.Constant(_WORDS, [0] * LANES)
_MULTIPLY_ADD = f"llvm.x86.avx512.vpdpwssd.{32 * LANES}"


def _tile(rows: int, vectors: int, fetching: bool) -> Any:
    """Return an intrinsic for c[r, v] (+)= down[r] * across[v] * sum over t of a[r, t] . b[t, v], where
    . multiplies two pairs and adds the products. Rows of c are ``c_row`` apart, rows of a ``a_row``, and
    terms of a and b ``a_step`` and ``b_step``. ``more`` adds to what c holds. It computes ``rows`` rows,
    or fewer if only ``left`` are left. With ``fetching``, what is ``ahead`` of each term of b, and what
    is ``also`` ahead, is meanwhile prefetched from memory."""

    def products(module: Any, kind: Any, name: str, rows: int) -> Any:
        function = ir.Function(module, kind, name)
        function.linkage = "internal"
        # As a function of its own, no tile was slower, and two of four were faster.
        function.attributes.add("noinline")
        builder = ir.IRBuilder(function.append_basic_block())
        v, index = Vectors(builder), I64
        source, panel, out, down, across, a_row, a_step, b_step, c_row, count, more, *fetched = (
            function.args
        )
        of_words = ir.FunctionType(_WORDS, [_WORDS] * 3)
        multiply_add = cgutils.get_or_insert_function(module, of_words, _MULTIPLY_ADD)  # type: ignore[no-untyped-call]
        cells = [(r, j) for r in range(rows) for j in range(vectors)]
        row = [builder.gep(source, [builder.mul(a_row, index(r))]) for r in range(rows)]
        place = {(r, j): builder.add(builder.mul(c_row, index(r)), index(j * LANES)) for r, j in cells}

        entry = builder.block
        body = builder.append_basic_block("terms")
        done = builder.append_basic_block("done")
        for cell in cells:
            v.fetch(out, place[cell], to_write=True)
        builder.branch(body)

        builder.position_at_end(body)
        t, at, b_at = builder.phi(index), builder.phi(index), builder.phi(index)
        sums = [builder.phi(_WORDS) for _ in cells]
        others = [_words(builder, panel, builder.add(b_at, index(j * LANES))) for j in range(vectors)]
        for ahead in fetched if fetching else ():
            v.fetch(panel, builder.add(b_at, ahead), near=False)
        after = []
        for r in range(rows):
            value = v.splat(builder.load(builder.gep(row[r], [at])))
            for j in range(vectors):
                after.append(builder.call(multiply_add, [sums[r * vectors + j], others[j], value]))
        following = builder.add(t, index(1))
        for phi, step in ((t, index(1)), (at, a_step), (b_at, b_step)):
            phi.add_incoming(index(0), entry)
            phi.add_incoming(following if phi is t else builder.add(phi, step), body)
        for total, new in zip(sums, after, strict=True):
            total.add_incoming(_ZEROS, entry)
            total.add_incoming(new, body)
        v.as_written(builder.cbranch(builder.icmp_signed("<", following, count), body, done))

        builder.position_at_end(done)
        scales = [v.load(across, index(j * LANES)) for j in range(vectors)]
        totals = []
        for (r, j), total in zip(cells, after, strict=True):
            scale = builder.fmul(scales[j], v.splat(builder.load(builder.gep(down, [index(r)]))))
            totals.append((place[r, j], builder.sitofp(total, v.kind), scale))
        afresh, adding = builder.append_basic_block("afresh"), builder.append_basic_block("adding")
        builder.cbranch(builder.icmp_signed("!=", more, index(0)), adding, afresh)
        builder.position_at_end(afresh)
        for there, total, scale in totals:
            v.store(builder.fmul(total, scale), out, there)
        builder.ret_void()
        builder.position_at_end(adding)
        for there, total, scale in totals:
            v.store(v.multiply_add(total, scale, v.load(out, there)), out, there)
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
        down: Any,
        down_at: Any,
        across: Any,
        across_at: Any,
        count: Any,
        more: Any,
        ahead: Any,
        also: Any,
        left: Any,
    ) -> Any:
        n = types.int64
        signature = types.void(a, n, n, n, b, n, n, c, n, n, down, n, across, n, n, n, n, n, n)

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            v = Vectors(builder)
            arrays = (0, 4, 7, 10, 12)
            starts = [builder.gep(v.data(context, signature, args, i), [args[i + 1]]) for i in arrays]
            given = [*starts, *(args[i] for i in (2, 3, 6, 9, 14, 15, 16, 17))]
            kind = ir.FunctionType(ir.VoidType(), [value.type for value in given])

            def tile(rows: int) -> None:
                name = f"winograd_{'fetching_' if fetching else ''}pair_tile_{rows}_{vectors}"
                module = builder.module
                builder.call(module.globals.get(name) or products(module, kind, name, rows), given)

            for_rows(builder, args[18], rows, vectors, tile)
            return context.get_dummy_value()

        return signature, generate

    return intrinsic(typed)


def _words(builder: Any, pointer: Any, offset: Any) -> Any:
    """Load a vector of pairs."""
    value = builder.load(builder.bitcast(builder.gep(pointer, [offset]), _WORDS.as_pointer()))
    value.align = 4
    return value


def _tiles(fetching: bool) -> list[Any]:
    return [_tile(ROWS[vectors], vectors, fetching) for vectors in range(1, len(ROWS))]


PAIR_TILES, FETCHING_PAIR_TILES = _tiles(False), _tiles(True)
"""By their number of vectors, starting at one."""
