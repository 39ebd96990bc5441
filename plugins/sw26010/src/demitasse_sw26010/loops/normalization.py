"""Normalisation by statistics of channels, scales along an axis, and local responses."""

from __future__ import annotations

import math

import numpy as np

from demitasse_sw26010.model.mesh import FLOPS, stream
from demitasse_sw26010.model.programs import Array, program


@program
def batch_norm(
    count: Array,
    touch: bool,
    lx: Array,
    x: Array,
    mean: Array,
    variance: Array,
    factor: Array,
    w: Array,
    b: Array,
    y: Array,
    average: Array,
    inverse: Array,
    samples: int,
    channels: int,
    plane: int,
    keep: float,
    averaged: bool,
    epsilon: float,
    relu: bool,
) -> None:
    """Compute a channel's mean, then its variance, then its values: x passes through LDM three times."""
    size = 1.0 * samples * channels * plane
    for _ in range(2):
        stream(count, size, 0.0, size / 64.0 / 4.0)
    stream(count, size, size, size / 64.0 / 2.0)
    count[FLOPS] += 7.0 * size
    if not touch:
        return
    number = samples * plane
    for c in range(channels):
        total = 0.0
        for n in range(samples):
            part = x[(n * channels + c) * plane : (n * channels + c + 1) * plane]
            for begin in range(0, plane, lx.size):
                some = min(lx.size, plane - begin)
                for i in range(some):
                    lx[i] = part[begin + i]
                for i in range(some):
                    total += lx[i]
        middle = total / number
        total = 0.0
        for n in range(samples):
            part = x[(n * channels + c) * plane : (n * channels + c + 1) * plane]
            for i in range(plane):
                lx[0] = part[i]
                total += (lx[0] - middle) * (lx[0] - middle)
        spread = total / number
        deviation = 1.0 / math.sqrt(spread + epsilon)
        if averaged:
            mean[c] = keep * mean[c] + (1.0 - keep) * middle
            variance[c] = keep * variance[c] + (1.0 - keep) * spread
        else:
            mean[c] = keep * mean[c] + middle
            variance[c] = keep * variance[c] + spread * number / max(1, number - 1)
        if average.size > 0:
            average[c] = middle
        if inverse.size > 0:
            inverse[c] = deviation
        slope = deviation * (w[c] if w.size > 0 else 1.0)
        shift = b[c] if b.size > 0 else 0.0
        for n in range(samples):
            at = (n * channels + c) * plane
            for i in range(at, at + plane):
                lx[0] = x[i]
                value = (lx[0] - middle) * slope + shift
                y[i] = 0.0 if relu and value < 0 else value
    if not averaged:
        factor[0] = keep * factor[0] + 1.0


@program
def batch_norm_backward(
    count: Array,
    touch: bool,
    lx: Array,
    dy: Array,
    x: Array,
    w: Array,
    b: Array,
    average: Array,
    inverse: Array,
    dx: Array,
    dw: Array,
    db: Array,
    samples: int,
    channels: int,
    plane: int,
    relu: bool,
) -> None:
    """Compute the two sums of a channel, then dx: dy and x pass through LDM twice."""
    size = 1.0 * samples * channels * plane
    stream(count, 2.0 * size, 0.0, size / 64.0)
    if dx.size > 0:
        stream(count, 2.0 * size, size, size / 64.0)
    count[FLOPS] += 12.0 * size
    if not touch:
        return
    number = samples * plane
    for c in range(channels):
        slope = w[c] if w.size > 0 else 1.0
        shift = b[c] if b.size > 0 else 0.0
        middle, deviation = np.float64(average[c]), np.float64(inverse[c])
        first, second = 0.0, 0.0
        for n in range(samples):
            at = (n * channels + c) * plane
            for i in range(at, at + plane):
                lx[0], lx[1] = dy[i], x[i]
                normal = (lx[1] - middle) * deviation
                if not relu or slope * normal + shift > 0:
                    first += lx[0]
                    second += lx[0] * normal
        if dw.size > 0:
            dw[c] = second
        if db.size > 0:
            db[c] = first
        if dx.size > 0:
            level, tilt = first / number, second / number
            shape = samples, channels, plane
            pass_back(lx, dy, x, dx, c, shape, slope, shift, middle, deviation, level, tilt, relu)


@program
def pass_back(
    lx: Array,
    dy: Array,
    x: Array,
    dx: Array,
    c: int,
    shape: tuple[int, int, int],
    slope: float,
    shift: float,
    middle: float,
    deviation: float,
    level: float,
    tilt: float,
    relu: bool,
) -> None:
    """Compute a channel's dx from the means of dz (``level``) and of dz * normal (``tilt``), for a
    shape (samples, channels, plane)."""
    samples, channels, plane = shape
    for n in range(samples):
        at = (n * channels + c) * plane
        for i in range(at, at + plane):
            lx[0], lx[1] = dy[i], x[i]
            normal = (lx[1] - middle) * deviation
            given = lx[0] if not relu or slope * normal + shift > 0 else 0.0
            dx[i] = slope * deviation * (given - level - normal * tilt)


@program
def batch_norm_inference(
    count: Array,
    touch: bool,
    lx: Array,
    x: Array,
    mean: Array,
    variance: Array,
    factor: Array,
    w: Array,
    b: Array,
    y: Array,
    samples: int,
    channels: int,
    plane: int,
    epsilon: float,
    relu: bool,
) -> None:
    """Normalise by kept statistics, in one stream."""
    size = 1.0 * samples * channels * plane
    stream(count, size, size, size / 64.0 / 2.0)
    count[FLOPS] += 3.0 * size
    if not touch:
        return
    share = 1.0 / factor[0] if factor[0] != 0 else 0.0
    for c in range(channels):
        middle = mean[c] * share
        slope = (w[c] if w.size > 0 else 1.0) / math.sqrt(variance[c] * share + epsilon)
        shift = b[c] if b.size > 0 else 0.0
        for n in range(samples):
            at = (n * channels + c) * plane
            for i in range(at, at + plane):
                lx[0] = x[i]
                value = (lx[0] - middle) * slope + shift
                y[i] = 0.0 if relu and value < 0 else value


@program
def scale(
    count: Array,
    touch: bool,
    lx: Array,
    x: Array,
    w: Array,
    b: Array,
    y: Array,
    outer: int,
    middle: int,
    inner: int,
    relu: bool,
) -> None:
    """y = x * w + b, with w and b along the middle."""
    size = 1.0 * outer * middle * inner
    stream(count, size, size, size / 64.0 / 2.0)
    count[FLOPS] += 2.0 * size
    if not touch:
        return
    for o in range(outer):
        for m in range(middle):
            shift = b[m] if b.size > 0 else np.float32(0.0)
            at = (o * middle + m) * inner
            for i in range(at, at + inner):
                lx[0] = x[i]
                value = lx[0] * w[m] + shift
                y[i] = 0.0 if relu and value < 0 else value


@program
def scale_backward(
    count: Array,
    touch: bool,
    lx: Array,
    dy: Array,
    x: Array,
    w: Array,
    dx: Array,
    dw: Array,
    db: Array,
    outer: int,
    middle: int,
    inner: int,
) -> None:
    """dx = dy * w; dw and db are the sums of dy * x and of dy, in one stream of both."""
    size = 1.0 * outer * middle * inner
    stream(
        count, size * (2.0 if dw.size > 0 else 1.0), size * (1.0 if dx.size > 0 else 0.0), size / 64.0
    )
    count[FLOPS] += 4.0 * size
    if not touch:
        return
    for m in range(middle):
        first, second, slope = 0.0, 0.0, w[m]
        for o in range(outer):
            at = (o * middle + m) * inner
            for i in range(at, at + inner):
                lx[0], lx[1] = dy[i], x[i]
                first += lx[0]
                second += lx[0] * lx[1]
                if dx.size > 0:
                    dx[i] = lx[0] * slope
        if dw.size > 0:
            dw[m] = second
        if db.size > 0:
            db[m] = first


@program
def local_response(
    count: Array,
    touch: bool,
    lx: Array,
    x: Array,
    y: Array,
    kept: Array,
    samples: int,
    channels: int,
    plane: int,
    reach: int,
    alpha: float,
    beta: float,
    k: float,
) -> None:
    """y = x * scale^-beta across channels. A power, for which there is no instruction, takes about
    100 cycles."""
    size = 1.0 * samples * channels * plane
    stream(count, size, size * (2.0 if kept.size > 0 else 1.0), size / 64.0 * 100.0)
    count[FLOPS] += 20.0 * size
    if not touch:
        return
    for n in range(samples):
        for p in range(plane):
            at = n * channels * plane + p
            for c in range(channels):
                lx[c] = x[at + c * plane]
            for c in range(channels):
                total = 0.0
                for i in range(max(0, c - reach), min(channels, c + reach + 1)):
                    total += float(lx[i]) * lx[i]
                scale = k + alpha / (2 * reach + 1) * total
                if kept.size > 0:
                    kept[at + c * plane] = scale
                y[at + c * plane] = lx[c] * scale**-beta


@program
def local_response_backward(
    count: Array,
    touch: bool,
    lx: Array,
    dy: Array,
    x: Array,
    y: Array,
    scale: Array,
    dx: Array,
    samples: int,
    channels: int,
    plane: int,
    reach: int,
    alpha: float,
    beta: float,
) -> None:
    """dx = dy * scale^-beta - 2 alpha beta / n * x * the window's sum of dy * y / scale."""
    size = 1.0 * samples * channels * plane
    stream(count, 4.0 * size, size, size / 64.0 * 120.0)
    count[FLOPS] += 20.0 * size
    if not touch:
        return
    for n in range(samples):
        for p in range(plane):
            at = n * channels * plane + p
            for c in range(channels):
                i = at + c * plane
                lx[c] = dy[i] * y[i] / scale[i]
            for c in range(channels):
                i = at + c * plane
                total = 0.0
                for j in range(max(0, c - reach), min(channels, c + reach + 1)):
                    total += lx[j]
                slope = 2.0 * alpha * beta / (2 * reach + 1) * x[i] * total
                dx[i] = dy[i] * float(scale[i]) ** -beta - slope


@program
def square_sum(lx: Array, h: int, w: int, row: int, column: int, reach: int) -> float:
    """Return the sum over the square around a place of a plane in LDM, as far as it is inside the
    plane."""
    total = 0.0
    for i in range(max(0, row - reach), min(h, row + reach + 1)):
        for j in range(max(0, column - reach), min(w, column + reach + 1)):
            total += lx[i * w + j]
    return total


@program
def square_response(
    count: Array,
    touch: bool,
    lx: Array,
    x: Array,
    y: Array,
    kept: Array,
    planes: int,
    h: int,
    w: int,
    reach: int,
    alpha: float,
    beta: float,
    k: float,
) -> None:
    """y = x * scale^-beta, with the scale from the square around each place."""
    size, side = 1.0 * planes * h * w, 2 * reach + 1
    stream(count, size, size * (2.0 if kept.size > 0 else 1.0), size / 64.0 * (100.0 + side * side))
    count[FLOPS] += size * (12.0 + 2.0 * side * side)
    if not touch:
        return
    for plane in range(planes):
        at = plane * h * w
        for i in range(h * w):
            lx[i] = x[at + i]
            lx[i] = lx[i] * lx[i]
        for i in range(h * w):
            scale = k + alpha / (side * side) * square_sum(lx, h, w, i // w, i % w, reach)
            if kept.size > 0:
                kept[at + i] = scale
            y[at + i] = x[at + i] * scale**-beta


@program
def square_response_backward(
    count: Array,
    touch: bool,
    lx: Array,
    dy: Array,
    x: Array,
    y: Array,
    scale: Array,
    dx: Array,
    planes: int,
    h: int,
    w: int,
    reach: int,
    alpha: float,
    beta: float,
) -> None:
    """dx = dy * scale^-beta - 2 alpha beta / n * x * the square's sum of dy * y / scale."""
    size, side = 1.0 * planes * h * w, 2 * reach + 1
    stream(count, 4.0 * size, size, size / 64.0 * (120.0 + side * side))
    count[FLOPS] += size * (12.0 + 2.0 * side * side)
    if not touch:
        return
    for plane in range(planes):
        at = plane * h * w
        for i in range(h * w):
            lx[i] = dy[at + i] * y[at + i] / scale[at + i]
        for i in range(h * w):
            total = square_sum(lx, h, w, i // w, i % w, reach)
            slope = 2.0 * alpha * beta / (side * side) * x[at + i] * total
            dx[at + i] = dy[at + i] * float(scale[at + i]) ** -beta - slope
