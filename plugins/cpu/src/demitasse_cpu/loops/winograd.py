"""Convolution with 3 x 3 or 5 x 5 taps by Winograd's minimal filtering.

A tile of 4 x 4 results needs 6 x 6 values of a channel, and 36 products where the definition has 144:
``y = A' [(G w G') * (B' x B)] A`` (Lavin and Gray, Fast Algorithms for Convolutional Neural Networks,
2015, section 4). With 5 x 5 taps it needs 8 x 8 values, and 64 products in place of 400. Per position
of the 36 or 64 the products are a matrix product, of tiles x channels and channels x outputs. So a
block of tiles is transformed (``v``), multiplied with the weights' panels (``m``), and transformed
back, all by one thread and near its caches. The gradient of the weights is the same turned round:
``dw = G' [(A dy A') * (B' x B)] G``, summed over the tiles.

Images lie with their channels innermost, in float32 or stored as bfloat16, and vectors run along
these. What is between images is float32. The transforms of a tile are in ``winograd_tiles``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from demitasse_cpu.loops.bfloat16 import widen
from demitasse_cpu.loops.compiled import Array, compiled, inlined
from demitasse_cpu.loops.tiles import ROWS
from demitasse_cpu.loops.winograd_tiles import (
    FINISH,
    FINISH_PART,
    IMAGE,
    IMAGE_EDGE,
    IMAGE_PART,
    LANES,
    RESULT,
    RESULT_EDGE,
    RESULT_PART,
    RESULTS,
    TILE_1,
    TILE_2,
    TILE_3,
    TILE_4,
    WEIGHT_GRADIENT,
    WEIGHTS,
)

PANEL = (len(ROWS) - 1) * LANES
"""Channels that are multiplied together: as many vectors as a tile of sums can have."""

_SQUARE_ROWS = max(-(-PANEL // rows) * rows for rows in ROWS[1:])

_DEPTH = 128
"""Terms that a tile of sums takes at a time: so many rows of a panel lie in the first cache."""

_BATCH = 8
"""Channels whose weights are put in order together."""


class Tiles(NamedTuple):
    """Where tiles lie in images of ``channels`` and results of ``outputs``, channels innermost.

    ``form`` has as many numbers as there are taps in a line; loops are compiled for each count. Tile
    t is tile row t // across, tile column t % across. The lines of x, six or eight, that tile row r
    reads begin at ``rows[lines * r + i]``, and its pixels in a line at ``columns``; so do the four
    lines and pixels of y at ``result_rows`` and ``result_columns``. A negative one stands for zeros
    of x, and for what of y is not there. Neighbours lie ``down_step`` and ``across_step`` apart
    unless an edge is between them.
    """

    form: tuple[int, ...]
    channels: int
    outputs: int
    across: int
    rows: Array
    columns: Array
    down_step: int
    across_step: int
    result_rows: Array
    result_columns: Array
    result_down_step: int
    result_across_step: int


class Lie(NamedTuple):
    """How transformed tiles lie: panel q of channels, position p, tile t begin at
    ``q * panel + p * position + t * row``."""

    panel: int
    position: int
    row: int


class Taps(NamedTuple):
    """Distances in w between channels and between outputs of the weights of a pair, and whether
    these are taken backwards, as for the gradient of the data."""

    channel_step: int
    output_step: int
    turned: bool


@inlined
def _multiply(
    a: Array,
    a_at: int,
    a_row: int,
    a_step: int,
    b: Array,
    b_at: int,
    b_step: int,
    c: Array,
    c_at: int,
    c_row: int,
    rows: int,
    count: int,
    more: int,
    vectors: int,
) -> None:
    """The sums of ``rows`` rows over ``count`` terms, tile by tile, while a part of b that the first
    cache holds is used by all rows. Rows that the last tile has beyond ``rows`` are rubbish."""
    for start in range(0, count, _DEPTH):
        n = min(_DEPTH, count - start)
        from_a, from_b, adding = a_at + start * a_step, b_at + start * b_step, more + start
        for m in range(0, rows, ROWS[vectors]):
            at, out = from_a + m * a_row, c_at + m * c_row
            if vectors == 1:
                TILE_1(a, at, a_row, a_step, b, from_b, b_step, c, out, c_row, n, adding)
            elif vectors == 2:
                TILE_2(a, at, a_row, a_step, b, from_b, b_step, c, out, c_row, n, adding)
            elif vectors == 3:
                TILE_3(a, at, a_row, a_step, b, from_b, b_step, c, out, c_row, n, adding)
            else:
                TILE_4(a, at, a_row, a_step, b, from_b, b_step, c, out, c_row, n, adding)


@inlined
def _vectors(channels: int, panel: int) -> int:
    return min(PANEL // LANES, (channels - panel * PANEL + LANES - 1) // LANES)


@inlined
def _points(g: Any) -> int:
    """Pixels in a line of a tile."""
    return RESULTS + len(g.form) - 1


@inlined
def _square(g: Any) -> int:
    """Numbers in the transformed gradient of a panel of channels under a panel of outputs."""
    return _points(g) ** 2 * (_SQUARE_ROWS * PANEL + LANES)


@inlined
def _is_whole(table: Array, first: int, count: int, step: int) -> bool:
    """Whether the lines from first on are there, and a step apart."""
    whole: bool = table[first] >= 0
    for i in range(1, count):
        whole &= table[first + i] - table[first] == i * step
    return whole


@inlined
def _transform_images(g: Any, x: Array, v: Array, lie: Any, patch: Array, begin: int, end: int) -> None:
    """B' x B of tiles ``begin`` to ``end``. ``patch`` has room for a vector of zeros."""
    form, down, across = g.form, g.down_step, g.across_step
    points = _points(g)
    out_down = points * lie.position
    whole = g.channels // LANES * LANES
    rows, columns = g.rows, g.columns
    patch[:LANES] = 0
    for tile in range(begin, end):
        r, k = points * (tile // g.across), points * (tile % g.across)
        out = (tile - begin) * lie.row
        if _is_whole(rows, r, points, down) and _is_whole(columns, k, points, across):
            at = rows[r] + columns[k]
            for c in range(0, whole, LANES):
                to = out + c // PANEL * lie.panel + c % PANEL
                IMAGE(form, x, at + c, down, across, v, to, out_down, lie.position)
        else:
            for c in range(0, whole, LANES):
                to = out + c // PANEL * lie.panel + c % PANEL
                IMAGE_EDGE(form, x, c, LANES, rows, r, columns, k, v, to, out_down, lie.position, patch)
        live = g.channels - whole
        if live > 0:
            to = out + whole // PANEL * lie.panel + whole % PANEL
            IMAGE_PART(form, x, whole, live, rows, r, columns, k, v, to, out_down, lie.position, patch)


@inlined
def _transform_results(
    g: Any, dy: Array, d: Array, lie: Any, sums: Array, patch: Array, begin: int, end: int
) -> None:
    """A dy A' of tiles ``begin`` to ``end``, and what they add to ``sums`` of the outputs."""
    form, down, across = g.form, g.result_down_step, g.result_across_step
    out_down = _points(g) * lie.position
    whole = g.outputs // LANES * LANES
    patch[:LANES] = 0
    rows, columns = g.result_rows, g.result_columns
    for tile in range(begin, end):
        r, k = RESULTS * (tile // g.across), RESULTS * (tile % g.across)
        out = (tile - begin) * lie.row
        if _is_whole(rows, r, RESULTS, down) and _is_whole(columns, k, RESULTS, across):
            at = rows[r] + columns[k]
            for c in range(0, whole, LANES):
                to = out + c // PANEL * lie.panel + c % PANEL
                RESULT(form, dy, at + c, down, across, d, to, out_down, lie.position)
        else:
            for c in range(0, whole, LANES):
                to = out + c // PANEL * lie.panel + c % PANEL
                RESULT_EDGE(
                    form, dy, c, LANES, rows, r, columns, k, d, to, out_down, lie.position, patch
                )
        live = g.outputs - whole
        if live > 0:
            to = out + whole // PANEL * lie.panel + whole % PANEL
            RESULT_PART(form, dy, whole, live, rows, r, columns, k, d, to, out_down, lie.position, patch)
        total = sums[: g.outputs]
        for i in range(RESULTS):
            for j in range(RESULTS):
                if rows[r + i] >= 0 and columns[k + j] >= 0:
                    start = rows[r + i] + columns[k + j]
                    part = dy[start : start + g.outputs]
                    for c in range(g.outputs):
                        total[c] += widen(part[c])


@inlined
def _transform_weights(g: Any, w: Array, taps: Any, u: Array, at: int, panel: int, patch: Array) -> None:
    """G w G' of a panel of outputs: position, channel, output."""
    width = _vectors(g.outputs, panel) * LANES
    extent, points = len(g.form), _points(g)
    square = extent * extent
    # Without the spare vector a position is often a power of two: its stores then share a set of
    # the cache (512 x 512 weights: 3.7 ms, and 1.0 so).
    position = g.channels * width + LANES
    for j in range(0, width, LANES):
        first = panel * PANEL + j
        live = min(g.outputs - first, LANES)
        patch[: square * _BATCH * LANES] = 0
        for batch in range(0, g.channels, _BATCH):
            # Several channels at once: what was just stored number by number cannot be loaded as a
            # vector without waiting for the first cache.
            count = min(_BATCH, g.channels - batch)
            for lane in range(live):
                for c in range(count):
                    start = (batch + c) * taps.channel_step + (first + lane) * taps.output_step
                    pair = w[start : start + square]
                    for i in range(square):
                        tap = square - 1 - i if taps.turned else i
                        patch[(square * c + tap) * LANES + lane] = pair[i]
            for c in range(count):
                source, to = square * c * LANES, at + (batch + c) * width + j
                WEIGHTS(g.form, patch, source, extent * LANES, LANES, u, to, points * position, position)


@inlined
def _products(
    g: Any,
    v: Array,
    v_at: int,
    lie: Any,
    u: Array,
    u_at: int,
    m: Array,
    m_position: int,
    panel: int,
    tiles: int,
) -> None:
    """Per position the products of a block of tiles with a panel of weights."""
    vectors = _vectors(g.outputs, panel)
    width = vectors * LANES
    for p in range(_points(g) ** 2):
        a, b, c = v_at + p * lie.position, u_at + p * (g.channels * width + LANES), p * m_position
        _multiply(v, a, lie.row, 1, u, b, width, m, c, width, tiles, g.channels, 0, vectors)


@inlined
def _finish(
    g: Any,
    m: Array,
    m_position: int,
    bias: Array,
    floor: float,
    y: Array,
    panel: int,
    patch: Array,
    begin: int,
    end: int,
) -> None:
    """The results of tiles ``begin`` to ``end`` in a panel of outputs."""
    rows, columns = g.result_rows, g.result_columns
    form, following = g.form, RESULTS * g.result_across_step
    first = panel * PANEL
    width = _vectors(g.outputs, panel) * LANES
    for tile in range(begin, end):
        r, c = RESULTS * (tile // g.across), RESULTS * (tile % g.across)
        for k in range(first, first + width, LANES):
            at = (tile - begin) * width + k - first
            live = g.outputs - k
            if live >= LANES:
                FINISH(
                    form,
                    m,
                    at,
                    m_position,
                    bias,
                    k,
                    floor,
                    y,
                    k,
                    LANES,
                    rows,
                    r,
                    columns,
                    c,
                    patch,
                    following,
                )
            else:
                FINISH_PART(
                    form,
                    m,
                    at,
                    m_position,
                    bias,
                    k,
                    floor,
                    y,
                    k,
                    live,
                    rows,
                    r,
                    columns,
                    c,
                    patch,
                    following,
                )


@compiled()
def spread_bias(b: Array, biases: Array, outputs: int, padded: int) -> None:
    """The biases (an empty array for none) of each group, padded to whole vectors."""
    biases[:] = 0
    for k in range(b.size):
        biases[k // outputs * padded + k % outputs] = b[k]


@compiled()
def weights(g: Any, w: Array, taps: Any, u: Array, patch: Array, begin: int, end: int) -> None:
    """The transformed weights of panels ``begin`` to ``end``."""
    for panel in range(begin, end):
        at = panel * _points(g) ** 2 * (g.channels * PANEL + LANES)
        _transform_weights(g, w, taps, u, at, panel, patch)


@compiled()
def images(g: Any, x: Array, v: Array, lie: Any, patch: Array, begin: int, end: int) -> None:
    """The transformed tiles ``begin`` to ``end`` of v."""
    _transform_images(g, x, v[begin * lie.row :], lie, patch, begin, end)


@compiled()
def by_tiles(
    g: Any,
    x: Array,
    u: Array,
    bias: Array,
    floor: float,
    y: Array,
    v: Array,
    lie: Any,
    m: Array,
    patch: Array,
    block: int,
    begin: int,
    end: int,
) -> None:
    """The results of tiles ``begin`` to ``end``, a block at a time through all panels."""
    panels = (g.outputs + PANEL - 1) // PANEL
    position = block * PANEL + LANES
    for start in range(begin, end, block):
        stop = min(start + block, end)
        _transform_images(g, x, v, lie, patch, start, stop)
        for panel in range(panels):
            at = panel * _points(g) ** 2 * (g.channels * PANEL + LANES)
            _products(g, v, 0, lie, u, at, m, position, panel, stop - start)
            _finish(g, m, position, bias, floor, y, panel, patch, start, stop)


@compiled()
def by_panels(
    g: Any,
    w: Array,
    taps: Any,
    bias: Array,
    floor: float,
    y: Array,
    v: Array,
    lie: Any,
    u: Array,
    m: Array,
    patch: Array,
    block: int,
    tiles: int,
    begin: int,
    end: int,
) -> None:
    """The results of all ``tiles``, whose transforms v has, in panels ``begin`` to ``end``: for few
    tiles with many weights, which are transformed and used up panel by panel."""
    position = block * PANEL + LANES
    for panel in range(begin, end):
        _transform_weights(g, w, taps, u, 0, panel, patch)
        for start in range(0, tiles, block):
            stop = min(start + block, tiles)
            _products(g, v, start * lie.row, lie, u, 0, m, position, panel, stop - start)
            _finish(g, m, position, bias, floor, y, panel, patch, start, stop)


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
    """What tiles give to a square of a panel of channels and a panel of outputs."""
    panels = (g.channels + PANEL - 1) // PANEL
    of_channels, of_outputs = square % panels, square // panels
    rows = min(PANEL, g.channels - of_channels * PANEL)
    vectors = _vectors(g.outputs, of_outputs)
    width = vectors * LANES
    for p in range(_points(g) ** 2):
        a = of_channels * v_lie.panel + p * v_lie.position
        b = of_outputs * d_lie.panel + p * d_lie.position
        c = at + p * (_SQUARE_ROWS * width + LANES)
        _multiply(v, a, 1, v_lie.row, d, b, d_lie.row, du, c, width, rows, tiles, more, vectors)


@inlined
def _weight_gradient(g: Any, du: Array, at: int, dw: Array, square: int, patch: Array) -> None:
    """G' du G of a square."""
    panels = (g.channels + PANEL - 1) // PANEL
    first_channel, first = square % panels * PANEL, square // panels * PANEL
    channels = min(PANEL, g.channels - first_channel)
    width = _vectors(g.outputs, square // panels) * LANES
    position = _SQUARE_ROWS * width + LANES
    extent, points = len(g.form), _points(g)
    square_of_taps = extent * extent
    for j in range(0, width, LANES):
        live = min(g.outputs - first - j, LANES)
        for batch in range(0, channels, _BATCH):
            count = min(_BATCH, channels - batch)
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
    """What tiles ``begin`` to ``end`` give to all squares, and to the ``sums`` of the outputs."""
    panels = (g.channels + PANEL - 1) // PANEL
    squares = panels * ((g.outputs + PANEL - 1) // PANEL)
    sums[:] = 0
    for start in range(begin, end, block):
        stop = min(start + block, end)
        _transform_images(g, x, v, v_lie, patch, start, stop)
        _transform_results(g, dy, d, d_lie, sums, patch, start, stop)
        for square in range(squares):
            at, more = square * _square(g), start - begin
            _accumulate(g, v, v_lie, d, d_lie, du, at, square, stop - start, more)


@compiled()
def add_up(
    g: Any, du: Array, parts: int, part: int, dw: Array, patch: Array, begin: int, end: int
) -> None:
    """The gradients of squares ``begin`` to ``end`` from those of ``parts``, ``part`` numbers each."""
    size = _square(g)
    for square in range(begin, end):
        at = square * size
        total = du[at : at + size]
        for other in range(1, parts):
            more = du[other * part + at : other * part + at + size]
            for i in range(size):
                total[i] += more[i]
        _weight_gradient(g, du, at, dw, square, patch)


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
    """The transforms of tiles ``begin`` to ``end`` of both, and the sums of the outputs in these."""
    sums[:] = 0
    _transform_images(g, x, v[begin * v_lie.row :], v_lie, patch, begin, end)
    _transform_results(g, dy, d[begin * d_lie.row :], d_lie, sums, patch, begin, end)


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
    """The gradients of squares ``begin`` to ``end`` from all ``tiles``: for few tiles with many
    weights, of which each square is summed in the second cache."""
    for square in range(begin, end):
        _accumulate(g, v, v_lie, d, d_lie, du, 0, square, tiles, 0)
        _weight_gradient(g, du, 0, dw, square, patch)


@compiled()
def bias_gradient(sums: Array, parts: int, db: Array) -> None:
    """The sum of what each of the parts summed."""
    part = sums.size // parts
    for k in range(db.size):
        total = sums[k]
        for other in range(1, parts):
            total += sums[other * part + k]
        db[k] = total
