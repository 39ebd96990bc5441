"""Permutations of axes, and weighted sums along an axis of tensors seen as outer x axis x inner."""

from __future__ import annotations

from demitasse_cpu.loops.compiled import Array, compiled


@compiled()
def gathered_rows(
    x: Array, y: Array, starts: Array, step: int, width: int, begin: int, end: int
) -> None:
    """Copy each row of y from every ``step``-th number of x, starting where ``starts`` says."""
    for row in range(begin, end):
        result = y[row * width : (row + 1) * width]
        given = x[starts[row] : starts[row] + (width - 1) * step + 1]
        if step == 1:
            for i in range(width):
                result[i] = given[i]
        else:
            for i in range(width):
                result[i] = given[i * step]


@compiled()
def resampled(
    x: Array, places: Array, weights: Array, y: Array, extent: int, inner: int, begin: int, end: int
) -> None:
    """Compute rows ``begin`` to ``end`` of y, each ``inner`` numbers long. ``extent`` is that of x's
    axis."""
    results, taps = places.shape
    for row in range(begin, end):
        outer, i = row // results, row % results
        result = y[row * inner : (row + 1) * inner]
        for k in range(taps):
            weight = weights[i, k]
            at = (outer * extent + int(places[i, k])) * inner
            given = x[at : at + inner]
            if k == 0:
                for j in range(inner):
                    result[j] = weight * given[j]
            else:
                for j in range(inner):
                    result[j] += weight * given[j]


@compiled()
def resampled_last(
    x: Array, places: Array, weights: Array, y: Array, extent: int, inner: int, begin: int, end: int
) -> None:
    """Compute the same along the last axis, for whole lines of x."""
    results, taps = places.shape
    for outer in range(begin, end):
        given = x[outer * extent : (outer + 1) * extent]
        result = y[outer * results : (outer + 1) * results]
        for i in range(results):
            total = weights[i, 0] * given[int(places[i, 0])]
            for k in range(1, taps):
                total += weights[i, k] * given[int(places[i, k])]
            result[i] = total


@compiled()
def resampled_backward(
    dy: Array, places: Array, weights: Array, dx: Array, extent: int, inner: int, begin: int, end: int
) -> None:
    """Compute the outer parts ``begin`` to ``end`` of dx, each summed in the order of the results
    whichever thread does it."""
    results, taps = places.shape
    for outer in range(begin, end):
        dx[outer * extent * inner : (outer + 1) * extent * inner] = 0
        for i in range(results):
            at = (outer * results + i) * inner
            given = dy[at : at + inner]
            for k in range(taps):
                weight = weights[i, k]
                to = (outer * extent + int(places[i, k])) * inner
                result = dx[to : to + inner]
                for j in range(inner):
                    result[j] += weight * given[j]
