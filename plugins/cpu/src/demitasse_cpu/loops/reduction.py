"""Sums over rows, rows standardised by their mean and deviation, and the largest elements along an
axis."""

from __future__ import annotations

import math
from typing import Any

from demitasse_cpu.loops.bfloat16 import got, narrow, number, put
from demitasse_cpu.loops.compiled import Array, compiled

_CHUNK = 4096
"""The number of elements that are summed in their own type before they are added up in float64."""


@compiled(reassociate=True)
def _sum_of(x: Array) -> Any:
    total = number(0, x)
    for i in range(x.size):
        total += got(x, i)
    return total


@compiled(reassociate=True)
def _sum_of_products(a: Array, b: Array) -> Any:
    total = number(0, a)
    for i in range(a.size):
        total += got(a, i) * got(b, i)
    return total


@compiled(reassociate=True)
def _sum_of_squares(x: Array, mean: Any) -> Any:
    total = number(0, x)
    for i in range(x.size):
        apart = got(x, i) - mean
        total += apart * apart
    return total


@compiled(reassociate=True)
def _sum_of_absolutes(x: Array) -> Any:
    total = number(0, x)
    for i in range(x.size):
        total += abs(got(x, i))
    return total


@compiled()
def _total(x: Array, term: int) -> float:
    """Return the sum of values (0), of their magnitudes (1) or of their squares (2), in float64 for any
    length."""
    total = 0.0
    for at in range(0, x.size, _CHUNK):
        part = x[at : at + _CHUNK]
        if term == 0:
            total += _sum_of(part)
        elif term == 1:
            total += _sum_of_absolutes(part)
        else:
            total += _sum_of_products(part, part)
    return total


@compiled()
def _mean(x: Array) -> Any:
    return number(_total(x, 0) / x.size, x)


@compiled()
def pieces_summed(
    x: Array, sums: Array, term: int, inner: int, pieces: int, length: int, begin: int, end: int
) -> None:
    """Sum pieces of rows: each row of ``inner`` elements has ``pieces`` pieces of at most ``length``.
    ``term`` is as in ``_total``."""
    for piece in range(begin, end):
        first = piece % pieces * length
        at = piece // pieces * inner
        part = x[at + first : at + min(first + length, inner)]
        sums[piece] = _total(part, term)


@compiled()
def rows_summed(sums: Array, y: Array, pieces: int, coefficient: float, begin: int, end: int) -> None:
    for row in range(begin, end):
        total = 0.0
        for piece in range(row * pieces, (row + 1) * pieces):
            total += sums[piece]
        y[row] = narrow(coefficient * total, y)


@compiled()
def pieces_spread(
    dy: Array,
    x: Array,
    dx: Array,
    coefficient: float,
    term: int,
    inner: int,
    pieces: int,
    length: int,
    begin: int,
    end: int,
) -> None:
    """Spread each row's gradient over its elements. ``x`` is not read if the values themselves were
    summed."""
    for piece in range(begin, end):
        row, first = piece // pieces, piece % pieces * length
        start, stop = row * inner + first, row * inner + min(first + length, inner)
        slope = number(coefficient * dy[row], dx)
        zero, two = number(0, dx), number(2, dx)
        value, result = x[start:stop], dx[start:stop]
        if term == 0:
            for i in range(result.size):
                put(result, i, slope)
        elif term == 1:
            for i in range(result.size):
                element = got(value, i)
                put(result, i, slope if element > zero else (-slope if element < zero else zero))
        else:
            for i in range(result.size):
                put(result, i, slope * two * got(value, i))


@compiled()
def centre(x: Array, y: Array, inner: int, begin: int, end: int) -> None:
    for row in range(begin, end):
        given, result = x[row * inner : (row + 1) * inner], y[row * inner : (row + 1) * inner]
        mean = _mean(given)
        for i in range(inner):
            put(result, i, got(given, i) - mean)


@compiled()
def standardize(
    x: Array, y: Array, deviation: Array, epsilon: float, inner: int, begin: int, end: int
) -> None:
    """Standardise rows; ``deviation`` is empty if nobody reads it."""
    for row in range(begin, end):
        given, result = x[row * inner : (row + 1) * inner], y[row * inner : (row + 1) * inner]
        mean = _mean(given)
        squares = 0.0
        for at in range(0, inner, _CHUNK):
            squares += _sum_of_squares(given[at : at + _CHUNK], mean)
        size = math.sqrt(squares / inner)
        if deviation.size > 0:
            deviation[row] = narrow(size, deviation)
        inverse = number(1 / (size + epsilon), x)
        for i in range(inner):
            put(result, i, (got(given, i) - mean) * inverse)


@compiled()
def standardize_backward(
    dy: Array,
    y: Array,
    deviation: Array,
    dx: Array,
    epsilon: float,
    inner: int,
    begin: int,
    end: int,
) -> None:
    for row in range(begin, end):
        start, stop = row * inner, (row + 1) * inner
        slope, value, result = dy[start:stop], y[start:stop], dx[start:stop]
        mean, products = _mean(slope), 0.0
        for at in range(0, inner, _CHUNK):
            products += _sum_of_products(slope[at : at + _CHUNK], value[at : at + _CHUNK])
        size = float(deviation[row])
        # A constant row has no direction in which its deviation would change.
        tilt = number(products / inner / size if size > 0 else 0.0, dy)
        inverse = number(1 / (size + epsilon), dy)
        for i in range(inner):
            put(result, i, (got(slope, i) - mean) * inverse - got(value, i) * tilt)


@compiled()
def _before(x: Array, at: int, inner: int, a: int, b: int) -> bool:
    """Return whether a row's element a is smaller than element b, or equal and earlier."""
    left, right = x[at + a * inner], x[at + b * inner]
    return left < right or (left == right and a < b)


@compiled()
def _sift(x: Array, at: int, inner: int, heap: Array, root: int, size: int) -> None:
    """Let the ``root`` of the heap sink to its place. The heap has ``size`` elements, with the smallest
    on top."""
    while 2 * root + 1 < size:
        child = 2 * root + 1
        if child + 1 < size and _before(x, at, inner, heap[child + 1], heap[child]):
            child += 1
        if not _before(x, at, inner, heap[child], heap[root]):
            return
        heap[root], heap[child] = heap[child], heap[root]
        root = child


@compiled()
def largest(
    x: Array,
    y: Array,
    heap: Array,
    places: bool,
    values: bool,
    classes: int,
    inner: int,
    begin: int,
    end: int,
) -> None:
    """Find the ``heap.size`` largest elements of rows in (outer, classes, inner), in descending order:
    their places, their values, or both one after the other."""
    count, kinds = heap.size, int(places) + int(values)
    for row in range(begin, end):
        at = row // inner * classes * inner + row % inner
        for i in range(count):
            heap[i] = i
        for root in range(count // 2, -1, -1):
            _sift(x, at, inner, heap, root, count)
        for i in range(count, classes):
            if _before(x, at, inner, heap[0], i):
                heap[0] = i
                _sift(x, at, inner, heap, 0, count)
        to = row // inner * kinds * count * inner + row % inner
        for left in range(count - 1, -1, -1):  # the smallest one left goes to the end
            if places:
                y[to + left * inner] = heap[0]
            if values:
                y[to + (left + (kinds - 1) * count) * inner] = x[at + heap[0] * inner]
            heap[0] = heap[left]
            _sift(x, at, inner, heap, 0, left)
