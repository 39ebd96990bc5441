"""The gradient of the weights of a convolution with few channels, in a bf16 plan; see loops.planes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any, NamedTuple

from demitasse import PLAIN, Candidate, Request, TensorSpec, Work
from demitasse_cpu.kernels.layouts import NHWC_BF16
from demitasse_cpu.kernels.requests import aligned, cut, flat, spec
from demitasse_cpu.kernels.work import ready, spread
from demitasse_cpu.native import at_once, in_order
from demitasse_cpu.onednn.inner_product import has_pairs
from demitasse_cpu.threads import divide

KERNEL = "planes, pairs of pixels"

_WIDE = 32  # as in loops.pairs, which is not imported before a kernel is bound

_FEW = 4
"""The maximum number of channels. With more, a panel of pixels is no better than a panel of channels."""

_FEWEST_OUTPUTS = 16
"""The minimum number of outputs. With fewer, a panel would be mostly zeros."""

_ROWS = range(8, 14)
"""The numbers of taps whose sums stay in registers, in two vectors each."""

_PAIRS = 180
"""The number of pairs of pixels in a panel that stay in the first cache, if a row has fewer than
that."""

_MOST = 2**20
"""The maximum size in bytes of an image's planes, which should stay in the second cache."""


class Planes(NamedTuple):
    """Images of ``channels`` x ``height`` x ``width``, with padding at the ``top`` and on the ``left``;
    results of ``outputs`` x ``rows`` x ``columns``; strides ``down`` and ``across``. A plane has
    ``plane`` numbers in rows of ``pitch`` numbers, which is even. After all planes, at ``ones``, come
    ones. ``held`` pairs of pixels of dy are held at a time, which are whole rows."""

    channels: int
    outputs: int
    height: int
    width: int
    top: int
    left: int
    rows: int
    columns: int
    down: int
    across: int
    pitch: int
    plane: int
    ones: int
    held: int


def backward_weights(request: Request) -> Iterable[Candidate]:
    """Yield the kernel for dw and db."""
    dy, x = map(spec, request.inputs)
    dw, db = (*request.outputs, None)[:2]
    taps = spec(dw).shape[2:]
    s = _sizes(request, x, spec(dw), dy)
    if s is None:
        return
    places = _places(s, taps, db is not None)
    rows = min(reversed(_ROWS), key=lambda rows: -(-len(places) // rows) * rows)
    summed = -(-len(places) // rows) * rows
    places += places[-1:] * (summed - len(places))
    wide, count = -(-s.outputs // _WIDE) * _WIDE, x.shape[0] * s.rows
    parts = max(1, min(request.place.threads, count))
    own = [(s.ones + s.rows * s.pitch) * 2, (s.columns * s.outputs + wide) * 2, wide * s.held * 4]
    sizes = [summed * wide * 4 * parts, *own * parts]

    def bind(sources: Sequence[Any], targets: Sequence[Any], workspace: Any) -> Work:
        import numpy as np

        from demitasse_cpu.loops import planes as loops

        sums, *rooms = cut(workspace, "uint8", *sizes)
        sums, rooms = sums.view("float32"), [room.view("uint16") for room in rooms]
        each = sums.reshape(parts, -1)
        tables = (np.array(table, np.int64) for table in (_phases(s), places))
        given = s, tuple(range(rows)), *map(flat, sources), *tables
        multiply = [
            ready(loops.gradient, *given, each[i], *rooms[3 * i : 3 * i + 3], *mine)
            for i, mine in enumerate(divide(count, parts))
        ]
        dw, db = (*targets, None)[:2]
        results = flat(dw), sums[:0] if db is None else flat(db)
        add = spread(loops.add_up, (s, sums, parts, wide, *results), s.outputs, min(parts, s.outputs))
        return in_order([at_once(multiply), add])

    layouts = (NHWC_BF16,) * 2, (PLAIN,) * len(request.outputs)
    yield Candidate(KERNEL, bind, *layouts, workspace=sum(map(aligned, sizes)), in_place=False)


FACTORIES = {"convolution_backward_weights": backward_weights}


def _sizes(request: Request, x: TensorSpec, w: TensorSpec, y: TensorSpec) -> Planes | None:
    """Return the extents, or None if the loops do not serve."""
    given = request.attributes
    if len(x.shape) != 4 or {x.dtype, w.dtype, y.dtype} != {"float32"} or given["groups"] != 1:
        return None
    (images, channels, height, width), (outputs, _, *taps) = x.shape, w.shape
    if channels > _FEW or outputs < _FEWEST_OUTPUTS or prod(taps) == 1 or set(given["dilation"]) != {1}:
        return None
    if not prod((images, *y.shape[1:])) or not has_pairs(request):
        return None
    rows, columns = y.shape[2:]
    (top, left), (down, across) = (tuple(map(int, given[name])) for name in ("pad", "stride"))
    # A plane has the rows and columns of the results' windows and of the image.
    plane_rows = max((height - 1 + top) // down + 1, rows + (taps[0] - 1) // down)
    reached = max((width - 1 + left) // across + 1, columns + (taps[1] - 1) // across)
    pitch = reached + reached % 2
    plane = plane_rows * pitch
    # Pairs that meet dy's zeros may lie after the last row of a plane, in whatever follows it.
    ones = channels * down * across * plane + pitch
    if 2 * ones > _MOST:
        return None
    held = max(1, min(rows, _PAIRS // (pitch // 2))) * (pitch // 2)
    about = (height, width, top, left, rows, columns, down, across)
    return Planes(channels, outputs, *about, pitch, plane, ones, held)


def _places(s: Planes, taps: Sequence[int], with_bias: bool) -> list[int]:
    """Return where the first pixel of each tap lies, by channel, row and column, and finally where the
    ones do."""
    places = [
        ((channel * s.down + i % s.down) * s.across + j % s.across) * s.plane
        + i // s.down * s.pitch
        + j // s.across
        for channel in range(s.channels)
        for i in range(taps[0])
        for j in range(taps[1])
    ]
    return [*places, s.ones] if with_bias else places


def _phases(s: Planes) -> list[int]:
    """Return, for each remainder, the first column of x with it, its place in a plane's row, and how
    many such columns there are."""
    firsts = [(phase - s.left) % s.across for phase in range(s.across)]
    counts = [max(0, -(-(s.width - first) // s.across)) for first in firsts]
    places = [(first + s.left) // s.across for first in firsts]
    return [number for each in zip(firsts, places, counts, strict=True) for number in each]
