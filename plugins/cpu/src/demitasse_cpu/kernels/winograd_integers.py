"""Winograd's convolution of images stored as bfloat16, with products of 16-bit integers; see
loops.winograd_integers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import inf
from typing import Any, NamedTuple

from demitasse import PLAIN, Candidate, Request, Work
from demitasse_cpu.kernels.layouts import NHWC_BF16
from demitasse_cpu.kernels.requests import aligned, cut, flat
from demitasse_cpu.kernels.winograd_geometry import (
    FLOAT,
    GRADIENT_FEW_TILES,
    LINE,
    PANEL,
    SPARE_ROWS,
    SQUARE_ROWS,
    Sizes,
    of_groups,
    sums_of,
    tiles_of,
    units_of,
    whole,
)
from demitasse_cpu.kernels.work import ready
from demitasse_cpu.native import at_once, in_order
from demitasse_cpu.threads import divide

BLOCK = 32
"""The maximum number of tiles that a thread takes from images to results at a time."""

_GROUP = 96
"""The maximum number of tiles whose transforms share scales in the gradient of the weights; up to 128
can be summed."""

DEPTH = 128
"""The number of channels whose products are summed as integers, as in loops.winograd_integers."""


@cache
def are_quick() -> bool:
    """Return whether this processor multiplies pairs of 16-bit integers."""
    from demitasse_cpu.loops.tiles import MULTIPLIES_PAIRS

    return MULTIPLIES_PAIRS


def name_of(s: Sizes) -> str:
    return f"{s.kernel}, int16"


def correlating(request: Request, s: Sizes, to_data: bool = False, relu: bool = False) -> Candidate:
    """Return the kernel of a forward pass or of one to the data."""
    by_panels = s.has_many_weights()
    parts = s.threads if by_panels else s.parts
    block = s.block(BLOCK)
    held = s.tiles if by_panels else block
    positions, pieces = s.points**2, -(-s.channels // DEPTH)
    row = whole(s.channels, LINE) // 2
    panels = 1 if by_panels else -(-s.outputs // PANEL)
    biases = s.groups * whole(s.outputs, LINE) * FLOAT
    # Transformed tiles and weights, as pairs with their scales.
    v = positions * (held * row + LINE) + SPARE_ROWS * row, pieces * positions * held + SPARE_ROWS
    u = panels * positions * (-(-s.channels // 2) * PANEL + LINE), panels * pieces * positions * PANEL
    line = positions * (max(whole(s.channels, LINE), DEPTH * LINE) + LINE)
    m = positions * (block * PANEL + LINE) + SPARE_ROWS * PANEL
    shared, own = (v, u) if by_panels else (u, v)
    numbers = [*shared, *[*own, line, m] * parts]
    sizes = [biases, *(FLOAT * count for count in numbers), *[s.patch] * parts]

    def bind(inputs: Sequence[Any], targets: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import winograd as common
        from demitasse_cpu.loops import winograd_blocks as blocks
        from demitasse_cpu.loops import winograd_integers as loops

        g = tiles_of(s)
        padded = whole(s.outputs, LINE)
        steps = (s.pair * s.outputs, s.pair) if to_data else (s.pair, s.pair * s.channels)
        taps = blocks.Taps(*steps, to_data)
        floor = 0.0 if relu else -inf
        biases, *rooms = cut(workspace, "float32", *sizes)
        rooms, patches = rooms[:-parts], rooms[-parts:]
        shared, each = rooms[:2], [rooms[2 + 4 * i : 6 + 4 * i] for i in range(parts)]

        def tiles_in(pairs: Any, scales: Any) -> Any:
            return loops.Rounded(pairs.view("int32"), held * row + LINE, row, scales, held)

        b = inputs[2] if not to_data and len(inputs) > 2 and inputs[2] is not None else biases[:0]
        stages: list[Work] = [ready(common.spread_bias, b, biases, s.outputs, padded)]
        x, w, y = flat(inputs[0]), flat(inputs[1]), flat(targets[0])
        for group in range(s.groups):
            x_here, y_here = x[group * s.channels :], y[group * s.outputs :]
            w_here = w[group * s.channels * s.outputs * s.pair :]
            result = biases[group * padded :], floor, y_here
            panels_of, tiles_of_parts = divide(-(-s.outputs // PANEL), parts), divide(s.tiles, parts)
            if by_panels:
                v = tiles_in(*shared)
                transform = [
                    ready(loops.images, g, x_here, v, own[2], patch, *mine)
                    for own, patch, mine in zip(each, patches, tiles_of_parts, strict=False)
                ]
                room = [
                    (v, pairs.view("int32"), scales, line, m, patch, block, s.tiles)
                    for (pairs, scales, line, m), patch in zip(each, patches, strict=True)
                ]
                multiply = [
                    ready(loops.by_panels, g, w_here, taps, *result, *own, *mine)
                    for own, mine in zip(room, panels_of, strict=False)
                ]
            else:
                u = shared[0].view("int32"), shared[1]
                transform = [
                    ready(loops.weights, g, w_here, taps, *u, own[2], patch, *mine)
                    for own, patch, mine in zip(
                        each, patches, divide(padded // LINE, parts), strict=False
                    )
                ]
                multiply = [
                    ready(loops.by_tiles, g, x_here, *u, *result, v, line, m, patch, block, *mine)
                    for (pairs, scales, line, m), patch, mine in zip(
                        each, patches, tiles_of_parts, strict=True
                    )
                    for v in [tiles_in(pairs, scales)]
                ]
            stages += [at_once(transform), at_once(multiply)]
        return in_order(stages)

    return Candidate(
        name_of(s),
        bind,
        input_layouts=(NHWC_BF16, *[PLAIN] * (len(request.inputs) - 1)),
        output_layouts=(NHWC_BF16,),
        workspace=sum(map(aligned, sizes)),
        in_place=False,
    )


class _Tiles(NamedTuple):
    """How the tiles of a gradient are divided: ``parts`` threads transform them in ``groups`` of
    ``group`` tiles that share scales."""

    s: Sizes
    parts: int
    group: int
    groups: int

    @property
    def squares(self) -> int:
        """The number of panels of channels times the number of panels of outputs."""
        return -(-self.s.channels // PANEL) * -(-self.s.outputs // PANEL)

    def transformed(self, channels: int) -> tuple[int, int]:
        """Return how many numbers the pairs and the scales of a group have in one panel."""
        positions, row = self.s.points**2, min(PANEL, whole(channels, LINE))
        return positions * (-(-self.group // 2) * row + LINE), positions * PANEL

    def room(self, channels: int) -> list[int]:
        """Return how many numbers all pairs and all scales have, for x's channels or dy's."""
        panels = -(-channels // PANEL)
        return [panels * self.groups * count + LINE * FLOAT for count in self.transformed(channels)]

    def transforms(self, pieces: Sequence[Any]) -> list[Any]:
        """Return the transforms of x and of dy in memory. ``pieces`` are pairs and scales of x, then
        those of dy."""
        from demitasse_cpu.loops import winograd_integer_gradient as loops

        both = zip((self.s.channels, self.s.outputs), pieces[::2], pieces[1::2], strict=True)
        return [
            loops.Groups(pairs.view("int32"), size, scales, scales_size, self.group, self.groups)
            for channels, pairs, scales in both
            for size, scales_size in [self.transformed(channels)]
        ]


def gradient(request: Request, s: Sizes) -> Candidate:
    """Return the kernel for the gradient of the weights. Each thread sums what its tiles add to all
    weights, or what all tiles add to its squares of channels and outputs."""
    by_squares = s.has_many_weights(GRADIENT_FEW_TILES)
    parts = s.threads if by_squares else s.parts
    mine = s.tiles if by_squares else -(-s.tiles // parts)
    group = -(-mine // -(-mine // _GROUP))
    tiles = _Tiles(s, parts, group, -(-s.tiles // group) if by_squares else 1)
    both, positions = [*tiles.room(s.channels), *tiles.room(s.outputs)], s.points**2
    square = positions * (SQUARE_ROWS * PANEL + LINE)
    line = positions * (group * LINE + LINE)
    sums = sums_of(request, s)
    if by_squares:
        numbers = [tiles.groups * sums, *both, *[square, line] * parts]
    else:
        numbers = [parts * sums, parts * tiles.squares * square, *[*both, line] * parts]
    sizes = [*(FLOAT * count for count in numbers), *[s.patch] * parts]

    def bind(inputs: Sequence[Any], targets: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import winograd_gradient as common

        all_sums, *rooms = cut(workspace, "float32", *sizes)
        rooms, patches = rooms[:-parts], rooms[-parts:]
        stages: list[Work] = []
        for dy, x, dw, db in of_groups(s, inputs, targets):
            divided = _by_squares if by_squares else _by_tiles
            stages += divided(tiles, x, dy, dw, all_sums, rooms, patches)
            added = tiles.groups if by_squares else parts
            stages.append(ready(common.bias_gradient, all_sums, added, db))
        return in_order(stages)

    return Candidate(
        name_of(s),
        bind,
        input_layouts=(NHWC_BF16,) * 2,
        output_layouts=(PLAIN,) * len(request.outputs),
        workspace=sum(map(aligned, sizes)),
        in_place=False,
    )


def _by_squares(
    tiles: _Tiles, x: Any, dy: Any, dw: Any, sums: Any, rooms: Sequence[Any], patches: Sequence[Any]
) -> list[Work]:
    """Return work in which all tiles are transformed first, and each thread then has its squares.
    ``rooms`` are the transforms, then a square's sums and a line for each thread."""
    from demitasse_cpu.loops import winograd_integer_gradient as loops

    s, parts, g = tiles.s, tiles.parts, tiles_of(tiles.s)
    v_and_d, own = tiles.transforms(rooms[:4]), list(zip(rooms[4::2], rooms[5::2], strict=True))
    units = tiles.groups * (-(-s.channels // PANEL) + -(-s.outputs // PANEL))
    transform = [
        ready(loops.gradient_tiles, g, x, dy, *v_and_d, sums, line, patch, s.tiles, *mine)
        for (_, line), patch, mine in zip(own, patches, divide(units, parts), strict=False)
    ]
    multiply = [
        ready(loops.gradient_by_squares, g, *v_and_d, du, dw, patch, s.tiles, *mine)
        for (du, _), patch, mine in zip(own, patches, divide(tiles.squares, parts), strict=False)
    ]
    return [at_once(transform), at_once(multiply)]


def _by_tiles(
    tiles: _Tiles, x: Any, dy: Any, dw: Any, sums: Any, rooms: Sequence[Any], patches: Sequence[Any]
) -> list[Work]:
    """Return work in which each thread has its tiles, whose sums are then added up. ``rooms`` are the
    sums of all threads, then the transforms and a line for each thread."""
    from demitasse_cpu.loops import winograd_gradient as common
    from demitasse_cpu.loops import winograd_integer_gradient as loops

    s, parts, g = tiles.s, tiles.parts, tiles_of(tiles.s)
    units, vectors = units_of(s, parts)
    all_du, near = rooms[0], [rooms[1 + 5 * i : 6 + 5 * i] for i in range(parts)]
    each_sums, each_du = sums.reshape(parts, -1), all_du.reshape(parts, -1)
    multiply = [
        ready(
            loops.gradient_by_tiles,
            g,
            x,
            dy,
            *tiles.transforms(near[i][:4]),
            each_du[i],
            each_sums[i],
            near[i][4],
            patches[i],
            *mine,
        )
        for i, mine in enumerate(divide(s.tiles, parts))
    ]
    add_up = [
        ready(common.add_up, g, all_du, parts, each_du.shape[1], dw, patches[i], vectors, *mine)
        for i, mine in enumerate(divide(units, parts))
    ]
    return [at_once(multiply), at_once(add_up)]
