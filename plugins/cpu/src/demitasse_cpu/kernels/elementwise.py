"""Sums and joins of several tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from math import prod
from typing import Any

from demitasse import Candidate, Request, Work
from demitasse_cpu.kernels.requests import flat, is_real, parts_for, spec
from demitasse_cpu.kernels.work import spread
from demitasse_cpu.native import in_order


def weighted_sum(request: Request) -> Iterable[Candidate]:
    if not is_real(*request.inputs, *request.outputs):
        return ()
    size = prod(spec(request.inputs[0]).shape)
    parts = parts_for(request, size, size)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import elementwise as loops

        y = flat(outputs[0])
        coefficients = request.attributes["coefficients"] or [1.0] * len(inputs)
        terms = [(flat(x), float(c)) for x, c in zip(inputs, coefficients, strict=True)]
        # The tensor whose memory the result takes is read first, before it is overwritten.
        first, *others = sorted(terms, key=lambda term: term[0].ctypes.data != y.ctypes.data)
        if not others:
            return spread(loops.scaled, (first[0], y, first[1]), size, parts)
        second, *others = others
        pairs = [(first, second), *(((y, 1.0), other) for other in others)]
        return in_order(
            [
                spread(loops.scaled_sum, (a, b, y, factor_a, factor_b), size, parts)
                for (a, factor_a), (b, factor_b) in pairs
            ]
        )

    return (Candidate("numba loop", bind),)


def weighted_sum_backward(request: Request) -> Iterable[Candidate]:
    if not is_real(*request.inputs, *request.outputs):
        return ()
    size = prod(spec(request.inputs[0]).shape)
    parts = parts_for(request, size, size)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import elementwise as loops

        coefficients = request.attributes["coefficients"] or [1.0] * len(outputs)
        return in_order(
            [
                spread(loops.scaled, (flat(inputs[0]), flat(dx), float(c)), size, parts)
                for dx, c in zip(outputs, coefficients, strict=True)
                if dx is not None
            ]
        )

    return (Candidate("numba loop", bind, in_place=False),)


def concat(request: Request) -> Iterable[Candidate]:
    if not is_real(*request.inputs, *request.outputs):
        return ()
    pieces = [spec(x).shape for x in request.inputs]

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        slots = _cut(outputs[0], request.attributes["axis"], pieces)
        return _copies(list(zip(slots, inputs, strict=True)))

    return (Candidate("numpy copy", bind, in_place=False),)


def concat_backward(request: Request) -> Iterable[Candidate]:
    if not is_real(*request.inputs, *request.outputs):
        return ()

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        pieces = request.attributes["shapes"]
        slots = _cut(inputs[0], request.attributes["axis"], pieces)
        return _copies([(x, s) for x, s in zip(outputs, slots, strict=True) if x is not None])

    return (Candidate("numpy copy", bind, in_place=False),)


FACTORIES = {
    "sum": weighted_sum,
    "sum_backward": weighted_sum_backward,
    "concat": concat,
    "concat_backward": concat_backward,
}


def _cut(whole: Any, axis: int, pieces: Sequence[Sequence[int]]) -> list[Any]:
    """Views of the parts of an array along an axis."""
    parts, at = [], 0
    for piece in pieces:
        parts.append(whole[(slice(None),) * axis + (slice(at, at + piece[axis]),)])
        at += piece[axis]
    return parts


def _copies(pairs: Sequence[tuple[Any, Any]]) -> Work:
    import numpy as np

    return in_order([partial(np.copyto, target, source) for target, source in pairs])
