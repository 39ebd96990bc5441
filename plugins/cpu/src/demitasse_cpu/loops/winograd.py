"""Convolution with 3 x 3 or 5 x 5 taps by Winograd's minimal filtering.

A tile of 4 x 4 results needs 6 x 6 values of a channel, and 36 products where the definition needs 144:
``y = A' [(G w G') * (B' x B)] A`` (Lavin and Gray, Fast Algorithms for Convolutional Neural Networks,
2015, section 4). With 5 x 5 taps it needs 8 x 8 values, and 64 products instead of 400. For each of the
36 or 64 positions, the products form a matrix product, of tiles x channels by channels x outputs. A
block of tiles is transformed (``v``), multiplied by the weights' panels (``m``), and transformed back,
all by one thread and near its caches. The gradient of the weights is the same in reverse:
``dw = G' [(A dy A') * (B' x B)] G``, summed over the tiles.

Images have their channels innermost, in float32 or stored as bfloat16, and vectors run along the
channels. Everything between images is float32. The transforms of a tile are in ``winograd_transforms``,
the gradient of the weights in ``winograd_gradient``.
"""

from __future__ import annotations

from typing import Any

from demitasse_cpu.loops.compiled import Array, compiled, inlined
from demitasse_cpu.loops.tiles import transpose
from demitasse_cpu.loops.vectors import LANES
from demitasse_cpu.loops.winograd_blocks import (
    BATCH,
    PANEL,
    multiply,
    multiply_fetching,
    points_of,
    results_of,
    taps_of,
    transform_images,
    vectors_of,
)
from demitasse_cpu.loops.winograd_transforms import FINISH, FINISH_PART, WEIGHTS


@inlined
def transform_weights(
    g: Any,
    w: Array,
    taps: Any,
    first: int,
    channels: int,
    u: Array,
    at: int,
    step: int,
    position: int,
    patch: Array,
) -> None:
    """Compute G w G' of the first ``channels`` and a vector of outputs from ``first`` on. Channels are
    ``step`` apart, positions ``position``."""
    live = min(g.outputs - first, LANES)
    extent, points = taps_of(g), points_of(g)
    square = extent * extent
    patch[: square * BATCH * LANES] = 0
    for batch in range(0, channels, BATCH):
        # Several channels at once: numbers that were just stored as short vectors cannot be loaded as a
        # long one without waiting for the first cache.
        count = min(BATCH, channels - batch)
        start = batch * taps.channel_step + first * taps.output_step
        if taps.channel_step == square and not taps.turned:
            transpose(w, start, taps.output_step, patch, 0, LANES, live, square * count)
        else:
            for c in range(count):
                there, first_tap = start + c * taps.channel_step, square * c * LANES
                if taps.turned:
                    last_tap = first_tap + (square - 1) * LANES
                    transpose(w, there, taps.output_step, patch, last_tap, -LANES, live, square)
                else:
                    transpose(w, there, taps.output_step, patch, first_tap, LANES, live, square)
        for c in range(count):
            source, to = square * c * LANES, at + (batch + c) * step
            WEIGHTS(g.form, patch, source, extent * LANES, LANES, u, to, points * position, position)


@inlined
def _panel_of_weights(g: Any, w: Array, taps: Any, u: Array, at: int, panel: int, patch: Array) -> None:
    """Compute G w G' of a panel of outputs, in the order position, channel, output."""
    width = vectors_of(g.outputs, panel) * LANES
    # Without the spare vector, the size of a position is often a power of two, and its stores share a
    # set of the cache (512 x 512 weights: 3.7 ms, and 1.0 ms with it).
    position = g.channels * width + LANES
    for j in range(0, width, LANES):
        transform_weights(g, w, taps, panel * PANEL + j, g.channels, u, at + j, width, position, patch)


def _products_by(multiply: Any) -> Any:
    @inlined
    def products(
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
        vectors = vectors_of(g.outputs, panel)
        width = vectors * LANES
        for p in range(points_of(g) ** 2):
            a, b, c = v_at + p * lie.position, u_at + p * (g.channels * width + LANES), p * m_position
            multiply(v, a, lie.row, 1, u, b, width, m, c, width, tiles, g.channels, 0, vectors)

    return products


_products, products_fetching = _products_by(multiply), _products_by(multiply_fetching)
"""Multiply a block of tiles by a panel of weights at each position. The second one meanwhile prefetches
the weights that follow from memory."""


@inlined
def finish(
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
    """Compute the results of tiles ``begin`` to ``end`` in a panel of outputs."""
    rows, columns = g.result_rows, g.result_columns
    form, results = g.form, results_of(g)
    following = results * g.result_across_step
    first = panel * PANEL
    width = vectors_of(g.outputs, panel) * LANES
    for tile in range(begin, end):
        r, c = results * (tile // g.across), results * (tile % g.across)
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
    """Copy the biases (an empty array for none) of each group, padded to whole vectors."""
    biases[:] = 0
    for k in range(b.size):
        biases[k // outputs * padded + k % outputs] = b[k]


@compiled()
def weights(g: Any, w: Array, taps: Any, u: Array, patch: Array, begin: int, end: int) -> None:
    """Transform the weights of panels ``begin`` to ``end``."""
    for panel in range(begin, end):
        at = panel * points_of(g) ** 2 * (g.channels * PANEL + LANES)
        _panel_of_weights(g, w, taps, u, at, panel, patch)


@compiled()
def images(g: Any, x: Array, v: Array, lie: Any, patch: Array, begin: int, end: int) -> None:
    """Compute the transformed tiles ``begin`` to ``end`` of v."""
    transform_images(g, g.channels, x, v[begin * lie.row :], lie, patch, begin, end)


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
    """Compute the results of tiles ``begin`` to ``end``, a block at a time through all panels."""
    panels = (g.outputs + PANEL - 1) // PANEL
    position = block * PANEL + LANES
    for start in range(begin, end, block):
        stop = min(start + block, end)
        transform_images(g, g.channels, x, v, lie, patch, start, stop)
        for panel in range(panels):
            at = panel * points_of(g) ** 2 * (g.channels * PANEL + LANES)
            _products(g, v, 0, lie, u, at, m, position, panel, stop - start)
            finish(g, m, position, bias, floor, y, panel, patch, start, stop)


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
    """Compute the results of all ``tiles``, whose transforms are in v, in panels ``begin`` to ``end``.
    This is for few tiles with many weights, which are transformed and used up panel by panel."""
    position = block * PANEL + LANES
    for panel in range(begin, end):
        _panel_of_weights(g, w, taps, u, 0, panel, patch)
        for start in range(0, tiles, block):
            stop = min(start + block, tiles)
            _products(g, v, start * lie.row, lie, u, 0, m, position, panel, stop - start)
            finish(g, m, position, bias, floor, y, panel, patch, start, stop)
