"""The gradient of the weights of a convolution with one tap, for images stored as bfloat16 with channels
innermost: dw[output, channel], the sum over pixels of dy[pixel, output] * x[pixel, channel], by products
of pairs of pixels.

Some pixels at a time are interleaved two by two: those of x in panels of channels, one of which stays in
the first cache, and those of dy in rows of tiles. Both are read once, in order, and prefetched during
the products before. The sums are added up in dw.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from demitasse_cpu.loops.compiled import Array, compiled, inlined
from demitasse_cpu.loops.pairs import ROWS, WIDE, panels_of_pixels, rows_of_pixels, tile

PAIRS = 96
"""The maximum number of pixels that are worked on at a time: 12 KB of a panel."""

_FETCHED = 16  # the numbers that a tile prefetches for each pair


class Part(NamedTuple):
    """The numbers of ``pixels``, ``outputs`` and ``channels``, and the range of outputs and channels of
    dw that a thread computes, in whole panels."""

    pixels: int
    outputs: int
    channels: int
    first_output: int
    last_output: int
    first_channel: int
    last_channel: int


@inlined
def _put_side_by_side(
    p: Any, dy: Array, x: Array, rows: Array, panels: Array, first: int, last: int
) -> None:
    """Interleave pairs ``first`` to ``last`` of pixels; an odd last pixel is paired with zeros."""
    count = last - first
    own_rows = (p.last_output - p.first_output) // WIDE
    own_panels = (p.last_channel - p.first_channel) // WIDE
    for pair in range(first, last):
        is_whole = 2 * pair + 1 < p.pixels
        at, to = 2 * pair * p.outputs + p.first_output, (pair - first) * 2 * ROWS
        step = p.outputs if is_whole else 0
        rows_of_pixels(dy, at, step, rows, to, count * 2 * ROWS, own_rows)
        at, to = 2 * pair * p.channels + p.first_channel, (pair - first) * 2 * WIDE
        step = p.channels if is_whole else 0
        panels_of_pixels(x, at, step, panels, to, count * 2 * WIDE, own_panels)


@compiled()
def products(p: Any, dy: Array, x: Array, dw: Array, rows: Array, panels: Array) -> None:
    """Compute a part of dw. Pixels are worked on in equal blocks."""
    pairs = (p.pixels + 1) // 2
    blocks = (pairs + PAIRS - 1) // PAIRS
    for block in range(blocks):
        first, last = pairs * block // blocks, pairs * (block + 1) // blocks
        count, fetched = last - first, 0
        _put_side_by_side(p, dy, x, rows, panels, first, last)
        for channel in range(p.first_channel, p.last_channel, WIDE):
            panel = (channel - p.first_channel) * 2 * count
            near = panels[panel : panel + 2 * WIDE * count]
            for output in range(p.first_output, p.last_output, ROWS):
                at, to = (output - p.first_output) * 2 * count, output * p.channels + channel
                of_x = fetched < 2 * count * p.channels
                ahead = 2 * last * (p.channels if of_x else p.outputs) + fetched
                ahead -= 0 if of_x else 2 * count * p.channels
                coming = x if of_x else dy
                tile(
                    rows,
                    at,
                    2,
                    2 * ROWS,
                    near,
                    dw,
                    to,
                    p.channels,
                    count,
                    block,
                    coming,
                    ahead,
                )
                fetched += _FETCHED * count
