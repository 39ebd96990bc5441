"""Matrix products by register communication, blocked for LDM, and copies that pad matrices for them.

Matrices are flat in DDR3 at an offset, with strides along rows and columns. Their sizes are multiples of
the mesh's tile (256 x 64, contracted over 256). The ``used`` extents hold numbers. The rest are zeros,
which the mesh moves and multiplies, and which emulation leaves out.
"""

from __future__ import annotations

import numpy as np

from demitasse_sw26010.model.mesh import (
    ELAPSED,
    FLOPS,
    GET,
    PUT,
    multiply,
    product,
    stream_rows,
    transfer,
)
from demitasse_sw26010.model.programs import Array, program_of_places

TILE_M, TILE_N, TILE_K = 256, 64, 256
"""The tile of a product on the mesh: 32 x 8 numbers of the result on each CPE, two register parts in
each direction, so that one part's messages hide the other's latency. The paper does not give these
sizes. Of tiles of 64 to 512, they agree best with the printed cells of Table II, over all layers and
passes."""


@program_of_places("a0", "b0", "y0")
def gemm(
    count: Array,
    touch: bool,
    la: Array,
    lb: Array,
    lc: Array,
    a: Array,
    a0: int,
    ar: int,
    ac: int,
    b: Array,
    b0: int,
    br: int,
    bc: int,
    y: Array,
    y0: int,
    yr: int,
    yc: int,
    m: int,
    n: int,
    k: int,
    um: int,
    un: int,
    uk: int,
    add: bool,
) -> None:
    """Y (m x n) = A (m x k) B (k x n), or added to Y.

    LDM has ``la`` (256, 256) and ``lb`` (256, 64), each twice, so that the next one is on its way, and
    ``lc`` (256, a panel) in doubles: that many columns of the result stay while all of k passes by.
    Along the contiguous dimension, each CPE has an eighth of the tile: 128 bytes, or 32 along n.
    """
    bus, panel = np.empty((TILE_K // 8, TILE_N)), lc.shape[1]
    a_block = TILE_K // 8 * 4.0 if ac == 1 else TILE_M // 8 * 4.0
    b_block = TILE_N // 8 * 4.0 if bc == 1 else TILE_K // 8 * 4.0
    y_block = TILE_N // 8 * 4.0 if yc == 1 else TILE_M // 8 * 4.0
    for i in range(0, m, TILE_M):
        mi = min(TILE_M, um - i)
        for j in range(0, n, panel):
            columns = min(panel, n - j)
            y_blocks = TILE_M / 8.0 * columns / 8.0 * 4.0 / y_block
            if add:
                count[ELAPSED] += transfer(count, GET, 64, y_blocks, y_block, 1.0)
            if touch:
                for r in range(mi):
                    line = lc[r]
                    start = y0 + (i + r) * yr + j * yc
                    for q in range(min(columns, un - j)):
                        line[q] = float(y[start + q * yc]) if add else 0.0
                for r in range(max(mi, 0), -(-mi // 4) * 4):
                    lc[r] = 0.0
            for p in range(0, k, TILE_K):
                kp = min(TILE_K, uk - p)
                moving = transfer(count, GET, 64, TILE_M * TILE_K / 64.0 * 4.0 / a_block, a_block, 1.0)
                computing = 0.0
                if touch:
                    if ac == 1:
                        for r in range(mi):
                            start = a0 + (i + r) * ar + p
                            line, source = la[r], a[start : start + kp]
                            for q in range(kp):
                                line[q] = source[q]
                    else:
                        for q in range(kp):
                            start = a0 + i * ar + (p + q) * ac
                            for r in range(mi):
                                la[r, q] = a[start + r * ar]
                    for r in range(max(mi, 0), -(-mi // 4) * 4):
                        la[r] = 0.0
                for q in range(0, columns, TILE_N):
                    moving += transfer(
                        count, GET, 64, TILE_K * TILE_N / 64.0 * 4.0 / b_block, b_block, 1.0
                    )
                    computing += product(count, TILE_M, TILE_N, TILE_K)
                    nq = min(TILE_N, un - j - q)
                    if mi > 0 and nq > 0 and kp > 0:
                        count[FLOPS] += 2.0 * mi * nq * kp
                        if touch:
                            start = b0 + p * br + (j + q) * bc
                            if bc == 1:
                                for r in range(kp):
                                    line, source = lb[r], b[start + r * br : start + r * br + nq]
                                    for s in range(nq):
                                        line[s] = source[s]
                            else:
                                for s in range(nq):
                                    for r in range(kp):
                                        lb[r, s] = b[start + r * br + s * bc]
                            multiply(la, lb, lc, bus, q, mi, nq, kp)
                count[ELAPSED] += max(moving, computing)
            count[ELAPSED] += transfer(count, PUT, 64, y_blocks, y_block, 1.0)
            if touch:
                width = min(columns, un - j)
                if yc == 1:
                    for r in range(mi):
                        start = y0 + (i + r) * yr + j
                        line, target = lc[r], y[start : start + width]
                        for q in range(width):
                            target[q] = line[q]
                else:
                    for q in range(width):
                        start = y0 + i * yr + (j + q) * yc
                        for r in range(mi):
                            y[start + r * yr] = lc[r, q]


@program_of_places("x0", "y0")
def copy(
    count: Array,
    touch: bool,
    line: Array,
    x: Array,
    x0: int,
    xr: int,
    y: Array,
    y0: int,
    yr: int,
    rows: int,
    columns: int,
) -> None:
    """Copy rows from one place to another through LDM, to pad a matrix or to remove the padding."""
    stream_rows(count, rows, columns, xr, yr, 0.0)
    if touch:
        for r in range(rows):
            for begin in range(0, columns, line.size):
                some = min(line.size, columns - begin)
                start = x0 + r * xr + begin
                for q in range(some):
                    line[q] = x[start + q]
                start = y0 + r * yr + begin
                for q in range(some):
                    y[start + q] = line[q]


@program_of_places("x0", "y0")
def copy_with_bias(
    count: Array,
    touch: bool,
    line: Array,
    x: Array,
    x0: int,
    xr: int,
    b: Array,
    along: bool,
    y: Array,
    y0: int,
    yr: int,
    rows: int,
    columns: int,
) -> None:
    """Like ``copy``, with ``b`` added: one number for each column if ``along``, else for each row."""
    stream_rows(count, rows, columns, xr, yr, rows * columns / 64.0 / 4.0)
    count[FLOPS] += 1.0 * rows * columns
    if touch:
        for r in range(rows):
            for begin in range(0, columns, line.size):
                some = min(line.size, columns - begin)
                start = x0 + r * xr + begin
                for q in range(some):
                    line[q] = x[start + q] + (b[begin + q] if along else b[r])
                start = y0 + r * yr + begin
                for q in range(some):
                    y[start + q] = line[q]
