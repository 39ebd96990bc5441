"""The vocabulary of programs of the mesh: DMA, products by register communication, pipelines.

A program runs in lock-step on all CPEs, so one call here is what all 64 do. Memory of the mesh is one
array: CPE (i, j) has the i-th eighth of the rows and the j-th eighth of the columns of a matrix in LDM.
Every call adds to ``count`` and returns seconds. The program says what waits for what: it adds to
``count[ELAPSED]`` either seconds, or the longer of those that double buffering overlaps. If all images
or groups take the same, the first is counted, and ``add_alike`` then adds it for all of them.
"""

from __future__ import annotations

import numpy as np

from demitasse_sw26010.model.figures import (
    BLOCK_OVERHEAD,
    BROADCAST_CYCLES,
    CLOCK,
    CPES,
    DMA_BANDWIDTH,
    DMA_LATENCY,
    DMA_PER_CPE,
    MESH,
    MPE_CYCLES,
    REGISTER_COLUMNS,
    REGISTER_ROWS,
    ROUND_CYCLES,
    SATISFACTORY_BLOCK,
    SATISFACTORY_TRANSFER,
)
from demitasse_sw26010.model.programs import Array, program

ELAPSED, DMA, COMPUTE, GET, PUT, TRANSFERS, SHORT, SMALL, MESSAGES, FLOPS, P0, P1, MPE = range(13)
COUNTERS = 13


@program
def counters() -> Array:
    """Return counters that are all zero."""
    return np.zeros(COUNTERS)


@program
def add_alike(count: Array, one: Array, times: float) -> None:
    """Add the cost of one of several things that all cost the same, ``times`` times."""
    for counter in range(COUNTERS):
        count[counter] += times * one[counter]


@program
def transfer(count: Array, kind: int, cpes: int, blocks: float, block: float, times: float) -> float:
    """Count ``times`` transfers, one after the other, in each of which every one of ``cpes`` CPEs moves
    this many blocks of this many bytes. ``kind`` is GET or PUT."""
    moved = times * cpes * blocks * block
    count[kind] += moved
    count[TRANSFERS] += times * cpes
    if blocks > 1 and block < SATISFACTORY_BLOCK:
        count[SHORT] += moved
    if blocks * block < SATISFACTORY_TRANSFER:
        count[SMALL] += moved
    rate = min(DMA_BANDWIDTH, cpes * DMA_PER_CPE)
    seconds = times * (DMA_LATENCY + cpes * blocks * (block + BLOCK_OVERHEAD) / rate)
    count[DMA] += seconds
    return seconds


@program
def stream(count: Array, gets: float, puts: float, cycles: float) -> float:
    """Count elements of 4 bytes read and written in long blocks by all CPEs, overlapped with ``cycles``
    of the vector pipelines of each CPE. Three eighths of LDM are on their way."""
    block = 8192.0
    moved = 0.0
    for kind, elements in ((GET, gets), (PUT, puts)):
        if elements > 0:
            each = elements * 4.0 / CPES
            parts = max(1.0, each / block)
            moved += transfer(count, kind, CPES, 1.0, min(each, block), parts)
    taken = work(count, cycles, cycles)
    longer = max(moved, taken)
    count[ELAPSED] += longer
    return longer


@program
def stream_rows(count: Array, rows: int, columns: int, source: int, target: int, cycles: float) -> float:
    """Like ``stream``, count a matrix that moves from one place to another. Rows that are ``source`` and
    ``target`` numbers apart are one block each, unless that is their own length; then all rows are
    contiguous."""
    moved, each = 0.0, rows * columns * 4.0 / CPES
    size = min(each, 8192.0)
    for kind, apart in ((GET, source), (PUT, target)):
        block = size if apart == columns else min(size, columns * 4.0)
        if size > 0:
            moved += transfer(count, kind, CPES, size / block, block, each / size)
    taken = work(count, cycles, cycles)
    longer = max(moved, taken)
    count[ELAPSED] += longer
    return longer


@program
def work(count: Array, first: float, second: float) -> float:
    """Count cycles on the floating-point pipeline and on the memory pipeline of each CPE."""
    count[P0] += first
    count[P1] += second
    seconds = max(first, second) / CLOCK
    count[COMPUTE] += seconds
    return seconds


@program
def on_mpe(count: Array, elements: float) -> float:
    """Count a scalar loop on the MPE, while the CPEs wait."""
    cycles = elements * MPE_CYCLES
    count[MPE] += cycles
    count[ELAPSED] += cycles / CLOCK
    return cycles / CLOCK


@program
def product(count: Array, m: int, n: int, k: int) -> float:
    """Count the eight steps of Section IV.A: C (m x n) += A (m x k) B (k x n), all in LDM.

    In step t, the CPEs of column t send their part of A along their rows, and those of row t their part
    of B along their columns, converted to doubles as they are loaded. For each of k, a CPE multiplies
    and adds 16 times and converts 8 operands on one pipeline, and loads 8 and receives 8 messages on the
    other. Vectors are along m or along n, whichever fills the registers better.
    """
    rows, columns, depth = -(-m // MESH), -(-n // MESH), -(-k // MESH)
    along_m = -(-rows // REGISTER_ROWS) * -(-columns // REGISTER_COLUMNS)
    along_n = -(-columns // REGISTER_ROWS) * -(-rows // REGISTER_COLUMNS)
    parts = MESH * min(along_m, along_n)
    sums = REGISTER_ROWS * REGISTER_COLUMNS // 4
    operands = REGISTER_ROWS // 4 + REGISTER_COLUMNS
    count[MESSAGES] += float(parts) * depth * operands * CPES
    first = float(parts) * (depth * (sums + operands) + ROUND_CYCLES)
    second = float(parts) * (depth * operands * (1.0 + BROADCAST_CYCLES) + 2 * sums)
    return work(count, first, second)


@program
def multiply(a: Array, b: Array, c: Array, bus: Array, at: int, m: int, n: int, k: int) -> None:
    """Do on the data what ``product`` counts: C's columns from ``at`` on += A B, in doubles. ``bus``
    holds what the CPEs of row t send in step t: their part of B, converted."""
    eighth = -(-k // MESH)
    for t in range(MESH):
        begin, end = t * eighth, min(k, (t + 1) * eighth)
        for p in range(begin, end):
            line, source = bus[p - begin], b[p]
            for j in range(n):
                line[j] = source[j]
        whole = begin + (end - begin) // 4 * 4 if end > begin else begin
        for i in range(0, m, 2):
            c0, c1 = c[i, at : at + n], c[i + 1, at : at + n]
            # Four of k at a time, so that the sums are loaded and stored a quarter as often.
            for p in range(begin, whole, 4):
                a0, a1, a2, a3 = (
                    float(a[i, p]),
                    float(a[i, p + 1]),
                    float(a[i, p + 2]),
                    float(a[i, p + 3]),
                )
                b0, b1 = float(a[i + 1, p]), float(a[i + 1, p + 1])
                b2, b3 = float(a[i + 1, p + 2]), float(a[i + 1, p + 3])
                l0, l1 = bus[p - begin], bus[p - begin + 1]
                l2, l3 = bus[p - begin + 2], bus[p - begin + 3]
                for j in range(n):
                    c0[j] = c0[j] + a0 * l0[j] + a1 * l1[j] + a2 * l2[j] + a3 * l3[j]
                    c1[j] = c1[j] + b0 * l0[j] + b1 * l1[j] + b2 * l2[j] + b3 * l3[j]
            for p in range(whole, end):
                a0, b0 = float(a[i, p]), float(a[i + 1, p])
                l0 = bus[p - begin]
                for j in range(n):
                    c0[j] += a0 * l0[j]
                    c1[j] += b0 * l0[j]
