"""Convolution by implicit GEMM: no columns, but one product for each tap. Tensors are laid out as (R, C,
N, B).

Blocks are taken on the width (as many columns of the image as make 256 with the batch) and on channels
(up to 512 in both directions). Padding consists of coordinates that are not fetched. The program waits
for each tap's operands, because LDM holds larger blocks instead of two sets of smaller ones.
"""

from __future__ import annotations

import numpy as np

from demitasse_sw26010.model.mesh import ELAPSED, FLOPS, GET, PUT, multiply, product, stream, transfer
from demitasse_sw26010.model.programs import Array, program, program_of_places

COLUMNS = 256
"""The columns of a product: 32 on each CPE, as with explicit GEMM, two register parts deep."""

BLOCK = 512
"""The maximum number of channels in a product, in both directions."""


@program
def reorder_weights(
    count: Array, touch: bool, w: Array, taps: Array, k: int, c: int, window: int
) -> None:
    """Reorder (K, C, R, S) to (R, S, K, C), a part at a time through LDM."""
    stream(count, 1.0 * k * c * window, 1.0 * k * c * window, k * c * window / 64.0)
    if touch:
        for o in range(k):
            for i in range(c):
                for t in range(window):
                    taps[(t * k + o) * c + i] = w[(o * c + i) * window + t]


@program_of_places("m0", "o")
def convolved_row(
    count: Array,
    touch: bool,
    lw: Array,
    lx: Array,
    ly: Array,
    bus: Array,
    x: Array,
    b: Array,
    y: Array,
    taps: Array,
    shape: Array,
    backward: bool,
    m0: int,
    m: int,
    o: int,
    inside: int,
) -> None:
    """Compute, for ``convolve``, the ``m`` channels from ``m0`` of row ``o``. ``inside`` is the number
    of rows of taps that contribute to it from inside the image."""
    batch, window = shape[0], shape[5] * shape[6]
    ins, outs = (shape[4], shape[1]) if backward else (shape[1], shape[4])
    height, width = (shape[7], shape[8]) if backward else (shape[2], shape[3])
    columns = shape[3] if backward else shape[8]
    sw, pw = shape[10], shape[12]
    block_in = lx.shape[0]
    wide = max(1, COLUMNS // batch)
    some = min(batch, COLUMNS)
    for v0 in range(0, columns, wide):
        across = min(wide, columns - v0)
        for n0 in range(0, batch, some):
            n = min(some, batch - n0)
            if touch:
                for i in range(-(-m // 4) * 4):
                    for j in range(across * n):
                        ly[i, j] = 0.0
            for t in range(window):
                r, s = t // shape[6], t % shape[6]
                at = row_of_tap(shape, o, r, backward)
                if at < 0 or at >= height:
                    continue
                valid = 0
                for v in range(v0, v0 + across):
                    u = v + pw - s if backward else v * sw - pw + s
                    if backward:
                        valid += u % sw == 0 and 0 <= u // sw < width
                    else:
                        valid += 0 <= u < width
                if valid == 0:
                    continue
                for k0 in range(0, ins, block_in):
                    k = min(block_in, ins - k0)
                    waits = transfer(count, GET, 64, k / 8.0 * valid, n / 8.0 * 4.0, 1.0)
                    waits += transfer(
                        count,
                        GET,
                        64,
                        (k if backward else m) / 8.0,
                        (m if backward else k) / 8.0 * 4.0,
                        1.0,
                    )
                    count[ELAPSED] += waits + product(count, m, valid * n, k)
                    count[FLOPS] += 2.0 * m * valid * n * k
                    if not touch:
                        continue
                    for i in range(m):
                        for j in range(k):
                            if backward:
                                lw[i, j] = taps[(t * ins + k0 + j) * outs + m0 + i]
                            else:
                                lw[i, j] = taps[(t * outs + m0 + i) * ins + k0 + j]
                    for i in range(m, -(-m // 4) * 4):
                        lw[i] = 0.0
                    for v in range(across):
                        u = v0 + v + pw - s if backward else (v0 + v) * sw - pw + s
                        there = 0 <= u < width
                        if backward:
                            there = u % sw == 0 and 0 <= u // sw < width
                            u //= sw
                        for j in range(k):
                            start = ((at * width + u) * ins + k0 + j) * batch + n0
                            for i in range(n):
                                lx[j, v * n + i] = x[start + i] if there else 0.0
                    multiply(lw, lx, ly, bus, 0, m, across * n, k)
            count[ELAPSED] += transfer(count, PUT, 64, m / 8.0 * across, n / 8.0 * 4.0, 1.0)
            if not touch:
                continue
            for v in range(across):
                for i in range(m):
                    more = b[m0 + i] if b.size > 0 else np.float32(0.0)
                    start = ((o * columns + v0 + v) * outs + m0 + i) * batch + n0
                    for j in range(n):
                        y[start + j] = ly[i, v * n + j] + more


@program
def row_of_tap(shape: Array, o: int, r: int, backward: bool) -> int:
    """Return the row that a tap in row ``r`` contributes to row ``o``, or -1 if, because of the stride,
    there is none."""
    if not backward:
        return int(o * shape[9] - shape[11] + r)
    above = o + shape[11] - r
    return -1 if above % shape[9] else int(above // shape[9])


@program
def convolve(
    count: Array,
    touch: bool,
    lw: Array,
    lx: Array,
    ly: Array,
    x: Array,
    w: Array,
    b: Array,
    y: Array,
    taps: Array,
    shape: Array,
    backward: bool,
) -> None:
    """Compute y from x or, with ``backward``, dx (as y) from dy (as x). It is the same sum, with the
    roles of channels and the mapping of coordinates reversed. LDM has ``lw`` (outputs, inputs), ``lx``
    (inputs, 256) and ``ly`` (outputs, 256, in doubles), all of one block."""
    outs, rows = (shape[1], shape[2]) if backward else (shape[4], shape[7])
    height = shape[7] if backward else shape[2]
    reorder_weights(count, touch, w, taps, shape[4], shape[1], shape[5] * shape[6])
    block_out, block_in = ly.shape[0], lx.shape[0]
    bus = np.empty((block_in // 8 + 1, COLUMNS))
    for m0 in range(0, outs, block_out):
        for o in range(rows):
            inside = 0
            for r in range(shape[5]):
                inside += 0 <= row_of_tap(shape, o, r, backward) < height
            convolved_row(
                count, touch, lw, lx, ly, bus, x, b, y, taps, shape, backward,
                m0, min(block_out, outs - m0), o, inside,
            )  # fmt: skip


@program_of_places("m0", "i0", "a", "o")
def weighed_row(
    count: Array,
    touch: bool,
    ldw: Array,
    lx: Array,
    ly: Array,
    bus: Array,
    dy: Array,
    x: Array,
    shape: Array,
    m0: int,
    m: int,
    i0: int,
    q: int,
    a: int,
    o: int,
) -> None:
    """Add up, for ``weigh``, what row ``o`` contributes to row ``a`` of taps, for ``m`` channels of dy
    from ``m0`` and ``q`` of x from ``i0``."""
    batch, c, k = shape[0], shape[1], shape[4]
    width, s, columns = shape[3], shape[6], shape[8]
    sw, pw, at = shape[10], shape[12], o * shape[9] - shape[11] + a
    wide = max(1, COLUMNS // batch)
    some = min(batch, COLUMNS)
    for v0 in range(0, columns, wide):
        across = min(wide, columns - v0)
        for n0 in range(0, batch, some):
            n = min(some, batch - n0)
            waits = transfer(count, GET, 64, m / 8.0 * across, n / 8.0 * 4.0, 1.0)
            if touch:
                for i in range(m):
                    for v in range(across):
                        start = ((o * columns + v0 + v) * k + m0 + i) * batch + n0
                        for j in range(n):
                            ly[i, v * n + j] = dy[start + j]
                for i in range(m, -(-m // 4) * 4):
                    ly[i] = 0.0
            for t in range(s):
                valid = 0
                for v in range(v0, v0 + across):
                    valid += 0 <= v * sw - pw + t < width
                if valid == 0:
                    continue
                waits += transfer(count, GET, 64, q / 8.0 * valid, n / 8.0 * 4.0, 1.0)
                waits += product(count, m, q, valid * n)
                count[FLOPS] += 2.0 * m * q * valid * n
                if not touch:
                    continue
                for v in range(across):
                    u = (v0 + v) * sw - pw + t
                    there = 0 <= u < width
                    for j in range(q):
                        start = ((at * width + u) * c + i0 + j) * batch + n0
                        for i in range(n):
                            lx[v * n + i, j] = x[start + i] if there else 0.0
                multiply(ly, lx, ldw[t], bus, 0, m, q, across * n)
            count[ELAPSED] += waits


@program
def weigh(
    count: Array,
    touch: bool,
    ldw: Array,
    lx: Array,
    ly: Array,
    dy: Array,
    x: Array,
    dw: Array,
    db: Array,
    shape: Array,
) -> None:
    """Compute dw from dy and x: for each row of taps, dy is fetched once and x for each tap. LDM has
    ``ldw`` (S, outputs, inputs) in doubles, ``lx`` (256, inputs) and ``ly`` (outputs, 256) of one
    block."""
    batch, c, k = shape[0], shape[1], shape[4]
    height, r, s = shape[2], shape[5], shape[6]
    rows, columns = shape[7], shape[8]
    block_k, block_c = ldw.shape[1], ldw.shape[2]
    bus = np.empty((COLUMNS // 8, block_c))
    for m0 in range(0, k, block_k):
        m = min(block_k, k - m0)
        for i0 in range(0, c, block_c):
            q = min(block_c, c - i0)
            for a in range(r):
                if touch:
                    ldw[:, : -(-m // 4) * 4, :q] = 0.0
                for o in range(rows):
                    if 0 <= o * shape[9] - shape[11] + a < height:
                        weighed_row(count, touch, ldw, lx, ly, bus, dy, x, shape, m0, m, i0, q, a, o)
                for t in range(s):
                    count[ELAPSED] += transfer(count, PUT, 64, m / 8.0, q / 8.0 * 4.0, 1.0)
                    if touch:
                        for i in range(m):
                            for j in range(q):
                                dw[(((m0 + i) * c + i0 + j) * r + a) * s + t] = ldw[t, i, j]
    # The parts are put as (R, S, K, C) and then moved to the layout of the weights.
    stream(count, 1.0 * k * c * r * s, 1.0 * k * c * r * s, k * c * r * s / 64.0)
    if db.size > 0:
        stream(count, 1.0 * batch * k * rows * columns, 0.0, batch * k * rows * columns / 256.0)
        if touch:
            for i in range(k):
                total = 0.0
                for place in range(rows * columns):
                    start = (place * k + i) * batch
                    for j in range(batch):
                        total += dy[start + j]
                db[i] = total
