"""Batch normalisation, and means over valid labels, by the statistics of a batch that workers share:
what a core group's samples contribute to them, and what is computed once they are known."""

from __future__ import annotations

import math

import numpy as np

from demitasse_sw26010.loops.normalization import pass_back
from demitasse_sw26010.model.figures import CPES
from demitasse_sw26010.model.mesh import FLOPS, on_mpe, stream
from demitasse_sw26010.model.programs import Array, program
from demitasse_sw26010.model.registers import COLUMN, mesh_sum, mesh_sums, sums_begin

ROOT_CYCLES = 30.0
"""Cycles of a division or a square root, which are not pipelined (assumed)."""


@program
def channel_moments(
    count: Array,
    touch: bool,
    lx: Array,
    parts: Array,
    x: Array,
    moments: Array,
    samples: int,
    channels: int,
    plane: int,
    together: int,
) -> None:
    """Each CPE sums its stretches of x, and of x * x, by channel, in doubles; register messages add up
    these sums, of so many channels ``together``. Every four numbers are converted, added, and multiplied
    and added."""
    for first in range(0, channels, together):
        some = min(together, channels - first)
        size = 1.0 * samples * some * plane
        stream(count, size, 0.0, size / 64.0 * 3.0 / 4.0)
        count[FLOPS] += 3.0 * size
        if touch:
            add_stretches(lx, parts, x, samples, channels, plane, first, some)
        mesh_sums(count, touch, parts)
        stream(count, 0.0, 4.0 * some, 0.0)
        if touch:
            put_sums(parts, moments, channels, first, some)
    if touch:
        moments[2 * channels] = samples * plane


@program
def add_stretches(
    lx: Array, parts: Array, x: Array, samples: int, channels: int, plane: int, first: int, some: int
) -> None:
    """Sum ``some`` channels on each CPE: their sums, then those of their squares. The CPEs take turns to
    get a stretch of these channels' numbers."""
    parts[:, :] = 0.0
    width, room = some * plane, lx.size // CPES
    size = samples * width
    each = min(room, -(-size // CPES))
    for begin in range(0, size, each):
        cpe, at = begin // each % CPES, begin
        while at < min(size, begin + each):
            n, rest = at // width, at % width
            c, source = rest // plane, (n * channels + first) * plane + rest
            here = cpe * room + at - begin
            run = min(min(size, begin + each) - at, plane - rest % plane)
            for i in range(run):
                lx[here + i] = x[source + i]
            total, squares = 0.0, 0.0
            for i in range(run):
                value = np.float64(lx[here + i])
                total += value
                squares += value * value
            parts[cpe, c] += total
            parts[cpe, some + c] += squares
            at += run


@program
def put_sums(parts: Array, moments: Array, channels: int, first: int, some: int) -> None:
    """Write the sums that each CPE has of ``some`` channels to their places."""
    each = parts.shape[1] // CPES
    for cpe in range(CPES):
        begin = sums_begin(cpe, COLUMN, parts.shape[1])
        for i in range(begin, min(begin + each, 2 * some)):
            moments[first + (i if i < some else channels + i - some)] = parts[cpe, i]


@program
def settle_moments(
    count: Array,
    touch: bool,
    lx: Array,
    moments: Array,
    mean: Array,
    variance: Array,
    factor: Array,
    average: Array,
    spread: Array,
    inverse: Array,
    channels: int,
    keep: float,
    averaged: bool,
    epsilon: float,
) -> None:
    """Compute the batch's statistics and update the kept ones, with channels divided among the CPEs;
    the MPE updates the factor. ``inverse`` is of the variance as it is stored, because the values are
    normalised by that."""
    size = 1.0 * channels
    stream(count, 6.0 * size, 5.0 * size, size / 64.0 * 4.0 * ROOT_CYCLES)
    count[FLOPS] += 8.0 * size
    if not averaged:
        on_mpe(count, 1.0)
    if not touch:
        return
    number = moments[2 * channels]
    for c in range(channels):
        lx[0], lx[1] = moments[c], moments[channels + c]
        middle = lx[0] / number
        square = lx[1] / number - middle * middle
        square = 0.0 if square < 0 else square
        if averaged:
            mean[c] = keep * mean[c] + (1.0 - keep) * middle
            variance[c] = keep * variance[c] + (1.0 - keep) * square
        else:
            mean[c] = keep * mean[c] + middle
            variance[c] = keep * variance[c] + square * number / max(1.0, number - 1.0)
        average[c] = middle
        spread[c] = square
        inverse[c] = 1.0 / math.sqrt(spread[c] + epsilon)
    if not averaged:
        factor[0] = keep * factor[0] + 1.0


@program
def batch_norm_whole_backward(
    count: Array,
    touch: bool,
    lx: Array,
    dy: Array,
    x: Array,
    w: Array,
    b: Array,
    average: Array,
    inverse: Array,
    sums: Array,
    moments: Array,
    dx: Array,
    samples: int,
    channels: int,
    plane: int,
    relu: bool,
) -> None:
    """Compute dx, in one stream of dy and x, from sums that are known."""
    size = 1.0 * samples * channels * plane
    stream(count, 2.0 * size, size, size / 64.0)
    count[FLOPS] += 8.0 * size
    if not touch:
        return
    number = moments[2 * channels]
    shape = samples, channels, plane
    for c in range(channels):
        slope = w[c] if w.size > 0 else 1.0
        shift = b[c] if b.size > 0 else 0.0
        middle, deviation = np.float64(average[c]), np.float64(inverse[c])
        level, tilt = sums[channels + c] / number, sums[c] / number
        pass_back(lx, dy, x, dx, c, shape, slope, shift, middle, deviation, level, tilt, relu)


@program
def count_labels(
    count: Array,
    touch: bool,
    line: Array,
    parts: Array,
    label: Array,
    labels: Array,
    size: int,
    ignored: int,
) -> None:
    """Each CPE counts the labels, without their fractions, that are not ``ignored``; register messages
    add up these counts."""
    stream(count, size * label.itemsize / 4.0, 0.0, size / 64.0)
    count[FLOPS] += 1.0 * size
    if not touch:
        mesh_sum(count, touch, parts)
        return
    parts[:] = 0.0
    for i in range(size):
        line[0] = label[i]
        if np.trunc(np.float64(line[0])) != ignored:
            parts[i % CPES] += 1.0
    labels[0] = mesh_sum(count, touch, parts)


@program
def over_divisor(
    count: Array, touch: bool, x: Array, divisor: Array, y: Array, size: int, share: float
) -> None:
    """y = x / (share * max(1, divisor)), on the MPE: x is a loss or its gradient, one number."""
    on_mpe(count, 1.0 * size)
    count[FLOPS] += 1.0 * size
    if touch:
        over = share * max(1.0, divisor[0])
        for i in range(size):
            y[i] = x[i] / over
