"""Inner products by the processor's matrix unit, with samples stored as bfloat16 and weights in float32,
which are rounded on their way from memory to the nearest cache. The weights are those of
loops.wide_weights.

Samples fill whole tiles of 16 or, with tiles of that many rows, of 8; ``words`` configure the tiles.
"""

from __future__ import annotations

from demitasse_cpu.loops.bfloat16 import narrow, number, prefetch
from demitasse_cpu.loops.compiled import Array, compiled, inlined
from demitasse_cpu.loops.matrix_unit import TERMS, WIDE, configured, products
from demitasse_cpu.loops.pairs import pairs_in_rows, pairs_of_rows
from demitasse_cpu.loops.wide_weights import BLOCK

NEAR = 512
"""The maximum number of terms in a panel: 32 KB."""


AHEAD, AHEAD_BACK = 512, 64
"""The number of inputs by which weights are prefetched while others are rounded. With 64 in both passes,
two cores took 8.2 to 8.7 ms for 4096 x 9216 weights, which is the speed of memory. With 1024, they took
7.1 to 7.6 and 9.8 to 11.8 ms, and without prefetching 11.4 and 13.3 ms."""

LINE = 16
"""The numbers in a cache line."""


@inlined
def _fetch(w: Array, at: int, width: int) -> None:
    """Prefetch a square of weights."""
    for row in range(TERMS):
        for line in range(0, WIDE, LINE):
            prefetch(w, at + row * width + line)


@inlined
def _multiply(
    x: Array,
    at: int,
    row: int,
    samples: int,
    rows: int,
    panel: Array,
    sums: Array,
    to: int,
    sums_row: int,
    steps: int,
    more: int,
) -> None:
    """Multiply all samples by a panel."""
    for sample in range(0, samples, rows):
        here, there = at + sample * row, to + sample * sums_row
        products(
            (0,),
            (0, 0),
            x,
            here,
            row,
            TERMS,
            panel,
            0,
            2 * WIDE,
            TERMS * WIDE,
            sums,
            there,
            sums_row,
            steps,
            more,
        )


@compiled()
def results(
    x: Array,
    w: Array,
    b: Array,
    y: Array,
    floor: float,
    samples: int,
    inputs: int,
    outputs: int,
    width: int,
    rows: int,
    words: Array,
    panel: Array,
    sums: Array,
    begin: int,
    end: int,
) -> None:
    """Compute y = x w' + b, with nothing below ``floor``, for blocks ``begin`` to ``end`` of ``width``
    outputs."""
    configured(words[:32], words[32:64])
    lowest = number(floor, y)
    for block in range(begin, end):
        for start in range(0, inputs, NEAR):
            count, more = min(NEAR, inputs - start), min(start, 1)
            for first in range(0, width, WIDE):
                at = (block * inputs + start) * width + first
                for near in range(0, count, TERMS):
                    pairs_of_rows(w, at + near * width, width, panel, near * WIDE, TERMS // 2)
                    _fetch(w, at + (near + AHEAD) * width, width)
                _multiply(
                    x, start, inputs, samples, rows, panel, sums, first, width, count // TERMS, more
                )
        first, live = block * width, min(width, outputs - block * width)
        for sample in range(samples):
            mine = sums[sample * width : sample * width + live]
            result = y[sample * outputs + first : sample * outputs + first + live]
            for i in range(live):
                value = mine[i] + b[first + i] if b.size > 0 else mine[i]
                result[i] = narrow(lowest if value < lowest else value, result)
    configured(words[32:64], words[:32])


@compiled()
def gradients(
    dy: Array,
    w: Array,
    dx: Array,
    samples: int,
    inputs: int,
    outputs: int,
    width: int,
    rows: int,
    words: Array,
    copy: Array,
    panel: Array,
    sums: Array,
    begin: int,
    end: int,
) -> None:
    """Compute dx = dy w for panels ``begin`` to ``end`` of inputs, for all of which ``sums`` has room.
    Weights are read along the inputs, in their memory order, for some outputs at a time, with zeros
    after the last output."""
    configured(words[:32], words[32:64])
    wide, terms = (end - begin) * WIDE, (outputs + TERMS - 1) // TERMS * TERMS
    for sample in range(samples):
        given = dy[sample * outputs : (sample + 1) * outputs]
        copied = copy[sample * terms : (sample + 1) * terms]
        for i in range(outputs):
            copied[i] = given[i]
        copied[outputs:] = 0
    for start in range(0, terms, NEAR // 2):
        count, more = min(NEAR // 2, terms - start), min(start, 1)
        for panel_number in range(begin, end):
            for near in range(0, count, TERMS):
                first = start + near
                at = first // width * width * inputs + panel_number * WIDE * width + first % width
                for half in range(2):
                    place = near * WIDE + half * 2 * BLOCK
                    pairs_in_rows(w, at + half * BLOCK * width, width, panel, place)
                _fetch(w, at + AHEAD_BACK * width, width)
            to = (panel_number - begin) * WIDE
            _multiply(copy, start, terms, samples, rows, panel, sums, to, wide, count // TERMS, more)
    first = begin * WIDE
    for sample in range(samples):
        mine = sums[sample * wide : (sample + 1) * wide]
        result = dx[sample * inputs + first : sample * inputs + first + wide]
        for i in range(wide):
            result[i] = narrow(mine[i], result)
    configured(words[32:64], words[:32])
