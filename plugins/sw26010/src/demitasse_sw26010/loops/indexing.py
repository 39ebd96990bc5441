"""Boxes of tensors and copies along an axis: lines are copied from one place to another through LDM."""

from __future__ import annotations

import numpy as np

from demitasse_sw26010.model.figures import CPES
from demitasse_sw26010.model.mesh import ELAPSED, FLOPS, GET, PUT, stream, transfer
from demitasse_sw26010.model.programs import Array, program


@program
def lines(count: Array, kind: int, number: float, length: float) -> float:
    """Count the transfer of ``number`` separate lines of ``length`` numbers, with 4,096 numbers of LDM
    for each CPE."""
    each = max(1.0, min(number / CPES, 4096.0 / length))
    return transfer(count, kind, CPES, each, 4.0 * length, np.ceil(number / CPES / each))


@program
def place(row: int, shape: Array, offset: Array, extent: Array) -> int:
    """Return where a box's line is in the whole."""
    at, stride, rest = offset[-1], shape[-1], row
    for d in range(len(shape) - 2, -1, -1):
        at += (offset[d] + rest % extent[d]) * stride
        rest //= extent[d]
        stride *= shape[d]
    return int(at)


@program
def crop(
    count: Array,
    touch: bool,
    lx: Array,
    x: Array,
    y: Array,
    shape: Array,
    offset: Array,
    extent: Array,
) -> None:
    """y = the box of x: its lines by strided DMA, and y in one stretch."""
    length = extent[-1]
    rows = int(np.prod(extent) // length)
    count[ELAPSED] += lines(count, GET, 1.0 * rows, 1.0 * length)
    stream(count, 0.0, 1.0 * rows * length, 0.0)
    if not touch:
        return
    for row in range(rows):
        at = place(row, shape, offset, extent)
        for begin in range(0, length, lx.size):
            some = min(lx.size, length - begin)
            for i in range(some):
                lx[i] = x[at + begin + i]
            for i in range(some):
                y[row * length + begin + i] = lx[i]


@program
def crop_backward(
    count: Array,
    touch: bool,
    lx: Array,
    dy: Array,
    dx: Array,
    shape: Array,
    offset: Array,
    extent: Array,
) -> None:
    """dx = zeros in one stretch, then dy's lines into their box."""
    length = extent[-1]
    rows = int(np.prod(extent) // length)
    stream(count, 1.0 * rows * length, 1.0 * np.prod(shape), 0.0)
    count[ELAPSED] += lines(count, PUT, 1.0 * rows, 1.0 * length)
    if not touch:
        return
    for i in range(dx.size):
        dx[i] = 0.0
    for row in range(rows):
        at = place(row, shape, offset, extent)
        for begin in range(0, length, lx.size):
            some = min(lx.size, length - begin)
            for i in range(some):
                lx[i] = dy[row * length + begin + i]
            for i in range(some):
                dx[at + begin + i] = lx[i]


@program
def tile(
    count: Array, touch: bool, lx: Array, x: Array, y: Array, outer: int, inner: int, tiles: int
) -> None:
    """Read each stretch of x once and write it ``tiles`` times."""
    stream(count, 1.0 * outer * inner, 1.0 * outer * inner * tiles, 0.0)
    if not touch:
        return
    for o in range(outer):
        for begin in range(0, inner, lx.size):
            some = min(lx.size, inner - begin)
            for i in range(some):
                lx[i] = x[o * inner + begin + i]
            for t in range(tiles):
                for i in range(some):
                    y[(o * tiles + t) * inner + begin + i] = lx[i]


@program
def tile_backward(
    count: Array, touch: bool, lx: Array, dy: Array, dx: Array, outer: int, inner: int, tiles: int
) -> None:
    """dx = the sum of the copies' dy, which stays in LDM meanwhile."""
    stream(count, 1.0 * outer * inner * tiles, 1.0 * outer * inner, outer * inner * tiles / 64.0)
    count[FLOPS] += 1.0 * outer * inner * tiles
    if not touch:
        return
    for o in range(outer):
        for begin in range(0, inner, lx.size):
            some = min(lx.size, inner - begin)
            for i in range(some):
                lx[i] = 0.0
            for t in range(tiles):
                for i in range(some):
                    lx[i] += dy[(o * tiles + t) * inner + begin + i]
            for i in range(some):
                dx[o * inner + begin + i] = lx[i]
