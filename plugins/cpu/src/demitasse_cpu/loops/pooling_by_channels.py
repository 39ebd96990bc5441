"""Pooling of images whose channels are innermost. Vectors run along the channels of one point. The last
vector ends where the channels end, and what it shares with the one before is computed twice. With 20
channels, 16 in a vector and 4 one by one took two to three times as long.

Windows that are entirely in x and have one of the usual sizes are taken in one pass; others point by
point, with the results so far in the nearest cache. Gradients are gathered: each point of dx from the
windows that contain it. Nothing is written twice, and any thread can compute any part of dx.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from demitasse_cpu.loops.bfloat16 import got, number, prefetch, put, widen, widened_vector
from demitasse_cpu.loops.compiled import Array, compiled, inlined

_BLOCK = 16
"""The number of channels that are taken at once, which the compiler knows."""

_FAR = 2**23
"""Bytes of images from which on data is prefetched, because it is beyond the caches."""


@inlined
def _higher(value: Any, best: Any) -> bool:
    """Return whether a value replaces the best one so far: if it is larger, or NaN, which is passed
    on."""
    return (not (value <= best)) & (best == best)  # type: ignore[no-any-return]


def _square(size: int) -> Any:
    """Return an intrinsic for the largest of ``size`` x ``size`` points and its place, of _BLOCK
    channels in vectors. ``down`` and ``across`` lead to the next points, ``line`` to the place below."""

    def typed(
        context: Any,
        x: Any,
        at: Any,
        down: Any,
        across: Any,
        place: Any,
        line: Any,
        y: Any,
        index: Any,
        to: Any,
    ) -> Any:
        n = types.int64
        signature = types.void(x, n, n, n, index.dtype, index.dtype, y, index, n)

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            source, values, places = (
                context.make_array(signature.args[i])(context, builder, args[i]).data for i in (0, 6, 7)
            )

            def vector(pointer: Any, offset: Any) -> Any:
                kind = ir.VectorType(pointer.type.pointee, _BLOCK)
                return builder.bitcast(builder.gep(pointer, [offset]), kind.as_pointer())

            def point(i: int, j: int) -> tuple[Any, Any]:
                steps = ((args[2], i), (args[3], j))
                offset = args[1]
                for step, count in steps:
                    offset = builder.add(offset, builder.mul(step, step.type(count)))
                value = builder.load(vector(source, offset))
                value.align = x.dtype.bitwidth // 8
                number = builder.add(args[4], builder.mul(args[5], args[5].type(i)))
                return widened_vector(builder, value, x.dtype), _splat(
                    builder, builder.add(number, number.type(j))
                )

            def next_of(one: tuple[Any, Any], other: tuple[Any, Any]) -> tuple[Any, Any]:
                above = builder.fcmp_unordered(">", other[0], one[0])
                known = builder.fcmp_ordered("ord", one[0], one[0])
                take = builder.and_(above, known)
                return builder.select(take, other[0], one[0]), builder.select(take, other[1], one[1])

            def best_of(points: list[tuple[Any, Any]]) -> tuple[Any, Any]:
                best = points[0]
                for other in points[1:]:
                    best = next_of(best, other)
                return best

            # One chain of comparisons for each line instead of a single chain, in which each waits for
            # the one before.
            best, where = best_of([best_of([point(i, j) for j in range(size)]) for i in range(size)])
            builder.store(_as_stored(builder, best, x.dtype), vector(values, args[8])).align = (
                x.dtype.bitwidth // 8
            )
            builder.store(where, vector(places, args[8])).align = index.dtype.bitwidth // 8
            return context.get_dummy_value()

        return signature, generate

    return intrinsic(typed)


def _splat(builder: Any, value: Any) -> Any:
    nothing = ir.Constant(ir.VectorType(value.type, _BLOCK), ir.Undefined)
    first = builder.insert_element(nothing, value, ir.IntType(32)(0))
    lanes = ir.Constant(ir.VectorType(ir.IntType(32), _BLOCK), [0] * _BLOCK)
    return builder.shuffle_vector(first, nothing, lanes)


def _as_stored(builder: Any, value: Any, stored: Any) -> Any:
    """Return numbers in the type in which they were stored, bit for bit."""
    if stored != types.uint16:
        return value
    words = ir.VectorType(ir.IntType(32), _BLOCK)
    upper = builder.lshr(builder.bitcast(value, words), ir.Constant(words, [16] * _BLOCK))
    return builder.trunc(upper, ir.VectorType(ir.IntType(16), _BLOCK))


_four, _nine = _square(2), _square(3)


@inlined
def _fetch_ahead(g: Any, x: Array, line: int, lines: int, left: int, n: int) -> None:
    """Prefetch what the window below reads and this one does not. Processors prefetch lines that are
    read one after the other, but not a window's (for 37 MB, a third of the time was spent waiting)."""
    for i in range(lines):
        first = ((line + i) * g.width + left) * n
        for element in range(0, g.stride_across * n, 64 // x.itemsize):
            prefetch(x, first + element)


@inlined
def _inside(extent: int, kernel: int, stride: int, pad: int, windows: int) -> tuple[int, int]:
    """Return the range of windows that are entirely in x."""
    last = (extent - kernel + pad) // stride + 1 if extent >= kernel - pad else 0
    first = min((pad + stride - 1) // stride, windows)
    return first, max(first, min(last, windows))


@inlined
def _maximum(
    g: Any,
    n: int,
    x: Array,
    y: Array,
    index: Array,
    image: int,
    top: int,
    bottom: int,
    column: int,
    to: int,
) -> None:
    """Compute the maxima of any window, point by point."""
    small = index.dtype.type
    start = column * g.stride_across - g.pad_across
    left, right = max(start, 0), min(start + g.kernel_width, g.width)
    at, place = ((image + top) * g.width + left) * n, small(top * g.width + left)
    best, where = y[to : to + n], index[to : to + n]
    for i in range(n):
        put(best, i, got(x, at + i))
        where[i] = place
    for other in range(top, bottom):
        for j in range(left, right):
            at, place = ((image + other) * g.width + j) * n, small(other * g.width + j)
            near = x[at : at + n]
            for i in range(n):
                higher = _higher(widen(near[i]), widen(best[i]))
                best[i] = near[i] if higher else best[i]
                where[i] = place if higher else where[i]


@compiled()
def maxima(g: Any, channels: int, x: Array, y: Array, index: Array, begin: int, end: int) -> None:
    """Compute lines ``begin`` to ``end`` of y, counted through all images. bfloat16 is not converted,
    because the largest of some numbers is one of them."""
    n, small = channels, index.dtype.type
    down, line_places = g.width * n, small(g.width)
    is_square = g.kernel_height == g.kernel_width and 2 <= g.kernel_width <= 3 and n >= _BLOCK
    inside = _inside(g.width, g.kernel_width, g.stride_across, g.pad_across, g.columns)
    is_far = x.size * x.itemsize > _FAR
    for line in range(begin, end):
        image, row = line // g.rows * g.height, line % g.rows
        start = row * g.stride_down - g.pad_down
        top, bottom = max(start, 0), min(start + g.kernel_height, g.height)
        is_whole = is_square and bottom - top == g.kernel_height
        first, last = inside if is_whole else (g.columns, g.columns)
        coming = min(g.height - bottom, g.stride_down) if is_far else 0
        to = line * g.columns * n
        for column in range(first):
            _maximum(g, n, x, y, index, image, top, bottom, column, to + column * n)
        for column in range(first, last):
            left = column * g.stride_across - g.pad_across
            at, place = ((image + top) * g.width + left) * n, small(top * g.width + left)
            if is_far:
                _fetch_ahead(g, x, image + bottom, coming, left, n)
            if g.kernel_width == 2:
                for i in range(0, n, _BLOCK):
                    c = min(i, n - _BLOCK)
                    _four(x, at + c, down, n, place, line_places, y, index, to + column * n + c)
            else:
                for i in range(0, n, _BLOCK):
                    c = min(i, n - _BLOCK)
                    _nine(x, at + c, down, n, place, line_places, y, index, to + column * n + c)
        for column in range(last, g.columns):
            _maximum(g, n, x, y, index, image, top, bottom, column, to + column * n)


@inlined
def _met(place: int, pad: int, kernel: int, stride: int, windows: int) -> tuple[int, int]:
    """Return the range of windows that contain a point."""
    return max(0, (place + pad - kernel) // stride + 1), min(windows, (place + pad) // stride + 1)


@inlined
def _next_met(
    place: int, pad: int, kernel: int, stride: int, windows: int, first: int, last: int
) -> tuple[int, int]:
    """Return the same range for the next point, given ``first`` and ``last`` of this one, or for point
    0, given 0 and 0. It needs no division, which took half of the time for each point."""
    while first * stride - pad + kernel <= place:
        first += 1
    while last < windows and last * stride - pad <= place:
        last += 1
    return first, last


@inlined
def _picked(dy: Array, index: Array, i: int, place: Any, zero: Any) -> Any:
    return got(dy, i) if got(index, i) == place else zero


@compiled()
def maxima_backward(
    g: Any, channels: int, dy: Array, index: Array, dx: Array, total: Array, begin: int, end: int
) -> None:
    """Compute lines ``begin`` to ``end`` of dx, counted through all images. ``total`` has room for the
    channels of a point."""
    n, zero = channels, number(0, dy)
    total = total[:n]
    for line in range(begin, end):
        image, row = line // g.height * g.rows, line % g.height
        top, bottom = _met(row, g.pad_down, g.kernel_height, g.stride_down, g.rows)
        left = right = 0
        for column in range(g.width):
            left, right = _next_met(
                column, g.pad_across, g.kernel_width, g.stride_across, g.columns, left, right
            )
            place, to = index.dtype.type(row * g.width + column), (line * g.width + column) * n
            at = ((image + top) * g.columns + left) * n
            high, wide = bottom - top, right - left
            if high == 1 and wide == 1:
                for i in range(n):
                    put(dx, to + i, _picked(dy, index, at + i, place, zero))
            elif (high == 1 and wide == 2) or (high == 2 and wide == 1):
                far = at + (n if wide == 2 else g.columns * n)
                for i in range(n):
                    one = _picked(dy, index, at + i, place, zero)
                    put(dx, to + i, one + _picked(dy, index, far + i, place, zero))
            elif high == 2 and wide == 2:
                below = at + g.columns * n
                for i in range(n):
                    value = _picked(dy, index, at + i, place, zero)
                    value += _picked(dy, index, at + n + i, place, zero)
                    value += _picked(dy, index, below + i, place, zero)
                    put(dx, to + i, value + _picked(dy, index, below + n + i, place, zero))
            elif wide == 3:
                for i in range(n):
                    total[i] = zero
                for other in range(top, bottom):
                    at = ((image + other) * g.columns + left) * n
                    for i in range(n):
                        value = _picked(dy, index, at + i, place, zero)
                        value += _picked(dy, index, at + n + i, place, zero)
                        total[i] += value + _picked(dy, index, at + 2 * n + i, place, zero)
                for i in range(n):
                    put(dx, to + i, total[i])
            else:
                for i in range(n):
                    total[i] = zero
                for other in range(top, bottom):
                    for j in range(left, right):
                        at = ((image + other) * g.columns + j) * n
                        for i in range(n):
                            total[i] += _picked(dy, index, at + i, place, zero)
                for i in range(n):
                    put(dx, to + i, total[i])


@inlined
def _spread_four(
    dy: Array,
    index: Array,
    at: int,
    dx: Array,
    to: int,
    n: int,
    down: int,
    place: Any,
    line: Any,
    count: int,
) -> None:
    """Spread ``count`` channels of a point of dy over the four points of its window."""
    one, none, low = index.dtype.type(1), dy.dtype.type(0), to + down
    for i in range(count):
        value, where = got(dy, at + i), got(index, at + i)
        put(dx, to + i, value if where == place else none)
        put(dx, to + n + i, value if where == place + one else none)
        put(dx, low + i, value if where == place + line else none)
        put(dx, low + n + i, value if where == place + line + one else none)


@compiled()
def maxima_backward_apart(
    g: Any, channels: int, dy: Array, index: Array, dx: Array, begin: int, end: int
) -> None:
    """Compute the gradient of windows of 2 x 2 that cover x side by side. ``begin`` and ``end`` count
    the lines of dy of all images. Windows need not be searched for, which for each point of 20 channels
    took longer than the rest. Numbers are moved as they are stored: bfloat16 comes as int16."""
    n, down = channels, g.width * channels
    two, below = index.dtype.type(2), index.dtype.type(g.width)
    for line in range(begin, end):
        at, to = line * g.columns * n, 2 * line * down
        place = index.dtype.type(2 * (line % g.rows) * g.width)
        for _ in range(g.columns):
            if n >= _BLOCK:
                for i in range(0, n, _BLOCK):
                    c = min(i, n - _BLOCK)
                    _spread_four(dy, index, at + c, dx, to + c, n, down, place, below, _BLOCK)
            else:
                _spread_four(dy, index, at, dx, to, n, down, place, below, n)
            at, to, place = at + n, to + 2 * n, place + two


@inlined
def _mean_of_nine(
    x: Array, at: int, down: int, n: int, size: Any, y: Array, to: int, count: int
) -> None:
    """Compute the mean of 3 x 3 points of ``n`` channels, of which ``count`` are computed. ``size`` is
    the number to divide by; ``down`` leads to the point below."""
    below, bottom = at + down, at + 2 * down
    for i in range(count):
        first = got(x, at + i) + got(x, at + n + i) + got(x, at + 2 * n + i)
        second = got(x, below + i) + got(x, below + n + i) + got(x, below + 2 * n + i)
        third = got(x, bottom + i) + got(x, bottom + n + i) + got(x, bottom + 2 * n + i)
        put(y, to + i, (first + second + third) / size)


@compiled()
def averages(g: Any, channels: int, x: Array, y: Array, total: Array, begin: int, end: int) -> None:
    """Compute lines ``begin`` to ``end`` of y, counted through all images. A window's size includes the
    padding that it covers, at most one pad beyond x."""
    n, zero = channels, number(0, x)
    whole = n if n >= _BLOCK else 0
    total = total[:n]
    for line in range(begin, end):
        image, row = line // g.rows * g.height, line % g.rows
        start = row * g.stride_down - g.pad_down
        full_height = min(start + g.kernel_height, g.height + g.pad_down) - start
        top, bottom = max(start, 0), min(start + g.kernel_height, g.height)
        for column in range(g.columns):
            start = column * g.stride_across - g.pad_across
            full_width = min(start + g.kernel_width, g.width + g.pad_across) - start
            left, right = max(start, 0), min(start + g.kernel_width, g.width)
            _fetch_ahead(g, x, image + bottom, min(g.height - bottom, g.stride_down), left, n)
            to, size = (line * g.columns + column) * n, number(full_height * full_width, x)
            if bottom - top == 3 and right - left == 3:
                at = ((image + top) * g.width + left) * n
                for i in range(0, whole, _BLOCK):
                    c = min(i, n - _BLOCK)
                    _mean_of_nine(x, at + c, g.width * n, n, size, y, to + c, _BLOCK)
                if whole == 0:
                    _mean_of_nine(x, at, g.width * n, n, size, y, to, n)
                continue
            for i in range(n):
                total[i] = zero
            for other in range(top, bottom):
                j = left
                while j < right:
                    at = ((image + other) * g.width + j) * n
                    if j + 3 <= right:
                        for i in range(n):
                            value = got(x, at + i) + got(x, at + n + i)
                            total[i] += value + got(x, at + 2 * n + i)
                        j += 3
                    else:
                        for i in range(n):
                            total[i] += got(x, at + i)
                        j += 1
            for i in range(n):
                put(y, to + i, total[i] / size)


@inlined
def _share(g: Any, row: int, column: int) -> float:
    """Return a point's share of a window's average, from the window's size, which includes the padding
    that it covers."""
    top, left = row * g.stride_down - g.pad_down, column * g.stride_across - g.pad_across
    height = min(top + g.kernel_height, g.height + g.pad_down) - top
    width = min(left + g.kernel_width, g.width + g.pad_across) - left
    share: float = 1.0 / (height * width)
    return share


@compiled()
def averages_backward(
    g: Any, channels: int, dy: Array, dx: Array, total: Array, begin: int, end: int
) -> None:
    """Compute lines ``begin`` to ``end`` of dx, counted through all images."""
    n, zero = channels, number(0, dy)
    total = total[:n]
    for line in range(begin, end):
        image, row = line // g.height * g.rows, line % g.height
        top, bottom = _met(row, g.pad_down, g.kernel_height, g.stride_down, g.rows)
        left = right = known = 0
        one = next_one = below = next_below = zero
        for column in range(g.width):
            left, right = _next_met(
                column, g.pad_across, g.kernel_width, g.stride_across, g.columns, left, right
            )
            high, wide, to = bottom - top, right - left, (line * g.width + column) * n
            at, far = ((image + top) * g.columns + left) * n, g.columns * n
            if 1 <= high <= 2 and 1 <= wide <= 2:
                if column == 0 or known != 2 * left + wide:
                    known = 2 * left + wide
                    one = number(_share(g, top, left), dy)
                    next_one = number(_share(g, top, right - 1), dy)
                    below = number(_share(g, bottom - 1, left), dy)
                    next_below = number(_share(g, bottom - 1, right - 1), dy)
                if high == 1 and wide == 1:
                    for i in range(n):
                        put(dx, to + i, one * got(dy, at + i))
                elif high == 1:
                    for i in range(n):
                        put(dx, to + i, one * got(dy, at + i) + next_one * got(dy, at + n + i))
                elif wide == 1:
                    for i in range(n):
                        put(dx, to + i, one * got(dy, at + i) + below * got(dy, at + far + i))
                else:
                    for i in range(n):
                        value = one * got(dy, at + i) + next_one * got(dy, at + n + i)
                        value += below * got(dy, at + far + i)
                        put(dx, to + i, value + next_below * got(dy, at + far + n + i))
                continue
            for i in range(n):
                total[i] = zero
            for other in range(top, bottom):
                for j in range(left, right):
                    at = ((image + other) * g.columns + j) * n
                    share = number(_share(g, other, j), dy)
                    for i in range(n):
                        total[i] += share * got(dy, at + i)
            for i in range(n):
                put(dx, to + i, total[i])
