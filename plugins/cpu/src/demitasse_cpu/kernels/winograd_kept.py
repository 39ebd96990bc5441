"""Winograd's convolution of a net that only runs forward, with products of 16-bit integers: weights are
transformed and rounded once, and kept.

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
from demitasse_cpu.kernels.layouts import NHWC_BF16
from demitasse_cpu.kernels.reorder import reorder
from demitasse_cpu.kernels.requests import aligned, cut, flat, spec
from demitasse_cpu.kernels.winograd_geometry import (
    FLOAT,
    LINE,
    PANEL,
    SPARE_ROWS,
    Sizes,
    tiles_of,
    whole,
)
from demitasse_cpu.kernels.winograd_integers import BLOCK, DEPTH, are_quick, name_of
from demitasse_cpu.kernels.work import ready
from demitasse_cpu.native import at_once, in_order
from demitasse_cpu.threads import divide

_FEWEST_TILES = 8
"""Of fewer the products take less time than the weights from memory, four times as many as they were in
16 bits."""


class _Weights(NamedTuple):
    """Transformed weights in memory: pairs, with scales behind them."""

    points: int
    channels: int
    outputs: int
    shape: tuple[int, ...]

    @property
    def pairs(self) -> int:
        """In bytes."""
        panel = self.points**2 * (-(-self.channels // 2) * PANEL + LINE)
        return aligned(-(-self.outputs // PANEL) * panel * FLOAT)

    @property
    def nbytes(self) -> int:
        scales = -(-self.channels // DEPTH) * self.points**2 * PANEL
        return self.pairs + -(-self.outputs // PANEL) * scales * FLOAT

    @property
    def layout(self) -> Layout:
        outputs, channels, rows, columns = self.shape
        each = -(-self.nbytes // (outputs * channels * rows * columns))
        return Layout("Winograd int16", stored=f"V{each}")

    def seen(self, array: Any) -> tuple[Any, Any]:
        """Pairs and scales in an array of the layout."""
        raw = flat(array).view("uint8")
        return raw[: self.pairs].view("int32"), raw[self.pairs : self.nbytes].view("float32")


def _weights(shape: Sequence[int]) -> _Weights:
    return _Weights(shape[2] + 3, shape[1], shape[0], tuple(shape))


def serves(request: Request, s: Sizes) -> bool:
    """Whether weights are fixed, and worth to be kept so."""
    in_integers = request.precision == "bf16" and are_quick()
    return request.fixed and in_integers and s.groups == 1 and s.tiles >= _FEWEST_TILES


def transformation(request: Request) -> Iterable[Candidate]:
    """The kernel for a change of weights to the layout that ``forward`` asks for, through plain ones."""
    w, u = map(spec, (request.inputs[0], request.outputs[0]))
    if w.dtype != "float32" or len(w.shape) != 4:
        return ()
    kept = _weights(w.shape)
    if not are_quick() or u.layout != kept.layout:
        return ()
    outputs, channels, taps, _ = w.shape
    one_tile = (taps, taps), (1, 1), (0, 0)
    s = Sizes(taps, 1, 1, channels, outputs, *one_tile, max(1, request.place.threads))
    vectors = whole(outputs, LINE) // LINE
    parts = divide(vectors, min(s.threads, vectors))
    line = s.points**2 * (DEPTH * LINE + LINE) * FLOAT
    plain = replace(w, layout=PLAIN)
    first = () if w == plain else tuple(reorder(replace(request, outputs=(plain,))))
    sizes = [plain.nbytes if first else 0, *[line, s.patch] * len(parts)]

    def bind(inputs: Sequence[Any], targets: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import winograd_blocks as blocks
        from demitasse_cpu.loops import winograd_integers as loops

        g, taps = tiles_of(s), blocks.Taps(s.pair, s.pair * s.channels, False)
        copy, *rooms = cut(workspace, "float32", *sizes)
        turned = [each.bind(inputs, [copy], None) for each in first]
        given = copy if first else flat(inputs[0])
        transform = [
            ready(loops.weights, g, given, taps, *kept.seen(targets[0]), line, patch, *mine)
            for line, patch, mine in zip(rooms[::2], rooms[1::2], parts, strict=True)
        ]
        return in_order([*turned, at_once(transform)])

    room, layouts = sum(map(aligned, sizes)), ((w.layout,), (u.layout,))
    return (Candidate(name_of(taps), bind, *layouts, workspace=room, in_place=False),)


def forward(request: Request, s: Sizes, relu: bool) -> Candidate:
    """A forward pass with such weights, a block of tiles at a time. Each thread reads all of them, which
    was no slower than to have each read its own with all tiles, for one image as for sixteen."""
    kept = _weights(spec(request.inputs[1]).shape)
    parts, block = s.parts, s.block(BLOCK)
    positions, pieces = s.points**2, -(-s.channels // DEPTH)
    row, padded = whole(s.channels, LINE) // 2, whole(s.outputs, LINE)
    v = positions * (block * row + LINE) + SPARE_ROWS * row, pieces * positions * block + SPARE_ROWS
    line = positions * (whole(s.channels, LINE) + LINE)
    m = positions * (block * PANEL + LINE) + SPARE_ROWS * PANEL
    numbers = [padded, *[*v, line, m] * parts]
    sizes = [*(FLOAT * count for count in numbers), *[s.patch] * parts]

    def bind(inputs: Sequence[Any], targets: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import winograd as common
        from demitasse_cpu.loops import winograd_integers as loops

        g, floor = tiles_of(s), 0.0 if relu else -inf
        biases, *rooms = cut(workspace, "float32", *sizes)
        patches, rooms = rooms[-parts:], rooms[:-parts]
        x, y, u = flat(inputs[0]), flat(targets[0]), kept.seen(inputs[1])
        b = inputs[2] if len(inputs) > 2 and inputs[2] is not None else biases[:0]
        shares = []
        for i, mine in enumerate(divide(s.tiles, parts)):
            pairs, scales, line, m = rooms[4 * i : 4 * i + 4]
            v = loops.Rounded(pairs.view("int32"), block * row + LINE, row, scales, block)
            near = (v, line, m, patches[i], block)
            shares.append(ready(loops.by_tiles, g, x, *u, biases, floor, y, *near, *mine))
        spread_bias = ready(common.spread_bias, b, biases, s.outputs, padded)
        return in_order([spread_bias, at_once(shares)])

    biases = [PLAIN] * (len(request.inputs) - 2)
    return Candidate(
        name_of(s.taps),
        bind,
        input_layouts=(NHWC_BF16, kept.layout, *biases),
        output_layouts=(NHWC_BF16,),
        workspace=sum(map(aligned, sizes)),
        in_place=False,
    )
