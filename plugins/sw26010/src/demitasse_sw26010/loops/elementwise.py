"""Programs that stream through LDM: each CPE has a stretch of every tensor, in long blocks in both
directions."""

from __future__ import annotations

import math

import numpy as np

from demitasse_sw26010.model.mesh import ELAPSED, FLOPS, GET, PUT, stream, transfer, work
from demitasse_sw26010.model.programs import Array, program

RELU, RELU_BACKWARD, SCALED, ACCUMULATE, MASKED = 0, 1, 2, 3, 4
"""What ``unary`` computes from x and z: a slope below zero; dy where y > 0; a multiple; a sum; a
multiple times a mask."""


@program
def unary(
    count: Array,
    touch: bool,
    lx: Array,
    lz: Array,
    x: Array,
    z: Array,
    y: Array,
    size: int,
    what: int,
    number: float,
) -> None:
    """y = what(x, z), element by element. ``z`` is empty if it is not needed; y may be x or z."""
    second = 0.25 if what == MASKED else (1.0 if what in (RELU_BACKWARD, ACCUMULATE) else 0.0)
    stream(count, size * (1.0 + second), 1.0 * size, size / 64.0 * (3.0 if what == MASKED else 1.0))
    count[FLOPS] += 1.0 * size
    if not touch:
        return
    factor = np.float32(number)
    for begin in range(0, size, lx.size):
        some = min(lx.size, size - begin)
        part, target = x[begin : begin + some], y[begin : begin + some]
        for i in range(some):
            lx[i] = part[i]
        if second > 0:
            other = z[begin : begin + some]
            for i in range(some):
                lz[i] = other[i]
        if what == RELU:
            for i in range(some):
                lx[i] = lx[i] if lx[i] > 0 else lx[i] * factor
        elif what == RELU_BACKWARD:
            for i in range(some):
                lx[i] = lx[i] if lz[i] > 0 else lx[i] * factor
        elif what == SCALED:
            for i in range(some):
                lx[i] = lx[i] * factor
        elif what == ACCUMULATE:
            for i in range(some):
                lx[i] = lx[i] + lz[i]
        else:
            for i in range(some):
                lx[i] = lx[i] * lz[i] * factor
        for i in range(some):
            target[i] = lx[i]


@program
def add_scaled(
    count: Array,
    touch: bool,
    lx: Array,
    lz: Array,
    x: Array,
    y: Array,
    size: int,
    number: float,
    first: bool,
) -> None:
    """y = number * x or, unless it is the ``first`` term of a sum, y += number * x."""
    stream(count, size * (1.0 if first else 2.0), 1.0 * size, size / 64.0)
    count[FLOPS] += 2.0 * size
    if not touch:
        return
    factor = np.float32(number)
    for begin in range(0, size, lx.size):
        some = min(lx.size, size - begin)
        part, target = x[begin : begin + some], y[begin : begin + some]
        for i in range(some):
            lx[i] = part[i] * factor
        if not first:
            for i in range(some):
                lz[i] = target[i]
            for i in range(some):
                lx[i] = lx[i] + lz[i]
        for i in range(some):
            target[i] = lx[i]


@program
def fill(count: Array, touch: bool, x: Array, size: int, number: float) -> None:
    """Set every element to a number."""
    stream(count, 0.0, 1.0 * size, 0.0)
    if touch:
        for i in range(size):
            x[i] = number


@program
def copy_blocks(
    count: Array,
    touch: bool,
    lx: Array,
    x: Array,
    y: Array,
    rows: int,
    columns: int,
    x0: int,
    xr: int,
    y0: int,
    yr: int,
) -> None:
    """Copy rows that are apart in both places: a join along an axis, or its parts."""
    stream(count, 1.0 * rows * columns, 1.0 * rows * columns, 0.0)
    if not touch:
        return
    for r in range(rows):
        for begin in range(0, columns, lx.size):
            some = min(lx.size, columns - begin)
            for i in range(some):
                lx[i] = x[x0 + r * xr + begin + i]
            for i in range(some):
                y[y0 + r * yr + begin + i] = lx[i]


@program
def dropout(
    count: Array,
    touch: bool,
    lx: Array,
    x: Array,
    iteration: Array,
    sample: Array,
    y: Array,
    mask: Array,
    key: Array,
    samples: int,
    elements: int,
    ratio: float,
) -> None:
    """y = x * mask / (1 - ratio), with the mask by Philox4x32-10 on each CPE: about 30 cycles a
    number."""
    size = samples * elements
    stream(count, 1.0 * size, size * (1.25 if mask.size > 0 else 1.0), size / 64.0 * 30.0)
    count[FLOPS] += 1.0 * size
    if not touch:
        return
    low = np.uint64(0xFFFFFFFF)
    half = np.uint64(32)
    least = np.uint64(math.ceil(ratio * 4294967296.0))
    factor = np.float32(1.0 / (1.0 - ratio))
    number = np.uint64(iteration[0])
    for n in range(samples):
        j = (np.uint64(sample[0]) + np.uint64(n)) & low
        for i in range(-(-elements // 4)):
            a, b, c, d = np.uint64(i) & low, j, number & low, number >> half
            for step in range(10):
                k = (np.uint64(key[0]) + np.uint64(step) * np.uint64(0x9E3779B9)) & low
                m = (np.uint64(key[1]) + np.uint64(step) * np.uint64(0xBB67AE85)) & low
                p, q = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
                a, b, c, d = (q >> half) ^ b ^ k, q & low, (p >> half) ^ d ^ m, p & low
            for e in range(min(4, elements - 4 * i)):
                word = a if e == 0 else (b if e == 1 else (c if e == 2 else d))
                at = n * elements + 4 * i + e
                keep = word >= least
                lx[e] = x[at]
                y[at] = lx[e] * factor if keep else np.float32(0.0) * lx[e]
                if mask.size > 0:
                    mask[at] = keep


@program
def momentum_update(
    count: Array,
    touch: bool,
    lp: Array,
    lg: Array,
    lh: Array,
    parameter: Array,
    gradient: Array,
    history: Array,
    rate: Array,
    scale: Array,
    segments: Array,
    multipliers: Array,
    momentum: float,
    decay: float,
    absolute: bool,
) -> None:
    """Update a span as the solver does: three streams in, two out."""
    size = segments[-1] if len(segments) > 0 else 0
    stream(count, 3.0 * size, 2.0 * size, 2.0 * size / 64.0)
    count[FLOPS] += 6.0 * size
    if not touch:
        return
    factor = scale[0] if scale.size > 0 else 1.0
    for s in range(len(segments) // 2):
        step, shrink = rate[0] * multipliers[2 * s], decay * multipliers[2 * s + 1]
        for begin in range(segments[2 * s], segments[2 * s + 1], lp.size):
            some = min(lp.size, segments[2 * s + 1] - begin)
            for i in range(some):
                lp[i], lg[i], lh[i] = parameter[begin + i], gradient[begin + i], history[begin + i]
            for i in range(some):
                value = float(lp[i])
                sign = (1.0 if value > 0 else (-1.0 if value < 0 else 0.0)) if absolute else value
                change = momentum * lh[i] + step * (factor * lg[i] + shrink * sign)
                lh[i] = change
                lp[i] = value - change
            for i in range(some):
                parameter[begin + i], history[begin + i] = lp[i], lh[i]


@program
def transform(
    count: Array,
    touch: bool,
    lx: Array,
    x: Array,
    y: Array,
    batch: int,
    channels: int,
    plane: int,
    columns: int,
    block: int,
    wide: int,
    inwards: bool,
) -> None:
    """Transform (N, C, H, W) to (H, W, C, N), or back: the tensor transformation of Section IV.C. A CPE
    gets ``block`` places of ``wide`` images by strided DMA, transposes them with shuffles (two cycles of
    the memory pipeline for four numbers), and puts as many blocks in the other order."""
    some, across = 1.0 * min(wide, batch), 1.0 * block
    each = 1.0 * channels * plane / columns * -(-columns // block) * -(-batch // wide)
    rounds = np.ceil(each / 64.0)
    moved = transfer(count, GET if inwards else PUT, 64, some, 4.0 * across, rounds)
    moved += transfer(count, PUT if inwards else GET, 64, across, 4.0 * some, rounds)
    count[ELAPSED] += max(moved, work(count, 0.0, 0.5 * batch * channels * plane / 64.0))
    if not touch:
        return
    for c in range(channels):
        for n0 in range(0, batch, wide):
            n1 = min(batch, n0 + wide)
            for p0 in range(0, plane, block):
                p1 = min(plane, p0 + block)
                if inwards:
                    for n in range(n0, n1):
                        for p in range(p0, p1):
                            lx[(n - n0) * block + p - p0] = x[(n * channels + c) * plane + p]
                    for p in range(p0, p1):
                        for n in range(n0, n1):
                            y[(p * channels + c) * batch + n] = lx[(n - n0) * block + p - p0]
                else:
                    for p in range(p0, p1):
                        for n in range(n0, n1):
                            lx[(n - n0) * block + p - p0] = x[(p * channels + c) * batch + n]
                    for n in range(n0, n1):
                        for p in range(p0, p1):
                            y[(n * channels + c) * plane + p] = lx[(n - n0) * block + p - p0]
