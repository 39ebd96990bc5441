"""Loops over the elements of several tensors: products, quotients, maxima, selections. Results may share
an operand's memory; see ``elementwise``."""

from __future__ import annotations

import numpy as np

from demitasse_cpu.loops.bfloat16 import got, number, put
from demitasse_cpu.loops.compiled import Array, compiled


@compiled()
def multiplied(a: Array, b: Array, y: Array, begin: int, end: int) -> None:
    a, b, y = a[begin:end], b[begin:end], y[begin:end]
    for i in range(y.size):
        put(y, i, got(a, i) * got(b, i))


@compiled()
def divided(dy: Array, whole: Array, x: Array, dx: Array, begin: int, end: int) -> None:
    dy, whole, x, dx = dy[begin:end], whole[begin:end], x[begin:end], dx[begin:end]
    for i in range(dx.size):
        put(dx, i, got(whole, i) / got(x, i) * got(dy, i))


@compiled()
def larger_of_two(a: Array, b: Array, y: Array, argmax: Array, begin: int, end: int) -> None:
    """Compute the larger of two tensors and its number; for equal elements it is that of the second."""
    a, b, y, argmax = a[begin:end], b[begin:end], y[begin:end], argmax[begin:end]
    for i in range(y.size):
        first, second = got(a, i), got(b, i)
        put(argmax, i, np.int32(0) if first > second else np.int32(1))
        put(y, i, first if first > second else second)


@compiled()
def larger(x: Array, y: Array, argmax: Array, mine: int, begin: int, end: int) -> None:
    """Keep y where x is not larger; otherwise store x, whose number is ``mine``."""
    x, y, argmax = x[begin:end], y[begin:end], argmax[begin:end]
    for i in range(y.size):
        value, best = x[i], y[i]
        above = got(x, i) > got(y, i)
        argmax[i] = np.int32(mine) if above else argmax[i]
        y[i] = value if above else best


@compiled()
def chosen(dy: Array, argmax: Array, dx: Array, mine: int, begin: int, end: int) -> None:
    zero = number(0, dy)
    dy, argmax, dx = dy[begin:end], argmax[begin:end], dx[begin:end]
    for i in range(dx.size):
        value = got(dy, i)
        put(dx, i, value if got(argmax, i) == mine else zero)


@compiled()
def selected(c: Array, a: Array, b: Array, y: Array, begin: int, end: int) -> None:
    zero = number(0, c)
    c, a, b, y = c[begin:end], a[begin:end], b[begin:end], y[begin:end]
    for i in range(y.size):
        first, second = got(a, i), got(b, i)
        put(y, i, first if got(c, i) != zero else second)


@compiled()
def selected_backward(dy: Array, c: Array, dx: Array, first: bool, begin: int, end: int) -> None:
    """Compute the gradient of the operand that is selected where c is not 0 or, unless ``first``, of the
    other."""
    zero = number(0, dy)
    dy, c, dx = dy[begin:end], c[begin:end], dx[begin:end]
    for i in range(dx.size):
        put(dx, i, got(dy, i) if (got(c, i) != zero) == first else zero)
