"""ReLU, sums of several tensors, masks: operations on each element; and concatenating and slicing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import prod
from typing import Any

from demitasse import Candidate, Request, Work
from demitasse_gpu.kernels.launches import Source, blocks, device_of, real_type, spec, structure
from demitasse_gpu.kernels.layouts import like, unconverted
from demitasse_gpu.kernels.united import RectifiedGradient, made_with_sums, rectified_with_sums

KERNEL = "CUDA"
_TERMS = 4  # the terms of a sum that one launch adds
_PIECES = 8  # the pieces that one launch copies: an inception's four are each too small for a device
_PIECE = (
    *(("x", "u8", _PIECES), ("y", "u8", _PIECES)),
    *((name, "i8", _PIECES) for name in ("width", "x_step", "y_step")),
)


def relu(request: Request) -> Iterable[Candidate]:
    return _alike(request, "relu", 0)


def relu_backward(request: Request) -> Iterable[Candidate]:
    return _alike(request, "relu_backward", 1)  # as the forward pass left it


def _alike(request: Request, name: str, leader: int) -> Iterable[Candidate]:
    lead = spec(request.inputs[leader])
    if not (real := real_type(*request.inputs, *request.outputs)):
        return ()
    layout = like(request, lead)
    source = Source("elementwise.cu", real, layout.stored)
    slope = float(request.attributes["negative_slope"])

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        arguments = (*inputs, *outputs, source.number(slope))
        launch = source.flat(device_of(inputs), name, prod(lead.shape), *arguments)
        if name == "relu_backward":
            (dy, y), (made,) = inputs, outputs
            launch.told = told = RectifiedGradient(dy, y, made, slope)
            launch.with_next = rectified_with_sums(told)
        return launch

    return (Candidate(KERNEL, bind, (layout,) * len(request.inputs), (layout,)),)


def dropout_backward(request: Request) -> Iterable[Candidate]:
    dy, mask = map(spec, request.inputs)
    if not (real := real_type(dy, *request.outputs)) or mask.dtype != "uint8":
        return ()
    layout = like(request, mask, dy.dtype)
    source = Source("elementwise.cu", real, layout.stored)
    ratio = float(request.attributes["ratio"])
    scale = 1.0 / (1.0 - ratio) if ratio < 1.0 else 0.0

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        arguments = (*inputs, *outputs, source.number(scale))
        return source.flat(device_of(inputs), "masked", prod(dy.shape), *arguments)

    return (Candidate(KERNEL, bind, (layout, unconverted(layout)), (layout,)),)


def weighted_sum(request: Request) -> Iterable[Candidate]:
    """Return candidates for a weighted sum, for ``sum_relu``, in which the last addition sets negative
    results to 0, and for ``sum_relu_backward``, which is 0 wherever the last input, a ReLU's result, is
    not above 0."""
    if not (real := real_type(*request.inputs, *request.outputs)):
        return ()
    lead = spec(request.inputs[0])
    layout = like(request, lead)
    source = Source("elementwise.cu", real, layout.stored)
    rectified = request.operation.name == "sum_relu"
    guarded = request.operation.name == "sum_relu_backward"
    given = request.attributes["coefficients"] or [1.0] * (len(request.inputs) - guarded)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_gpu.launch import in_order

        y, device, stages = outputs[0], device_of(inputs), list[Work]()
        # The tensor in whose memory the result goes is read first, before it is overwritten.
        summed, mask = (inputs[:-1], inputs[-1]) if guarded else (inputs, None)
        terms = sorted(zip(summed, given, strict=True), key=lambda term: term[0].address != y.address)
        while terms:
            now, terms = terms[:_TERMS], terms[_TERMS:]
            arrays = [array for array, _ in now] + [None] * (_TERMS - len(now))
            factors = [source.number(c) for _, c in now] + [source.number(0)] * (_TERMS - len(now))
            numbers = (*factors, len(now), int(rectified and not terms), None if terms else mask)
            stage = source.flat(device, "weighted_sum", prod(lead.shape), *arrays, y, *numbers)
            if mask is not None and len(summed) == 2 and list(given) == [1.0, 1.0]:
                stage.with_next = made_with_sums(arrays[0], arrays[1], mask, y)
            stages.append(stage)
            terms = [(y, 1.0), *terms] if terms else []
        return in_order(stages)

    return (Candidate(KERNEL, bind, (layout,) * len(request.inputs), (layout,)),)


def weighted_sum_backward(request: Request) -> Iterable[Candidate]:
    if not (real := real_type(*request.inputs, *request.outputs)):
        return ()
    lead = spec(request.inputs[0])
    layout = like(request, lead)
    source = Source("elementwise.cu", real, layout.stored)
    factors = request.attributes["coefficients"] or [1.0] * len(request.outputs)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_gpu.launch import in_order

        return in_order(
            [
                source.flat(
                    device_of(inputs), "scaled", prod(lead.shape), inputs[0], dx, source.number(factor)
                )
                for dx, factor in zip(outputs, factors, strict=True)
                if dx is not None
            ]
        )

    layouts = (layout,) * len(request.outputs)
    return (Candidate(KERNEL, bind, (layout,), layouts, in_place=False),)


def concat(request: Request) -> Iterable[Candidate]:
    pieces = [spec(x).shape for x in request.inputs]
    return _pieces(request, pieces, joins=True)


def concat_backward(request: Request) -> Iterable[Candidate]:
    return _pieces(request, request.attributes["shapes"], joins=False)


def _pieces(request: Request, pieces: Sequence[Sequence[int]], joins: bool) -> Iterable[Candidate]:
    """Return candidates that copy rows of the pieces into rows of the whole, or (unless ``joins``) out
    of them."""
    whole = spec(request.outputs[0] if joins else request.inputs[0])
    if not (real := real_type(*request.inputs, *request.outputs)):
        return ()
    layout = like(request, spec(request.inputs[0]))
    order = layout.order or tuple(range(len(whole.shape)))
    physical, axis = layout.physical(whole.shape), order.index(request.attributes["axis"])
    rows, inner = prod(physical[:axis]), prod(physical[axis + 1 :])
    widths = [piece[request.attributes["axis"]] * inner for piece in pieces]
    kind = layout.stored or real
    source = Source("reorder.cu", real, kind, (("FROM", kind), ("TO", kind)))

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        import numpy as np

        from demitasse_gpu.launch import in_order

        one, device = (outputs[0] if joins else inputs[0]).reshape(-1), device_of(inputs)
        found = list[tuple[int, ...]]()  # source and target of each piece, and how its rows lie
        starts = accumulate(widths, initial=0)
        for piece, at, width in zip(inputs if joins else outputs, starts, widths, strict=False):
            if piece is not None and width:
                ends, steps = (piece.address, one[at:].address), (width, sum(widths))
                found.append((*ends, width, *steps) if joins else (*ends[::-1], width, *steps[::-1]))
        copies = list[Work]()
        while found:
            some, found = found[:_PIECES], found[_PIECES:]
            table = structure(
                _PIECE, *([*n, *[0] * (_PIECES - len(some))] for n in zip(*some, strict=True))
            )
            most = max(width for _, _, width, *_ in some)
            grid = blocks(device, -(-rows * most // source.pack)), len(some)
            copies.append(source.launch(device, "copy_pieces", grid, 256, table, np.int64(rows)))
        return in_order(copies)

    layouts = (layout,) * len(request.inputs), (layout,) * len(request.outputs)
    return (Candidate(KERNEL, bind, *layouts, in_place=False),)


FACTORIES = {
    "relu": relu,
    "relu_backward": relu_backward,
    "dropout_backward": dropout_backward,
    "sum": weighted_sum,
    "sum_relu": weighted_sum,
    "sum_relu_backward": weighted_sum,
    "sum_backward": weighted_sum_backward,
    "concat": concat,
    "concat_backward": concat_backward,
    "slice": concat_backward,
}
