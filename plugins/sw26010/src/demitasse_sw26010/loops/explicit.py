"""Convolution by explicit GEMM, image by image, with im2col and col2im row by row through LDM (Fig. 4).

``shape`` holds N, C, H, W of x, K, R, S of w, P, Q of y, strides, pads, dilations and groups. Matrices
are padded to the tile of the product: weights (K to 256, CRS to 256) and columns (CRS to 256, PQ to 64).
The columns of a 1 x 1 convolution with stride 1 are x itself.
"""

from __future__ import annotations

from demitasse_sw26010.loops.gemm import TILE_K, TILE_M, TILE_N, copy, copy_with_bias, gemm
from demitasse_sw26010.model.mesh import (
    ELAPSED,
    GET,
    PUT,
    add_alike,
    counters,
    stream,
    transfer,
    work,
)
from demitasse_sw26010.model.programs import Array, program, program_of_places


@program
def up(value: int, tile: int) -> int:
    return -(-value // tile) * tile


@program_of_places("x0", "c0")
def im2col(
    count: Array,
    touch: bool,
    row: Array,
    line: Array,
    x: Array,
    x0: int,
    col: Array,
    c0: int,
    ld: int,
    shape: Array,
    channels: int,
) -> None:
    """Write columns. Each CPE gets one row of the image, and puts R x S lines of columns, one DMA after
    the other."""
    h, w, r, s = shape[2], shape[3], shape[5], shape[6]
    p, q, sh, sw = shape[7], shape[8], shape[9], shape[10]
    ph, pw, dh, dw = shape[11], shape[12], shape[13], shape[14]
    rounds = -(-channels * h // 64)
    cpes = min(64, channels * h)
    lines = 1.0 * r * s * p / h
    count[ELAPSED] += transfer(count, GET, cpes, 1.0, 4.0 * w, 1.0 * rounds)
    count[ELAPSED] += transfer(count, PUT, cpes, 1.0, 4.0 * q, rounds * lines)
    # A line is shifted in vectors of 4, or gathered number by number if the stride skips some.
    cycles = rounds * lines * q * (0.5 if sw == 1 else 2.0)
    count[ELAPSED] += work(count, 0.0, cycles)
    if not touch:
        return
    for c in range(channels):
        for i in range(h):
            start = x0 + (c * h + i) * w
            for j in range(w):
                row[j] = x[start + j]
            for a in range(r):
                at = i + ph - a * dh
                if at < 0 or at % sh or at // sh >= p:
                    continue
                for b in range(s):
                    shift = b * dw - pw
                    low = min(q, max(0, -(shift // sw)))
                    high = max(low, min(q, (w - 1 - shift) // sw + 1))
                    line[:low] = 0.0
                    line[high:q] = 0.0
                    if sw == 1:
                        source = row[low + shift : high + shift]
                        for j in range(high - low):
                            line[low + j] = source[j]
                    else:
                        for j in range(low, high):
                            line[j] = row[j * sw + shift]
                    start = c0 + ((c * r + a) * s + b) * ld + at // sh * q
                    target = col[start : start + q]
                    for j in range(q):
                        target[j] = line[j]
        for a in range(r):
            for o in range(p):
                if 0 <= o * sh - ph + a * dh < h:
                    continue
                for b in range(s):
                    start = c0 + ((c * r + a) * s + b) * ld + o * q
                    for j in range(q):
                        col[start + j] = 0.0


@program_of_places("c0", "x0")
def col2im(
    count: Array,
    touch: bool,
    row: Array,
    line: Array,
    col: Array,
    c0: int,
    ld: int,
    x: Array,
    x0: int,
    shape: Array,
    channels: int,
) -> None:
    """Each CPE gets the R x S lines that meet in one row of the image, adds them up and puts the row."""
    h, w, r, s = shape[2], shape[3], shape[5], shape[6]
    p, q, sh, sw = shape[7], shape[8], shape[9], shape[10]
    ph, pw, dh, dw = shape[11], shape[12], shape[13], shape[14]
    rounds = -(-channels * h // 64)
    cpes = min(64, channels * h)
    lines = 1.0 * r * s * p / h
    count[ELAPSED] += transfer(count, GET, cpes, 1.0, 4.0 * q, rounds * lines)
    count[ELAPSED] += transfer(count, PUT, cpes, 1.0, 4.0 * w, 1.0 * rounds)
    # Sums at shifted places are not aligned to vectors: each number takes a load, a load, an add and a
    # store. Where places overlap, the next add waits for the store before it, which takes 7 more cycles.
    cycles = rounds * lines * q
    count[ELAPSED] += work(count, cycles, 11.0 * cycles)
    if not touch:
        return
    for c in range(channels):
        for i in range(h):
            for j in range(w):
                row[j] = 0.0
            for a in range(r):
                at = i + ph - a * dh
                if at < 0 or at % sh or at // sh >= p:
                    continue
                for b in range(s):
                    start = c0 + ((c * r + a) * s + b) * ld + at // sh * q
                    source = col[start : start + q]
                    for j in range(q):
                        line[j] = source[j]
                    shift = b * dw - pw
                    low = min(q, max(0, -(shift // sw)))
                    high = max(low, min(q, (w - 1 - shift) // sw + 1))
                    if sw == 1:
                        target, part = row[low + shift : high + shift], line[low:high]
                        for j in range(high - low):
                            target[j] += part[j]
                    else:
                        for j in range(low, high):
                            row[j * sw + shift] += line[j]
            start = x0 + (c * h + i) * w
            for j in range(w):
                x[start + j] = row[j]


@program
def forward(
    count: Array,
    touch: bool,
    la: Array,
    lb: Array,
    lc: Array,
    row: Array,
    line: Array,
    x: Array,
    w: Array,
    b: Array,
    y: Array,
    space: Array,
    shape: Array,
) -> None:
    """y = w * columns + b. ``space`` holds the padded weights, the columns, and the padded product."""
    n, c, k, g = shape[0], shape[1] // shape[15], shape[4] // shape[15], shape[15]
    plane, image, taps = shape[7] * shape[8], shape[2] * shape[3], shape[5] * shape[6]
    direct = taps == 1 and plane == image
    depth, mp, np, kp = c * taps, up(k, TILE_M), up(plane, TILE_N), up(c * taps, TILE_K)
    mk = up(k, TILE_K)
    weights, columns = 0, g * mk * kp
    result = columns + kp * np
    padded = mk != k or kp != depth
    if padded:
        for group in range(g):
            copy(count, touch, line, w, group * k * depth, depth, space, group * mk * kp, kp, k, depth)
    whole = mp == k and np == plane
    one, parts = counters(), n * g
    for part in range(parts if touch else 1):
        image_number, group = part // g, part % g
        x0 = (image_number * shape[1] + group * c) * image
        y0 = (image_number * shape[4] + group * k) * plane
        source, s0, ld = space, columns, np
        if not direct:
            im2col(one, touch, row, line, x, x0, space, columns, np, shape, c)
        elif np == plane and kp == depth:
            source, s0, ld = x, x0, plane
        else:
            copy(one, touch, line, x, x0, plane, space, columns, np, depth, plane)
        wm, w0, wl = (space, weights + group * mk * kp, kp) if padded else (w, group * k * depth, depth)
        target, t0, tl = (y, y0, plane) if whole else (space, result, np)
        gemm(one, touch, la, lb, lc, wm, w0, wl, 1, source, s0, ld, 1, target, t0, tl, 1,
             mp, np, kp, k, plane, depth, False)  # fmt: skip
        if b.size > 0:
            copy_with_bias(
                one, touch, line, target, t0, tl, b[group * k :], False, y, y0, plane, k, plane
            )
        elif not whole:
            copy(one, touch, line, target, t0, tl, y, y0, plane, k, plane)
    add_alike(count, one, 1.0 if touch else float(parts))


@program
def backward_data(
    count: Array,
    touch: bool,
    la: Array,
    lb: Array,
    lc: Array,
    row: Array,
    line: Array,
    dy: Array,
    w: Array,
    dx: Array,
    space: Array,
    shape: Array,
) -> None:
    """columns = w^T dy, then col2im. ``space`` holds the padded weights, the padded dy, and the padded
    columns."""
    n, c, k, g = shape[0], shape[1] // shape[15], shape[4] // shape[15], shape[15]
    plane, image, taps = shape[7] * shape[8], shape[2] * shape[3], shape[5] * shape[6]
    direct = taps == 1 and plane == image
    depth, mp, np, kp = c * taps, up(c * taps, TILE_M), up(plane, TILE_N), up(k, TILE_K)
    gradients = g * kp * mp
    columns = gradients + kp * np
    padded = kp != k or mp != depth
    if padded:
        for group in range(g):
            copy(count, touch, line, w, group * k * depth, depth, space, group * kp * mp, mp, k, depth)
    one, parts = counters(), n * g
    for part in range(parts if touch else 1):
        image_number, group = part // g, part % g
        x0 = (image_number * shape[1] + group * c) * image
        y0 = (image_number * shape[4] + group * k) * plane
        source, s0, ld = dy, y0, plane
        if kp != k or np != plane:
            source, s0, ld = space, gradients, np
            copy(one, touch, line, dy, y0, plane, space, gradients, np, k, plane)
        wm, w0, wl = (space, group * kp * mp, mp) if padded else (w, group * k * depth, depth)
        straight = direct and mp == depth and np == plane
        target, t0, tl = (dx, x0, plane) if straight else (space, columns, np)
        gemm(one, touch, la, lb, lc, wm, w0, 1, wl, source, s0, ld, 1, target, t0, tl, 1,
             mp, np, kp, depth, plane, k, False)  # fmt: skip
        if not direct:
            col2im(one, touch, row, line, space, columns, np, dx, x0, shape, c)
        elif not straight:
            copy(one, touch, line, space, columns, np, dx, x0, plane, depth, plane)
    add_alike(count, one, 1.0 if touch else float(parts))


@program
def backward_weights(
    count: Array,
    touch: bool,
    la: Array,
    lb: Array,
    lc: Array,
    row: Array,
    line: Array,
    dy: Array,
    x: Array,
    dw: Array,
    db: Array,
    space: Array,
    shape: Array,
    together: int,
) -> None:
    """dw = the sum over images of dy columns^T. This is one contraction over images and places, so the
    columns of several images are side by side: the batch is blocked ``together``. ``space`` holds dy and
    columns of that many images, padded, and the padded dw."""
    n, c, k, g = shape[0], shape[1] // shape[15], shape[4] // shape[15], shape[15]
    plane, image, taps = shape[7] * shape[8], shape[2] * shape[3], shape[5] * shape[6]
    direct = taps == 1 and plane == image
    depth = c * taps
    kp, mp, np = up(together * plane, TILE_K), up(k, TILE_M), up(depth, TILE_N)
    columns = mp * kp
    result = columns + np * kp
    if touch:
        for i in range(db.size):
            db[i] = 0.0
    one = counters()
    for group in range(g if touch else 1):
        for first in range(0, n, together):
            some = min(together, n - first)
            for i in range(some):
                x0 = ((first + i) * shape[1] + group * c) * image
                y0 = ((first + i) * shape[4] + group * k) * plane
                copy(one, touch, line, dy, y0, plane, space, i * plane, kp, k, plane)
                if touch and db.size > 0:
                    for o in range(k):
                        total = 0.0
                        for j in range(plane):
                            total += dy[y0 + o * plane + j]
                        db[group * k + o] += total
                if direct:
                    copy(one, touch, line, x, x0, plane, space, columns + i * plane, kp, depth, plane)
                else:
                    at = columns + i * plane
                    im2col(one, touch, row, line, x, x0, space, at, kp, shape, c)
            used = up(some * plane, TILE_K)
            gemm(one, touch, la, lb, lc, space, 0, kp, 1, space, columns, 1, kp, space, result, np, 1,
                 mp, np, used, k, depth, some * plane, first > 0)  # fmt: skip
        copy(one, touch, line, space, result, np, dw, group * k * depth, depth, k, depth)
    add_alike(count, one, 1.0 if touch else float(g))
    if db.size > 0:
        stream(count, 0.0, 1.0 * shape[4], 1.0 * n * shape[4] * plane / 64.0 / 4.0)
