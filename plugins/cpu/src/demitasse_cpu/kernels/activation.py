"""Element-wise non-linearities, dropout, and softmax."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

from demitasse import Candidate, Request, Work
from demitasse_cpu.kernels.requests import (
    flat,
    is_real,
    parts_for,
    philox_key,
    rows_along,
    spec,
)
from demitasse_cpu.kernels.work import spread

KERNEL = "numba loop"
_EXP = 8  # an exponential takes as long as so many elements moved
_PHILOX = 8


def relu(request: Request) -> Iterable[Candidate]:
    return _elementwise(request, "relu")


def relu_backward(request: Request) -> Iterable[Candidate]:
    return _elementwise(request, "relu_backward")


def _elementwise(request: Request, loop: str) -> Iterable[Candidate]:
    if not is_real(*request.inputs, *request.outputs):
        return ()
    size = prod(spec(request.inputs[0]).shape)
    parts = parts_for(request, size, size)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import elementwise as loops

        slope = float(request.attributes["negative_slope"])
        arguments = (*map(flat, inputs), flat(outputs[0]), slope)
        return spread(getattr(loops, loop), arguments, size, parts)

    return (Candidate(KERNEL, bind),)


def dropout(request: Request) -> Iterable[Candidate]:
    x, iteration, sample = request.inputs
    y, mask = (*request.outputs, None)[:2]
    if not is_real(x, y) or {spec(iteration).dtype, spec(sample).dtype} != {"uint64"}:
        return ()
    samples, *shape = spec(x).shape
    elements = prod(shape)
    parts = parts_for(request, samples, samples * elements * _PHILOX)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        import math

        import numpy as np

        from demitasse_cpu.loops import random_numbers as loops

        ratio = float(request.attributes["ratio"])
        kept = flat(outputs[1]) if mask is not None else np.empty(0, np.uint8)
        arguments = (
            flat(inputs[0]),
            flat(outputs[0]),
            kept,
            mask is not None,
            *map(flat, inputs[1:]),
            philox_key(request.attributes),
            np.uint64(math.ceil(ratio * 2**32)),
            _kept_scale(ratio),
            elements,
        )
        return spread(loops.dropout, arguments, samples, parts)

    return (Candidate("numba loop, Philox", bind),)


def dropout_backward(request: Request) -> Iterable[Candidate]:
    dy, mask = request.inputs
    if not is_real(dy, *request.outputs) or spec(mask).dtype != "uint8":
        return ()
    size = prod(spec(dy).shape)
    parts = parts_for(request, size, size)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import elementwise as loops

        scale = _kept_scale(float(request.attributes["ratio"]))
        arguments = (*map(flat, inputs), flat(outputs[0]), scale)
        return spread(loops.masked, arguments, size, parts)

    return (Candidate(KERNEL, bind),)


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

        arguments = (*map(flat, inputs), flat(outputs[0]), classes, inner)
        return spread(getattr(loops, loop), arguments, rows, parts)

    return (Candidate(KERNEL, bind),)


FACTORIES = {
    "relu": relu,
    "relu_backward": relu_backward,
    "dropout": dropout,
    "dropout_backward": dropout_backward,
    "softmax": softmax,
    "softmax_backward": softmax_backward,
}


def _kept_scale(ratio: float) -> float:
    return 1.0 / (1.0 - ratio) if ratio < 1.0 else 0.0
