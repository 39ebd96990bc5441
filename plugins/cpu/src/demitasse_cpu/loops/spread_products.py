"""The gradient of a convolution's input, of images stored as bfloat16, as one matrix product: of each
pixel of dy with all weights, whose results are added where its window lies.

It has exactly the products of the definition, where gathering them for each pixel of dx, from beyond the
edges too, has more: of 12 x 12 from 8 x 8 with 5 x 5 taps 2.25 times as many.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from demitasse_cpu.loops.bfloat16 import narrow
from demitasse_cpu.loops.compiled import Array, compiled
from demitasse_cpu.loops.pairs import ROWS, WIDE, tile


class Spread(NamedTuple):
    """``channels`` of x and ``outputs``, an even number; images of ``height`` x ``width``, and of dy
    ``rows`` x ``columns``; taps down and across, and strides. There is no padding."""

    channels: int
    outputs: int
    height: int
    width: int
    rows: int
    columns: int
    taps_down: int
    taps_across: int
    stride_down: int
    stride_across: int


@compiled()
def panels(g: Any, w: Array, packed: Array, begin: int, end: int) -> None:
    """Weights as panels ``begin`` to ``end`` of results: taps down, across and channels in one."""
    area = g.taps_down * g.taps_across
    count = area * g.channels
    pairs = g.outputs // 2
    for panel in range(begin, end):
        for lane in range(WIDE):
            number = panel * WIDE + lane
            to = (panel * pairs * WIDE + lane) * 2
            if number < count:
                source = number % g.channels * area + number // g.channels
                for k in range(g.outputs):
                    value = w[k * g.channels * area + source]
                    packed[to + k // 2 * 2 * WIDE + k % 2] = narrow(value, packed)
            else:
                for k in range(g.outputs):
                    packed[to + k // 2 * 2 * WIDE + k % 2] = packed.dtype.type(0)


@compiled()
def spread(
    g: Any, dy: Array, packed: Array, dx: Array, products: Array, sums: Array, begin: int, end: int
) -> None:
    """dx of images ``begin`` to ``end``; ``products`` has room for all of an image's, ``sums`` for dx of
    one."""
    run = g.taps_across * g.channels
    count = (g.taps_down * run + WIDE - 1) // WIDE
    wide, pixels, pairs = count * WIDE, g.rows * g.columns, g.outputs // 2
    line = g.width * g.channels
    for image in range(begin, end):
        first = image * pixels * g.outputs
        for panel in range(count):
            near = packed[panel * pairs * 2 * WIDE : (panel + 1) * pairs * 2 * WIDE]
            for pixel in range(0, pixels, ROWS):
                at, to = first + pixel * g.outputs, pixel * wide + panel * WIDE
                tile(dy, at, g.outputs, 2, near, products, to, wide, pairs, 0, packed, 0)
        sums[: g.height * line] = 0
        for pixel in range(pixels):
            down, across = pixel // g.columns, pixel % g.columns
            place = down * g.stride_down * line + across * g.stride_across * g.channels
            for tap in range(g.taps_down):
                total = sums[place + tap * line : place + tap * line + run]
                more = products[pixel * wide + tap * run : pixel * wide + (tap + 1) * run]
                for i in range(run):
                    total[i] += more[i]
        result = dx[image * g.height * line : (image + 1) * g.height * line]
        for i in range(g.height * line):
            result[i] = narrow(sums[i], result)
