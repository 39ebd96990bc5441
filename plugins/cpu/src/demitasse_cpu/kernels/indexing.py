"""Parts and copies of tensors: crops, tiles, rows gathered by index, selected rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

from demitasse import PLAIN, Candidate, DataError, Layout, Request, TensorSpec, Work
from demitasse_cpu.kernels.elementwise import concat_backward
from demitasse_cpu.kernels.layouts import by_channels, like, unconverted
from demitasse_cpu.kernels.requests import REALS, flat, is_real, parts_for, spec
from demitasse_cpu.kernels.work import ready, spread
from demitasse_cpu.native import in_order

KERNEL = "numba copy of rows"
_CELL = 64  # bytes of a cache line, so that each number has its own


def crop(request: Request) -> Iterable[Candidate]:
    return _box(request, whole=request.inputs[0], part=request.outputs[0])


def crop_backward(request: Request) -> Iterable[Candidate]:
    return _box(request, whole=request.outputs[0], part=request.inputs[0])


def _box(request: Request, whole: TensorSpec | None, part: TensorSpec | None) -> Iterable[Candidate]:
    """Return copies between a box and the tensor that contains it. The rest of the tensor becomes 0."""
    whole, part = spec(whole), spec(part)
    if not is_real(whole, part):
        return ()
    layout = _unblocked(request, spec(request.inputs[0]))
    offset = tuple(request.attributes["offset"])
    rows, width = _rows_of_box(layout, whole.shape, part.shape)
    backward = request.operation.name == "crop_backward"
    parts = parts_for(request, rows, rows * width)
    size = prod(whole.shape)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import elementwise
        from demitasse_cpu.loops import indexing as loops

        source, target = flat(inputs[0]), flat(outputs[0])
        starts = _starts_of_box(layout, whole.shape, part.shape, offset)
        loop = loops.put_back if backward else loops.cut_out
        copies = spread(loop, (source, target, starts, width), rows, parts)
        if not backward:
            return copies
        clears = spread(elementwise.filled, (target, 0.0), size, parts_for(request, size, size))
        return in_order([clears, copies])

    return (Candidate(KERNEL, bind, (layout,), (layout,), in_place=False),)


def _rows_of_box(layout: Layout, whole: Sequence[int], part: Sequence[int]) -> tuple[int, int]:
    """Return the number of contiguous rows of a box within the whole, and their length."""
    outer, inner = layout.physical(whole), layout.physical(part)
    cut = [d for d, (a, b) in enumerate(zip(outer, inner, strict=True)) if a != b]
    innermost = cut[-1] if cut else 0
    return prod(inner[:innermost]), prod(inner[innermost:])


def _starts_of_box(
    layout: Layout, whole: Sequence[int], part: Sequence[int], offset: Sequence[int]
) -> Any:
    """Return where each row of the box starts in the whole."""
    import numpy as np

    outer, inner = layout.physical(whole), layout.physical(part)
    first = [offset[d] for d in layout.order or range(len(whole))]
    cut = [d for d, (a, b) in enumerate(zip(outer, inner, strict=True)) if a != b]
    innermost = cut[-1] if cut else 0
    starts = np.full(1, sum(first[d] * prod(outer[d + 1 :]) for d in range(innermost, len(outer))))
    for d in reversed(range(innermost)):
        steps = (first[d] + np.arange(inner[d])) * prod(outer[d + 1 :])
        starts = (steps[:, None] + starts).reshape(-1)
    return starts.astype(np.int64)


def tile(request: Request) -> Iterable[Candidate]:
    return _tiles(request, "tiled", _unblocked(request, spec(request.inputs[0])), 0)


def tile_backward(request: Request) -> Iterable[Candidate]:
    layout = unconverted(_unblocked(request, spec(request.inputs[0])))  # sums keep their type
    return _tiles(request, "added_tiles", layout, 1)


def _tiles(request: Request, loop: str, layout: Layout, single: int) -> Iterable[Candidate]:
    one = spec((*request.inputs, *request.outputs)[single])
    if not is_real(*request.inputs, *request.outputs):
        return ()
    physical, tiles = layout.physical(one.shape), int(request.attributes["tiles"])
    axis = (layout.order or tuple(range(len(one.shape)))).index(request.attributes["axis"])
    rows, width = prod(physical[:axis]), prod(physical[axis:])
    parts = parts_for(request, rows, rows * width * tiles)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import indexing as loops

        arguments = (flat(inputs[0]), flat(outputs[0]), width, tiles)
        return spread(getattr(loops, loop), arguments, rows, parts)

    return (Candidate(KERNEL, bind, (layout,), (layout,), in_place=False),)


def gather(request: Request) -> Iterable[Candidate]:
    x, index = map(spec, request.inputs)
    y = spec(request.outputs[0])
    if not is_real(x, y) or not _is_number(index):
        return ()
    layout = _rows_first(request, x) if len(index.shape) == 1 else PLAIN
    count, width = prod(index.shape), prod(x.shape[1:])
    parts = parts_for(request, count, count * width)
    rows, source = x.shape[0], str(request.attributes["source"])

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import indexing as loops

        numbers = flat(inputs[1])
        wrong = workspace.view("int64")[:1]

        def failed() -> DataError:
            return DataError(
                f"{source}: index {numbers[wrong[0]]:g} at place {wrong[0]} is not a row "
                f"(valid: whole numbers from 0 to {rows - 1})"
            )

        check = ready(loops.first_wrong, numbers, rows, wrong, failed=failed)
        arguments = (flat(inputs[0]), numbers, flat(outputs[0]), width)
        return in_order([check, spread(loops.gathered, arguments, count, parts)])

    return (Candidate(KERNEL, bind, (layout, PLAIN), (layout,), _CELL, in_place=False),)


def gather_backward(request: Request) -> Iterable[Candidate]:
    dy, index = map(spec, request.inputs)
    dx = spec(request.outputs[0])
    if not is_real(dy, dx) or not _is_number(index):
        return ()
    layout = unconverted(_rows_first(request, dy)) if len(index.shape) == 1 else PLAIN
    rows, width = dx.shape[0], prod(dx.shape[1:])
    parts = parts_for(request, rows, prod(dx.shape) + prod(dy.shape))

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import indexing as loops

        return spread(loops.scattered, (*map(flat, inputs), flat(outputs[0]), width), rows, parts)

    return (Candidate(KERNEL, bind, (layout, PLAIN), (layout,), in_place=False),)


def compress(request: Request) -> Iterable[Candidate]:
    x, selector = map(spec, request.inputs)
    if not is_real(x, request.outputs[0]) or not _is_number(selector):
        return ()
    layout = _rows_first(request, x)
    rows, width = x.shape[0], prod(x.shape[1:])
    parts = parts_for(request, rows, rows * width)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import indexing as loops

        y, count = (*outputs, None)[:2]
        copies = spread(loops.compressed, (*map(flat, inputs), flat(y), width), rows, parts)
        if count is None:
            return copies
        return in_order([copies, ready(loops.counted, flat(inputs[1]), flat(count))])

    layouts = (layout, PLAIN)
    outward = (layout, PLAIN)[: len(request.outputs)]
    return (Candidate(KERNEL, bind, layouts, outward, in_place=False),)


def compress_backward(request: Request) -> Iterable[Candidate]:
    dy, selector = map(spec, request.inputs)
    if not is_real(dy, request.outputs[0]) or not _is_number(selector):
        return ()
    layout = _rows_first(request, dy)
    rows, width = dy.shape[0], prod(dy.shape[1:])
    parts = parts_for(request, rows, rows * width)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import indexing as loops

        return spread(loops.decompressed, (*map(flat, inputs), flat(outputs[0]), width), rows, parts)

    return (Candidate(KERNEL, bind, (layout, PLAIN), (layout,), in_place=False),)


FACTORIES = {
    "crop": crop,
    "crop_backward": crop_backward,
    "slice": concat_backward,  # the gradient of a join is a cut
    "tile": tile,
    "tile_backward": tile_backward,
    "gather": gather,
    "gather_backward": gather_backward,
    "compress": compress,
    "compress_backward": compress_backward,
}


def _unblocked(request: Request, leader: TensorSpec) -> Layout:
    """Return the leader's order, or one for images if the leader is blocked."""
    layout = like(request, leader)
    return by_channels(request, leader) if layout.blocks else layout


def _rows_first(request: Request, leader: TensorSpec) -> Layout:
    """Return the same order if the indexed axis is outermost in it, else the plain one."""
    layout = _unblocked(request, leader)
    if len(leader.shape) != 4 or (layout.order or (0,))[0] != 0:
        return PLAIN
    return layout


def _is_number(operand: TensorSpec) -> bool:
    return operand.dtype in (*REALS, "int32", "int64", "uint8")
