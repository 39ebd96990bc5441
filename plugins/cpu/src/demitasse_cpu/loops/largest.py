"""The maximum of each window of images whose channels are innermost, if nobody asks for its place.

First come the maxima over the lines that a window covers, at each point and for many columns at once: a
line is one row of numbers, whatever its channels are. Then come the maxima of neighbouring points. Each
number is therefore read once for each line of windows that contains it, and one comparison serves all
windows of the line.

bfloat16 is compared as the integers with the same bits, 32 at a time, in an order in which each NaN
comes last, so that it is passed on.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from demitasse_cpu.loops.bfloat16 import prefetch
from demitasse_cpu.loops.compiled import Array, compiled, inlined

_I16 = ir.IntType(16)
_MAGNITUDE = 0x7FFF
_NANS = 0x7F
"""The number of NaNs of each sign."""

_FEW, _MANY = 16, 32
"""The number of channels that are taken at once, in vectors."""


def _key(stored: Any) -> Any:
    """Return the type in which numbers are compared."""
    return types.int16 if stored == types.uint16 else stored


def _all(kind: Any, number: int) -> Any:
    """Return a constant of an integer type, or of a vector of integers."""
    return ir.Constant(kind, [number] * kind.count if isinstance(kind, ir.VectorType) else number)


def _turned(builder: Any, bits: Any) -> Any:
    """Invert the magnitude of negative numbers, so that the integers have the order of the numbers. The
    function is its own inverse."""
    sign = builder.ashr(bits, _all(bits.type, 15))
    return builder.xor(bits, builder.and_(sign, _all(bits.type, _MAGNITUDE)))


def _number(builder: Any, key: Any) -> Any:
    """Return the bits of the bfloat16 that is compared as ``key``."""
    return _turned(builder, builder.add(key, _all(key.type, _NANS)))


def _above(builder: Any, one: Any, other: Any, integers: bool) -> Any:
    """Return the larger of two; of floating-point numbers, a NaN is the larger."""
    if integers:
        return builder.select(builder.icmp_signed(">", one, other), one, other)
    above = builder.fcmp_unordered(">", one, other)  # also if one is NaN; ``other`` is excluded next
    known = builder.fcmp_ordered("ord", other, other)
    return builder.select(builder.and_(above, known), one, other)


def _place(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    array = context.make_array(signature.args[0])(context, builder, args[0])
    return builder.gep(array.data, [args[1]])


def _ordered_typed(context: Any, x: Any, i: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value = builder.load(_place(context, builder, signature, args))
        if signature.args[0].dtype != types.uint16:
            return value
        # NaNs with a negative sign are now the lowest of all; the subtraction wraps them around to the
        # highest.
        return builder.sub(_turned(builder, value), _all(_I16, _NANS))

    return _key(x.dtype)(x, types.int64), generate


def _put_typed(context: Any, y: Any, i: Any, key: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value = args[2]
        if signature.args[0].dtype == types.uint16:
            value = _number(builder, value)
        builder.store(value, _place(context, builder, signature, args))
        return context.get_dummy_value()

    return types.void(y, types.int64, key), generate


def _larger_typed(context: Any, one: Any, other: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _above(builder, args[0], args[1], signature.return_type == types.int16)

    return one(one, other), generate


def _block_typed(count: int) -> Any:
    """Return an intrinsic for ``count`` channels of a point of y: the maxima of ``points`` points of a
    line, ``n`` numbers apart."""

    def typed(context: Any, line: Any, at: Any, n: Any, points: Any, y: Any, to: Any) -> Any:
        signature = types.void(line, *[types.int64] * 3, y, types.int64)
        size = line.dtype.bitwidth // 8

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            source, target = (
                context.make_array(signature.args[i])(context, builder, args[i]).data for i in (0, 4)
            )
            kind = ir.VectorType(source.type.pointee, count)

            def loaded(point: Any) -> Any:
                place = builder.gep(source, [builder.add(args[1], builder.mul(args[2], point))])
                value = builder.load(builder.bitcast(place, kind.as_pointer()))
                value.align = size
                return value

            best = cgutils.alloca_once(builder, kind)  # type: ignore[no-untyped-call]
            integers = line.dtype == types.int16
            builder.store(loaded(ir.IntType(64)(0)), best)
            with cgutils.for_range(builder, builder.sub(args[3], ir.IntType(64)(1))) as loop:
                further = loaded(builder.add(loop.index, ir.IntType(64)(1)))
                builder.store(_above(builder, further, builder.load(best), integers), best)
            value = builder.load(best)
            value = _number(builder, value) if y.dtype == types.uint16 else value
            to = builder.bitcast(builder.gep(target, [args[5]]), kind.as_pointer())
            builder.store(value, to).align = size
            return context.get_dummy_value()

        return signature, generate

    return intrinsic(typed)


_ordered: Any = intrinsic(_ordered_typed)
"""``_ordered(x, i)``: x[i] in the form in which it is compared."""

_put: Any = intrinsic(_put_typed)
"""``_put(y, i, key)``: y[i] becomes the number that is compared as ``key``."""

_larger: Any = intrinsic(_larger_typed)


_sixteen, _thirty_two = map(_block_typed, (_FEW, _MANY))


@inlined
def _of_neighbours(line: Array, at: int, n: int, points: int, y: Array, to: int) -> None:
    """Compute a point of y: the maxima of some points of a line."""
    if n >= _MANY:
        for i in range(0, n, _MANY):
            c = min(i, n - _MANY)
            _thirty_two(line, at + c, n, points, y, to + c)
    elif n >= _FEW:
        for i in range(0, n, _FEW):
            c = min(i, n - _FEW)
            _sixteen(line, at + c, n, points, y, to + c)
    else:
        for i in range(n):
            best = line[at + i]
            for j in range(1, points):
                best = _larger(line[at + j * n + i], best)
            _put(y, to + i, best)


@inlined
def _of_lines(x: Array, at: int, down: int, lines: int, near: Array) -> None:
    """Compute the maxima of some lines of x, ``down`` numbers apart, at each point of a line."""
    count = near.size
    first = x[at : at + count]
    if lines == 2:
        second = x[at + down : at + down + count]
        for i in range(count):
            near[i] = _larger(_ordered(second, i), _ordered(first, i))
    elif lines >= 3:
        second, third = x[at + down : at + down + count], x[at + 2 * down : at + 2 * down + count]
        for i in range(count):
            two = _larger(_ordered(second, i), _ordered(first, i))
            near[i] = _larger(_ordered(third, i), two)
    else:
        for i in range(count):
            near[i] = _ordered(first, i)
    for other in range(3, lines):
        further = x[at + other * down : at + other * down + count]
        for i in range(count):
            near[i] = _larger(_ordered(further, i), near[i])


@compiled()
def largest(
    g: Any, channels: int, x: Array, y: Array, line: Array, far_away: bool, begin: int, end: int
) -> None:
    """Compute lines ``begin`` to ``end`` of y, counted through all images. ``line`` determines how many
    columns of a line are taken at once. Data that is ``far_away``, beyond the caches, is prefetched."""
    n, down = channels, g.width * channels
    at_once = max(1, (line.size // n - g.kernel_width) // g.stride_across + 1)
    for number in range(begin, end):
        image, row = number // g.rows * g.height, number % g.rows
        start = row * g.stride_down - g.pad_down
        top, bottom = max(start, 0), min(start + g.kernel_height, g.height)
        for columns in range(0, g.columns, at_once):
            last = min(columns + at_once, g.columns)
            left = max(columns * g.stride_across - g.pad_across, 0)
            right = min((last - 1) * g.stride_across - g.pad_across + g.kernel_width, g.width)
            at, count = ((image + top) * g.width + left) * n, (right - left) * n
            _of_lines(x, at, down, bottom - top, line[:count])
            for column in range(columns, last):
                start = column * g.stride_across - g.pad_across
                near, beyond = max(start, 0), min(start + g.kernel_width, g.width)
                points, to = beyond - near, (number * g.columns + column) * n
                here = (near - left) * n
                coming = min(g.stride_down, g.height - bottom) if far_away else 0
                for below in range(bottom - top, bottom - top + coming):
                    for i in range(0, g.stride_across * n, 64 // x.itemsize):
                        prefetch(x, at + below * down + here + i)
                _of_neighbours(line, here, n, points, y, to)
