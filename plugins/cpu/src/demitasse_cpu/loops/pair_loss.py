"""Losses of pairs of values that should be alike, or apart. Sums are as in loops.loss. A target counts
unless its integer part equals ``ignored`` (NaN ignores none)."""

from __future__ import annotations

import math

import numpy as np

from demitasse_cpu.loops.bfloat16 import got, put
from demitasse_cpu.loops.compiled import Array, compiled
from demitasse_cpu.loops.exponentials import exponential, logarithm_of_one_plus


@compiled()
def _cross_entropies(x: Array, target: Array, losses: Array, ignored: float) -> int:
    """Write the loss of each element to ``losses``, and return how many count."""
    zero, counted = x.dtype.type(0), 0
    for i in range(x.size):
        value, wanted = x[i], x.dtype.type(target[i])
        above = zero if value <= 0 else value
        rest = logarithm_of_one_plus(exponential(-abs(value)))
        counts = np.trunc(wanted) != ignored
        losses[i] = above - value * wanted + rest if counts else zero
        counted += 1 if counts else 0
    return counted


@compiled(reassociate=True)
def _sum(x: Array) -> float:
    total = 0.0
    for i in range(x.size):
        total += float(x[i])
    return total


@compiled()
def sigmoid_cross_entropy_loss(
    x: Array, target: Array, partial: Array, losses: Array, ignored: float, begin: int, end: int
) -> None:
    """Compute a part of the loss: the losses of as many elements as fit into ``losses``, then their sum,
    and so on. Exponentials are inexact if the compiler may reassociate, and sums are not vectorised if
    it may not (one loop for both takes 44 ms for 6.4 million elements, and this takes 2 ms)."""
    total, counted = 0.0, 0
    for at in range(begin, end, losses.size):
        stop = min(at + losses.size, end)
        part = losses[: stop - at]
        counted += _cross_entropies(x[at:stop], target[at:stop], part, ignored)
        total += _sum(part)
    partial[:] = 0
    partial[0], partial[1] = total, counted


@compiled()
def _counted(target: Array, ignored: float) -> int:
    counted = 0
    for i in range(target.size):
        counted += 1 if np.trunc(float(target[i])) != ignored else 0
    return counted


@compiled()
def sigmoid_cross_entropy_loss_backward(
    dloss: Array,
    x: Array,
    target: Array,
    dx: Array,
    ignored: float,
    divisor: float,
    begin: int,
    end: int,
) -> None:
    if divisor == 0:
        divisor = max(float(_counted(target, ignored)), 1.0)
    one, zero, factor = x.dtype.type(1), x.dtype.type(0), x.dtype.type(dloss[0] / divisor)
    values, targets, slopes = x[begin:end], target[begin:end], dx[begin:end]
    for i in range(values.size):
        value, wanted = got(values, i), x.dtype.type(got(targets, i))
        power = exponential(-abs(value))
        share = (one if value >= 0 else power) / (one + power)
        slope = factor * (share - wanted)
        put(slopes, i, slope if np.trunc(wanted) != ignored else zero)


@compiled(reassociate=True)
def half_squared_distance(a: Array, b: Array, partial: Array, begin: int, end: int) -> None:
    partial[:] = 0
    left, right, total = a[begin:end], b[begin:end], 0.0
    for i in range(end - begin):
        difference = float(left[i]) - float(right[i])
        total += difference * difference
    partial[0] = total / 2


@compiled()
def half_squared_distance_backward(
    dloss: Array, a: Array, b: Array, da: Array, db: Array, divisor: float, begin: int, end: int
) -> None:
    """Compute the gradients; ``da`` or ``db`` may be empty, for none."""
    factor, left, right = a.dtype.type(dloss[0] / divisor), a[begin:end], b[begin:end]
    if da.size > 0:
        target = da[begin:end]
        for i in range(end - begin):
            target[i] = factor * (left[i] - right[i])
    if db.size > 0:
        target = db[begin:end]
        for i in range(end - begin):
            target[i] = factor * (right[i] - left[i])


@compiled(reassociate=True)
def _squared_distance(a: Array, b: Array) -> float:
    total = 0.0
    for i in range(a.size):
        difference = float(a[i]) - float(b[i])
        total += difference * difference
    return total


@compiled()
def contrastive_loss(
    a: Array,
    b: Array,
    similar: Array,
    partial: Array,
    margin: float,
    legacy: bool,
    length: int,
    begin: int,
    end: int,
) -> None:
    partial[:] = 0
    for row in range(begin, end):
        here = slice(row * length, (row + 1) * length)
        square = _squared_distance(a[here], b[here])
        if int(similar[row]) != 0:
            partial[0] += square / 2
        else:
            opening = margin - (square if legacy else math.sqrt(square))
            opening = 0.0 if opening <= 0 else opening
            partial[0] += (opening if legacy else opening * opening) / 2


@compiled()
def contrastive_loss_backward(
    dloss: Array,
    a: Array,
    b: Array,
    similar: Array,
    da: Array,
    db: Array,
    divisor: float,
    margin: float,
    legacy: bool,
    length: int,
    begin: int,
    end: int,
) -> None:
    """Compute the gradients; ``da`` or ``db`` may be empty, for none."""
    for row in range(begin, end):
        here = slice(row * length, (row + 1) * length)
        slope = dloss[0] / divisor
        if int(similar[row]) == 0:
            square = _squared_distance(a[here], b[here])
            distance = math.sqrt(square)
            opening = margin - (square if legacy else distance)
            opening = 0.0 if opening <= 0 else opening
            if not legacy:
                slope *= -opening / (distance + 1e-4)
            else:
                slope *= -1.0 if opening > 0 else 0.0
        for i in range(row * length, (row + 1) * length):
            difference = slope * (float(a[i]) - float(b[i]))
            if da.size > 0:
                da[i] = difference
            if db.size > 0:
                db[i] = -difference
