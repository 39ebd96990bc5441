"""Cost volumes, and functions of flows: the loops for operations of the optical_flow plugin.

A cost volume and both of its gradients are one sum over t: ``sums[j, x] += a[a_at + a_step[t] + x] *
b[b_at + b_step[t] + j * across + x]``, where x runs along a row. A vector of places is contiguous in
both images whatever the displacement is. A vector of ``a`` is therefore read once for several j, whose
sums stay in registers.

- forward: t runs over channels (and a kernel's columns), j over displacements across;
- backward: t runs over displacements across (and columns), j over channels, a is dy.

Rows are first copied to where zeros come before and after them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from demitasse_cpu.loops.compiled import Array, compiled
from demitasse_cpu.loops.tiles import lanes


class Rows(NamedTuple):
    """Images of ``planes`` of ``height`` rows, copied so that the same row of all planes is together.
    Each plane has ``pitch`` numbers there; the image's own begin after ``left`` zeros. (In the original,
    the rows of neighbouring channels are pages apart, and those of a tile are in more pages than a core
    keeps.)"""

    planes: int
    height: int
    pitch: int
    left: int


class Volume(NamedTuple):
    """Images of ``channels`` planes of ``height`` x ``width``, and their volumes: ``rows`` x ``columns``
    places for each of ``down`` x ``across`` displacements. Taps are ``kernel`` x ``kernel``, from row
    place - ``top`` on; columns are in the tables. Results are multiplied by ``scale``."""

    channels: int
    height: int
    width: int
    rows: int
    columns: int
    down: int
    across: int
    kernel: int
    top: int
    scale: float


def _typed(
    context: Any,
    form: Any,
    a: Any,
    a_at: Any,
    a_steps: Any,
    b: Any,
    b_at: Any,
    b_steps: Any,
    across: Any,
    sums: Any,
    sums_at: Any,
    pitch: Any,
) -> Any:
    real = a.dtype
    size, count = real.bitwidth // 8, len(form)
    n = types.int64
    signature = types.void(form, a, n, a_steps, b, n, b_steps, n, sums, n, n)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        index = ir.IntType(64)
        vector = ir.VectorType(context.get_value_type(real), lanes(size))
        multiply_add = cgutils.get_or_insert_function(  # type: ignore[no-untyped-call]
            builder.module,
            ir.FunctionType(vector, [vector] * 3),
            f"llvm.fmuladd.v{lanes(size)}f{8 * size}",
        )

        def array(position: int) -> Any:
            kind = signature.args[position]
            return context.make_array(kind)(context, builder, args[position])

        def vector_at(pointer: Any, offset: Any) -> Any:
            return builder.bitcast(builder.gep(pointer, [offset]), vector.as_pointer())

        def load(pointer: Any, offset: Any) -> Any:
            value = builder.load(vector_at(pointer, offset))
            value.align = size
            return value

        first, second, out = array(1).data, array(4).data, array(8).data
        a_table, b_table = array(3), array(6).data
        terms = builder.extract_value(a_table.shape, 0)
        places = [builder.add(args[9], builder.mul(args[10], index(j))) for j in range(count)]
        moves = [builder.mul(args[7], index(j)) for j in range(count)]
        before = [load(out, place) for place in places]
        entry = builder.block
        body = builder.append_basic_block("terms")
        done = builder.append_basic_block("done")
        builder.cbranch(builder.icmp_signed(">", terms, index(0)), body, done)

        builder.position_at_end(body)
        t = builder.phi(index)
        totals = [builder.phi(vector) for _ in range(count)]
        near = builder.add(args[2], builder.load(builder.gep(a_table.data, [t])))
        far = builder.add(args[5], builder.load(builder.gep(b_table, [t])))
        value = load(first, near)
        after = [
            builder.call(multiply_add, [value, load(second, builder.add(far, move)), total])
            for move, total in zip(moves, totals, strict=True)
        ]
        following = builder.add(t, index(1))
        t.add_incoming(index(0), entry)
        t.add_incoming(following, body)
        for total, old, new in zip(totals, before, after, strict=True):
            total.add_incoming(old, entry)
            total.add_incoming(new, body)
        builder.cbranch(builder.icmp_signed("<", following, terms), body, done)

        builder.position_at_end(done)
        results = [builder.phi(vector) for _ in range(count)]
        for result, old, new in zip(results, before, after, strict=True):
            result.add_incoming(old, entry)
            result.add_incoming(new, body)
        for place, result in zip(places, results, strict=True):
            builder.store(result, vector_at(out, place)).align = size
        return context.get_dummy_value()

    return signature, generate


_add_products: Any = intrinsic(_typed)
"""Adds a vector of products to each of as many rows of sums, ``pitch`` apart, as ``form`` has
members."""


@compiled()
def widened(r: Any, x: Array, wide: Array, width: int, begin: int, end: int) -> None:
    """Write lines ``begin`` to ``end`` of the copy: rows of x surrounded by zeros."""
    for line in range(begin, end):
        plane, row, image = line % r.planes, line // r.planes % r.height, line // r.planes // r.height
        at = ((image * r.planes + plane) * r.height + row) * width
        given = x[at : at + width]
        result = wide[line * r.pitch : (line + 1) * r.pitch]
        for i in range(r.left):
            result[i] = 0
        own = result[r.left : r.left + width]
        for i in range(width):
            own[i] = given[i]
        for i in range(r.left + width, r.pitch):
            result[i] = 0


@compiled()
def volume(
    g: Any,
    r: Any,
    form: Any,
    a: Array,
    b: Array,
    y: Array,
    sums: Array,
    a_steps: Array,
    b_steps: Array,
    down: Array,
    across: Array,
    at: int,
    begin: int,
    end: int,
) -> None:
    """Compute the volume's rows ``begin`` to ``end``, counted through displacements down, images and
    rows. This part's sums begin at ``at``. ``a_steps`` and ``b_steps`` have (channel, column) of a row
    of taps."""
    rows, line = len(form), r.planes * r.pitch
    pitch = (g.columns + 63) // 64 * 64
    step = across[1] - across[0] if across.size > 1 else 0
    for unit in range(begin, end):
        row, e, image = unit % g.rows, unit // g.rows % g.down, unit // (g.rows * g.down)
        for block in range((across.size + rows - 1) // rows):
            first = min(block * rows, across.size - rows)
            own = sums[at : at + rows * pitch]
            own[:] = 0
            for tap in range(g.kernel):
                near = row + g.top + tap
                far = near + down[e]
                if near < 0 or near >= g.height or far < 0 or far >= g.height:
                    continue
                a_at = (image * r.height + near) * line + r.left
                b_at = (image * r.height + far) * line + r.left + across[first]
                for x in range(0, g.columns, _step(a)):
                    _add_products(
                        form, a, a_at + x, a_steps, b, b_at + x, b_steps, step, sums, at + x, pitch
                    )
            for j in range(rows):
                plane = (image * g.down + e) * g.across + first + j
                place = (plane * g.rows + row) * g.columns
                result = y[place : place + g.columns]
                given = sums[at + j * pitch : at + j * pitch + g.columns]
                for x in range(g.columns):
                    result[x] = given[x] * g.scale


@compiled()
def volume_gradient(
    g: Any,
    dy_rows: Any,
    r: Any,
    form: Any,
    dy: Array,
    other: Array,
    dx: Array,
    sums: Array,
    dy_steps: Array,
    steps: Array,
    down: Array,
    sign: int,
    at: int,
    begin: int,
    end: int,
) -> None:
    """Compute rows ``begin`` to ``end``, counted through images and rows, of the gradient of one image
    from the rows of dy and of the other image. ``sign`` is 1 for the first image, -1 for the second. The
    tables have (displacement across, column) of a row of taps."""
    rows, line = len(form), r.planes * r.pitch
    dy_line = dy_rows.planes * dy_rows.pitch
    pitch = (g.width + 63) // 64 * 64
    for unit in range(begin, end):
        row, image = unit % g.height, unit // g.height
        for block in range((g.channels + rows - 1) // rows):
            first = min(block * rows, g.channels - rows)
            own = sums[at : at + rows * pitch]
            own[:] = 0
            for e in range(g.down):
                far = row + sign * down[e]
                if far < 0 or far >= g.height:
                    continue
                for tap in range(g.kernel):
                    near = row - g.top - tap
                    if sign < 0:
                        near -= down[e]
                    if near < 0 or near >= g.rows:
                        continue
                    dy_at = (image * g.rows + near) * dy_line
                    dy_at += e * g.across * dy_rows.pitch + dy_rows.left
                    other_at = (image * g.height + far) * line + first * r.pitch + r.left
                    for x in range(0, g.width, _step(dy)):
                        near_at, far_at, to = dy_at + x, other_at + x, at + x
                        _add_products(
                            form, dy, near_at, dy_steps, other, far_at, steps, r.pitch, sums, to, pitch
                        )
            for j in range(rows):
                place = ((image * g.channels + first + j) * g.height + row) * g.width
                result = dx[place : place + g.width]
                given = sums[at + j * pitch : at + j * pitch + g.width]
                for x in range(g.width):
                    result[x] = given[x] * g.scale


def _step_typed(context: Any, x: Any) -> Any:
    count = lanes(x.dtype.bitwidth // 8)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return ir.Constant(ir.IntType(64), count)

    return types.int64(x), generate


_step: Any = intrinsic(_step_typed)
"""How many numbers of an array's type a vector has."""

PITCH = 64
"""The length of a row of sums is a multiple of this, whatever the processor's vectors."""


@compiled()
def channel_norm(x: Array, y: Array, channels: int, plane: int, begin: int, end: int) -> None:
    """Compute places ``begin`` to ``end``, counted through all images."""
    at = begin
    while at < end:
        image, first = at // plane, at % plane
        count = min(plane - first, end - at)
        result = y[at : at + count]
        result[:] = 0
        for channel in range(channels):
            place = (image * channels + channel) * plane + first
            given = x[place : place + count]
            for i in range(count):
                result[i] += given[i] * given[i]
        for i in range(count):
            result[i] = np.sqrt(result[i])
        at += count


@compiled()
def channel_norm_backward(
    dy: Array, x: Array, y: Array, dx: Array, channels: int, plane: int, begin: int, end: int
) -> None:
    """Compute planes ``begin`` to ``end`` of dx."""
    for number in range(begin, end):
        at = number // channels * plane
        arriving, norm = dy[at : at + plane], y[at : at + plane]
        given, result = x[number * plane :], dx[number * plane :]
        for i in range(plane):
            result[i] = arriving[i] * given[i] / (norm[i] + 1e-9)
