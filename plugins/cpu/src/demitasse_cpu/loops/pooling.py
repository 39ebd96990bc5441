"""Pooling, a row of windows at a time, so that a window's elements meet those of its neighbours in
one vector. A plane is one channel of one image."""

from __future__ import annotations

from typing import Any, NamedTuple

from demitasse_cpu.loops.compiled import Array, compiled


class Windows(NamedTuple):
    """Planes of ``height`` x ``width``, pooled to ``rows`` x ``columns`` windows."""

    height: int
    width: int
    rows: int
    columns: int
    kernel_height: int
    kernel_width: int
    stride_down: int
    stride_across: int
    pad_down: int
    pad_across: int


@compiled()
def _row_range(g: Any, row: int) -> tuple[int, int]:
    """The rows of x in the windows of a row of y."""
    start = row * g.stride_down - g.pad_down
    return max(start, 0), min(start + g.kernel_height, g.height)


@compiled()
def _column_range(g: Any, tap: int) -> tuple[int, int]:
    """The columns of y whose windows have their column ``tap`` in x."""
    first = (g.pad_across - tap + g.stride_across - 1) // g.stride_across
    last = (g.width - 1 + g.pad_across - tap) // g.stride_across
    return max(first, 0), min(last + 1, g.columns)


@compiled()
def _raise_maxima(
    x: Array, x_at: int, stride: int, y: Array, at: int, index: Array, index_at: int, first: int, n: int
) -> None:
    for i in range(n):
        value = x[x_at + i * stride]
        best = y[at + i]
        # The first of equals stays; a NaN, which nothing exceeds, is passed on.
        higher = (value > best) | ((value != value) & (best == best))
        y[at + i] = value if higher else best
        index[index_at + i] = first + i * stride if higher else index[index_at + i]


@compiled()
def maxima(g: Any, x: Array, y: Array, index: Array, keeps_index: bool, begin: int, end: int) -> None:
    """``index`` has room for one plane when it is not kept."""
    size = g.rows * g.columns
    for plane in range(begin, end):
        source = plane * g.height * g.width
        for row in range(g.rows):
            at = plane * size + row * g.columns
            index_at = at if keeps_index else 0
            top, bottom = _row_range(g, row)
            for column in range(g.columns):
                first = top * g.width + max(column * g.stride_across - g.pad_across, 0)
                y[at + column] = x[source + first]
                index[index_at + column] = first
            for line in range(top, bottom):
                for tap in range(g.kernel_width):
                    left, right = _column_range(g, tap)
                    first = line * g.width + left * g.stride_across - g.pad_across + tap
                    n = right - left
                    a, b = at + left, index_at + left
                    # A stride that the compiler knows becomes vector code.
                    if g.stride_across == 2:
                        _raise_maxima(x, source + first, 2, y, a, index, b, first, n)
                    elif g.stride_across == 1:
                        _raise_maxima(x, source + first, 1, y, a, index, b, first, n)
                    else:
                        stride = g.stride_across
                        _raise_maxima(x, source + first, stride, y, a, index, b, first, n)


@compiled()
def maxima_backward(
    size: int, plane_size: int, dy: Array, index: Array, dx: Array, begin: int, end: int
) -> None:
    """Planes of dx have ``plane_size`` elements, those of dy ``size``."""
    for plane in range(begin, end):
        target = plane * plane_size
        dx[target : target + plane_size] = 0
        for i in range(plane * size, (plane + 1) * size):
            dx[target + index[i]] += dy[i]


@compiled()
def _size(g: Any, row: int, column: int) -> int:
    """Elements of a window with the padding that it covers, one pad beyond x at most."""
    top = row * g.stride_down - g.pad_down
    left = column * g.stride_across - g.pad_across
    height = min(top + g.kernel_height, g.height + g.pad_down) - top
    return height * (min(left + g.kernel_width, g.width + g.pad_across) - left)  # type: ignore[no-any-return]


@compiled()
def _gather(x: Array, x_at: int, stride: int, y: Array, at: int, n: int) -> None:
    for i in range(n):
        y[at + i] += x[x_at + i * stride]


@compiled()
def _scatter(x: Array, x_at: int, stride: int, y: Array, at: int, n: int) -> None:
    for i in range(n):
        x[x_at + i * stride] += y[at + i]


@compiled()
def averages(g: Any, x: Array, y: Array, begin: int, end: int) -> None:
    size = g.rows * g.columns
    for plane in range(begin, end):
        source = plane * g.height * g.width
        for row in range(g.rows):
            at = plane * size + row * g.columns
            y[at : at + g.columns] = 0
            top, bottom = _row_range(g, row)
            for line in range(top, bottom):
                for tap in range(g.kernel_width):
                    left, right = _column_range(g, tap)
                    first = source + line * g.width + left * g.stride_across - g.pad_across + tap
                    n = right - left
                    if g.stride_across == 2:
                        _gather(x, first, 2, y, at + left, n)
                    elif g.stride_across == 1:
                        _gather(x, first, 1, y, at + left, n)
                    else:
                        _gather(x, first, g.stride_across, y, at + left, n)
            for column in range(g.columns):
                y[at + column] /= y.dtype.type(_size(g, row, column))


@compiled()
def averages_backward(g: Any, dy: Array, dx: Array, shares: Array, begin: int, end: int) -> None:
    """``shares`` has room for a row of dy."""
    size, plane_size = g.rows * g.columns, g.height * g.width
    for plane in range(begin, end):
        target = plane * plane_size
        dx[target : target + plane_size] = 0
        for row in range(g.rows):
            for column in range(g.columns):
                given = dy[plane * size + row * g.columns + column]
                shares[column] = given / dy.dtype.type(_size(g, row, column))
            top, bottom = _row_range(g, row)
            for line in range(top, bottom):
                for tap in range(g.kernel_width):
                    left, right = _column_range(g, tap)
                    first = target + line * g.width + left * g.stride_across - g.pad_across + tap
                    n = right - left
                    if g.stride_across == 2:
                        _scatter(dx, first, 2, shares, left, n)
                    elif g.stride_across == 1:
                        _scatter(dx, first, 1, shares, left, n)
                    else:
                        _scatter(dx, first, g.stride_across, shares, left, n)
