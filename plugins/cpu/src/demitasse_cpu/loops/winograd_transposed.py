"""The gradient to the data by Winograd's minimal filtering in reverse, with products of 16-bit integers:
``dx = B [(A dy A') * (G w G')] B'``, added where tiles overlap; see ``winograd_integers``.

Tiles are the 4 x 4 of dy in the forward pass, and each adds to 6 x 6 or 8 x 8 pixels of dx. The forward
algorithm with flipped weights takes its tiles from dx instead, which without padding has more pixels:
for 12 x 12 pixels from 8 x 8 with 5 x 5 taps, it has 9 tiles per image instead of 4.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import types
from numba.extending import intrinsic

from demitasse_cpu.loops.compiled import Array, compiled, inlined
from demitasse_cpu.loops.vectors import LANES, Vectors
from demitasse_cpu.loops.winograd_blocks import PANEL, points_of, results_of, vectors_of
from demitasse_cpu.loops.winograd_gradient import transform_result
from demitasse_cpu.loops.winograd_integers import line_of, panel_of, products, round_tile
from demitasse_cpu.loops.winograd_transforms import SPREAD


class Images(NamedTuple):
    """The layout of dx and dy, and of what is added up before it is written. The ``tiles`` of an image
    give ``rows`` x ``columns`` pixels, of which dx has ``height`` x ``width`` from (``top``, ``left``)
    on. A pixel of dx has ``pixel`` numbers, an image of dy ``dy_image``."""

    tiles: int
    rows: int
    columns: int
    top: int
    left: int
    height: int
    width: int
    pixel: int
    dy_image: int


def _put(masked: bool) -> Any:
    """Return an intrinsic that stores a vector of float32 as dx stores numbers; if ``masked``, only its
    ``live`` lanes."""
    n = types.int64

    def typed(context: Any, x: Any, at: Any, y: Any, to: Any, live: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            v = Vectors(builder)
            source, target = (v.data(context, signature, args, i) for i in (0, 2))
            mask = v.first(args[4]) if masked else None
            v.store(v.load(source, args[1]), target, args[3], y.dtype, mask)
            return context.get_dummy_value()

        return types.void(x, n, y, n, n), generate

    return intrinsic(typed)


_PUT, _PUT_PART = _put(False), _put(True)


@inlined
def _add_up(g: Any, of: Any, m: Array, position: int, first: int, width: int, sums: Array) -> None:
    """Add B m B' of an image's tiles, the first of which is ``first`` in m, to their places in
    ``sums``."""
    sums[: of.rows * of.columns * width] = 0
    results = results_of(g)
    for tile in range(of.tiles):
        down, across = results * (tile // g.across), results * (tile % g.across)
        at, to = (first + tile) * width, (down * of.columns + across) * width
        for j in range(0, width, LANES):
            line = points_of(g) * position
            SPREAD(g.form, m, at + j, line, position, sums, to + j, of.columns * width, width)


@inlined
def _write(g: Any, of: Any, sums: Array, width: int, panel: int, dx: Array, image: int) -> None:
    """Write the pixels that dx has of an image in a panel of channels."""
    first = panel * PANEL
    channels = min(PANEL, g.outputs - first)
    whole = channels // LANES * LANES
    for row in range(of.height):
        at = ((of.top + row) * of.columns + of.left) * width
        to = (image * of.height + row) * of.width * of.pixel + first
        for _ in range(of.width):
            for c in range(0, whole, LANES):
                _PUT(sums, at + c, dx, to + c, LANES)
            if whole < channels:
                _PUT_PART(sums, at + whole, dx, to + whole, channels - whole)
            at += width
            to += of.pixel


@compiled()
def spread(
    g: Any,
    of: Any,
    dy: Array,
    u: Array,
    scales: Array,
    dx: Array,
    v: Any,
    line: Array,
    m: Array,
    patch: Array,
    sums: Array,
    block: int,
    begin: int,
    end: int,
) -> None:
    """Compute dx of images ``begin`` to ``end``, a block of images at a time through all panels."""
    position = block * of.tiles * PANEL + LANES
    patch[:LANES] = 0
    for start in range(begin, end, block):
        stop = min(start + block, end)
        for image in range(start, stop):
            mine = dy[image * of.dy_image :]
            for tile in range(of.tiles):
                transform_result(g, g.channels, mine, line, line_of(g), 0, patch, tile)
                round_tile(g, line, v, (image - start) * of.tiles + tile, patch)
        for panel in range((g.outputs + PANEL - 1) // PANEL):
            there, back = panel_of(g, u, scales, panel)
            products(g, v, 0, there, back, m, position, panel, (stop - start) * of.tiles)
            width = vectors_of(g.outputs, panel) * LANES
            for image in range(start, stop):
                first = (image - start) * of.tiles
                _add_up(g, of, m, position, first, width, sums)
                _write(g, of, sums, width, panel, dx, image)
