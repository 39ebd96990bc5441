"""Softmax, its loss, and accuracy. A sample's classes are in the LDM of one CPE."""

from __future__ import annotations

import math

import numpy as np

from demitasse_sw26010.model.figures import CPES
from demitasse_sw26010.model.mesh import FLOPS, on_mpe, stream
from demitasse_sw26010.model.programs import Array, program
from demitasse_sw26010.model.registers import mesh_sum


@program
def normalise(lx: Array, x: Array, at: int, classes: int, apart: int) -> tuple[float, float]:
    """Write exp(x - largest) of one prediction to LDM. Return their sum, and the largest x."""
    largest = -np.inf
    for c in range(classes):
        lx[c] = x[at + c * apart]
        value = float(lx[c])
        if value > largest or value != value:
            largest = value
    total = 0.0
    for c in range(classes):
        power = math.exp(lx[c] - largest)
        lx[c] = power
        total += power
    return total, largest


@program
def softmax(
    count: Array, touch: bool, lx: Array, x: Array, y: Array, outer: int, classes: int, inner: int
) -> None:
    """y = exp(x) / sum of exp(x); an exponential takes about 60 cycles."""
    size = 1.0 * outer * classes * inner
    stream(count, size, size, size / 64.0 * 60.0)
    count[FLOPS] += 5.0 * size
    if touch:
        for row in range(outer * inner):
            at = row // inner * classes * inner + row % inner
            total, _ = normalise(lx, x, at, classes, inner)
            for c in range(classes):
                y[at + c * inner] = lx[c] / total


@program
def softmax_backward(
    count: Array,
    touch: bool,
    lx: Array,
    dy: Array,
    y: Array,
    dx: Array,
    outer: int,
    classes: int,
    inner: int,
) -> None:
    """dx = y * (dy - the sum of dy * y)."""
    size = 1.0 * outer * classes * inner
    stream(count, 2.0 * size, size, size / 64.0)
    count[FLOPS] += 4.0 * size
    if touch:
        for row in range(outer * inner):
            at = row // inner * classes * inner + row % inner
            total = 0.0
            for c in range(classes):
                lx[c] = dy[at + c * inner]
                total += float(lx[c]) * y[at + c * inner]
            for c in range(classes):
                dx[at + c * inner] = y[at + c * inner] * (lx[c] - total)


@program
def softmax_loss(
    count: Array,
    touch: bool,
    lx: Array,
    parts: Array,
    x: Array,
    label: Array,
    loss: Array,
    probability: Array,
    wrong: Array,
    outer: int,
    classes: int,
    inner: int,
    ignored: int,
    ignores: bool,
    normaliser: int,
) -> None:
    """loss = the mean of -log of the label's probability. Each CPE sums its own predictions, and
    register messages add up these sums. ``normaliser`` is 0 valid, 1 full, 2 batch, 3 none."""
    size = 1.0 * outer * classes * inner
    stream(count, size, size * (1.0 if probability.size > 0 else 0.0), size / 64.0 * 60.0)
    count[FLOPS] += 6.0 * size
    if not touch:
        mesh_sum(count, touch, parts)
        return
    parts[:] = 0.0
    valid = 0
    for row in range(outer * inner):
        at = row // inner * classes * inner + row % inner
        powers, largest = normalise(lx, x, at, classes, inner)
        if probability.size > 0:
            for c in range(classes):
                probability[at + c * inner] = lx[c] / powers
        if ignores and label[row] == ignored:
            continue
        wanted = int(label[row])
        if wanted != label[row] or wanted < 0 or wanted >= classes:
            wrong[0] = row + 1
            return
        valid += 1
        parts[row % CPES] += math.log(powers) - (float(x[at + wanted * inner]) - largest)
    total = mesh_sum(count, touch, parts)
    by = (max(1.0, 1.0 * valid), 1.0 * outer * inner, 1.0 * outer, 1.0)
    loss[0] = total / by[normaliser]


@program
def softmax_loss_backward(
    count: Array,
    touch: bool,
    lx: Array,
    dloss: Array,
    probability: Array,
    label: Array,
    dx: Array,
    outer: int,
    classes: int,
    inner: int,
    ignored: int,
    ignores: bool,
    normaliser: int,
) -> None:
    """dx = dloss * (probability - 1 at the label) / normaliser."""
    size = 1.0 * outer * classes * inner
    stream(count, size, size, size / 64.0)
    count[FLOPS] += 2.0 * size
    if not touch:
        return
    valid = 0
    for row in range(outer * inner):
        if not (ignores and label[row] == ignored):
            valid += 1
    by = (max(1.0, 1.0 * valid), 1.0 * outer * inner, 1.0 * outer, 1.0)
    factor = dloss[0] / by[normaliser]
    for row in range(outer * inner):
        at = row // inner * classes * inner + row % inner
        skip = ignores and label[row] == ignored
        for c in range(classes):
            lx[c] = probability[at + c * inner]
        for c in range(classes):
            one = 1.0 if c == int(label[row]) else 0.0
            dx[at + c * inner] = 0.0 if skip else factor * (lx[c] - one)


@program
def accuracy(
    count: Array,
    touch: bool,
    lx: Array,
    x: Array,
    label: Array,
    share: Array,
    by_class: Array,
    wrong: Array,
    outer: int,
    classes: int,
    inner: int,
    ignored: int,
    ignores: bool,
    top: int,
) -> None:
    """share = the share of labels among the ``top`` of x, where of equal values the later class ranks
    first; also by class."""
    size = 1.0 * outer * classes * inner
    stream(count, size, 0.0, size / 64.0)
    # The MPE keeps the tally by class, which is a few numbers.
    on_mpe(count, 1.0 * outer * inner)
    count[FLOPS] += size
    if not touch:
        return
    right, valid = 0, 0
    seen = np.zeros(classes)
    found = np.zeros(classes)
    for row in range(outer * inner):
        at = row // inner * classes * inner + row % inner
        if ignores and label[row] == ignored:
            continue
        wanted = int(label[row])
        if wanted != label[row] or wanted < 0 or wanted >= classes:
            wrong[0] = row + 1
            return
        for c in range(classes):
            lx[c] = x[at + c * inner]
        before = 0
        for c in range(classes):
            # NaN is neither below nor equal to anything.
            if not lx[c] <= lx[wanted] or (lx[c] == lx[wanted] and c > wanted):
                before += 1
        valid += 1
        seen[wanted] += 1
        if before < top:
            right += 1
            found[wanted] += 1
    share[0] = right / max(1, valid)
    if by_class.size > 0:
        for c in range(classes):
            by_class[c] = found[c] / seen[c] if seen[c] > 0 else 0.0
