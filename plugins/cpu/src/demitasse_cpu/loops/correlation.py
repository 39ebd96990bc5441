"""Convolution as tiles of products, without writing and reading columns.

All three passes are one sum over t, ``out[row, channel] += x[base[row] + step[t]] * panel[t, channel]``:

- forward: rows are output positions, t runs over the taps (c, ky, kx), channels are outputs;
- backward to the data: rows are positions of dx, t runs over (k, ky, kx), channels are inputs. In a
  strided convolution each phase (position modulo stride) has its own taps;
- backward to the weights: rows are the taps, t runs over the positions, channels are outputs.

A row's value is loaded from its place in the (padded) image and multiplied into several vectors of
channels.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from demitasse_cpu.loops.compiled import Array, compiled, inlined
from demitasse_cpu.loops.tiles import MAX_ROWS, ROWS, STRIP, copy, multiply_tile, total_of, transpose


class Correlation(NamedTuple):
    """The sizes and tables of a forward pass or a backward pass to the data.

    A source image has ``groups`` groups of ``channels`` planes of ``height`` x ``width``. It is padded
    to ``padded_height`` x ``padded_width``, starting at ``top`` and ``left``, unless that changes
    nothing. A result has ``groups`` groups of ``outputs`` planes of ``plane`` elements. The taps of
    phase f start at ``phase_taps[f]``, and its rows at ``phase_rows[f]``. Row m goes to element
    ``target[m]`` of a plane, which is m itself if ``in_order``.
    """

    groups: int
    channels: int
    height: int
    width: int
    top: int
    left: int
    padded_height: int
    padded_width: int
    outputs: int
    plane: int
    in_order: bool
    phase_taps: Array
    phase_rows: Array
    base: Array
    target: Array
    steps: Array
    weight_of_tap: Array
    weights_of_group: int
    weights_of_output: int
    columns: Array


class WeightGradient(NamedTuple):
    """The sizes and tables of a backward pass to the weights; see Correlation."""

    groups: int
    channels: int
    height: int
    width: int
    top: int
    left: int
    padded_height: int
    padded_width: int
    outputs: int
    taps: int
    base: Array
    steps: Array
    columns: Array


@inlined
def _pad(g: Any, x: Array, at: int, padded: Array) -> None:
    """Copy a group's planes into the middle of larger ones, whose edges stay zero."""
    for c in range(g.channels):
        for row in range(g.height):
            source = at + (c * g.height + row) * g.width
            out = (c * g.padded_height + g.top + row) * g.padded_width + g.left
            copy(x, source, padded, out, g.width)


@compiled()
def pack(g: Any, w: Array, b: Array, panel: Array, biases: Array, lanes: int) -> None:
    """Copy weights into the order in which tiles read them, channels innermost and padded with zeros.
    Pad the biases likewise; they are an empty array if there are none."""
    zero = w.dtype.type(0)
    total = g.weight_of_tap.size
    padded = biases.size // g.groups
    for group in range(g.groups):
        for j in range(padded):
            given = j < g.outputs and b.size > 0
            biases[group * padded + j] = b[group * g.outputs + j] if given else zero
        for f in range(g.phase_taps.size - 1):
            start, stop = g.phase_taps[f], g.phase_taps[f + 1]
            for c in range(g.columns.shape[0]):
                first, width = g.columns[c, 0] * lanes, g.columns[c, 1] * lanes
                out = (group * total + start) * padded + (stop - start) * first
                live = min(width, g.outputs - first)
                for t in range(start, stop):
                    source = group * g.weights_of_group + g.weight_of_tap[t]
                    source += first * g.weights_of_output
                    for j in range(live):
                        panel[out + j] = w[source + j * g.weights_of_output]
                    for j in range(live, width):
                        panel[out + j] = zero
                    out += width


@compiled()
def correlate(
    g: Any,
    x: Array,
    y: Array,
    panel: Array,
    biases: Array,
    room: Array,
    lanes: int,
    begin: int,
    end: int,
) -> None:
    """Compute the results of images ``begin`` to ``end``. ``room`` holds a padded group of planes, then
    a strip of rows, which are computed with channels innermost and written with channels outermost."""
    source_size = g.channels * g.height * g.width
    padded_size = g.channels * g.padded_height * g.padded_width
    is_padded = padded_size != source_size
    strip = room[padded_size:] if is_padded else room
    total = g.weight_of_tap.size
    width_of_group = biases.size // g.groups
    if is_padded:
        room[:padded_size] = 0
    for unit in range(begin * g.groups, end * g.groups):
        group = unit % g.groups
        source = x[unit * source_size : (unit + 1) * source_size]
        if is_padded:
            _pad(g, x, unit * source_size, room)
            source = room[:padded_size]
        for f in range(g.phase_taps.size - 1):
            start, stop = g.phase_taps[f], g.phase_taps[f + 1]
            for c in range(g.columns.shape[0]):
                vectors = g.columns[c, 1]
                first, width = g.columns[c, 0] * lanes, vectors * lanes
                at = (group * total + start) * width_of_group + (stop - start) * first
                live = min(width, g.outputs - first)
                rows = ROWS[vectors]
                taps = g.steps[start:stop]
                out = (unit * g.outputs + first) * g.plane
                for start_row in range(g.phase_rows[f], g.phase_rows[f + 1], STRIP):
                    stop_row = min(start_row + STRIP, g.phase_rows[f + 1])
                    for m in range(start_row, stop_row, rows):
                        sums = strip[(m - start_row) * width :]
                        for r in range(rows):
                            for j in range(width):
                                sums[r * width + j] = biases[group * width_of_group + first + j]
                        multiply_tile(source, g.base, m, taps, panel, at, sums, 0, vectors)
                    if g.in_order:
                        count = stop_row - start_row
                        transpose(strip, 0, width, y, out + start_row, g.plane, count, live)
                    else:
                        for m in range(start_row, stop_row):
                            for j in range(live):
                                place = out + j * g.plane + g.target[m]
                                y[place] = strip[(m - start_row) * width + j]


@compiled()
def weight_gradient(
    g: Any,
    dy: Array,
    x: Array,
    sums: Array,
    bias_sums: Array,
    room: Array,
    lanes: int,
    begin: int,
    end: int,
) -> None:
    """Add up the contributions of images ``begin`` to ``end``. ``room`` holds a padded group of planes
    of x, then a group of dy with its channels innermost."""
    source_size = g.channels * g.height * g.width
    padded_size = g.channels * g.padded_height * g.padded_width
    is_padded = padded_size != source_size
    positions = g.steps.size
    panel = room[padded_size:] if is_padded else room
    width_of_group = bias_sums.size // g.groups
    sums[:] = 0
    bias_sums[:] = 0
    if is_padded:
        room[:padded_size] = 0
    for unit in range(begin * g.groups, end * g.groups):
        group = unit % g.groups
        source = x[unit * source_size : (unit + 1) * source_size]
        if is_padded:
            _pad(g, x, unit * source_size, room)
            source = room[:padded_size]
        for c in range(g.columns.shape[0]):
            vectors = g.columns[c, 1]
            first, width = g.columns[c, 0] * lanes, vectors * lanes
            live = min(width, g.outputs - first)
            given = (unit * g.outputs + first) * positions
            for j in range(live):
                plane = dy[given + j * positions : given + (j + 1) * positions]
                bias_sums[group * width_of_group + first + j] += total_of(plane)
            for p in range(0, positions, STRIP):
                count = min(STRIP, positions - p)
                transpose(dy, given + p, positions, panel, p * width, width, live, count)
            if live < width:
                for p in range(positions):
                    panel[p * width + live : (p + 1) * width] = 0
            out = (g.taps + MAX_ROWS) * (group * width_of_group + first)
            for m in range(0, g.taps, ROWS[vectors]):
                multiply_tile(source, g.base, m, g.steps, panel, 0, sums, out + m * width, vectors)


@compiled()
def add_up(
    g: Any,
    sums: Array,
    bias_sums: Array,
    dw: Array,
    db: Array,
    lanes: int,
) -> None:
    """Compute the gradients of weights and biases (an empty ``db`` for none) from the sums of each part
    of the images, in their order."""
    width_of_group = bias_sums.shape[1] // g.groups
    for group in range(g.groups):
        for c in range(g.columns.shape[0]):
            first, width = g.columns[c, 0] * lanes, g.columns[c, 1] * lanes
            live = min(width, g.outputs - first)
            at = (g.taps + MAX_ROWS) * (group * width_of_group + first)
            for t in range(g.taps):
                for j in range(live):
                    total = dw.dtype.type(0)
                    for part in range(sums.shape[0]):
                        total += sums[part, at + t * width + j]
                    dw[(group * g.outputs + first + j) * g.taps + t] = total
            if db.size > 0:
                for j in range(live):
                    total = dw.dtype.type(0)
                    for part in range(sums.shape[0]):
                        total += bias_sums[part, group * width_of_group + first + j]
                    db[group * g.outputs + first + j] = total
