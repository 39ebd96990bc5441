"""Element-wise nonlinearities, dropout, and softmax."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

from demitasse import PLAIN, Candidate, Request, Work
from demitasse_cpu.kernels.layouts import by_channels, is_by_channels, like, unconverted
from demitasse_cpu.kernels.requests import (
    ROOM_OF_ROWS,
    aligned,
    flat,
    is_real,
    parts_for,
    philox_key,
    rows_along,
    rows_together,
    spec,
)
from demitasse_cpu.kernels.work import ready, spread
from demitasse_cpu.native import at_once
from demitasse_cpu.threads import divide

KERNEL = "numba loop"
_EXP = 8  # an exponential takes as long as moving this many elements
_PHILOX = 8
_DRAWN = 4096


def relu(request: Request) -> Iterable[Candidate]:
    return _elementwise(request, "relu", 0)


def relu_backward(request: Request) -> Iterable[Candidate]:
    return _elementwise(request, "relu_backward", 1)  # in the layout of the forward pass


def _elementwise(request: Request, loop: str, leader: int) -> Iterable[Candidate]:
    if not is_real(*request.inputs, *request.outputs):
        return ()
    lead = spec(request.inputs[leader])
    layout = like(request, lead)
    size = prod(layout.physical(lead.shape))
    parts = parts_for(request, size, size)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import elementwise as loops

        slope = float(request.attributes["negative_slope"])
        arguments = (*map(flat, inputs), flat(outputs[0]), slope)
        return spread(getattr(loops, loop), arguments, size, parts)

    return (Candidate(KERNEL, bind, (layout,) * len(request.inputs), (layout,)),)


def reverse_gradient(request: Request) -> Iterable[Candidate]:
    return _reversed(request, ())


def reverse_gradient_backward(request: Request) -> Iterable[Candidate]:
    return _reversed(request, ("lower", "upper", "steepness", "iterations"))


def _reversed(request: Request, names: Sequence[str]) -> Iterable[Candidate]:
    """Return the reversal of a gradient by the schedule in the attributes ``names``, or a copy if there
    are none."""
    dy, iteration = request.inputs
    if not is_real(dy, request.outputs[0]) or spec(iteration).dtype != "uint64":
        return ()
    layout = like(request, spec(dy))
    size = prod(layout.physical(spec(dy).shape))
    parts = parts_for(request, size, size)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import elementwise as loops

        source, target = flat(inputs[0]), flat(outputs[0])
        if not names:
            return spread(loops.copied, (source, target), size, parts)
        schedule = [float(request.attributes[name]) for name in names]
        arguments = (source, flat(inputs[1]), target, *schedule)
        return spread(loops.reversed_gradient, arguments, size, parts)

    return (Candidate(KERNEL, bind, (layout, PLAIN), (layout,)),)


def dropout(request: Request) -> Iterable[Candidate]:
    x, iteration, sample = request.inputs
    y, mask = (*request.outputs, None)[:2]
    if not is_real(x, y) or {spec(iteration).dtype, spec(sample).dtype} != {"uint64"}:
        return ()
    samples, *shape = spec(x).shape
    elements = prod(shape)
    parts = parts_for(request, samples, samples * elements * _PHILOX)
    layout = like(request, spec(x))
    if layout.order or layout.blocks:
        layout = by_channels(request, spec(x))
    scattered = is_by_channels(layout) and prod(shape[1:]) > 1
    channels = shape[0] if scattered else 1
    # A byte for each element says whether to keep it, in logical order: for a whole image if memory has
    # another order, else for as many elements as stay in the innermost cache.
    room = aligned(-(-elements // 4) * 4) if scattered else _DRAWN

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        import math

        import numpy as np

        from demitasse_cpu.loops import random_numbers as loops

        ratio = float(request.attributes["ratio"])
        source, target = flat(inputs[0]), flat(outputs[0])
        kept = flat(outputs[1]) if mask is not None else np.empty(0, np.uint8)
        shares = []
        for i, part in enumerate(divide(samples, parts)):
            drawn = workspace[i * room : (i + 1) * room]
            numbers = (
                philox_key(request.attributes),
                np.uint64(math.ceil(ratio * 2**32)),
                _kept_scale(ratio),
                elements,
                channels,
            )
            buffers = (source, target, kept, mask is not None, drawn.view(np.uint32), drawn)
            shares.append(ready(loops.dropout, *buffers, *map(flat, inputs[1:]), *numbers, *part))
        return at_once(shares)

    return (
        Candidate(
            "numba loop, Philox",
            bind,
            (layout, PLAIN, PLAIN),
            (layout, unconverted(layout))[: len(request.outputs)],
            workspace=parts * room,
        ),
    )


def dropout_backward(request: Request) -> Iterable[Candidate]:
    dy, mask = request.inputs
    if not is_real(dy, *request.outputs) or spec(mask).dtype != "uint8":
        return ()
    layout = like(request, spec(mask), spec(dy).dtype)
    size = prod(layout.physical(spec(dy).shape))
    parts = parts_for(request, size, size)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import elementwise as loops

        scale = _kept_scale(float(request.attributes["ratio"]))
        arguments = (*map(flat, inputs), flat(outputs[0]), scale)
        return spread(loops.masked, arguments, size, parts)

    return (Candidate(KERNEL, bind, (layout, unconverted(layout)), (layout,)),)


def softmax(request: Request) -> Iterable[Candidate]:
    return _by_row(request, "softmax")


def softmax_backward(request: Request) -> Iterable[Candidate]:
    return _by_row(request, "softmax_backward")


def _by_row(request: Request, loop: str) -> Iterable[Candidate]:
    if not is_real(*request.inputs, *request.outputs):
        return ()
    shape = spec(request.inputs[0]).shape
    rows, classes, inner = rows_along(shape, request.attributes["axis"])
    parts = parts_for(request, rows, rows * classes * _EXP)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import loss as loops

        arrays, shares = [*map(flat, inputs), flat(outputs[0])], []
        for i, part in enumerate(divide(rows, parts)):
            beside = rows_together(workspace[i * ROOM_OF_ROWS :], arrays[-1].dtype)
            shares.append(ready(getattr(loops, loop), *arrays, *beside, classes, inner, *part))
        return at_once(shares)

    return (Candidate(KERNEL, bind, workspace=parts * ROOM_OF_ROWS),)


FACTORIES = {
    "relu": relu,
    "relu_backward": relu_backward,
    "reverse_gradient": reverse_gradient,
    "reverse_gradient_backward": reverse_gradient_backward,
    "dropout": dropout,
    "dropout_backward": dropout_backward,
    "softmax": softmax,
    "softmax_backward": softmax_backward,
}


def _kept_scale(ratio: float) -> float:
    return 1.0 / (1.0 - ratio) if ratio < 1.0 else 0.0
