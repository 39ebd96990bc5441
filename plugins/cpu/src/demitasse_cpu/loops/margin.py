"""Products of samples with unit vectors, reduced by a margin in the angle at each sample's label. Each
row of x is a sample. Labels are checked beforehand (``indexing.first_wrong``)."""

from __future__ import annotations

import math
from typing import Any

from demitasse_cpu.loops.compiled import Array, compiled, inlined


@inlined
def _angular(cosine: Any, margin: Any) -> Any:
    """Return (-1)^k cos(margin t) - 2 k, and its slope, from the cosine of t, where margin t is between
    k pi and (k + 1) pi."""
    value, slope = cosine, 1.0
    if margin == 2:
        value, slope = 2 * cosine * cosine - 1, 4 * cosine
    elif margin == 3:
        value, slope = (4 * cosine * cosine - 3) * cosine, 12 * cosine * cosine - 3
    elif margin == 4:
        square = cosine * cosine
        value, slope = 8 * square * (square - 1) + 1, (32 * square - 16) * cosine
    k = 0
    for j in range(1, margin):
        if cosine < math.cos(j * math.pi / margin):
            k += 1
    sign = 1 - 2 * (k % 2)
    return sign * value - 2 * k, sign * slope


@compiled()
def angular_margin(
    x: Array,
    length: Array,
    label: Array,
    iteration: Array,
    y: Array,
    factor: Array,
    margin: int,
    base: float,
    gamma: float,
    power: float,
    least: float,
    first: int,
    classes: int,
    begin: int,
    end: int,
) -> None:
    now = max(least, base * (1 + gamma * (first + float(iteration[0]) + 1)) ** -power)
    if begin == 0:
        factor[0] = now
    for row in range(begin, end):
        start = row * classes
        for c in range(start, start + classes):
            y[c] = x[c]
        at, norm = start + int(label[row]), float(length[row])
        psi, _ = _angular(x[at] / norm, margin)
        y[at] = (now * x[at] + norm * psi) / (1 + now)


@compiled()
def angular_margin_backward(
    dy: Array,
    x: Array,
    length: Array,
    label: Array,
    factor: Array,
    dx: Array,
    dlength: Array,
    margin: int,
    classes: int,
    begin: int,
    end: int,
) -> None:
    now = float(factor[0])
    for row in range(begin, end):
        start = row * classes
        at, norm = start + int(label[row]), float(length[row])
        cosine, own = x[at] / norm, dy[at] / (1 + now)
        psi, along = _angular(cosine, margin)
        away = (psi - along * cosine) / norm
        size = math.hypot(along, away)
        for c in range(start, start + classes):
            dx[c] = dy[c]
        dx[at] = own * (now + along / size)
        dlength[row] = own * norm * away / size
