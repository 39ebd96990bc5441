"""Winograd's convolution in a net that only runs forward. Weights are transformed once and kept; for
products of 16-bit integers, they are also rounded.

The transformation is a change of the weights' layout to one whose elements are raw bytes (NumPy's type
``V9``: nine for each weight), which only these kernels interpret. The plan sees to it that this is done
once, as for other layouts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import inf, prod
from typing import Any, NamedTuple

from demitasse import PLAIN, Candidate, Layout, Request, Work
from demitasse_cpu.kernels.layouts import NHWC, NHWC_BF16
from demitasse_cpu.kernels.reorder import reorder
from demitasse_cpu.kernels.requests import aligned, cut, flat, spec
from demitasse_cpu.kernels.winograd_geometry import (
    FEW_TILES,
    FLOAT,
    KEPT_WEIGHTS,
    LINE,
    PANEL,
    SPARE_ROWS,
    Sizes,
    lie_room,
    name_of,
    tiles_of,
    whole,
)
from demitasse_cpu.kernels.winograd_integers import BLOCK, DEPTH, are_quick
from demitasse_cpu.kernels.work import ready
from demitasse_cpu.native import at_once, in_order
from demitasse_cpu.threads import divide

_FEWEST_TILES = 8
"""The minimum number of tiles. With fewer, the products take less time than reading the weights from
memory, which are four times as large as they were, or 1.8 times with tiles of 2 x 2 results."""

_FEW = 32
"""Up to about this many tiles, the products take no longer than reading the weights from memory: a core
has 25 GB/s and 245 GFLOP/s in float32, or twice as many with numbers of half the size."""

_FLOATS_BLOCK = 48
"""The maximum number of tiles that a thread takes from images to results at a time, for products in
float32."""


class _Weights(NamedTuple):
    """Transformed weights in memory, panel by panel: in float32, or as pairs of integers followed by
    scales."""

    are_integers: bool
    results: int
    shape: tuple[int, ...]

    @property
    def outputs(self) -> int:
        return self.shape[0]

    @property
    def channels(self) -> int:
        return self.shape[1]

    @property
    def points(self) -> int:
        return self.results + self.shape[2] - 1

    @property
    def numbers(self) -> int:
        """Their size in bytes without the scales."""
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
        name = name_of(self.results, self.shape[2])
        return f"{name}, int16" if self.are_integers else name

    @property
    def layout(self) -> Layout:
        numbers = "int16" if self.are_integers else "float32"
        name = f"{name_of(self.results, self.shape[2])} {numbers}"
        return Layout(name, stored=f"V{-(-self.nbytes // prod(self.shape))}")

    def seen(self, array: Any, first: int = 0) -> tuple[Any, ...]:
        """Return the numbers in an array of the layout from output ``first`` on, which must be the first
        of a panel, followed by their scales if they have any."""
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


def serving(request: Request, s: Sizes) -> Sizes | None:
    """Return the sizes for a kernel that keeps fixed weights transformed, or None if that does not pay.
    With few tiles, the tiles are smaller. In float32 it does not pay with so many tiles that using the
    weights takes as long as transforming them first."""
    if not request.fixed or (s.groups > 1 and s.outputs % PANEL):
        return None
    if s.tiles < _FEWEST_TILES and s.taps == 3:
        s = s._replace(results=2)
    if s.tiles < _FEWEST_TILES:
        return None
    if request.precision == "bf16":
        is_worth = are_quick()
    else:
        is_worth = _are_divided_by_panels(s) or (s.tiles <= FEW_TILES and s.weights <= KEPT_WEIGHTS)
    return s if is_worth else None


def transformation(request: Request) -> Iterable[Candidate]:
    """Return the kernel that changes weights to a layout that ``forward`` requests, by way of a plain
    copy."""
    w, u = map(spec, (request.inputs[0], request.outputs[0]))
    if w.dtype != "float32" or len(w.shape) != 4:
        return ()
    are_integers = request.precision == "bf16"
    forms = [_Weights(are_integers, results, w.shape) for results in (4, 2)]
    kept = next((form for form in forms if form.layout == u.layout), None)
    if kept is None or (are_integers and not are_quick()):
        return ()
    outputs, channels, taps, _ = w.shape
    one_tile = (taps, taps), (1, 1), (0, 0)
    s = Sizes(taps, 1, 1, channels, outputs, *one_tile, max(1, request.place.threads), kept.results)
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
    """Return the kernel of a forward pass with such weights. Each thread takes its panels of them for
    all tiles or, if there are many tiles, its tiles through all panels."""
    kept = _Weights(request.precision == "bf16", s.results, spec(request.inputs[1]).shape)
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
    sizes = [s.groups * padded * FLOAT, *[*tiles, line, m, s.patch] * parts]

    def bind(inputs: Sequence[Any], targets: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import winograd as floats
        from demitasse_cpu.loops import winograd_blocks as blocks
        from demitasse_cpu.loops import winograd_integers as integers
        from demitasse_cpu.loops import winograd_kept as loops

        g, floor = tiles_of(s), 0.0 if relu else -inf
        biases, *rooms = cut(workspace, "float32", *sizes)
        each = len(rooms) // parts

        def room(part: int) -> tuple[Any, ...]:
            *v, line, m, patch = rooms[part * each : (part + 1) * each]
            if not kept.are_integers:
                return *v, blocks.Lie(blocks.PANEL, held * row + LINE, row), m, patch, block
            place = held * row // 2 + LINE, row // 2
            rounded = integers.Rounded(v[0].view("int32"), *place, v[1], held)
            return rounded, line, m, patch, block

        loop: Any = loops.by_panels if by_panels else floats.by_tiles
        if kept.are_integers:
            loop = loops.integers_by_panels if by_panels else integers.by_tiles
        shares = divide(-(-s.outputs // blocks.PANEL) if by_panels else s.tiles, parts)
        b = inputs[2] if len(inputs) > 2 and inputs[2] is not None else biases[:0]
        stages: list[Work] = []
        if b.size == s.groups * padded:
            biases = flat(b)
        else:
            stages.append(ready(floats.spread_bias, b, biases, s.outputs, padded))
        x, y = flat(inputs[0]), flat(targets[0])
        for group in range(s.groups):
            x_here, y_here = x[group * s.channels :], y[group * s.outputs :]
            weights = kept.seen(inputs[1], group * s.outputs)
            given = g, x_here, *weights, biases[group * padded :], floor, y_here
            count = (s.tiles,) if by_panels else ()
            calls = [ready(loop, *given, *room(i), *count, *mine) for i, mine in enumerate(shares)]
            stages.append(at_once(calls))
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
    """Return whether tiles are few, and dividing the tiles would not give the busiest thread fewer rows
    of products."""
    panels = -(-s.outputs // PANEL)
    of_panels = whole(s.tiles, s.rows) * -(-panels // s.threads)
    of_tiles = whole(-(-s.tiles // s.parts), s.rows) * panels
    return s.tiles <= _FEW and of_panels <= of_tiles


def _line(s: Sizes, vectors: int) -> int:
    """Return the bytes for this many vectors at all positions of a tile, before they are rounded."""
    return s.points**2 * (vectors * LINE + LINE) * FLOAT
