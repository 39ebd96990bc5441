"""Inner products by a processor's matrix unit, of samples stored as bfloat16 and weights in float32,
which are rounded on their way from memory to the nearest cache; see loops.wide_weights, whose weights
these are.

Samples are whole tiles of 16, or of 8 by tiles with as many rows: ``words`` say how many.
"""

from __future__ import annotations

from demitasse_cpu.loops.bfloat16 import narrow, number, prefetch
from demitasse_cpu.loops.compiled import Array, compiled, inlined
from demitasse_cpu.loops.matrix_unit import TERMS, WIDE, configured, products
from demitasse_cpu.loops.pairs import pairs_in_rows, pairs_of_rows
from demitasse_cpu.loops.wide_weights import BLOCK

NEAR = 512
"""Terms of a panel, at most: 32 KB."""


AHEAD, AHEAD_BACK = 512, 64
"""Inputs: weights of so many later ones are fetched while some are rounded. Of 4096 x 9216 weights two
cores took 8.2 to 8.7 ms with 64 both ways, which is what memory gives, 7.1 to 7.6 and 9.8 to 11.8 with
1024, and 11.4 and 13.3 without."""

LINE = 16
"""Numbers of a line of the caches."""


@inlined
def _fetch(w: Array, at: int, width: int) -> None:
    """Ask memory for a square of weights."""
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
    """All samples times a panel."""
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
    """y = x w' + b, nothing below ``floor``: of blocks ``begin`` to ``end`` of ``width`` outputs."""
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
    """dx = dy w: of panels ``begin`` to ``end`` of inputs, all of which sums has room for: weights are
    read along the inputs, as they lie, for some outputs at a time, and with zeros behind the last."""
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
