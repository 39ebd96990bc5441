"""Inner products of samples stored as bfloat16 and weights in float32, which are rounded on their way
from memory to the nearest cache.

With a few samples, a product takes about as long as reading its weights. A copy of them in 16 bits would
first have to be read and written; here, a panel of them is rounded while the next one arrives. Weights
are blocks of 16 inputs by ``width`` outputs, outputs innermost (oneDNN's ``ab16b32a`` and ``ab16b64a``),
padded with zeros.
"""

from __future__ import annotations

from demitasse_cpu.loops.bfloat16 import narrow, number
from demitasse_cpu.loops.compiled import Array, compiled
from demitasse_cpu.loops.pairs import ROWS, WIDE, pairs_in_rows, pairs_of_rows, tile

TERMS = 256
"""The maximum number of terms in a panel: 16 KB, and as much of the samples."""

BLOCK = 16
"""The inputs of a block of weights."""


@compiled()
def products(
    x: Array,
    w: Array,
    b: Array,
    y: Array,
    floor: float,
    samples: int,
    inputs: int,
    outputs: int,
    width: int,
    panel: Array,
    sums: Array,
    begin: int,
    end: int,
) -> None:
    """Compute y = x w' + b, with nothing below ``floor``, for panels ``begin`` to ``end`` of outputs."""
    lowest = number(floor, y)
    for panel_number in range(begin, end):
        first = panel_number * WIDE
        at = first // width * width * inputs + first % width
        for start in range(0, inputs, TERMS):
            count = min(TERMS, inputs - start)
            pairs_of_rows(w, at + start * width, width, panel, 0, count // 2)
            for sample in range(0, samples, ROWS):
                place = at + (start + TERMS) * width + sample * TERMS
                tile(
                    x,
                    start + sample * inputs,
                    inputs,
                    2,
                    panel,
                    sums,
                    sample * WIDE,
                    WIDE,
                    count // 2,
                    start,
                    w,
                    place,
                )
        live = min(WIDE, outputs - first)
        for sample in range(samples):
            near = sums[sample * WIDE : sample * WIDE + live]
            result = y[sample * outputs + first : sample * outputs + first + live]
            for i in range(live):
                value = near[i] + b[first + i] if b.size > 0 else near[i]
                result[i] = narrow(lowest if value < lowest else value, result)


@compiled()
def gradients(
    dy: Array,
    w: Array,
    dx: Array,
    samples: int,
    inputs: int,
    outputs: int,
    width: int,
    panel: Array,
    sums: Array,
    begin: int,
    end: int,
) -> None:
    """Compute dx = dy w for panels ``begin`` to ``end`` of inputs, for all of which ``sums`` has room.
    Weights are read along the inputs, in their memory order, for some of the ``outputs`` (an even
    number) at a time."""
    wide = (end - begin) * WIDE
    for start in range(0, outputs, TERMS // 2):
        count = min(TERMS // 2, outputs - start)
        for panel_number in range(begin, end):
            for half in range(2):
                block = panel_number * 2 + half
                if block * BLOCK < inputs:
                    for terms in range(0, count, WIDE):
                        first = start + terms
                        at = first // width * width * inputs + block * BLOCK * width + first % width
                        pairs_in_rows(w, at, width, panel, terms // 2 * 4 * BLOCK + half * 2 * BLOCK)
            to = (panel_number - begin) * WIDE
            for sample in range(0, samples, ROWS):
                first = start + sample * WIDE // ROWS % count
                block = 2 * panel_number + 2 + first % width // WIDE
                place = first // width * width * inputs + block * BLOCK * width
                tile(
                    dy,
                    start + sample * outputs,
                    outputs,
                    2,
                    panel,
                    sums,
                    to + sample * wide,
                    wide,
                    count // 2,
                    start,
                    w,
                    place,
                )
    live = min(end * WIDE, inputs) - begin * WIDE
    for sample in range(samples):
        near = sums[sample * wide : sample * wide + live]
        result = dx[sample * inputs + begin * WIDE : sample * inputs + begin * WIDE + live]
        for i in range(live):
            result[i] = narrow(near[i], result)
