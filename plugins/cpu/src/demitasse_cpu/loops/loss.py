"""Softmax and losses. Arrays are (outer, classes, inner), with a label for each outer and inner. A label
counts unless it equals ``ignored`` (NaN ignores none).

A part of a loss leaves three numbers in ``partial``: its sum, how many labels count, and one more than
the first row whose label is not a class (0 if there is none). Comparisons are written as
``not (a <= b)``, so that NaN is passed on.
"""

from __future__ import annotations

import math
from typing import Any

from demitasse_cpu.loops.bfloat16 import got, narrow, number, put
from demitasse_cpu.loops.compiled import Array, compiled
from demitasse_cpu.loops.exponentials import exponential
from demitasse_cpu.native import WrongError


@compiled()
def _softmax_of(x: Array, y: Array) -> Any:
    """Compute the softmax of one row. Return the largest of x, and the logarithm of the sum of exp(x -
    largest). That sum is taken in float64: with a million equal classes, float32 would lose the fifth
    digit and, with 2^24, all that follow."""
    largest = x[0]
    for c in range(1, x.size):
        value = x[c]
        if not (value <= largest) and largest == largest:
            largest = value
    for c in range(x.size):
        put(y, c, exponential(got(x, c) - largest))
    total = 0.0
    for c in range(y.size):
        total += y[c]
    divisor = number(total, x)
    for c in range(y.size):
        y[c] /= divisor
    return largest, math.log(total)


@compiled()
def _softmax_of_many(
    x: Array, y: Array, classes: int, inner: int, largest: Array, totals: Array
) -> None:
    """Compute the softmax of as many adjacent rows as ``largest`` has places, one class at a time for
    all of them, in vectors. Leave what ``_softmax_of`` returns, but the sums instead of their
    logarithms."""
    n = largest.size
    totals = totals[:n]
    for i in range(n):
        largest[i] = x[i]
        totals[i] = 0
    for c in range(1, classes):
        line = x[c * inner : c * inner + n]
        for i in range(n):
            value, most = line[i], largest[i]
            largest[i] = value if (not (value <= most)) & (most == most) else most
    for c in range(classes):
        line, powers = x[c * inner : c * inner + n], y[c * inner : c * inner + n]
        for i in range(n):
            put(powers, i, exponential(got(line, i) - got(largest, i)))
        for i in range(n):
            totals[i] += powers[i]
    for c in range(classes):
        shares = y[c * inner : c * inner + n]
        for i in range(n):
            shares[i] /= number(totals[i], x)


@compiled()
def softmax(
    x: Array, y: Array, largest: Array, totals: Array, classes: int, inner: int, begin: int, end: int
) -> None:
    """Compute softmax. ``largest`` and ``totals`` (float64) have room for the rows that are taken
    together."""
    row = begin
    while row < end:
        at, n = row // inner * classes * inner + row % inner, 1
        if inner == 1:
            _softmax_of(x[at : at + classes], y[at : at + classes])
        else:
            n = min(largest.size, end - row, inner - row % inner)
            _softmax_of_many(x[at:], y[at:], classes, inner, largest[:n], totals)
        row += n


@compiled()
def _softmax_backward_of(dy: Array, y: Array, dx: Array) -> None:
    """Compute the gradient of one row."""
    total = 0.0
    for c in range(y.size):
        total += float(dy[c]) * float(y[c])
    mean = number(total, y)
    for c in range(y.size):
        put(dx, c, got(y, c) * (got(dy, c) - mean))


@compiled()
def _softmax_backward_of_many(
    dy: Array, y: Array, dx: Array, classes: int, inner: int, means: Array, totals: Array
) -> None:
    """Compute the gradients of as many adjacent rows as ``means`` has places."""
    n = means.size
    totals = totals[:n]
    for i in range(n):
        totals[i] = 0
    for c in range(classes):
        given, share = dy[c * inner : c * inner + n], y[c * inner : c * inner + n]
        for i in range(n):
            totals[i] += float(given[i]) * float(share[i])
    for i in range(n):
        means[i] = number(totals[i], y)
    for c in range(classes):
        given, share = dy[c * inner : c * inner + n], y[c * inner : c * inner + n]
        result = dx[c * inner : c * inner + n]
        for i in range(n):
            put(result, i, got(share, i) * (got(given, i) - got(means, i)))


@compiled()
def softmax_backward(
    dy: Array,
    y: Array,
    dx: Array,
    means: Array,
    totals: Array,
    classes: int,
    inner: int,
    begin: int,
    end: int,
) -> None:
    """Compute the gradient of softmax. ``means`` and ``totals`` are like ``largest`` and ``totals`` of
    softmax."""
    row = begin
    while row < end:
        at, n = row // inner * classes * inner + row % inner, 1
        if inner == 1:
            _softmax_backward_of(dy[at : at + classes], y[at : at + classes], dx[at : at + classes])
        else:
            n = min(means.size, end - row, inner - row % inner)
            _softmax_backward_of_many(dy[at:], y[at:], dx[at:], classes, inner, means[:n], totals)
        row += n


@compiled()
def is_class(label: float, classes: int) -> bool:
    return label >= 0 and label < classes and label == math.floor(label)


@compiled()
def softmax_loss(
    x: Array,
    label: Array,
    probability: Array,
    keeps_probability: bool,
    partial: Array,
    largest: Array,
    totals: Array,
    ignored: float,
    classes: int,
    inner: int,
    begin: int,
    end: int,
) -> None:
    """Compute a part of the loss. ``probability`` has room for one (classes, inner) if it is not kept;
    ``largest`` and ``totals`` are as in softmax."""
    partial[:] = 0
    row = begin
    while row < end:
        at, n = row // inner * classes * inner + row % inner, 1
        start = at if keeps_probability else row % inner
        if inner > 1:
            n = min(largest.size, end - row, inner - row % inner)
            _softmax_of_many(x[at:], probability[start:], classes, inner, largest[:n], totals)
        for i in range(n):
            value = float(label[row + i])
            counts = value != ignored
            if counts and not is_class(value, classes):
                partial[2] = row + i + 1
                return
            if inner == 1:
                source, target = x[at : at + classes], probability[start : start + classes]
                most, logarithm = _softmax_of(source, target)
            else:
                most, logarithm = largest[i], math.log(totals[i])
            if counts:
                partial[0] += logarithm + (most - x[at + int(value) * inner + i])
                partial[1] += 1
        row += n


@compiled()
def total_loss(partials: Array, loss: Array, wrong: Array, divisor: float) -> None:
    """Compute the loss from the parts' sums in their order, divided by ``divisor`` or, if that is 0, by
    the number of labels that count. Raise WrongError if a label is not a class, with the first such row
    in ``wrong``."""
    total, counted = 0.0, 0.0
    for part in range(partials.shape[0]):
        if partials[part, 2] > 0:
            wrong[0] = int(partials[part, 2]) - 1
            raise WrongError
        total += partials[part, 0]
        counted += partials[part, 1]
    loss[0] = total / (divisor if divisor > 0 else max(counted, 1.0))


@compiled()
def softmax_loss_backward(
    dloss: Array,
    probability: Array,
    label: Array,
    dx: Array,
    ignored: float,
    divisor: float,
    classes: int,
    inner: int,
    begin: int,
    end: int,
) -> None:
    if divisor == 0:
        for row in range(label.size):
            divisor += float(label[row]) != ignored
        divisor = max(divisor, 1.0)
    factor, zero, one = number(dloss[0] / divisor, dx), number(0, dx), number(1, dx)
    row = begin
    while row < end:
        at, n = row // inner * classes * inner + row % inner, min(end - row, inner - row % inner)
        labels, value = label[row : row + n], float(label[row])
        if inner > 1:
            for c in range(classes):
                source, target = probability[at + c * inner :][:n], dx[at + c * inner :][:n]
                for i in range(n):
                    wanted = got(labels, i)
                    slope = factor * (got(source, i) - (one if wanted == c else zero))
                    put(target, i, zero if wanted == ignored else slope)
        else:
            source, target = probability[at : at + classes], dx[at : at + classes]
            at_own = source[int(value)] - one if value != ignored else zero  # dx may be the same memory
            for c in range(classes):
                put(target, c, zero if value == ignored else factor * got(source, c))
            if value != ignored:
                target[int(value)] = narrow(factor * at_own, dx)
        row += n


@compiled()
def infogain_loss(
    x: Array,
    label: Array,
    matrix: Array,
    probability: Array,
    keeps_probability: bool,
    partial: Array,
    largest: Array,
    totals: Array,
    ignored: float,
    least: float,
    classes: int,
    inner: int,
    begin: int,
    end: int,
) -> None:
    """Compute a part of the loss. ``probability``, ``largest`` and ``totals`` are as in softmax_loss."""
    partial[:] = 0
    row = begin
    while row < end:
        at = row // inner * classes * inner + row % inner
        n = min(largest.size, end - row, inner - row % inner)
        target = probability[at if keeps_probability else row % inner :]
        _softmax_of_many(x[at:], target, classes, inner, largest[:n], totals)
        for i in range(n):
            value = float(label[row + i])
            counts = value != ignored
            if counts and not is_class(value, classes):
                partial[2] = row + i + 1
                return
            if counts:
                gains = matrix[int(value) * classes : (int(value) + 1) * classes]
                for c in range(classes):
                    share = float(target[c * inner + i])
                    partial[0] -= gains[c] * math.log(least if share < least else share)
                partial[1] += 1
        row += n


@compiled()
def infogain_loss_backward(
    dloss: Array,
    probability: Array,
    label: Array,
    matrix: Array,
    dx: Array,
    ignored: float,
    divisor: float,
    classes: int,
    inner: int,
    begin: int,
    end: int,
) -> None:
    if divisor == 0:
        for row in range(label.size):
            divisor += float(label[row]) != ignored
        divisor = max(divisor, 1.0)
    factor = dloss[0] / divisor
    for row in range(begin, end):
        at = row // inner * classes * inner + row % inner
        value = float(label[row])
        if value == ignored:
            for c in range(classes):
                dx[at + c * inner] = 0
            continue
        gains = matrix[int(value) * classes : (int(value) + 1) * classes]
        total = 0.0
        for c in range(classes):
            total += gains[c]
        for c in range(classes):
            dx[at + c * inner] = factor * (probability[at + c * inner] * total - gains[c])


@compiled()
def hinge_loss(
    x: Array, label: Array, partial: Array, squared: bool, classes: int, begin: int, end: int
) -> None:
    partial[:] = 0
    for row in range(begin, end):
        value = float(label[row])
        if not is_class(value, classes):
            partial[2] = row + 1
            return
        own, total = int(value), 0.0
        scores = x[row * classes : (row + 1) * classes]
        for c in range(classes):
            opening = 1.0 + (-float(scores[c]) if c == own else float(scores[c]))
            opening = 0.0 if opening <= 0 else opening
            total += opening * opening if squared else opening
        partial[0] += total


@compiled()
def hinge_loss_backward(
    dloss: Array,
    x: Array,
    label: Array,
    dx: Array,
    squared: bool,
    divisor: float,
    classes: int,
    begin: int,
    end: int,
) -> None:
    factor = dloss[0] / divisor
    for row in range(begin, end):
        own = int(label[row])
        scores, target = x[row * classes : (row + 1) * classes], dx[row * classes : (row + 1) * classes]
        for c in range(classes):
            sign = -factor if c == own else factor
            opening = 1.0 + (-float(scores[c]) if c == own else float(scores[c]))
            slope = 2 * opening if squared else 1.0
            target[c] = 0.0 if opening <= 0 else sign * slope


@compiled()
def negative_log_likelihood(
    x: Array, label: Array, partial: Array, least: float, classes: int, begin: int, end: int
) -> None:
    partial[:] = 0
    for row in range(begin, end):
        value = float(label[row])
        if not is_class(value, classes):
            partial[2] = row + 1
            return
        share = float(x[row * classes + int(value)])
        partial[0] -= math.log(least if share < least else share)


@compiled()
def negative_log_likelihood_backward(
    dloss: Array,
    x: Array,
    label: Array,
    dx: Array,
    least: float,
    divisor: float,
    classes: int,
    begin: int,
    end: int,
) -> None:
    for row in range(begin, end):
        own = row * classes + int(label[row])
        share = float(x[own])  # dx may be the same memory
        for i in range(row * classes, (row + 1) * classes):
            dx[i] = 0
        dx[own] = -dloss[0] / divisor / (least if share < least else share)
