"""Pooling. A plane is one channel of one image.

Averages unroll windows that are entirely in x and have one of the usual sizes. Maxima cannot be taken
window by window: which element is the largest is a branch that no processor predicts (40 ns a window
here, against 1 ns in vectors).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from demitasse_cpu.loops.compiled import Array, compiled, inlined


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


@inlined
def _higher(value: Any, best: Any) -> bool:
    """Return whether a value replaces the best one so far. NaN, which nothing exceeds, does: a net that
    has diverged must not look healthy."""
    return (value > best) | ((value != value) & (best == best))  # type: ignore[no-any-return]


@inlined
def _along(
    values: Array, places: Array, stride: int, width: int, best: Array, index: Array, n: int
) -> None:
    """Compute the largest of each ``width`` values, ``stride`` from one to the next, and its place."""
    for i in range(n):
        largest, first = values[i * stride], places[i * stride]
        for j in range(1, width):
            value, place = values[i * stride + j], places[i * stride + j]
            # Of equal values, take the first in x, which is in a higher line or further to the left.
            higher = _higher(value, largest) | ((value == largest) & (place < first))
            largest = value if higher else largest
            first = place if higher else first
        best[i] = largest
        index[i] = first


@compiled()
def maxima(
    g: Any,
    x: Array,
    y: Array,
    index: Array,
    keeps_index: bool,
    values: Array,
    places: Array,
    best: Array,
    found: Array,
    begin: int,
    end: int,
) -> None:
    """Compute the maxima of planes ``begin`` to ``end``: first down the lines of a window, then across.
    Whole lines, and then the whole plane, are long enough for vectors; rows of windows are not.

    ``values`` and ``places`` hold the largest value down each column. Their rows have room for as many
    windows as cover the columns exactly, so that the next row's first window starts where it should. The
    surplus windows' results are dropped. Columns beyond x repeat its edge.
    """
    line, stride, width = g.width, g.stride_across, g.kernel_width
    windows = (stride * (g.columns - 1) + width + stride - 1) // stride
    extent = windows * stride
    for number in range(begin, end):
        plane = number * g.height * line
        for row in range(g.rows):
            start = row * g.stride_down - g.pad_down
            top, bottom = max(start, 0), min(start + g.kernel_height, g.height)
            at = row * extent + g.pad_across
            n = min(line, extent - g.pad_across)
            row_values, row_places = values[at : at + n], places[at : at + n]
            above = x[plane + top * line : plane + top * line + n]
            for i in range(n):
                row_values[i] = above[i]
                row_places[i] = top * line + i
            for other in range(top + 1, bottom):
                below = x[plane + other * line : plane + other * line + n]
                for i in range(n):
                    value = below[i]
                    higher = _higher(value, row_values[i])
                    row_values[i] = value if higher else row_values[i]
                    row_places[i] = other * line + i if higher else row_places[i]
            for i in range(row * extent, at):
                values[i], places[i] = values[at], places[at]
            for i in range(at + n, (row + 1) * extent):
                values[i], places[i] = values[at + n - 1], places[at + n - 1]
        for i in range(g.rows * extent, g.rows * extent + width):
            values[i], places[i] = values[0], places[0]
        n = g.rows * windows
        if windows > 2 * g.columns:  # most would be surplus: a wide window in a narrow row
            for row in range(g.rows):
                start, at = row * extent, row * windows
                _along(values[start:], places[start:], stride, width, best[at:], found[at:], g.columns)
        # With numbers that the compiler knows, it generates vector code.
        elif stride == 2 and width == 2:
            _along(values, places, 2, 2, best, found, n)
        elif stride == 2 and width == 3:
            _along(values, places, 2, 3, best, found, n)
        else:
            _along(values, places, stride, width, best, found, n)
        for row in range(g.rows):
            at = (number * g.rows + row) * g.columns
            start = row * windows
            largest, result = best[start : start + g.columns], y[at : at + g.columns]
            for i in range(g.columns):
                result[i] = largest[i]
            if keeps_index:
                first, where = found[start : start + g.columns], index[at : at + g.columns]
                for i in range(g.columns):
                    where[i] = first[i]


@compiled()
def maxima_backward(
    size: int, plane_size: int, dy: Array, index: Array, dx: Array, begin: int, end: int
) -> None:
    """Compute the gradient. Planes of dx have ``plane_size`` elements, those of dy ``size``."""
    for plane in range(begin, end):
        target = plane * plane_size
        dx[target : target + plane_size] = 0
        for i in range(plane * size, (plane + 1) * size):
            dx[target + index[i]] += dy[i]


@inlined
def _total(x: Array, first: int, height: int, width: int, line: int) -> Any:
    """Return a sum taken line by line, so that the sum of a whole plane keeps its digits."""
    total = x.dtype.type(0)
    for i in range(height):
        part = x.dtype.type(0)
        for j in range(width):
            part += x[first + i * line + j]
        total += part
    return total


@inlined
def _add_to_all(x: Array, first: int, height: int, width: int, line: int, value: Any) -> None:
    for i in range(height):
        for j in range(width):
            x[first + i * line + j] += value


@compiled()
def averages(g: Any, x: Array, y: Array, begin: int, end: int) -> None:
    """Compute averages. A window's size includes the padding that it covers, at most one pad beyond
    x."""
    high, wide, line = g.kernel_height, g.kernel_width, g.width
    for number in range(begin, end):
        plane = number * g.height * g.width
        for row in range(g.rows):
            start = row * g.stride_down - g.pad_down
            full_height = min(start + high, g.height + g.pad_down) - start
            top, bottom = max(start, 0), min(start + high, g.height)
            for column in range(g.columns):
                start = column * g.stride_across - g.pad_across
                full_width = min(start + wide, g.width + g.pad_across) - start
                left, right = max(start, 0), min(start + wide, g.width)
                first, height, width = plane + top * line + left, bottom - top, right - left
                if height == 2 and width == 2:
                    total = _total(x, first, 2, 2, line)
                elif height == 3 and width == 3:
                    total = _total(x, first, 3, 3, line)
                else:
                    total = _total(x, first, height, width, line)
                at = (number * g.rows + row) * g.columns + column
                y[at] = total / y.dtype.type(full_height * full_width)


@compiled()
def averages_backward(g: Any, dy: Array, dx: Array, begin: int, end: int) -> None:
    high, wide, line = g.kernel_height, g.kernel_width, g.width
    for number in range(begin, end):
        plane = number * g.height * g.width
        dx[plane : plane + g.height * g.width] = 0
        for row in range(g.rows):
            start = row * g.stride_down - g.pad_down
            full_height = min(start + high, g.height + g.pad_down) - start
            top, bottom = max(start, 0), min(start + high, g.height)
            for column in range(g.columns):
                start = column * g.stride_across - g.pad_across
                full_width = min(start + wide, g.width + g.pad_across) - start
                left, right = max(start, 0), min(start + wide, g.width)
                first, height, width = plane + top * line + left, bottom - top, right - left
                at = (number * g.rows + row) * g.columns + column
                share = dy[at] / dy.dtype.type(full_height * full_width)
                if height == 2 and width == 2:
                    _add_to_all(dx, first, 2, 2, line, share)
                elif height == 3 and width == 3:
                    _add_to_all(dx, first, 3, 3, line, share)
                else:
                    _add_to_all(dx, first, height, width, line, share)
