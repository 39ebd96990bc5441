"""Softmax, losses, and accuracy: arrays as (outer, classes, inner), a label for each outer and
inner. A label counts when it is not ``ignored`` (NaN ignores none).

A part of a loss leaves in ``partial`` its sum, how many labels count, and one more than the first row
whose label is no class (0 when there is none). What is no number stays none: ``not (a <= b)``."""

from __future__ import annotations

import math
from typing import Any

from demitasse_cpu.loops.bfloat16 import narrow, number
from demitasse_cpu.loops.compiled import Array, compiled
from demitasse_cpu.native import WrongError


@compiled()
def _softmax_of(x: Array, y: Array, at: int, classes: int, inner: int) -> Any:
    """The softmax of one row; returns the largest of x, and the logarithm of what the powers of x
    less that sum to. They are added in float64: of a million classes alike a float32 would lose the
    fifth digit, and of 2^24 all that follow."""
    real = x.dtype.type
    largest = x[at]
    for c in range(1, classes):
        value = x[at + c * inner]
        if not (value <= largest) and largest == largest:
            largest = value
    total = 0.0
    for c in range(classes):
        power = math.exp(x[at + c * inner] - largest)
        total += power
        y[at + c * inner] = power
    divisor = real(total)
    for c in range(classes):
        y[at + c * inner] /= divisor
    return largest, math.log(total)


@compiled()
def softmax(x: Array, y: Array, classes: int, inner: int, begin: int, end: int) -> None:
    for row in range(begin, end):
        _softmax_of(x, y, row // inner * classes * inner + row % inner, classes, inner)


@compiled()
def softmax_backward(
    dy: Array, y: Array, dx: Array, classes: int, inner: int, begin: int, end: int
) -> None:
    for row in range(begin, end):
        at = row // inner * classes * inner + row % inner
        total = 0.0
        for i in range(at, at + classes * inner, inner):
            total += float(dy[i]) * float(y[i])
        mean = y.dtype.type(total)
        for i in range(at, at + classes * inner, inner):
            dx[i] = y[i] * (dy[i] - mean)


@compiled()
def _is_class(label: float, classes: int) -> bool:
    return label >= 0 and label < classes and label == math.floor(label)


@compiled()
def softmax_loss(
    x: Array,
    label: Array,
    probability: Array,
    keeps_probability: bool,
    partial: Array,
    ignored: float,
    classes: int,
    inner: int,
    begin: int,
    end: int,
) -> None:
    """``probability`` has room for as much as one (classes, inner) when it is not kept."""
    partial[:] = 0
    for row in range(begin, end):
        at = row // inner * classes * inner + row % inner
        value = float(label[row])
        counts = value != ignored
        if counts and not _is_class(value, classes):
            partial[2] = row + 1
            return
        source = x[at : at + (classes - 1) * inner + 1]
        start = at if keeps_probability else row % inner
        target = probability[start : start + (classes - 1) * inner + 1]
        largest, logarithm = _softmax_of(source, target, 0, classes, inner)
        if counts:
            partial[0] += logarithm + (largest - source[int(value) * inner])
            partial[1] += 1


@compiled()
def total_loss(partials: Array, loss: Array, wrong: Array, divisor: float) -> None:
    """The loss from the parts' sums in their order, over ``divisor`` or, when that is 0, over the
    labels that count. Raises WrongError where a label is no class, the first such row in ``wrong``."""
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
    for row in range(begin, end):
        at = row // inner * classes * inner + row % inner
        value = float(label[row])
        if value == ignored:
            for i in range(at, at + classes * inner, inner):
                dx[i] = narrow(zero, dx)
            continue
        own = at + int(value) * inner
        at_own = probability[own] - one  # dx may be the same memory
        if inner == 1:
            source, target = probability[at : at + classes], dx[at : at + classes]
            for c in range(classes):
                target[c] = narrow(factor * source[c], dx)
        else:
            for i in range(at, at + classes * inner, inner):
                dx[i] = narrow(factor * probability[i], dx)
        dx[own] = narrow(factor * at_own, dx)


@compiled()
def accuracy(
    x: Array,
    label: Array,
    result: Array,
    per_class: Array,
    counters: Array,
    wrong: Array,
    ignored: float,
    top_k: int,
    classes: int,
    inner: int,
) -> None:
    """``counters`` (2, classes) are int64, ``per_class`` is empty for none. Raises WrongError where a
    label is no class, the first such row in ``wrong``."""
    counters[:] = 0
    all_hits, all_counted = 0, 0
    for row in range(label.size):
        value = float(label[row])
        if value == ignored:
            continue
        if not _is_class(value, classes):
            wrong[0] = row
            raise WrongError
        at = row // inner * classes * inner + row % inner
        own = x[at + int(value) * inner]
        better = 0
        for c in range(classes):
            # A NaN is at or below nothing, so predictions that are not numbers never score. Of equals
            # the later class comes first.
            score = x[at + c * inner]
            better += not (score <= own) or (score == own and c > int(value))
        hit = better < top_k
        counters[0, int(value)] += hit
        counters[1, int(value)] += 1
        all_hits += hit
        all_counted += 1
    result[0] = all_hits / max(1, all_counted)
    for c in range(per_class.size):
        per_class[c] = counters[0, c] / max(1, counters[1, c])


@compiled()
def segment_scores(
    x: Array,
    label: Array,
    result: Array,
    table: Array,
    wrong: Array,
    ignored: Array,
    classes: int,
    inner: int,
) -> None:
    """``table`` (classes, classes), int64, has how often a class is taken for another. Raises WrongError
    where a label is no class, the first such row in ``wrong``."""
    table[:] = 0
    for row in range(label.size):
        value, left_out = float(label[row]), False
        for i in range(ignored.size):
            left_out |= value == ignored[i]
        if left_out:
            continue
        if not _is_class(value, classes):
            wrong[0] = row
            raise WrongError
        at = row // inner * classes * inner + row % inner
        best = 0
        for c in range(1, classes):  # of equals the later
            if x[at + c * inner] >= x[at + best * inner]:
                best = c
        table[int(value), best] += 1
    right, counted, there, recall, shares = 0, 0, 0, 0.0, 0.0
    for c in range(classes):
        own, taken, both = 0, 0, table[c, c]
        for other in range(classes):
            own += table[c, other]
            taken += table[other, c]
        right += both
        counted += own
        there += own > 0
        recall += both / max(1, own)
        union = own + taken - both
        shares += both / union if union > 0 else 1.0
    result[0] = right / max(1, counted)
    result[1] = recall / max(1, there)
    result[2] = shares / classes


@compiled()
def infogain_loss(
    x: Array,
    label: Array,
    matrix: Array,
    probability: Array,
    keeps_probability: bool,
    partial: Array,
    ignored: float,
    least: float,
    classes: int,
    inner: int,
    begin: int,
    end: int,
) -> None:
    """``probability`` as in softmax_loss."""
    partial[:] = 0
    for row in range(begin, end):
        at = row // inner * classes * inner + row % inner
        value = float(label[row])
        counts = value != ignored
        if counts and not _is_class(value, classes):
            partial[2] = row + 1
            return
        source = x[at : at + (classes - 1) * inner + 1]
        start = at if keeps_probability else row % inner
        target = probability[start : start + (classes - 1) * inner + 1]
        _softmax_of(source, target, 0, classes, inner)
        if counts:
            gains = matrix[int(value) * classes : (int(value) + 1) * classes]
            for c in range(classes):
                share = float(target[c * inner])
                partial[0] -= gains[c] * math.log(least if share < least else share)
            partial[1] += 1


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
        if not _is_class(value, classes):
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
        if not _is_class(value, classes):
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
