"""Loops over independent elements; each part takes a range of them.

A result may share an operand's memory, element for element, because a plan computes in place. The
compiler's own check for overlaps would then choose a version of the loop without vectors. These loops
therefore load and store through ``got`` and ``put``, which promise that no other elements overlap. In
place, relu_backward took 0.26 ns an element, and 0.87 ns in bfloat16; it now takes 0.09 and 0.08 ns.
"""

from __future__ import annotations

import math

from demitasse_cpu.loops.bfloat16 import got, narrow, number, put
from demitasse_cpu.loops.compiled import Array, compiled


@compiled()
def relu(x: Array, y: Array, negative_slope: float, begin: int, end: int) -> None:
    zero, slope = number(0, x), number(negative_slope, x)
    x, y = x[begin:end], y[begin:end]
    for i in range(x.size):
        value = got(x, i)
        put(y, i, value if value > zero else slope * value)


@compiled()
def relu_backward(dy: Array, y: Array, dx: Array, negative_slope: float, begin: int, end: int) -> None:
    zero, slope = number(0, y), number(negative_slope, y)
    dy, y, dx = dy[begin:end], y[begin:end], dx[begin:end]
    for i in range(dx.size):
        value = got(dy, i)
        put(dx, i, value if got(y, i) > zero else slope * value)


@compiled()
def copied(x: Array, y: Array, begin: int, end: int) -> None:
    x, y = x[begin:end], y[begin:end]
    for i in range(x.size):
        put(y, i, got(x, i))


@compiled()
def reversed_gradient(
    dy: Array,
    iteration: Array,
    dx: Array,
    lower: float,
    upper: float,
    steepness: float,
    iterations: float,
    begin: int,
    end: int,
) -> None:
    progress = min(iteration[0] / iterations, 1.0)
    share = 2.0 / (1.0 + math.exp(-steepness * progress)) - 1.0
    factor = number(-(lower + (upper - lower) * share), dy)
    dy, dx = dy[begin:end], dx[begin:end]
    for i in range(dx.size):
        put(dx, i, factor * got(dy, i))


@compiled()
def masked(dy: Array, mask: Array, dx: Array, factor: float, begin: int, end: int) -> None:
    zero, scale = number(0, dy), number(factor, dy)
    dy, mask, dx = dy[begin:end], mask[begin:end], dx[begin:end]
    for i in range(dx.size):
        value = scale * got(dy, i)
        put(dx, i, value if got(mask, i) != 0 else zero)


@compiled()
def filled(x: Array, value: float, begin: int, end: int) -> None:
    x, stored = x[begin:end], narrow(value, x)
    for i in range(x.size):
        x[i] = stored


@compiled()
def converted(x: Array, y: Array, begin: int, end: int) -> None:
    """Copy x to y, which may be stored in another type."""
    x, y = x[begin:end], y[begin:end]
    for i in range(x.size):
        put(y, i, got(x, i))


@compiled()
def scaled(x: Array, y: Array, factor: float, begin: int, end: int) -> None:
    scale = number(factor, x)
    x, y = x[begin:end], y[begin:end]
    for i in range(x.size):
        put(y, i, scale * got(x, i))


@compiled()
def scaled_sum(
    a: Array, b: Array, y: Array, factor_a: float, factor_b: float, least: float, begin: int, end: int
) -> None:
    """Compute a weighted sum. ``least`` is the smallest possible result: 0 for a ReLU, otherwise minus
    infinity."""
    scale_a, scale_b, floor = number(factor_a, a), number(factor_b, a), number(least, a)
    a, b, y = a[begin:end], b[begin:end], y[begin:end]
    for i in range(y.size):
        total = scale_a * got(a, i) + scale_b * got(b, i)
        put(y, i, floor if total < floor else total)


@compiled()
def scaled_sum_where(
    a: Array, b: Array, r: Array, y: Array, factor_a: float, factor_b: float, begin: int, end: int
) -> None:
    """Add two gradients of a ReLU's result ``r`` and pass the sum through the ReLU: 0 where r is not
    above 0."""
    scale_a, scale_b, zero = number(factor_a, a), number(factor_b, a), number(0, a)
    a, b, r, y = a[begin:end], b[begin:end], r[begin:end], y[begin:end]
    for i in range(y.size):
        total = scale_a * got(a, i) + scale_b * got(b, i)
        put(y, i, total if got(r, i) > zero else zero * total)


@compiled()
def scaled_sum_of_four(
    a: Array,
    b: Array,
    c: Array,
    d: Array,
    y: Array,
    factor_a: float,
    factor_b: float,
    factor_c: float,
    factor_d: float,
    least: float,
    begin: int,
    end: int,
) -> None:
    scale_a, scale_b, floor = number(factor_a, a), number(factor_b, a), number(least, a)
    scale_c, scale_d = number(factor_c, a), number(factor_d, a)
    a, b, c, d, y = a[begin:end], b[begin:end], c[begin:end], d[begin:end], y[begin:end]
    for i in range(y.size):
        total = scale_a * got(a, i) + scale_b * got(b, i)
        total += scale_c * got(c, i) + scale_d * got(d, i)
        put(y, i, floor if total < floor else total)


@compiled()
def copied_rows(
    x: Array,
    x_at: int,
    x_stride: int,
    y: Array,
    y_at: int,
    y_stride: int,
    width: int,
    begin: int,
    end: int,
) -> None:
    """Copy rows of ``width`` elements; the strides are the distances from one row to the next."""
    for row in range(begin, end):
        source, target = x_at + row * x_stride, y_at + row * y_stride
        given, result = x[source : source + width], y[target : target + width]
        for i in range(width):
            result[i] = given[i]
