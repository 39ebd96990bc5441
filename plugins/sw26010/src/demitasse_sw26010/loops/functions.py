"""Functions of one element and their slopes, and products and maxima of several tensors. All of them
stream."""

from __future__ import annotations

import math

import numpy as np

from demitasse_sw26010.model.mesh import FLOPS, stream
from demitasse_sw26010.model.programs import Array, program

ABSOLUTE, SOFTPLUS, CLIP, ELU, EXPONENTIAL, LOGARITHM, POWER, SIGMOID, SWISH, TANH, GREATER = range(11)


@program
def value(x: float, what: int, numbers: Array) -> float:
    """Return the function at x."""
    if what == ABSOLUTE:
        return abs(x)
    if what == SOFTPLUS:
        return max(x, 0.0) + math.log1p(math.exp(-abs(x)))
    if what == CLIP:
        return float(min(max(x, numbers[0]), numbers[1]))
    if what == ELU:
        return x if x > 0 else float(numbers[0] * math.expm1(x))
    if what == EXPONENTIAL:
        return math.exp(numbers[0] * x + numbers[1])
    if what == LOGARITHM:
        return float(numbers[0] * np.log(numbers[1] * x + numbers[2]))
    if what == POWER:
        return float((numbers[1] * x + numbers[2]) ** numbers[0]) if numbers[0] != 0 else 1.0
    if what == SIGMOID:
        return float(1.0 / (1.0 + np.exp(-x)))
    if what == SWISH:
        return float(x / (1.0 + np.exp(-numbers[0] * x)))
    if what == TANH:
        return math.tanh(x)
    return 1.0 if x > numbers[0] else 0.0


@program
def slope(z: float, what: int, numbers: Array) -> float:
    """Return the function's slope, computed from x or, if that is shorter, from y."""
    if what == ABSOLUTE:
        return float(np.sign(z))
    if what == SOFTPLUS:
        return float(1.0 / (1.0 + np.exp(-z)))
    if what == CLIP:
        return 1.0 if numbers[0] <= z <= numbers[1] else 0.0
    if what == ELU:
        return 1.0 if z > 0 else z + numbers[0]
    if what == EXPONENTIAL:
        return float(z * numbers[0])
    if what == LOGARITHM:
        return float(numbers[0] * numbers[1] / (numbers[1] * z + numbers[2]))
    if what == POWER:
        if numbers[0] == 0 or numbers[1] == 0:
            return 0.0
        return float(numbers[0] * numbers[1] * (numbers[1] * z + numbers[2]) ** (numbers[0] - 1.0))
    if what == SIGMOID:
        return z * (1.0 - z)
    if what == SWISH:
        s = 1.0 / (1.0 + np.exp(-numbers[0] * z))
        return float(s + numbers[0] * z * s * (1.0 - s))
    return 1.0 - z * z


@program
def function(
    count: Array,
    touch: bool,
    lx: Array,
    lz: Array,
    x: Array,
    y: Array,
    size: int,
    what: int,
    cycles: float,
    numbers: Array,
) -> None:
    """y = the function of x, which takes ``cycles`` cycles for each element."""
    stream(count, 1.0 * size, 1.0 * size, size / 64.0 * cycles)
    count[FLOPS] += 1.0 * size
    if not touch:
        return
    for begin in range(0, size, lx.size):
        some = min(lx.size, size - begin)
        for i in range(some):
            lx[i] = x[begin + i]
        for i in range(some):
            lx[i] = value(float(lx[i]), what, numbers)
        for i in range(some):
            y[begin + i] = lx[i]


@program
def function_backward(
    count: Array,
    touch: bool,
    lx: Array,
    lz: Array,
    dy: Array,
    z: Array,
    dx: Array,
    size: int,
    what: int,
    cycles: float,
    numbers: Array,
) -> None:
    """dx = dy * the slope at z."""
    stream(count, 2.0 * size, 1.0 * size, size / 64.0 * cycles)
    count[FLOPS] += 2.0 * size
    if not touch:
        return
    for begin in range(0, size, lx.size):
        some = min(lx.size, size - begin)
        for i in range(some):
            lx[i], lz[i] = dy[begin + i], z[begin + i]
        for i in range(some):
            lx[i] = lx[i] * slope(float(lz[i]), what, numbers)
        for i in range(some):
            dx[begin + i] = lx[i]


@program
def times(
    count: Array,
    touch: bool,
    lx: Array,
    lz: Array,
    x: Array,
    y: Array,
    size: int,
    first: bool,
    divide: bool,
) -> None:
    """y = x for the ``first`` factor, otherwise y * x or, with ``divide``, y / x."""
    stream(count, size * (1.0 if first else 2.0), 1.0 * size, size / 64.0)
    count[FLOPS] += 1.0 * size
    if not touch:
        return
    for begin in range(0, size, lx.size):
        some = min(lx.size, size - begin)
        for i in range(some):
            lx[i] = x[begin + i]
        if not first:
            for i in range(some):
                lz[i] = y[begin + i]
            for i in range(some):
                lx[i] = lz[i] / lx[i] if divide else lz[i] * lx[i]
        for i in range(some):
            y[begin + i] = lx[i]


@program
def larger(
    count: Array,
    touch: bool,
    lx: Array,
    lz: Array,
    x: Array,
    y: Array,
    argmax: Array,
    size: int,
    number: int,
) -> None:
    """y = the larger of y and x, which is tensor ``number``; the first tensor starts it. Of equal values
    the earlier one stays, except that the second replaces the first."""
    kept = 1.0 if argmax.size > 0 else 0.0
    begun = 0.0 if number == 0 else 1.0
    stream(count, size * (1.0 + begun * (1.0 + kept)), size * (1.0 + kept), size / 64.0)
    count[FLOPS] += 1.0 * size
    if not touch:
        return
    for begin in range(0, size, lx.size):
        some = min(lx.size, size - begin)
        for i in range(some):
            lx[i] = x[begin + i]
        for i in range(some):
            lz[i] = lx[i] if number == 0 else y[begin + i]
        for i in range(some):
            taken = number == 0 or lx[i] > lz[i] or (number == 1 and lx[i] == lz[i])
            if taken:
                y[begin + i] = lx[i]
                if argmax.size > 0:
                    argmax[begin + i] = number


@program
def chosen(
    count: Array,
    touch: bool,
    lx: Array,
    lz: Array,
    dy: Array,
    argmax: Array,
    dx: Array,
    size: int,
    number: int,
) -> None:
    """dx = dy where tensor ``number`` was the largest, else 0."""
    stream(count, 2.0 * size, 1.0 * size, size / 64.0)
    count[FLOPS] += 1.0 * size
    if not touch:
        return
    for begin in range(0, size, lx.size):
        some = min(lx.size, size - begin)
        for i in range(some):
            lx[i] = dy[begin + i]
        for i in range(some):
            dx[begin + i] = lx[i] if argmax[begin + i] == number else np.float32(0.0)


@program
def sloped(
    count: Array,
    touch: bool,
    lx: Array,
    lz: Array,
    x: Array,
    w: Array,
    y: Array,
    samples: int,
    channels: int,
    inner: int,
) -> None:
    """y = x where x > 0, else w * x. w has one number for each channel, or one for all."""
    size = 1.0 * samples * channels * inner
    stream(count, size, size, size / 64.0)
    count[FLOPS] += size
    if not touch:
        return
    for row in range(samples * channels):
        factor = w[row % channels] if w.size > 1 else w[0]
        for begin in range(row * inner, (row + 1) * inner, lx.size):
            some = min(lx.size, (row + 1) * inner - begin)
            for i in range(some):
                lx[i] = x[begin + i]
            for i in range(some):
                y[begin + i] = lx[i] if lx[i] > 0 else lx[i] * factor


@program
def sloped_backward(
    count: Array,
    touch: bool,
    lx: Array,
    lz: Array,
    dy: Array,
    x: Array,
    w: Array,
    dx: Array,
    dw: Array,
    samples: int,
    channels: int,
    inner: int,
) -> None:
    """dx = dy where x > 0, else w * dy; dw = the sum of dy * x where x <= 0."""
    size = 1.0 * samples * channels * inner
    stream(count, 2.0 * size, size * (1.0 if dx.size > 0 else 0.0), size / 64.0)
    count[FLOPS] += 3.0 * size
    if not touch:
        return
    sums = np.zeros(w.size)
    for row in range(samples * channels):
        c = row % channels if w.size > 1 else 0
        for begin in range(row * inner, (row + 1) * inner, lx.size):
            some = min(lx.size, (row + 1) * inner - begin)
            for i in range(some):
                lx[i], lz[i] = dy[begin + i], x[begin + i]
            for i in range(some):
                open_ = lz[i] > 0
                if not open_:
                    sums[c] += float(lx[i]) * lz[i]
                if dx.size > 0:
                    dx[begin + i] = lx[i] if open_ else lx[i] * w[c]
    if dw.size > 0:
        for c in range(w.size):
            dw[c] = sums[c]
