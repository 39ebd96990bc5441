"""Learned slopes below 0, and the sums that are their gradients: over planes, each with one slope, and
over rows of channels, each channel with its own."""

from __future__ import annotations

from demitasse_cpu.loops.bfloat16 import got, number, put
from demitasse_cpu.loops.compiled import Array, compiled


@compiled()
def sloped_planes(dy: Array, x: Array, w: Array, dx: Array, inner: int, begin: int, end: int) -> None:
    """Compute dx = dy where x > 0, else w * dy, plane by plane; the slopes repeat from image to
    image."""
    zero = number(0, x)
    for plane in range(begin, end):
        slope = number(w[plane % w.size], x)
        at = plane * inner
        given, value, result = dy[at : at + inner], x[at : at + inner], dx[at : at + inner]
        for i in range(inner):
            element = got(given, i)
            put(result, i, element if got(value, i) > zero else slope * element)


@compiled()
def sloped_channels(dy: Array, x: Array, w: Array, dx: Array, begin: int, end: int) -> None:
    zero = number(0, x)
    for row in range(begin, end):
        at = row * w.size
        given, value, result = dy[at : at + w.size], x[at : at + w.size], dx[at : at + w.size]
        for c in range(w.size):
            element = got(given, c)
            put(result, c, element if got(value, c) > zero else got(w, c) * element)


@compiled(reassociate=True)
def summed_planes(dy: Array, x: Array, partial: Array, inner: int, begin: int, end: int) -> None:
    """Compute the sum of dy * x where x <= 0 for each slope, in ``partial`` (float64)."""
    zero = number(0, x)
    partial[:] = 0
    for plane in range(begin, end):
        at = plane * inner
        given, value = dy[at : at + inner], x[at : at + inner]
        total = zero
        for i in range(inner):
            element = got(value, i)
            total += zero if element > zero else got(given, i) * element
        partial[plane % partial.size] += total


@compiled()
def summed_channels(dy: Array, x: Array, partial: Array, begin: int, end: int) -> None:
    zero = number(0, x)
    partial[:] = 0
    for row in range(begin, end):
        at = row * partial.size
        given, value = dy[at : at + partial.size], x[at : at + partial.size]
        for c in range(partial.size):
            element = got(value, c)
            partial[c] += zero if element > zero else got(given, c) * element


@compiled()
def added_up(partials: Array, dw: Array, begin: int, end: int) -> None:
    """Add up the rows of ``partials`` in their order, so that the sum is the same in every run."""
    for c in range(begin, end):
        total = 0.0
        for part in range(partials.shape[0]):
            total += partials[part, c]
        dw[c] = total
