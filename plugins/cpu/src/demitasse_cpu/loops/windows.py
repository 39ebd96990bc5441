"""Convolutions of few channels, for images stored as bfloat16 with channels innermost, by products of
pairs.

A window's values in one row of an image are contiguous: its taps across times the channels. They are
multiplied two by two by the weights of a panel of outputs, so that vectors run over outputs, never over
the few channels. If there is padding, images are copied with zeros around them. ``g`` is the
``kernels.windows.Windows`` of a convolution.
"""

from __future__ import annotations

from typing import Any

from numba import types
from numba.extending import intrinsic

from demitasse_cpu.loops.bfloat16 import narrow, number
from demitasse_cpu.loops.compiled import Array, compiled, inlined
from demitasse_cpu.loops.pairs import ROWS, WIDE, tile_by_table
from demitasse_cpu.loops.vectors import LANES, Vectors


def _finished_typed(
    context: Any, sums: Any, at: Any, bias: Any, i: Any, least: Any, y: Any, to: Any
) -> Any:
    """Build an intrinsic that stores a vector of sums plus biases, with nothing below ``least``, as y
    stores it."""
    n = types.int64
    signature = types.void(sums, n, bias, n, types.float32, y, n)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        v = Vectors(builder)
        total, biases, target = (v.data(context, signature, args, position) for position in (0, 2, 5))
        value, lowest = v.add(v.load(total, args[1]), v.load(biases, args[3])), v.splat(args[4])
        value = builder.select(builder.fcmp_ordered("<", value, lowest), lowest, value)
        v.store(value, target, args[6], y.dtype)
        return context.get_dummy_value()

    return signature, generate


_finished: Any = intrinsic(_finished_typed)


@inlined
def _padded(g: Any, x: Array, image: int, room: Array) -> None:
    """Copy an image into ``room``, whose other numbers are not changed."""
    n = g.width * g.channels
    for row in range(g.height):
        source = (image * g.height + row) * n
        target = ((row + g.top) * g.padded_width + g.left) * g.channels
        given, result = x[source : source + n], room[target : target + n]
        for i in range(n):
            result[i] = given[i]


@compiled()
def panels(g: Any, w: Array, b: Array, packed: Array, biases: Array, begin: int, end: int) -> None:
    """Copy plain weights of panels ``begin`` to ``end`` of outputs as pairs, a whole number of them for
    each row of taps. Copy the panels' biases, with zeros where there are none."""
    run, area = g.taps_across * g.channels, g.taps_down * g.taps_across
    pairs = (run + 1) // 2
    for panel in range(begin, end):
        live = min(WIDE, g.outputs - panel * WIDE)
        for lane in range(WIDE):
            at = panel * WIDE + lane
            biases[at] = b[at] if lane < live and b.size > 0 else b.dtype.type(0)
        for down in range(g.taps_down):
            for k in range(2 * pairs):
                # With an odd number, the last pair repeats the last but one, with a weight of zero.
                number = k if k < 2 * (run // 2) else run - 2 + k % 2
                is_own = number == k or k % 2 == 1
                tap, channel = down * g.taps_across + number // g.channels, number % g.channels
                to = ((panel * g.taps_down + down) * pairs + k // 2) * 2 * WIDE + k % 2
                for lane in range(WIDE):
                    source = ((panel * WIDE + lane) * g.channels + channel) * area + tap
                    value = w[source] if lane < live and is_own else w.dtype.type(0)
                    packed[to + 2 * lane] = narrow(value, packed)


@compiled()
def results(
    g: Any,
    x: Array,
    packed: Array,
    table: Array,
    biases: Array,
    floor: float,
    y: Array,
    room: Array,
    sums: Array,
    begin: int,
    end: int,
) -> None:
    """Compute the results of images ``begin`` to ``end``, with nothing below ``floor``. ``table`` says
    where the pairs of a window are, relative to its first value. ``sums`` has room for a tile of all
    panels."""
    count = (g.outputs + WIDE - 1) // WIDE
    wide, lowest = count * WIDE, number(floor, x)
    room[:] = 0
    for image in range(begin, end):
        _padded(g, x, image, room)
        for row in range(g.rows):
            for column in range(0, g.columns, ROWS):
                at = (row * g.down * g.padded_width + column * g.across) * g.channels
                for panel in range(count):
                    near = packed[panel * table.size * 2 * WIDE :]
                    tile_by_table(
                        room,
                        at,
                        g.across * g.channels,
                        table,
                        near,
                        sums,
                        panel * WIDE,
                        wide,
                        table.size,
                        0,
                        near,
                        0,
                    )
                first = ((image * g.rows + row) * g.columns + column) * g.outputs
                for pixel in range(min(ROWS, g.columns - column)):
                    total = sums[pixel * wide : pixel * wide + g.outputs]
                    place = first + pixel * g.outputs
                    if g.outputs >= LANES:
                        for i in range(0, g.outputs, LANES):
                            c = min(i, g.outputs - LANES)
                            _finished(sums, pixel * wide + c, biases, c, lowest, y, place + c)
                        continue
                    result = y[place : place + g.outputs]
                    for i in range(g.outputs):
                        value = total[i] + biases[i]
                        result[i] = narrow(lowest if value < lowest else value, result)
