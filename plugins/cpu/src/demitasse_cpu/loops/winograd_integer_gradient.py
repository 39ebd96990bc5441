"""The gradient of the weights by Winograd's minimal filtering with products of 16-bit integers, summed
over pairs of tiles; see ``winograd_integers`` and ``winograd_gradient``.

Tiles are taken in groups. Within a group, each channel has a scale at each position, and so has each
output.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from demitasse_cpu.loops.compiled import Array, compiled, inlined
from demitasse_cpu.loops.vectors import LANES
from demitasse_cpu.loops.winograd_blocks import PANEL, Lie, points_of, transform_images, vectors_of
from demitasse_cpu.loops.winograd_gradient import (
    SQUARE_ROWS,
    square_of,
    transform_results,
    weight_gradient,
)
from demitasse_cpu.loops.winograd_integers import multiply_pairs, pair_up


class Groups(NamedTuple):
    """Transformed tiles of x, or of dy, as pairs of tiles, in groups of up to ``tiles``. The data of a
    group in a panel of channels begins at place ``panel * groups + group`` times ``size`` in ``pairs``
    (position, pair, channel), and times ``scales_size`` in ``scales`` (position, channel)."""

    pairs: Array
    size: int
    scales: Array
    scales_size: int
    tiles: int
    groups: int


@inlined
def _row_of(channels: int, panel: int) -> int:
    return vectors_of(channels, panel) * LANES


@inlined
def _position_of(pairs: int, row: int) -> int:
    return pairs * row + LANES


@inlined
def _lie_of(of: Any) -> Any:
    """Return the layout of a group's transforms before they are rounded, for a vector of channels at a
    time. Those of a whole panel would not stay in the second cache until then."""
    return Lie(PANEL, of.tiles * LANES + LANES, LANES)


@inlined
def _pair_tiles(
    positions: int,
    line: Array,
    of: Any,
    place: int,
    row: int,
    j: int,
    tiles: int,
    by_sum: bool,
    room: Array,
) -> None:
    """Compute the pairs and scales of a group in vector ``j`` of one panel, from its tiles in
    float32."""
    pairs, position = (of.tiles + 1) // 2, _lie_of(of).position
    for p in range(positions):
        to = place * of.size + p * _position_of(pairs, row) + j
        back = place * of.scales_size + p * PANEL + j
        pair_up(line, p * position, LANES, tiles, by_sum, of.pairs, to, row, of.scales, back, room)


@inlined
def _accumulate(
    g: Any, v: Any, d: Any, group: int, du: Array, at: int, square: int, tiles: int, more: int
) -> None:
    """Add up what a group of tiles contributes to a square of a panel of channels by a panel of
    outputs."""
    panels = (g.channels + PANEL - 1) // PANEL
    of_channels, of_outputs = square % panels, square // panels
    rows = min(PANEL, g.channels - of_channels * PANEL)
    columns = vectors_of(g.outputs, of_outputs)
    width, v_row = columns * LANES, _row_of(g.channels, of_channels)
    v_place, d_place = of_channels * v.groups + group, of_outputs * d.groups + group
    pairs = (v.tiles + 1) // 2
    for p in range(points_of(g) ** 2):
        a = v_place * v.size + p * _position_of(pairs, v_row)
        b = d_place * d.size + p * _position_of(pairs, width)
        c = at + p * (SQUARE_ROWS * width + LANES)
        down, across = v_place * v.scales_size + p * PANEL, d_place * d.scales_size + p * PANEL
        multiply_pairs(
            v.pairs,
            a,
            1,
            v_row,
            d.pairs,
            b,
            width,
            du,
            c,
            width,
            v.scales,
            down,
            d.scales,
            across,
            rows,
            (tiles + 1) // 2,
            more,
            columns,
        )


@inlined
def _images(
    g: Any, x: Array, v: Any, group: int, panel: int, line: Array, patch: Array, begin: int, end: int
) -> None:
    """Compute the transforms of tiles ``begin`` to ``end`` in a panel of channels, as a group of
    pairs."""
    first, row = panel * PANEL, _row_of(g.channels, panel)
    place, positions = panel * v.groups + group, points_of(g) ** 2
    for j in range(0, row, LANES):
        count = min(LANES, g.channels - first - j)
        transform_images(g, count, x[first + j :], line, _lie_of(v), patch, begin, end)
        _pair_tiles(positions, line, v, place, row, j, end - begin, False, patch)


@inlined
def _results(
    g: Any,
    dy: Array,
    d: Any,
    group: int,
    panel: int,
    sums: Array,
    line: Array,
    patch: Array,
    begin: int,
    end: int,
) -> None:
    """Compute the same for dy, and add it to the outputs' ``sums``."""
    first, row = panel * PANEL, _row_of(g.outputs, panel)
    place, positions = panel * d.groups + group, points_of(g) ** 2
    for j in range(0, row, LANES):
        at = first + j
        count = min(LANES, g.outputs - at)
        transform_results(g, count, dy[at:], line, _lie_of(d), sums[at:], patch, begin, end)
        _pair_tiles(positions, line, d, place, row, j, end - begin, True, patch)


@compiled()
def gradient_by_tiles(
    g: Any,
    x: Array,
    dy: Array,
    v: Any,
    d: Any,
    du: Array,
    sums: Array,
    line: Array,
    patch: Array,
    begin: int,
    end: int,
) -> None:
    """Add up what tiles ``begin`` to ``end`` contribute to all squares, and to the ``sums`` of the
    outputs."""
    panels, of_outputs = (g.channels + PANEL - 1) // PANEL, (g.outputs + PANEL - 1) // PANEL
    sums[:] = 0
    for start in range(begin, end, v.tiles):
        stop = min(start + v.tiles, end)
        for panel in range(panels):
            _images(g, x, v, 0, panel, line, patch, start, stop)
        for panel in range(of_outputs):
            _results(g, dy, d, 0, panel, sums, line, patch, start, stop)
        for square in range(panels * of_outputs):
            at, more = square * square_of(g), start - begin
            _accumulate(g, v, d, 0, du, at, square, stop - start, more)


@compiled()
def gradient_tiles(
    g: Any,
    x: Array,
    dy: Array,
    v: Any,
    d: Any,
    all_sums: Array,
    line: Array,
    patch: Array,
    tiles: int,
    begin: int,
    end: int,
) -> None:
    """Compute the transforms of x and dy in the units ``begin`` to ``end``, each a group of tiles in a
    panel of channels or of outputs. The outputs' sums in a group go to its row of ``all_sums``."""
    panels, of_outputs = (g.channels + PANEL - 1) // PANEL, (g.outputs + PANEL - 1) // PANEL
    for unit in range(begin, end):
        group, panel = unit // (panels + of_outputs), unit % (panels + of_outputs)
        start = group * v.tiles
        stop = min(start + v.tiles, tiles)
        if panel < panels:
            _images(g, x, v, group, panel, line, patch, start, stop)
        else:
            row = all_sums.size // v.groups
            sums = all_sums[group * row : (group + 1) * row]
            first = (panel - panels) * PANEL
            sums[first : min(first + PANEL, g.outputs)] = 0
            _results(g, dy, d, group, panel - panels, sums, line, patch, start, stop)


@compiled()
def gradient_by_squares(
    g: Any, v: Any, d: Any, du: Array, dw: Array, patch: Array, tiles: int, begin: int, end: int
) -> None:
    """Compute the gradients of squares ``begin`` to ``end`` from all ``tiles``. This is for few tiles
    with many weights; each square is summed in the second cache."""
    for square in range(begin, end):
        for group in range(v.groups):
            count = min(v.tiles, tiles - group * v.tiles)
            _accumulate(g, v, d, group, du, 0, square, count, group)
        weight_gradient(g, du, 0, dw, square, patch)
