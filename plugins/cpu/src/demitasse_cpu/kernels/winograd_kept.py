"""Winograd's convolution of a net that only runs forward: weights are transformed once, and kept; where
products are of 16-bit integers, rounded too.

What they become is a change of their layout to one whose elements are raw bytes (NumPy's type ``V9``:
nine for each weight), which nobody but these kernels looks into; that it is made once is the plan's
doing, as of other layouts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import inf
from typing import Any, NamedTuple

from demitasse import PLAIN, Candidate, Layout, Request, Work
from demitasse_cpu.kernels.layouts import NHWC, NHWC_BF16
from demitasse_cpu.kernels.reorder import reorder
from demitasse_cpu.kernels.requests import aligned, cut, flat, spec
from demitasse_cpu.kernels.winograd_geometry import (
    FEW_TILES,
    FLOAT,
    KEPT_WEIGHTS,
    KERNELS,
    LINE,
    PANEL,
    SPARE_ROWS,
    Sizes,
    lie_room,
    tiles_of,
    whole,
)
from demitasse_cpu.kernels.winograd_integers import BLOCK, DEPTH, are_quick, name_of
from demitasse_cpu.kernels.work import ready
from demitasse_cpu.native import at_once, in_order
from demitasse_cpu.threads import divide

_FEWEST_TILES = 8
"""Of fewer the products take less time than the weights from memory, four times as many as they were."""

_FEW = 32
"""Of up to so many, about, the products take no longer than the weights from memory: a core has 25 GB/s
beside 245 GFLOP/s in float32, or twice as many with numbers of half the size."""

_FLOATS_BLOCK = 48
"""Tiles that a thread takes from images to results at a time, at most, of products in float32."""


class _Weights(NamedTuple):
    """Transformed weights in memory, panel by panel: in float32, or as pairs of integers with scales
    behind them."""

    are_integers: bool
    points: int
    channels: int
    outputs: int
    shape: tuple[int, ...]

    @property
    def numbers(self) -> int:
        """Their bytes without scales."""
        if not self.are_integers:
            return aligned(self.points**2 * (self.channels + 1) * whole(self.outputs, LINE) * FLOAT)
        panel = self.points**2 * (-(-self.channels // 2) * PANEL + LINE)
        return aligned(-(-self.outputs // PANEL) * panel * FLOAT)

    @property
    def nbytes(self) -> int:
        scales = -(-self.channels // DEPTH) * self.points**2 * PANEL if self.are_integers else 0
        return self.numbers + -(-self.outputs // PANEL) * scales * FLOAT

    @property
    def kernel(self) -> str:
        taps = self.shape[2]
        return name_of(taps) if self.are_integers else KERNELS[taps]

    @property
    def layout(self) -> Layout:
        outputs, channels, rows, columns = self.shape
        each = -(-self.nbytes // (outputs * channels * rows * columns))
        return Layout(f"Winograd {'int16' if self.are_integers else 'float32'}", stored=f"V{each}")

    def seen(self, array: Any, first: int = 0) -> tuple[Any, ...]:
        """The numbers in an array of the layout from output ``first`` on, with which a panel begins, and
        their scales where these are."""
        from demitasse_cpu.loops.vectors import LANES
        from demitasse_cpu.loops.winograd_blocks import PANEL

        raw, panel, positions = flat(array).view("uint8"), first // PANEL, self.points**2
        if not self.are_integers:
            at = panel * positions * (self.channels * PANEL + LANES)
            return (raw[: self.numbers].view("float32")[at:],)
        at = panel * positions * (-(-self.channels // 2) * PANEL + LANES)
        scales = panel * -(-self.channels // DEPTH) * positions * PANEL
        return (
            raw[: self.numbers].view("int32")[at:],
            raw[self.numbers : self.nbytes].view("float32")[scales:],
        )


def _weights(shape: Sequence[int], are_integers: bool) -> _Weights:
    return _Weights(are_integers, shape[2] + 3, shape[1], shape[0], tuple(shape))


def serves(request: Request, s: Sizes) -> bool:
    """Whether weights are fixed, and worth to be kept so: in float32 many tiles take as long to use them
    as to transform them first."""
    if not request.fixed or s.tiles < _FEWEST_TILES or (s.groups > 1 and s.outputs % PANEL):
        return False
    if request.precision == "bf16":
        return are_quick()
    return _are_divided_by_panels(s) or (s.tiles <= FEW_TILES and s.weights <= KEPT_WEIGHTS)


def transformation(request: Request) -> Iterable[Candidate]:
    """The kernel for a change of weights to a layout that ``forward`` asks for, through plain ones."""
    w, u = map(spec, (request.inputs[0], request.outputs[0]))
    if w.dtype != "float32" or len(w.shape) != 4:
        return ()
    # Of small weights both forms may have as many bytes: the plan's precision says which it is.
    kept = _weights(w.shape, request.precision == "bf16")
    if u.layout != kept.layout or (kept.are_integers and not are_quick()):
        return ()
    outputs, channels, taps, _ = w.shape
    one_tile = (taps, taps), (1, 1), (0, 0)
    s = Sizes(taps, 1, 1, channels, outputs, *one_tile, max(1, request.place.threads))
    line = _line(s, DEPTH) if kept.are_integers else 0
    plain = replace(w, layout=PLAIN)
    first = () if w == plain else tuple(reorder(replace(request, outputs=(plain,))))
    sizes = [plain.nbytes if first else 0, *[line, s.patch] * s.threads]

    def bind(inputs: Sequence[Any], targets: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import winograd as floats
        from demitasse_cpu.loops import winograd_blocks as blocks
        from demitasse_cpu.loops import winograd_integers as integers

        loop, unit = (integers.weights, LINE) if kept.are_integers else (floats.weights, blocks.PANEL)
        copy, *rooms = cut(workspace, "float32", *sizes)
        turned = [each.bind(inputs, [copy], None) for each in first]
        plain = copy if first else flat(inputs[0])
        given = tiles_of(s), plain, blocks.Taps(s.pair, s.pair * s.channels, False)
        calls = []
        for i, mine in enumerate(divide(-(-outputs // unit), s.threads)):
            line, patch = rooms[2 * i : 2 * i + 2]
            near = (line, patch) if kept.are_integers else (patch,)
            calls.append(ready(loop, *given, *kept.seen(targets[0]), *near, *mine))
        return in_order([*turned, at_once(calls)])

    room, layouts = sum(map(aligned, sizes)), ((w.layout,), (u.layout,))
    return (Candidate(kept.kernel, bind, *layouts, workspace=room, in_place=False),)


def forward(request: Request, s: Sizes, relu: bool) -> Candidate:
    """A forward pass with such weights: each thread takes its panels of them for all tiles, or where
    these are not few, its tiles through all panels."""
    kept = _weights(spec(request.inputs[1]).shape, request.precision == "bf16")
    by_panels = _are_divided_by_panels(s)
    parts = s.threads if by_panels else s.parts
    block = s.block(BLOCK if kept.are_integers else _FLOATS_BLOCK, 1 if by_panels else s.parts)
    held = s.tiles if by_panels else block
    row = whole(s.channels, LINE)
    tiles = [lie_room(s, s.channels, held)]
    if kept.are_integers:
        pairs = s.points**2 * (held * row // 2 + LINE) + SPARE_ROWS * row // 2
        scales = -(-s.channels // DEPTH) * s.points**2 * held + SPARE_ROWS
        tiles = [pairs * FLOAT, scales * FLOAT]
    line = _line(s, row // LINE) if kept.are_integers else 0
    m = (s.points**2 * (block * PANEL + LINE) + SPARE_ROWS * PANEL) * FLOAT
    padded = whole(s.outputs, LINE)
    # Transformed tiles are for all, or each part has its own.
    all_tiles = tiles if by_panels else tiles * parts
    sizes = [s.groups * padded * FLOAT, *all_tiles, *[line, m, s.patch] * parts]

    def bind(inputs: Sequence[Any], targets: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import winograd as floats
        from demitasse_cpu.loops import winograd_blocks as blocks
        from demitasse_cpu.loops import winograd_integers as integers
        from demitasse_cpu.loops import winograd_kept as loops

        g, floor = tiles_of(s), 0.0 if relu else -inf
        biases, *rooms = cut(workspace, "float32", *sizes)
        near = [rooms[at : at + 3] for at in range(len(rooms) - 3 * parts, len(rooms), 3)]

        def tiles_in(part: int) -> tuple[Any, ...]:
            if not kept.are_integers:
                return rooms[part], blocks.Lie(blocks.PANEL, held * row + LINE, row)
            pairs, scales = rooms[2 * part : 2 * part + 2]
            place = held * row // 2 + LINE, row // 2
            return (integers.Rounded(pairs.view("int32"), *place, scales, held),)

        transform: Any = integers.images if kept.are_integers else floats.images
        of_panels: Any = loops.integers_by_panels if kept.are_integers else loops.by_panels
        of_tiles: Any = integers.by_tiles if kept.are_integers else floats.by_tiles
        b = inputs[2] if len(inputs) > 2 and inputs[2] is not None else biases[:0]
        stages: list[Work] = [ready(floats.spread_bias, b, biases, s.outputs, padded)]
        x, y = flat(inputs[0]), flat(targets[0])
        for group in range(s.groups):
            x_here, y_here = x[group * s.channels :], y[group * s.outputs :]
            weights = kept.seen(inputs[1], group * s.outputs)
            result = *weights, biases[group * padded :], floor, y_here
            makes: list[Work] = []
            multiplies: list[Work] = []
            for (line, m, patch), part in zip(near, divide(s.tiles, parts), strict=False):
                lines = [line] if kept.are_integers else []
                if by_panels:
                    makes.append(ready(transform, g, x_here, *tiles_in(0), *lines, patch, *part))
                else:
                    mine = *tiles_in(len(multiplies)), *lines, m, patch, block, *part
                    multiplies.append(ready(of_tiles, g, x_here, *result, *mine))
            if by_panels:
                panels = divide(-(-s.outputs // blocks.PANEL), parts)
                multiplies = [
                    ready(of_panels, g, *result, *tiles_in(0), m, patch, block, s.tiles, *part)
                    for (_, m, patch), part in zip(near, panels, strict=False)
                ]
            stages += [*([at_once(makes)] if makes else []), at_once(multiplies)]
        return in_order(stages)

    biases = [PLAIN] * (len(request.inputs) - 2)
    images = NHWC_BF16 if kept.are_integers else NHWC
    return Candidate(
        kept.kernel,
        bind,
        input_layouts=(images, kept.layout, *biases),
        output_layouts=(images,),
        workspace=sum(map(aligned, sizes)),
        in_place=False,
    )


def _are_divided_by_panels(s: Sizes) -> bool:
    """Whether tiles are few, and to divide them would not be fewer rows of products for the thread that
    has most."""
    panels = -(-s.outputs // PANEL)
    of_panels = whole(s.tiles, s.rows) * -(-panels // s.threads)
    of_tiles = whole(-(-s.tiles // s.parts), s.rows) * panels
    return s.tiles <= _FEW and of_panels <= of_tiles


def _line(s: Sizes, vectors: int) -> int:
    """Bytes for so many vectors at all positions of a tile, before they are rounded."""
    return s.points**2 * (vectors * LINE + LINE) * FLOAT
