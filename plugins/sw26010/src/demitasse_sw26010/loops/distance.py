"""Losses of pairs of tensors. Each CPE sums those of its own samples, and register messages add up these
sums."""

from __future__ import annotations

import math

import numpy as np

from demitasse_sw26010.model.figures import CPES
from demitasse_sw26010.model.mesh import FLOPS, stream
from demitasse_sw26010.model.programs import Array, program
from demitasse_sw26010.model.registers import mesh_sum


@program
def half_squared_distance(
    count: Array,
    touch: bool,
    lx: Array,
    parts: Array,
    a: Array,
    b: Array,
    loss: Array,
    size: int,
    samples: int,
) -> None:
    """Compute the sum of (a - b)^2, divided by twice the number of samples."""
    stream(count, 2.0 * size, 0.0, size / 64.0)
    count[FLOPS] += 3.0 * size
    if not touch:
        mesh_sum(count, touch, parts)
        return
    parts[:] = 0.0
    for i in range(size):
        lx[0], lx[1] = a[i], b[i]
        apart = float(lx[0]) - lx[1]
        parts[i * CPES // size] += apart * apart
    loss[0] = mesh_sum(count, touch, parts) / (2.0 * samples)


@program
def half_squared_distance_backward(
    count: Array,
    touch: bool,
    lx: Array,
    parts: Array,
    dloss: Array,
    a: Array,
    b: Array,
    da: Array,
    db: Array,
    size: int,
    samples: int,
) -> None:
    """Compute da = dloss * (a - b) / samples, db = -da."""
    outputs = (1.0 if da.size > 0 else 0.0) + (1.0 if db.size > 0 else 0.0)
    stream(count, 2.0 * size, outputs * size, size / 64.0)
    count[FLOPS] += 3.0 * size
    if not touch:
        return
    factor = float(dloss[0]) / samples
    for i in range(size):
        lx[0], lx[1] = a[i], b[i]
        lx[0] = factor * (float(lx[0]) - lx[1])
        if da.size > 0:
            da[i] = lx[0]
        if db.size > 0:
            db[i] = -lx[0]


@program
def normaliser(target: Array, samples: int, ignored: int, ignores: bool, kind: int) -> float:
    """Return the divisor of a sum over targets, by ``kind``: 0 valid, 1 full, 2 batch, 3 none."""
    valid = 0
    for i in range(target.size):
        valid += 0 if ignores and int(target[i]) == ignored else 1
    by = (max(1.0, 1.0 * valid), 1.0 * target.size, 1.0 * samples, 1.0)
    return float(by[kind])


@program
def sigmoid_cross_entropy(
    count: Array,
    touch: bool,
    lx: Array,
    parts: Array,
    x: Array,
    target: Array,
    loss: Array,
    size: int,
    samples: int,
    ignored: int,
    ignores: bool,
    kind: int,
) -> None:
    """Compute the mean of -(t log p + (1 - t) log(1 - p)), as max(x, 0) - x t + log(1 + exp(-|x|)). The
    exponential and the logarithm take about 60 cycles each."""
    stream(count, 2.0 * size, 0.0, size / 64.0 * 120.0)
    count[FLOPS] += 20.0 * size
    if not touch:
        mesh_sum(count, touch, parts)
        return
    parts[:] = 0.0
    for i in range(size):
        lx[0], lx[1] = x[i], target[i]
        if ignores and int(lx[1]) == ignored:
            continue
        value, wanted = float(lx[0]), float(lx[1])
        own = max(value, 0.0) - value * wanted + math.log1p(math.exp(-abs(value)))
        parts[i * CPES // size] += own
    loss[0] = mesh_sum(count, touch, parts) / normaliser(target, samples, ignored, ignores, kind)


@program
def sigmoid_cross_entropy_backward(
    count: Array,
    touch: bool,
    lx: Array,
    parts: Array,
    dloss: Array,
    x: Array,
    target: Array,
    dx: Array,
    size: int,
    samples: int,
    ignored: int,
    ignores: bool,
    kind: int,
) -> None:
    """Compute dx = dloss * (p - target) / normaliser, and 0 where the target is ignored."""
    stream(count, 2.0 * size, 1.0 * size, size / 64.0 * 60.0)
    count[FLOPS] += 10.0 * size
    if not touch:
        return
    factor = float(dloss[0]) / normaliser(target, samples, ignored, ignores, kind)
    for i in range(size):
        lx[0], lx[1] = x[i], target[i]
        skip = ignores and int(lx[1]) == ignored
        dx[i] = 0.0 if skip else factor * (1.0 / (1.0 + np.exp(-float(lx[0]))) - lx[1])


@program
def distance(lx: Array, a: Array, b: Array, sample: int, length: int) -> float:
    """Return the squared distance of two vectors."""
    total = 0.0
    for i in range(sample * length, (sample + 1) * length):
        lx[0], lx[1] = a[i], b[i]
        apart = float(lx[0]) - lx[1]
        total += apart * apart
    return total


@program
def contrastive(
    count: Array,
    touch: bool,
    lx: Array,
    parts: Array,
    a: Array,
    b: Array,
    similar: Array,
    loss: Array,
    samples: int,
    length: int,
    margin: float,
    legacy: bool,
) -> None:
    """Compute half the mean of d^2 for similar pairs, and of max(0, margin - d)^2 for others (legacy: of
    max(0, margin - d^2))."""
    stream(count, 2.0 * samples * length, 0.0, samples * length / 64.0)
    count[FLOPS] += 3.0 * samples * length
    if not touch:
        mesh_sum(count, touch, parts)
        return
    parts[:] = 0.0
    for n in range(samples):
        square = distance(lx, a, b, n, length)
        if similar[n] != 0:
            own = square
        elif legacy:
            own = max(0.0, margin - square)
        else:
            own = max(0.0, margin - math.sqrt(square)) ** 2
        parts[n % CPES] += own
    loss[0] = mesh_sum(count, touch, parts) / (2.0 * samples)


@program
def contrastive_backward(
    count: Array,
    touch: bool,
    lx: Array,
    parts: Array,
    dloss: Array,
    a: Array,
    b: Array,
    similar: Array,
    da: Array,
    db: Array,
    samples: int,
    length: int,
    margin: float,
    legacy: bool,
) -> None:
    """Compute da = dloss / samples * (a - b) for similar pairs. For others, multiply it by -max(0,
    margin - d) / (d + 1e-4) (legacy: by -1 where d^2 is below the margin). db = -da."""
    outputs = (1.0 if da.size > 0 else 0.0) + (1.0 if db.size > 0 else 0.0)
    stream(count, 4.0 * samples * length, outputs * samples * length, 2.0 * samples * length / 64.0)
    count[FLOPS] += 6.0 * samples * length
    if not touch:
        return
    for n in range(samples):
        square = distance(lx, a, b, n, length)
        if similar[n] != 0:
            share = 1.0
        elif legacy:
            share = -1.0 if square < margin else 0.0
        else:
            far = math.sqrt(square)
            share = -max(0.0, margin - far) / (far + 1e-4)
        factor = share * float(dloss[0]) / samples
        for i in range(n * length, (n + 1) * length):
            lx[0], lx[1] = a[i], b[i]
            lx[0] = factor * (float(lx[0]) - lx[1])
            if da.size > 0:
                da[i] = lx[0]
            if db.size > 0:
                db[i] = -lx[0]


@program
def hinge(
    count: Array,
    touch: bool,
    lx: Array,
    parts: Array,
    x: Array,
    label: Array,
    loss: Array,
    wrong: Array,
    samples: int,
    classes: int,
    square: bool,
) -> None:
    """Compute the mean over samples of the sum of the classes' hinges: max(0, 1 - x) for the label, else
    max(0, 1 + x)."""
    stream(count, 1.0 * samples * classes, 0.0, samples * classes / 64.0)
    count[FLOPS] += 3.0 * samples * classes
    if not touch:
        mesh_sum(count, touch, parts)
        return
    parts[:] = 0.0
    for n in range(samples):
        wanted = int(label[n])
        if wanted != label[n] or wanted < 0 or wanted >= classes:
            wrong[0] = n + 1
            return
        for c in range(classes):
            lx[0] = x[n * classes + c]
            opening = max(0.0, 1.0 + (-float(lx[0]) if c == wanted else float(lx[0])))
            parts[n % CPES] += opening * opening if square else opening
    loss[0] = mesh_sum(count, touch, parts) / samples


@program
def hinge_backward(
    count: Array,
    touch: bool,
    lx: Array,
    parts: Array,
    dloss: Array,
    x: Array,
    label: Array,
    dx: Array,
    samples: int,
    classes: int,
    square: bool,
) -> None:
    """Compute dx = dloss / samples * (-1 at the label, 1 elsewhere) where the hinge is not 0; if
    ``square``, multiply it by twice the hinge."""
    stream(count, 1.0 * samples * classes, 1.0 * samples * classes, samples * classes / 64.0)
    count[FLOPS] += 3.0 * samples * classes
    if not touch:
        return
    factor = float(dloss[0]) / samples
    for n in range(samples):
        for c in range(classes):
            lx[0] = x[n * classes + c]
            sign = -1.0 if c == int(label[n]) else 1.0
            opening = max(0.0, 1.0 + sign * float(lx[0]))
            times = 2.0 * opening if square else (1.0 if opening > 0 else 0.0)
            dx[n * classes + c] = factor * sign * times
