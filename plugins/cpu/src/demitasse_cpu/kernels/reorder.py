"""Changes of layout, and of the stored type with it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

from demitasse import PLAIN, Candidate, Layout, Request, TensorSpec, Work
from demitasse_cpu.kernels.layouts import is_by_channels
from demitasse_cpu.kernels.requests import flat, is_real, parts_for, spec
from demitasse_cpu.kernels.work import spread
from demitasse_cpu.native import in_order

_SCATTERED = 8  # an element that moves alone takes as long as this many contiguous ones
_FEW, _TILE = (2, 3, 4), 16  # rows and minimum columns that loops.reorder.interleaved takes


def reorder(request: Request) -> Iterable[Candidate]:
    """Return the kernel for a change between any two layouts, with conversion if the stored types
    differ. It works in vectors and blocks if both have the same order, or if one is plain and the other
    has images' channels innermost."""
    x, y = spec(request.inputs[0]), spec(request.outputs[0])
    if x.dtype == "uint16" or any(s.stored.startswith("V") for s in (x, y)):
        return ()  # the first is what bfloat16 looks like, the others are a kernel's own bytes
    ways = (*_IN_LINE, _transposition)
    way = next((found for find in ways if (found := find(request, x, y))), None)
    bind = way or _any_order(request, x, y)
    return (Candidate(*bind, (x.layout,), (y.layout,), in_place=False),)


def is_in_line(request: Request) -> bool:
    """Return whether our kernel reads and writes contiguous numbers, and is as fast as memory."""
    x, y = spec(request.inputs[0]), spec(request.outputs[0])
    if x.dtype == "uint16":
        return False
    in_line = any(way(request, x, y) for way in _IN_LINE)
    return bool(in_line or (_transposition(request, x, y) and _has_few_rows(x, y)))


_Way = tuple[str, Any]


def _same_order(request: Request, x: TensorSpec, y: TensorSpec) -> _Way | None:
    if x.layout.places(x.shape)[:2] != y.layout.places(y.shape)[:2]:
        return None
    size = prod(x.physical)
    parts = parts_for(request, size, size)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import elementwise as loops

        return spread(loops.converted, (flat(inputs[0]), flat(outputs[0])), size, parts)

    return "numba loop", bind


def _side_by_side(request: Request, x: TensorSpec, y: TensorSpec) -> _Way | None:
    """Return the way to put rows of blocks side by side in pairs: from the layout of the gradient of an
    inner product's weights in oneDNN to the one in which pairs of bfloat16 are read. For 500 x 800
    numbers, oneDNN's reorder took two cores 0.10 ms."""
    if _order(x) != _order(y) or len(x.layout.blocks) != 2 or not is_real(x, y):
        return None
    (d, rows), (other, width) = x.layout.blocks
    if d == other or rows % 2 or y.layout.blocks != ((d, rows // 2), (other, width), (d, 2)):
        return None
    size = prod(x.physical)
    pairs = size // (2 * width)
    parts = parts_for(request, pairs, size)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import reorder as loops

        return spread(loops.side_by_side, (flat(inputs[0]), flat(outputs[0]), width), pairs, parts)

    return "numba loop over pairs", bind


def _pairs_turned(request: Request, x: TensorSpec, y: TensorSpec) -> _Way | None:
    """Return the way from weights with pairs of inputs, as in a convolution's forward kernel, to weights
    with pairs of outputs in bfloat16, as in the kernel to the data."""
    if x.stored not in ("float32", "bfloat16") or y.stored != "bfloat16":
        return None
    width, height = _outputs_by_pairs(x.layout), _blocks_of(y.layout, (1, 2, 3, 0), 1, 0)
    if not width or not height or x.shape[0] % _TILE or x.shape[1] % (2 * _TILE):
        return None
    outputs, inputs, *taps = x.shape
    numbers = (outputs, inputs, prod(taps), width, height)
    return _in_bands(request, x, y, "pairs_turned", numbers)


def _blocks_in_pairs(request: Request, x: TensorSpec, y: TensorSpec) -> _Way | None:
    """Return the way from a gradient of weights as oneDNN writes it to the layout of the forward
    kernel's weights."""
    width = _outputs_by_pairs(y.layout)
    if not width or not x.stored == y.stored == "float32" or x.shape[0] % _TILE or x.shape[1] % _TILE:
        return None
    if _order(x) != (0, 1, 2, 3) or x.layout.blocks != ((1, _TILE), (0, _TILE)):
        return None
    outputs, inputs, *taps = x.shape
    numbers = (outputs, inputs, prod(taps), width)
    return _in_bands(request, x, y, "blocks_in_pairs", numbers)


def _rows_in_pairs(request: Request, x: TensorSpec, y: TensorSpec) -> _Way | None:
    """Return the same way from a plain gradient, for one tap."""
    width = _outputs_by_pairs(y.layout)
    if not width or not x.stored == y.stored == "float32" or x.layout != PLAIN:
        return None
    if x.shape[2:] != (1, 1) or x.shape[0] % _TILE or x.shape[1] % (2 * _TILE):
        return None
    numbers = (x.shape[0], x.shape[1] // 2, width)
    return _in_bands(request, x, y, "rows_in_pairs", numbers, seen="float64")


def _outputs_by_pairs(layout: Layout) -> int:
    """Return the size of blocks of outputs in which two inputs' weights are side by side, or 0 for other
    layouts."""
    return _blocks_of(layout, (0, 2, 3, 1), 0, 1)


def _blocks_of(layout: Layout, order: tuple[int, ...], blocked: int, paired: int) -> int:
    """Return the size of a dimension's blocks, in whole tiles, that have pairs of another dimension's
    numbers innermost, or 0 for layouts of another form."""
    size = dict(layout.blocks).get(blocked, 0)
    fits = layout.order == order and layout.blocks == ((blocked, size), (paired, 2))
    return size if fits and size % _TILE == 0 else 0


def _in_bands(
    request: Request,
    x: TensorSpec,
    y: TensorSpec,
    loop: str,
    numbers: Sequence[int],
    seen: str | None = None,
) -> _Way:
    """Return the way by a loop over bands of outputs of weights, with zeros in the padding of y's
    blocks. The loop moves numbers of type ``seen``, by default their own type."""
    (outputs, _, *taps), size = x.shape, prod(x.shape)
    bands = outputs // _TILE * prod(taps)
    parts = parts_for(request, bands, size)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import elementwise
        from demitasse_cpu.loops import reorder as loops

        source, target = flat(inputs[0]), flat(outputs[0])
        given = source.view(seen or source.dtype), target.view(seen or target.dtype)
        moves = spread(getattr(loops, loop), (*given, *numbers), bands, parts)
        if target.size == size:
            return moves
        # All padding of the blocks is in the last of them.
        last = target[target.size - target.size // y.physical[0] :]
        clears = spread(elementwise.filled, (last, 0.0), last.size, parts)
        return in_order([clears, moves])

    return "numba loop over pairs", bind


_IN_LINE = (_same_order, _side_by_side, _pairs_turned, _blocks_in_pairs, _rows_in_pairs)


def _transposition(request: Request, x: TensorSpec, y: TensorSpec) -> _Way | None:
    if len(x.shape) != 4 or x.layout.blocks or y.layout.blocks or not is_real(x, y):
        return None
    plain = [_order(s) == (0, 1, 2, 3) for s in (x, y)]
    if not any(plain) or not any(is_by_channels(s.layout) for s in (x, y)):
        return None
    images, channels, plane = x.shape[0], x.shape[1], prod(x.shape[2:])
    rows, columns = (channels, plane) if plain[0] else (plane, channels)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import reorder as loops

        arguments = (flat(inputs[0]), flat(outputs[0]), rows, columns)
        if _has_few_rows(x, y):
            pieces = images * -(-columns // loops.SPAN)
            parts = parts_for(request, pieces, prod(x.shape))
            return spread(loops.interleaved, arguments, pieces, parts)
        bands = images * -(-min(rows, columns) // loops.TILE)
        parts = parts_for(request, bands, 4 * prod(x.shape))
        return spread(loops.transposed, arguments, bands, parts)

    return "numba transposition", bind


def _has_few_rows(x: TensorSpec, y: TensorSpec) -> bool:
    """Return whether a transposition is of images with few channels that come plain; their numbers are
    then put side by side. 3 x 227 x 227 numbers take one core 0.01 ms, and 0.14 ms one by one (to
    bfloat16)."""
    came_plain = _order(x) == (0, 1, 2, 3) != _order(y)
    return came_plain and x.shape[1] in _FEW and prod(x.shape[2:]) >= _TILE


def _any_order(request: Request, x: TensorSpec, y: TensorSpec) -> _Way:
    shape = (1, 1, *x.shape)
    units = prod(shape[:-2])
    parts = parts_for(request, units, prod(shape) * _SCATTERED)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import elementwise
        from demitasse_cpu.loops import reorder as loops

        source, target = flat(inputs[0]), flat(outputs[0])
        tables = [*_tables(shape, x.layout), *_tables(shape, y.layout)]
        moves = spread(loops.gathered, (source, target, *tables), units, parts)
        if target.size == prod(shape):
            return moves
        clears = spread(elementwise.filled, (target, 0.0), target.size, parts)  # the padding of blocks
        return in_order([clears, moves])

    return "numba gather", bind


def _order(s: TensorSpec) -> tuple[int, ...]:
    return s.layout.order or tuple(range(len(s.shape)))


def terms(shape: Sequence[int], layout: Layout) -> list[Any]:
    """Return the term that each dimension contributes to an element's place."""
    import numpy as np

    physical = layout.physical(shape)
    order = layout.order or tuple(range(len(shape)))
    steps = [prod(physical[i + 1 :]) for i in range(len(physical))]
    found = []
    for d, extent in enumerate(shape):
        # A dimension's innermost block counts first, and what is outside all of its blocks last.
        rest, term = np.arange(extent), np.zeros(extent, np.int64)
        for i, (dimension, size) in reversed(list(enumerate(layout.blocks))):
            if dimension == d:
                term += rest % size * steps[len(order) + i]
                rest = rest // size
        found.append(term + rest * steps[order.index(d)])
    return found


def _tables(shape: Sequence[int], layout: Layout) -> list[Any]:
    """Return these terms for ``shape`` with two dimensions of 1 in front: those of the last two
    dimensions, and the sum of the others."""
    import numpy as np

    *others, row, column = [np.zeros(1, np.int64)] * 2 + terms(shape[2:], layout)
    lead = others[0]
    for term in others[1:]:
        lead = (lead[:, None] + term).ravel()
    return [lead, row, column]
