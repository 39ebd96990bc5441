"""The gradient of a convolution's weights by the processor's matrix unit, for images stored as bfloat16
with channels innermost.

The images' pixels and the results are in one line, with zeros between rows and between images, so that a
tap's pixel is always at the same distance from its result. A product sums over places in that line. In a
stretch of the line, dy's outputs become rows, and x's places are interleaved two by two. A tap reads
these pairs from another place on. If that is an odd one, it reads from the place before, with rows that
begin a place later. With strides, there is a line of x for each remainder of rows and columns. The
bias's gradient is a product with ones. ``g`` is the ``kernels.unit_gradient.Line`` of a convolution.

Zeros on either side are multiplied by pixels of the other. If such a pixel is NaN, it reaches weights
that it would not reach by the definition. The unit treats denormal numbers as zero.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from demitasse_cpu.loops.compiled import Array, compiled, inlined
from demitasse_cpu.loops.matrix_unit import (
    ROWS,
    TERMS,
    WIDE,
    columns_of_pixels,
    configured,
    panel_of_pairs,
    products,
)
from demitasse_cpu.loops.reorder import turned


@compiled()
def framed(f: Any, x: Array, y: Array, begin: int, end: int) -> None:
    """Copy rows ``begin`` to ``end`` with zeros before and after them."""
    for row in range(begin, end):
        target, line = y[row * f.padded :][: f.padded], x[row * f.line :][: f.line]
        target[: f.left] = 0
        place = target[f.left : f.left + f.line]
        for i in range(f.line):
            place[i] = line[i]
        target[f.left + f.line :] = 0


@inlined
def _look_up(rows: Array, columns: Array, image: int, images: int, first: int, offsets: Array) -> None:
    """Look up the offsets of the pixels of places from ``first`` on, in images of ``image`` numbers; -1
    if there is no pixel. Two tables say where an image's rows and columns begin."""
    size = rows.size * columns.size
    number = first // size
    row = (first - number * size) // columns.size
    column = first - number * size - row * columns.size
    done = 0
    while done < offsets.size:
        count = min(columns.size - column, offsets.size - done)
        some, along = offsets[done : done + count], columns[column : column + count]
        if rows[row] >= 0 and 0 <= number < images:
            start = number * image + rows[row]
            for i in range(count):
                some[i] = start + along[i] if along[i] >= 0 else -1
        else:
            some[:] = -1
        done += count
        column = 0
        row += 1
        if row == rows.size:
            row = 0
            number += 1


@inlined
def _put_apart(
    g: Any, dy: Array, first: int, last: int, zeros: Array, offsets: Array, rows: Array, length: int
) -> None:
    """Turn outputs ``first`` to ``last`` into rows of places, in whole tiles. In the second of two
    copies, rows begin a place later."""
    for copy in range(g.copies):
        for output in range(first, last, ROWS):
            count, at = min(ROWS, last - output), (copy * g.block + output - first) * g.row
            for i in range(0, length, TERMS):
                columns_of_pixels(dy, output, count, zeros, offsets, i + 1 - copy, rows, at + i, g.row)


@inlined
def _put_side_by_side(
    g: Any, x: Array, line: int, zeros: Array, offsets: Array, pairs: Array, around: int
) -> None:
    """Interleave a line's pixels two by two, in panels of channels."""
    panels = (g.channels + WIDE - 1) // WIDE
    for panel in range(panels):
        to, given = (line * panels + panel) * g.held * WIDE, min(WIDE, g.channels - panel * WIDE)
        panel_of_pairs(x, panel * WIDE, given, zeros, offsets, 0, pairs, to, around // 2)


@inlined
def _multiply(
    given: int,
    wide: int,
    rows: Array,
    at: int,
    row: int,
    pairs: Array,
    pair: int,
    sums: Array,
    to: int,
    sums_row: int,
    steps: int,
    more: int,
) -> None:
    """Multiply up to 32 rows by up to 32 channels, in whole tiles, into ``sums``."""
    about = TERMS, pairs, pair, 2 * WIDE, TERMS * WIDE, sums, to, sums_row, steps, more
    if given > ROWS:
        if wide > ROWS:
            products((0, 0), (0, 0), rows, at, row, *about)
        else:
            products((0, 0), (0,), rows, at, row, *about)
    elif wide > ROWS:
        products((0,), (0, 0), rows, at, row, *about)
    else:
        products((0,), (0,), rows, at, row, *about)


@inlined
def _put_in_place(
    sums: Array, at: int, row: int, dw: Array, of_output: Array, of_channel: Array, to: int, apart: int
) -> None:
    """Write sums of some outputs and channels to their places, from ``to`` on. If ``apart`` is not 0,
    pairs of channels are that many pairs apart and outputs adjacent, so that whole squares are
    written."""
    if apart > 0:
        pairs, results = sums.view(np.float64), dw.view(np.float64)
        for first in range(0, of_output.size, ROWS):
            start = (to + of_output[first] + of_channel[0]) // 2
            turned(pairs, (at + first * row) // 2, row // 2, results, start, apart)
    else:
        for i in range(of_output.size):
            given, result = sums[at + i * row :][: of_channel.size], dw[to + of_output[i] :]
            for j in range(of_channel.size):
                result[of_channel[j]] = given[j]


@compiled()
def gradient(
    g: Any,
    dy: Array,
    x: Array,
    dy_rows: Array,
    dy_columns: Array,
    x_rows: Array,
    x_columns: Array,
    lines: Array,
    shifts: Array,
    of_output: Array,
    of_channel: Array,
    of_tap: Array,
    apart: int,
    words: Array,
    offsets: Array,
    rows: Array,
    pairs: Array,
    sums: Array,
    dw: Array,
    db: Array,
    keeps: int,
    first_output: int,
    last_output: int,
    begin: int,
    end: int,
) -> None:
    """Sum dw and db of outputs ``first_output`` to ``last_output``, ``block`` at a time, over places
    ``begin`` to ``end``. With ``keeps``, keep only these sums, by output, tap and channel. ``lines`` and
    ``shifts`` say which line of x a tap reads, and how far from the result."""
    configured(words[:32], words[32:64])
    zeros, ones = words[64:96], words[128:]
    taps, panels = lines.size, (g.channels + WIDE - 1) // WIDE
    wide = panels * WIDE
    size = taps * wide + ROWS  # of an output's sums
    count = (end - begin + g.stretch - 1) // g.stretch
    alone = count == 1 and keeps == 0
    for first in range(first_output, last_output, g.block):
        last = min(first + g.block, last_output)
        for stretch in range(count):
            place = begin + stretch * g.stretch
            there = min(g.stretch, end - place)
            steps = (there + g.copies - 1 + TERMS - 1) // TERMS
            more, is_last = min(stretch, 1), stretch == count - 1 and keeps == 0
            offsets[: steps * TERMS + 1] = -1
            _look_up(dy_rows, dy_columns, g.dy_image, g.images, place, offsets[1 : 1 + there])
            _put_apart(g, dy, first, last, zeros, offsets, rows, steps * TERMS)
            around = g.before + steps * TERMS + g.after
            around += around % 2
            for line in range(g.lines):
                x_first, some = place - g.before, offsets[:around]
                _look_up(x_rows[line], x_columns[line], g.x_image, g.images, x_first, some)
                _put_side_by_side(g, x, line, zeros, offsets, pairs, around)
            for output in range(first, last, 2 * ROWS):
                given, near = min(last - output, 2 * ROWS), (output - first) * g.row
                out = of_output[output : output + given]
                start, row = (0, WIDE) if alone else ((output - first) * size, size)
                for panel in range(panels):
                    channel = panel * WIDE
                    into = of_channel[channel : channel + WIDE]
                    for tap in range(taps):
                        from_place = g.before + shifts[tap]
                        later = from_place % 2
                        pair = (lines[tap] * panels + panel) * g.held + from_place - later
                        to = start if alone else start + tap * wide + channel
                        at = near + later * g.block * g.row
                        _multiply(
                            given,
                            into.size,
                            rows,
                            at,
                            g.row,
                            pairs,
                            pair * WIDE,
                            sums,
                            to,
                            row,
                            steps,
                            more,
                        )
                        if is_last:
                            _put_in_place(sums, to, row, dw, out, into, of_tap[tap], apart)
                if db.size > 0:
                    to, row = (0, ROWS) if alone else (start + taps * wide, size)
                    about = TERMS, ones, 0, 2 * ROWS, 0, sums, to, row, steps, more
                    if given > ROWS:
                        products((0, 0), (0,), rows, near, g.row, *about)
                    else:
                        products((0,), (0,), rows, near, g.row, *about)
                    if is_last:
                        for i in range(given):
                            db[output + i] = sums[to + i * row]
    configured(words[32:64], words[:32])


@compiled()
def add_up(
    g: Any,
    sums: Any,
    of_output: Array,
    of_channel: Array,
    of_tap: Array,
    apart: int,
    dw: Array,
    db: Array,
    begin: int,
    end: int,
) -> None:
    """Compute dw and db of tiles of outputs ``begin`` to ``end`` from the parts' sums, a tuple. All are
    added to the first."""
    taps, wide = of_tap.size, (g.channels + WIDE - 1) // WIDE * WIDE
    size = taps * wide + ROWS
    for tile in range(begin, end):
        first, last = tile * ROWS, min(tile * ROWS + ROWS, g.outputs)
        total = sums[0][first * size : last * size]
        for part in range(1, len(sums)):
            other = sums[part][first * size : last * size]
            for i in range(total.size):
                total[i] += other[i]
        for channel in range(0, g.channels, WIDE):
            into = of_channel[channel : channel + WIDE]
            for tap in range(taps):
                at = first * size + tap * wide + channel
                _put_in_place(sums[0], at, size, dw, of_output[first:last], into, of_tap[tap], apart)
        for output in range(first, min(last, db.size)):
            db[output] = sums[0][output * size + taps * wide]
