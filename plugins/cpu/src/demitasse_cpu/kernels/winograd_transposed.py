"""The gradient to the data by Winograd's algorithm reversed, in a bf16 plan; see
loops.winograd_transposed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from demitasse import PLAIN, Candidate, Work
from demitasse_cpu.kernels.layouts import NHWC_BF16
from demitasse_cpu.kernels.requests import aligned, cut, flat
from demitasse_cpu.kernels.winograd_geometry import (
    FLOAT,
    LINE,
    PANEL,
    SPARE_ROWS,
    Sizes,
    tiles_of,
    whole,
)
from demitasse_cpu.kernels.winograd_integers import BLOCK, DEPTH, name_of
from demitasse_cpu.kernels.work import ready
from demitasse_cpu.native import at_once, in_order
from demitasse_cpu.threads import divide

_FEWER = 0.75
"""This way is faster if a thread has fewer tiles of dy than this share of its tiles of dx."""


def serves(s: Sizes, turned: Sizes) -> bool:
    """Return whether the sizes ``s`` of the forward pass give a thread few enough tiles, in whole
    images, compared with the ``turned`` sizes."""
    if s.has_many_weights():
        return False
    mine = -(-s.samples // _parts(s)) * _of_image(s)
    return mine < _FEWER * -(-turned.tiles // turned.parts)


def backward_data(s: Sizes) -> Candidate:
    """Return the kernel for dx of the convolution with these sizes."""
    outputs = s._replace(channels=s.outputs, outputs=s.channels)
    tiles = _of_image(s)
    parts = _parts(s)
    block = max(1, min(BLOCK // tiles, -(-s.samples // parts)))
    held = block * tiles
    positions, pieces = s.points**2, -(-outputs.channels // DEPTH)
    row = whole(outputs.channels, LINE) // 2
    panels = -(-outputs.outputs // PANEL)
    rows, columns = (whole(extent, s.results) + s.taps - 1 for extent in s.result)
    # As in winograd_integers: weights for all threads, transformed tiles for each, as pairs with scales.
    u = (
        panels * positions * (-(-outputs.channels // 2) * PANEL + LINE),
        panels * pieces * positions * PANEL,
    )
    v = positions * (held * row + LINE) + SPARE_ROWS * row, pieces * positions * held + SPARE_ROWS
    line = positions * (max(whole(outputs.channels, LINE), DEPTH * LINE) + LINE)
    m = positions * (held * PANEL + LINE) + SPARE_ROWS * PANEL
    sums = rows * columns * PANEL
    sizes = [*(FLOAT * count for count in (*u, *[*v, line, m, sums] * parts)), *[s.patch] * parts]

    def bind(inputs: Sequence[Any], targets: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import winograd_blocks as blocks
        from demitasse_cpu.loops import winograd_integers as common
        from demitasse_cpu.loops import winograd_transposed as loops

        g = tiles_of(s._replace(samples=1))._replace(channels=s.outputs, outputs=s.channels)
        taps = blocks.Taps(s.pair * s.channels, s.pair, False)
        pixel = s.groups * s.channels
        dy_image = s.result[0] * s.result[1] * s.groups * s.outputs
        of = loops.Images(tiles, rows, columns, *s.pad, *s.image, pixel, dy_image)
        rooms = cut(workspace, "float32", *sizes)
        u_pairs, scales, *near = rooms[:-parts]
        packed, patches = u_pairs.view("int32"), rooms[-parts:]
        dy, w, dx = flat(inputs[0]), flat(inputs[1]), flat(targets[0])
        stages: list[Work] = []
        for group in range(s.groups):
            weights = w[group * s.channels * s.outputs * s.pair :]
            there = dy[group * s.outputs :], packed, scales, dx[group * s.channels :]
            vectors = divide(whole(s.channels, LINE) // LINE, parts)
            transform = [
                ready(
                    common.weights, g, weights, taps, packed, scales, near[5 * i + 2], patches[i], *mine
                )
                for i, mine in enumerate(vectors)
            ]
            add = []
            for i, mine in enumerate(divide(s.samples, parts)):
                pairs, pair_scales, line_room, products, added = near[5 * i : 5 * i + 5]
                v = common.Rounded(pairs.view("int32"), held * row + LINE, row, pair_scales, held)
                own = v, line_room, products, patches[i], added, block
                add.append(ready(loops.spread, g, of, *there, *own, *mine))
            stages += [at_once(transform), at_once(add)]
        return in_order(stages)

    return Candidate(
        f"{name_of(s)}, transposed",
        bind,
        input_layouts=(NHWC_BF16, PLAIN),
        output_layouts=(NHWC_BF16,),
        workspace=sum(map(aligned, sizes)),
        in_place=False,
    )


def _parts(s: Sizes) -> int:
    """Return the number of threads that have images."""
    return max(1, min(s.threads, s.samples))


def _of_image(s: Sizes) -> int:
    down, across = (-(-extent // s.results) for extent in s.result)
    return down * across
