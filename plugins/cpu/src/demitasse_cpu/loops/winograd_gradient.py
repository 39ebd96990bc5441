"""The gradient of the weights by Winograd's minimal filtering, ``dw = G' [(A dy A') * (B' x B)] G``
summed over the tiles; see ``winograd``."""

from __future__ import annotations

from typing import Any

from demitasse_cpu.loops.compiled import Array, compiled, inlined
from demitasse_cpu.loops.tiles import ROWS
from demitasse_cpu.loops.vectors import LANES
from demitasse_cpu.loops.winograd_blocks import (
    BATCH,
    PANEL,
    is_whole,
    multiply,
    points_of,
    results_of,
    taps_of,
    transform_images,
    vectors_of,
)
from demitasse_cpu.loops.winograd_transforms import (
    RESULT,
    RESULT_EDGE,
    RESULT_PART,
    TOTAL,
    TOTAL_PART,
    WEIGHT_GRADIENT,
)

SQUARE_ROWS = max(-(-PANEL // rows) * rows for rows in ROWS[1:])


@inlined
def square_of(g: Any) -> int:
    """Return how many numbers the transformed gradient of a panel of channels by a panel of outputs
    has."""
    return points_of(g) ** 2 * (SQUARE_ROWS * PANEL + LANES)


@inlined
def transform_result(
    g: Any, outputs: int, dy: Array, d: Array, lie: Any, out: int, patch: Array, tile: int
) -> None:
    """Compute A dy A' of the first ``outputs`` in a tile, from ``out`` on. ``patch`` begins with a
    vector of zeros."""
    form, down, across = g.form, g.result_down_step, g.result_across_step
    out_down = points_of(g) * lie.position
    whole = outputs // LANES * LANES
    rows, columns, results = g.result_rows, g.result_columns, results_of(g)
    r, k = results * (tile // g.across), results * (tile % g.across)
    if is_whole(rows, r, results, down) and is_whole(columns, k, results, across):
        at = rows[r] + columns[k]
        for c in range(0, whole, LANES):
            to = out + c // PANEL * lie.panel + c % PANEL
            RESULT(form, dy, at + c, down, across, d, to, out_down, lie.position)
    else:
        for c in range(0, whole, LANES):
            to = out + c // PANEL * lie.panel + c % PANEL
            RESULT_EDGE(form, dy, c, LANES, rows, r, columns, k, d, to, out_down, lie.position, patch)
    live = outputs - whole
    if live > 0:
        to = out + whole // PANEL * lie.panel + whole % PANEL
        RESULT_PART(form, dy, whole, live, rows, r, columns, k, d, to, out_down, lie.position, patch)


@inlined
def transform_results(
    g: Any, outputs: int, dy: Array, d: Array, lie: Any, sums: Array, patch: Array, begin: int, end: int
) -> None:
    """Compute A dy A' of the first ``outputs`` in tiles ``begin`` to ``end``. Unless ``sums`` is empty,
    add dy to it, in whole vectors."""
    patch[:LANES] = 0
    form, rows, columns, results = g.form, g.result_rows, g.result_columns, results_of(g)
    whole = outputs // LANES * LANES if sums.size else 0
    live = outputs - whole if sums.size else 0
    for tile in range(begin, end):
        transform_result(g, outputs, dy, d, lie, (tile - begin) * lie.row, patch, tile)
        r, k = results * (tile // g.across), results * (tile % g.across)
        for c in range(0, whole, LANES):
            TOTAL(form, dy, c, LANES, rows, r, columns, k, sums, c, patch)
        if live > 0:
            TOTAL_PART(form, dy, whole, live, rows, r, columns, k, sums, whole, patch)


@inlined
def _accumulate(
    g: Any,
    v: Array,
    v_lie: Any,
    d: Array,
    d_lie: Any,
    du: Array,
    at: int,
    square: int,
    tiles: int,
    more: int,
) -> None:
    """Add up what tiles contribute to a square of a panel of channels by a panel of outputs."""
    panels = (g.channels + PANEL - 1) // PANEL
    of_channels, of_outputs = square % panels, square // panels
    rows = min(PANEL, g.channels - of_channels * PANEL)
    vectors = vectors_of(g.outputs, of_outputs)
    width = vectors * LANES
    for p in range(points_of(g) ** 2):
        a = of_channels * v_lie.panel + p * v_lie.position
        b = of_outputs * d_lie.panel + p * d_lie.position
        c = at + p * (SQUARE_ROWS * width + LANES)
        multiply(v, a, 1, v_lie.row, d, b, d_lie.row, du, c, width, rows, tiles, more, vectors)


@inlined
def _weight_gradient(g: Any, du: Array, at: int, dw: Array, square: int, j: int, patch: Array) -> None:
    """Compute G' du G of vector ``j`` of a square's outputs."""
    panels = (g.channels + PANEL - 1) // PANEL
    first_channel, first = square % panels * PANEL, square // panels * PANEL
    channels = min(PANEL, g.channels - first_channel)
    width = vectors_of(g.outputs, square // panels) * LANES
    position = SQUARE_ROWS * width + LANES
    extent, points = taps_of(g), points_of(g)
    square_of_taps = extent * extent
    live = min(g.outputs - first - j, LANES)
    for batch in range(0, channels, BATCH):
        count = min(BATCH, channels - batch)
        for c in range(count):
            source, to = at + (batch + c) * width + j, square_of_taps * c * LANES
            WEIGHT_GRADIENT(
                g.form, du, source, points * position, position, patch, to, extent * LANES, LANES
            )
        for lane in range(live):
            start = (first + j + lane) * g.channels + first_channel + batch
            pairs = dw[start * square_of_taps : (start + count) * square_of_taps]
            for i in range(count * square_of_taps):
                pairs[i] = patch[i * LANES + lane]


@inlined
def weight_gradient(g: Any, du: Array, at: int, dw: Array, square: int, patch: Array) -> None:
    """Compute G' du G of a square."""
    panels = (g.channels + PANEL - 1) // PANEL
    for j in range(0, vectors_of(g.outputs, square // panels) * LANES, LANES):
        _weight_gradient(g, du, at, dw, square, j, patch)


@compiled()
def gradient_by_tiles(
    g: Any,
    x: Array,
    dy: Array,
    v: Array,
    v_lie: Any,
    d: Array,
    d_lie: Any,
    du: Array,
    sums: Array,
    patch: Array,
    block: int,
    begin: int,
    end: int,
) -> None:
    """Add up what tiles ``begin`` to ``end`` contribute to all squares, and to the ``sums`` of the
    outputs."""
    panels = (g.channels + PANEL - 1) // PANEL
    squares = panels * ((g.outputs + PANEL - 1) // PANEL)
    sums[:] = 0
    for start in range(begin, end, block):
        stop = min(start + block, end)
        transform_images(g, g.channels, x, v, v_lie, patch, start, stop)
        transform_results(g, g.outputs, dy, d, d_lie, sums, patch, start, stop)
        for square in range(squares):
            at, more = square * square_of(g), start - begin
            _accumulate(g, v, v_lie, d, d_lie, du, at, square, stop - start, more)


@compiled()
def add_up(
    g: Any,
    du: Array,
    parts: int,
    part: int,
    dw: Array,
    patch: Array,
    vectors: int,
    begin: int,
    end: int,
) -> None:
    """Compute the gradients of units ``begin`` to ``end``, each a panel of channels by ``vectors`` of
    outputs, from those of ``parts``, which have ``part`` numbers each."""
    panels = (g.channels + PANEL - 1) // PANEL
    for unit in range(begin, end):
        first, of_channels = unit // panels * vectors * LANES, unit % panels
        square, start = first // PANEL * panels + of_channels, first % PANEL
        at = square * square_of(g)
        rows = min(PANEL, g.channels - of_channels * PANEL)
        width = vectors_of(g.outputs, first // PANEL) * LANES
        stop = min(start + vectors * LANES, width)
        for p in range(points_of(g) ** 2):
            for row in range(rows):
                place = at + p * (SQUARE_ROWS * width + LANES) + row * width + start
                total = du[place : place + stop - start]
                for other in range(1, parts):
                    more = du[other * part + place : other * part + place + stop - start]
                    for i in range(stop - start):
                        total[i] += more[i]
        for j in range(start, stop, LANES):
            _weight_gradient(g, du, at, dw, square, j, patch)


@compiled()
def gradient_tiles(
    g: Any,
    x: Array,
    dy: Array,
    v: Array,
    v_lie: Any,
    d: Array,
    d_lie: Any,
    sums: Array,
    patch: Array,
    begin: int,
    end: int,
) -> None:
    """Compute the transforms of x and dy in tiles ``begin`` to ``end``, and the sums of the outputs in
    these."""
    sums[:] = 0
    transform_images(g, g.channels, x, v[begin * v_lie.row :], v_lie, patch, begin, end)
    transform_results(g, g.outputs, dy, d[begin * d_lie.row :], d_lie, sums, patch, begin, end)


@compiled()
def gradient_by_squares(
    g: Any,
    v: Array,
    v_lie: Any,
    d: Array,
    d_lie: Any,
    du: Array,
    dw: Array,
    patch: Array,
    tiles: int,
    begin: int,
    end: int,
) -> None:
    """Compute the gradients of squares ``begin`` to ``end`` from all ``tiles``. This is for few tiles
    with many weights; each square is summed in the second cache."""
    for square in range(begin, end):
        _accumulate(g, v, v_lie, d, d_lie, du, 0, square, tiles, 0)
        weight_gradient(g, du, 0, dw, square, patch)


@compiled()
def bias_gradient(sums: Array, parts: int, db: Array) -> None:
    """Add up the sums of all parts."""
    part = sums.size // parts
    for k in range(db.size):
        total = sums[k]
        for other in range(1, parts):
            total += sums[other * part + k]
        db[k] = total
