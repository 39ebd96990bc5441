"""Recurrences. Each step is a product of the hidden state with the weights, by register communication
(Section IV.A), and the functions of its units, which stream. The weights are padded once for all steps.

Tensors are (steps, streams, numbers). ``parts`` is the LDM for pieces of what streams.
"""

from __future__ import annotations

import math

from demitasse_sw26010.loops.gemm import TILE_K, TILE_M, TILE_N, copy, gemm
from demitasse_sw26010.loops.inner_product import column_sums, matrix_product
from demitasse_sw26010.model.mesh import FLOPS, stream
from demitasse_sw26010.model.programs import Array, program

EXPONENTIAL = 60.0
"""The cycles for one element, as in kernels/functions.py."""


@program
def up(value: int, tile: int) -> int:
    return -(-value // tile) * tile


@program
def logistic(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x))


@program
def copied(count: Array, touch: bool, parts: Array, x: Array, y: Array, size: int) -> None:
    """y = x, through LDM."""
    stream(count, 1.0 * size, 1.0 * size, 0.0)
    if touch:
        for i in range(size):
            parts[0, 0] = x[i]
            y[i] = parts[0, 0]


@program
def carry(
    count: Array,
    touch: bool,
    parts: Array,
    before: Array,
    cont: Array,
    taken: Array,
    ld: int,
    carried: Array,
    kept: bool,
    streams: int,
    units: int,
) -> None:
    """Copy the hidden state before a step where its sequence continues, else 0: padded for the product
    and, if ``kept``, also in the form that backward reads."""
    size = 1.0 * streams * units
    stream(count, size, size * (2.0 if kept else 1.0), size / 64.0 / 4.0)
    if not touch:
        return
    for n in range(streams):
        for u in range(units):
            parts[0, 0] = cont[n] * before[n * units + u]
            taken[n * ld + u] = parts[0, 0]
            if kept:
                carried[n * units + u] = parts[0, 0]


@program
def lstm_gates(
    count: Array,
    touch: bool,
    parts: Array,
    z: Array,
    sums: Array,
    ld: int,
    s: Array,
    added: bool,
    cont: Array,
    before: Array,
    state: Array,
    y: Array,
    cells: Array,
    gates: Array,
    kept: bool,
    streams: int,
    units: int,
) -> None:
    """Compute the four gates of each unit, the next cell (in ``state``) and the hidden state. Cells and
    gates are ``kept`` for backward. ``sums`` are the products, of which there are none if ``ld`` is
    0."""
    size = 1.0 * streams * units
    gets = size * (5.0 + (4.0 if ld > 0 else 0.0) + (4.0 if added else 0.0))
    stream(count, gets, size * (7.0 if kept else 2.0), size / 64.0 * 5.0 * EXPONENTIAL)
    count[FLOPS] += 12.0 * size
    if not touch:
        return
    for n in range(streams):
        for u in range(units):
            for gate in range(4):
                at = gate * units + u
                parts[gate, 0] = z[n * 4 * units + at]
                if ld > 0:
                    parts[gate, 0] += sums[n * ld + at]
                if added:
                    parts[gate, 0] += s[n * 4 * units + at]
            i, f = logistic(parts[0, 0]), logistic(parts[1, 0])
            o, g = logistic(parts[2, 0]), math.tanh(parts[3, 0])
            cell = i * g
            if cont[n] != 0:
                cell += cont[n] * f * before[n * units + u]
            state[n * units + u] = cell
            y[n * units + u] = o * math.tanh(cell)
            if kept:
                cells[n * units + u] = cell
                at = n * 4 * units + u
                gates[at], gates[at + units] = i, f
                gates[at + 2 * units], gates[at + 3 * units] = o, g


@program
def lstm_slopes(
    count: Array,
    touch: bool,
    parts: Array,
    dy: Array,
    back: Array,
    ld: int,
    after: Array,
    dcell: Array,
    later: bool,
    cont: Array,
    before: Array,
    cells: Array,
    gates: Array,
    dz: Array,
    slopes: Array,
    padded: int,
    streams: int,
    units: int,
    bound: float,
) -> None:
    """Compute dz of a step, also for the product, and the cell's gradient for the step before. With
    ``later``, the step after contributes ``back`` times its ``after``, and ``dcell``."""
    size = 1.0 * streams * units
    gets, puts = size * (7.0 + (2.0 if later else 0.0)), size * 9.0
    stream(count, gets, puts, size / 64.0 * (EXPONENTIAL + 16.0 / 4.0))
    count[FLOPS] += 24.0 * size
    if not touch:
        return
    for n in range(streams):
        for u in range(units):
            at, one = n * 4 * units + u, n * units + u
            i, f, o = float(gates[at]), float(gates[at + units]), float(gates[at + 2 * units])
            g, through = float(gates[at + 3 * units]), math.tanh(cells[one])
            dhidden, total = float(dy[one]), 0.0
            if later:
                dhidden += after[n] * back[n * ld + u]
                total = float(dcell[one])
            total += dhidden * o * (1.0 - through * through)
            last = cont[n] * before[one] if cont[n] != 0 else 0.0
            parts[0, 0] = total * g * i * (1.0 - i)
            parts[1, 0] = total * last * f * (1.0 - f)
            parts[2, 0] = dhidden * through * o * (1.0 - o)
            parts[3, 0] = total * i * (1.0 - g * g)
            dcell[one] = total * f * cont[n]
            for gate in range(4):
                value = parts[gate, 0]
                if bound > 0:
                    value = min(max(value, -bound), bound)
                dz[at + gate * units] = value
                slopes[n * padded + gate * units + u] = value


@program
def lstm(
    count: Array,
    touch: bool,
    la: Array,
    lb: Array,
    lc: Array,
    line: Array,
    parts: Array,
    z: Array,
    w: Array,
    cont: Array,
    h: Array,
    c: Array,
    s: Array,
    y: Array,
    hidden: Array,
    cell: Array,
    carried: Array,
    cells: Array,
    gates: Array,
    space: Array,
    steps: int,
    streams: int,
    units: int,
) -> None:
    """Run all steps. ``space`` holds the padded weights, hidden states and products, and the cell."""
    wide, each = 4 * units, streams * units
    mp, kp, np = up(wide, TILE_M), up(units, TILE_K), up(streams, TILE_N)
    taken = mp * kp
    totals = taken + np * kp
    state = space[totals + np * mp :]
    padded = mp != wide or kp != units
    keeps, kept, added = carried.size > 0, gates.size > 0, s.size > 0
    if padded:
        copy(count, touch, line, w, 0, units, space, 0, kp, wide, units)
    for t in range(steps):
        at, now = t * each, t * streams
        carry(count, touch, parts, h if t == 0 else y[at - each :], cont[now:], space[taken:], kp,
              carried[at:], keeps, streams, units)  # fmt: skip
        gemm(count, touch, la, lb, lc, space if padded else w, 0, kp if padded else units, 1,
             space, taken, 1, kp, space, totals, 1, mp, mp, np, kp, wide, streams, units,
             False)  # fmt: skip
        lstm_gates(count, touch, parts, z[4 * at :], space[totals:], mp, s, added, cont[now:],
                   c if t == 0 else state, state, y[at:], cells[at:], gates[4 * at :], kept, streams,
                   units)  # fmt: skip
    if hidden.size > 0:
        copied(count, touch, parts, y[(steps - 1) * each :], hidden, each)
    if cell.size > 0:
        copied(count, touch, parts, state, cell, each)


@program
def lstm_backward(
    count: Array,
    touch: bool,
    la: Array,
    lb: Array,
    lc: Array,
    line: Array,
    parts: Array,
    sums: Array,
    dy: Array,
    w: Array,
    cont: Array,
    c: Array,
    carried: Array,
    cells: Array,
    gates: Array,
    none: Array,
    dz: Array,
    dw: Array,
    ds: Array,
    space: Array,
    a_size: Array,
    b_size: Array,
    y_size: Array,
    steps: int,
    streams: int,
    units: int,
    bound: float,
) -> None:
    """Run from the last step to the first, then compute the weights' gradient as one product of all
    steps. ``space`` holds the padded weights, gradients and products, the cell's gradient, and the
    padding of that last product."""
    wide, each = 4 * units, streams * units
    kp, mp, np = up(wide, TILE_K), up(units, TILE_M), up(streams, TILE_N)
    slopes = kp * mp
    back = slopes + np * kp
    state = back + np * mp
    padded = kp != wide or mp != units
    if padded:
        copy(count, touch, line, w, 0, units, space, 0, mp, wide, units)
    for t in range(steps - 1, -1, -1):
        at, now, later = t * each, t * streams, t < steps - 1
        after = now + streams if later else 0
        lstm_slopes(count, touch, parts, dy[at:], space[back:], mp, cont[after:], space[state:], later,
                    cont[now:], cells[at - each :] if t > 0 else c, cells[at:], gates[4 * at :],
                    dz[4 * at :], space[slopes:], kp, streams, units, bound)  # fmt: skip
        if t > 0:
            gemm(count, touch, la, lb, lc, space if padded else w, 0, 1, mp if padded else units,
                 space, slopes, 1, kp, space, back, 1, mp, mp, np, kp, units, streams, wide,
                 False)  # fmt: skip
    if dw.size > 0:
        matrix_product(count, touch, la, lb, lc, line, dz, carried, none, dw, space[state + each :],
                       a_size, b_size, y_size, True, False, False)  # fmt: skip
    if ds.size > 0:
        column_sums(count, touch, sums, dz, ds, steps, streams * wide)
