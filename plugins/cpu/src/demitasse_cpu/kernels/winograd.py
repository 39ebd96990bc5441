"""Convolution with stride 1 in a quarter of the multiplications for 3 x 3 taps, and a sixth for 5 x 5;
see loops.winograd."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import inf, prod
from typing import Any

from demitasse import PLAIN, Candidate, Layout, Request, TensorSpec, Work
from demitasse_cpu.kernels import winograd_integers as integers
from demitasse_cpu.kernels import winograd_kept, winograd_transposed
from demitasse_cpu.kernels.layouts import NHWC, NHWC_BF16
from demitasse_cpu.kernels.requests import aligned, cut, flat, spec
from demitasse_cpu.kernels.winograd_geometry import (
    FLOAT,
    GRADIENT_FEW_TILES,
    KEPT_WEIGHTS,
    LINE,
    PANEL,
    SPARE_ROWS,
    SQUARE_ROWS,
    TAPS,
    Sizes,
    is_bound_by_weights,
    lie_room,
    of_groups,
    sizes_of,
    sums_of,
    tiles_of,
    units_of,
    whole,
)
from demitasse_cpu.kernels.work import ready
from demitasse_cpu.native import at_once, in_order
from demitasse_cpu.threads import divide

_BLOCK, _LARGE_BLOCK = 48, 200
"""The tiles that a thread takes from images to results at a time. 48 tiles of 64 channels stay in the
second cache, and so do their products. Weights that the caches do not keep pass through them once for
each block: with 512 channels, one core took 36 ms for blocks of 200 tiles and 41 ms for blocks of 48."""

_GRADIENT_BLOCK = 100
"""The same for the gradient of the weights, for which each block loads and stores the sums."""

_FEWEST_CHANNELS = 8
"""The minimum number of channels. With fewer, a panel of 16 lanes would be mostly zeros."""


def forward(request: Request, relu: bool = False) -> Iterable[Candidate]:
    """Return the kernel for y = w * x + b or, with ``relu``, for max(y, 0). There is one only for 3 x 3
    or 5 x 5 adjacent taps, in float32 or stored as bfloat16."""
    x, w, b = (*request.inputs, None)[:3]
    y = request.outputs[0]
    if not _serves(request, w, x, b, y):
        return ()
    s = sizes_of(request, spec(x), spec(w).shape, spec(y))
    kept = winograd_kept.serving(request, s)
    if kept:
        return (winograd_kept.forward(request, kept, relu),)
    if is_bound_by_weights(request, s):
        return ()
    correlating = integers.correlating if _in_integers(request) else _correlating
    return (correlating(request, s, relu=relu),)


def backward_data(request: Request) -> Iterable[Candidate]:
    """Return the kernel for dx: a convolution of dy with flipped weights and with channels and outputs
    swapped, or the forward algorithm reversed."""
    dy, w = request.inputs
    dx = request.outputs[0]
    if not _serves(request, w, dy, dx):
        return ()
    s = sizes_of(request, spec(dx), spec(w).shape, spec(dy))
    turned = s._replace(
        channels=s.outputs,
        outputs=s.channels,
        image=s.result,
        result=s.image,
        pad=(s.taps - 1 - s.pad[0], s.taps - 1 - s.pad[1]),
    )
    if not _in_integers(request):
        return (_correlating(request, turned, to_data=True),)
    if winograd_transposed.serves(s, turned):
        return (winograd_transposed.backward_data(s),)
    return (integers.correlating(request, turned, to_data=True),)


def backward_weights(request: Request) -> Iterable[Candidate]:
    """Return the kernel for dw and, if requested, db."""
    dy, x = request.inputs
    dw, db = (*request.outputs, None)[:2]
    if not _serves(request, dw, dy, x, db):
        return ()
    s = sizes_of(request, spec(x), spec(dw).shape, spec(dy))
    if _in_integers(request):
        return (integers.gradient(request, s),)
    if s.has_many_weights(GRADIENT_FEW_TILES):
        return (_gradient_by_squares(request, s),)
    return (_gradient_by_tiles(request, s),)


FACTORIES: Mapping[str, Callable[[Request], Iterable[Candidate]]] = {
    "convolution": forward,
    "convolution_relu": partial(forward, relu=True),
    "convolution_backward_data": backward_data,
    "convolution_backward_weights": backward_weights,
}


def _serves(request: Request, w: TensorSpec | None, *others: TensorSpec | None) -> bool:
    given = request.attributes
    return (
        all(operand is None or operand.dtype == "float32" for operand in (w, *others))
        and all(operand is None or prod(operand.shape) for operand in others)
        and len(set(spec(w).shape[2:])) == 1
        and spec(w).shape[2] in TAPS
        and tuple(given["stride"]) == (1, 1)
        and tuple(given["dilation"]) == (1, 1)
        and max(given["pad"]) < spec(w).shape[2]
        and min(spec(w).shape[0] // given["groups"], spec(w).shape[1]) >= _FEWEST_CHANNELS
    )


def _in_integers(request: Request) -> bool:
    """Return whether to round the factors to 16-bit integers. If channels are of similar size, these
    keep more digits than results in bfloat16 do."""
    return request.precision == "bf16" and integers.are_quick()


def _images(request: Request) -> Layout:
    """Return the layout of x, y and their gradients."""
    return NHWC_BF16 if request.precision == "bf16" else NHWC


def _correlating(request: Request, s: Sizes, to_data: bool = False, relu: bool = False) -> Candidate:
    """Return the kernel of a forward pass or of one to the data."""
    by_panels = s.has_many_weights()
    parts = s.threads if by_panels else s.parts
    block = s.block(_LARGE_BLOCK if s.weights > KEPT_WEIGHTS and not by_panels else _BLOCK)
    held = s.tiles if by_panels else block
    biases = s.groups * whole(s.outputs, LINE) * FLOAT
    panel = s.points**2 * (s.channels * PANEL + LINE) * FLOAT
    m = (s.points**2 * (block * PANEL + LINE) + SPARE_ROWS * PANEL) * FLOAT
    v = lie_room(s, s.channels, held)
    # Either v is shared and each part has its own weights, or the other way round.
    shared, own = (v, panel) if by_panels else (s.weights, v)
    sizes = [biases, shared, *[own, m, s.patch] * parts]

    def bind(inputs: Sequence[Any], targets: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import winograd as loops
        from demitasse_cpu.loops import winograd_blocks as blocks

        g = tiles_of(s)
        line = whole(s.outputs, LINE)
        row = whole(s.channels, LINE)
        lie = blocks.Lie(blocks.PANEL, held * row + LINE, row)
        steps = (s.pair * s.outputs, s.pair) if to_data else (s.pair, s.pair * s.channels)
        taps = blocks.Taps(*steps, to_data)
        floor = 0.0 if relu else -inf
        biases, shared, *rooms = cut(workspace, "float32", *sizes)
        own, ms, patches = rooms[::3], rooms[1::3], rooms[2::3]
        b = inputs[2] if not to_data and len(inputs) > 2 and inputs[2] is not None else biases[:0]
        stages: list[Work] = [ready(loops.spread_bias, b, biases, s.outputs, line)]
        panels = list(enumerate(divide(-(-s.outputs // blocks.PANEL), parts)))
        tiles = list(enumerate(divide(s.tiles, parts)))
        x, w, y = flat(inputs[0]), flat(inputs[1]), flat(targets[0])
        for group in range(s.groups):
            x_here, y_here = x[group * s.channels :], y[group * s.outputs :]
            w_here = w[group * s.channels * s.outputs * s.pair :]
            result = biases[group * line :], floor, y_here
            if by_panels:
                transform = [
                    ready(loops.images, g, x_here, shared, lie, patches[i], *mine) for i, mine in tiles
                ]
                room = [(own[i], ms[i], patches[i], block) for i in range(parts)]
                multiply = [
                    ready(
                        loops.by_panels, g, w_here, taps, *result, shared, lie, *room[i], s.tiles, *mine
                    )
                    for i, mine in panels
                ]
            else:
                transform = [
                    ready(loops.weights, g, w_here, taps, shared, patches[i], *mine)
                    for i, mine in panels
                ]
                near = [(own[i], lie, ms[i], patches[i], block) for i in range(parts)]
                multiply = [
                    ready(loops.by_tiles, g, x_here, shared, *result, *near[i], *mine)
                    for i, mine in tiles
                ]
            stages += [at_once(transform), at_once(multiply)]
        return in_order(stages)

    return Candidate(
        s.kernel,
        bind,
        input_layouts=(_images(request), *[PLAIN] * (len(request.inputs) - 1)),
        output_layouts=(_images(request),),
        workspace=sum(map(aligned, sizes)),
        in_place=False,
    )


def _gradient_by_tiles(request: Request, s: Sizes) -> Candidate:
    """Return the kernel in which each thread sums what its tiles add to all weights, a block at a
    time."""
    parts, block = s.parts, s.block(_GRADIENT_BLOCK)
    sums = sums_of(request, s)
    channels, outputs = whole(s.channels, PANEL), whole(s.outputs, PANEL)
    # With panels of 8 channels, squares have 12 rows of 8 and a vector.
    du = aligned(s.points**2 * channels * outputs * 8 // 5 * FLOAT)
    v, d = (lie_room(s, n, block) for n in (s.channels, s.outputs))
    sizes = [parts * sums * FLOAT, parts * du, *[v, d, s.patch] * parts]

    def bind(inputs: Sequence[Any], targets: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import winograd_gradient as loops

        g, (units, vectors) = tiles_of(s), units_of(s, parts)
        v_lie, d_lie = (_panels_apart(s, block, n) for n in (s.channels, s.outputs))
        all_sums, all_du, *rooms = cut(workspace, "float32", *sizes)
        each_sums, each_du = all_sums.reshape(parts, sums), all_du.reshape(parts, -1)
        own = [(vs, v_lie, ds, d_lie) for vs, ds in zip(rooms[::3], rooms[1::3], strict=True)]
        patches = rooms[2::3]
        stages: list[Work] = []
        for dy, x, dw, db in of_groups(s, inputs, targets):
            add = [
                ready(loops.gradient_by_tiles, g, x, dy, *room, du, sums, patch, block, *mine)
                for room, du, sums, patch, mine in zip(
                    own, each_du, each_sums, patches, divide(s.tiles, parts), strict=True
                )
            ]
            add_up = [
                ready(loops.add_up, g, all_du, parts, each_du.shape[1], dw, patches[i], vectors, *mine)
                for i, mine in enumerate(divide(units, parts))
            ]
            bias = ready(loops.bias_gradient, all_sums, parts, db)
            stages += [at_once(add), at_once(add_up), bias]
        return in_order(stages)

    return _gradient(bind, sizes, request, s)


def _gradient_by_squares(request: Request, s: Sizes) -> Candidate:
    """Return the kernel in which each thread sums what all tiles add to its squares of channels and
    outputs."""
    tiles = divide(s.tiles, s.threads)
    sums = sums_of(request, s)
    v, d = (lie_room(s, n, s.tiles) for n in (s.channels, s.outputs))
    du = s.points**2 * (SQUARE_ROWS * PANEL + LINE) * FLOAT
    sizes = [len(tiles) * sums * FLOAT, v, d, *[du, s.patch] * s.threads]

    def bind(inputs: Sequence[Any], targets: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import winograd_blocks as blocks
        from demitasse_cpu.loops import winograd_gradient as loops

        g, squares = tiles_of(s), _squares(s, blocks.PANEL)
        v_lie, d_lie = (_panels_apart(s, s.tiles, n) for n in (s.channels, s.outputs))
        all_sums, v, d, *rooms = cut(workspace, "float32", *sizes)
        each_sums, dus, patches = all_sums.reshape(len(tiles), sums), rooms[::2], rooms[1::2]
        both = v, v_lie, d, d_lie
        stages: list[Work] = []
        for dy, x, dw, db in of_groups(s, inputs, targets):
            transform = [
                ready(loops.gradient_tiles, g, x, dy, *both, each_sums[i], patches[i], *mine)
                for i, mine in enumerate(tiles)
            ]
            multiply = [
                ready(loops.gradient_by_squares, g, *both, dus[i], dw, patches[i], s.tiles, *mine)
                for i, mine in enumerate(divide(squares, s.threads))
            ]
            bias = ready(loops.bias_gradient, all_sums, len(tiles), db)
            stages += [at_once(transform), at_once(multiply), bias]
        return in_order(stages)

    return _gradient(bind, sizes, request, s)


def _gradient(bind: Any, sizes: Sequence[int], request: Request, s: Sizes) -> Candidate:
    return Candidate(
        s.kernel,
        bind,
        input_layouts=(_images(request),) * 2,
        output_layouts=(PLAIN,) * len(request.outputs),
        workspace=sum(map(aligned, sizes)),
        in_place=False,
    )


def _squares(s: Sizes, panel: int) -> int:
    return -(-s.channels // panel) * -(-s.outputs // panel)


def _panels_apart(s: Sizes, tiles: int, channels: int) -> Any:
    """Return the layout of rows of one panel each, in which the terms of a tile of sums are
    contiguous."""
    from demitasse_cpu.loops import winograd_blocks as blocks
    from demitasse_cpu.loops.vectors import LANES

    row = min(blocks.PANEL, whole(channels, LINE))
    position = tiles * row + LANES
    return blocks.Lie(s.points**2 * position, position, row)
