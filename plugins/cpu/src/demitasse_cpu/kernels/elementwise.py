"""Sums and joins of several tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import inf, prod
from typing import Any

from demitasse import Candidate, Request, Work
from demitasse_cpu.kernels.layouts import by_channels, like
from demitasse_cpu.kernels.requests import flat, is_real, parts_for, spec
from demitasse_cpu.kernels.work import spread
from demitasse_cpu.native import in_order


def weighted_sum(request: Request) -> Iterable[Candidate]:
    """Return the kernel of ``weighted_sum``, ``sum_relu`` and ``sum_relu_backward``. In ``sum_relu`` the
    last addition replaces negative sums by 0. In ``sum_relu_backward`` the sum is 0 wherever the last
    input, a ReLU's result, is not above 0."""
    if not is_real(*request.inputs, *request.outputs):
        return ()
    guarded = request.operation.name == "sum_relu_backward"
    layout = like(request, spec(request.inputs[0]))
    size = prod(layout.physical(spec(request.inputs[0]).shape))
    parts = parts_for(request, size, size * len(request.inputs))
    least = 0.0 if request.operation.name == "sum_relu" else -inf

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import elementwise as loops

        y, summed = flat(outputs[0]), inputs[:-1] if guarded else inputs
        coefficients = request.attributes["coefficients"] or [1.0] * len(summed)
        terms = [(flat(x), float(c)) for x, c in zip(summed, coefficients, strict=True)]
        # The tensor whose memory the result overwrites is read first.
        terms.sort(key=lambda term: term[0].ctypes.data != y.ctypes.data)
        if not guarded:
            return in_order(_additions(terms, y, least, size, parts))
        if len(terms) == 1:
            terms = _halves(terms)
        *first, last = terms
        stages = _additions(first, y, -inf, size, parts) if len(first) > 1 else []
        (a, factor_a), (b, factor_b) = (y, 1.0) if stages else first[0], last
        where = (a, b, flat(inputs[-1]), y, factor_a, factor_b)
        return in_order([*stages, spread(loops.scaled_sum_where, where, size, parts)])

    layouts = (layout,) * len(request.inputs)
    return (Candidate("numba loop", bind, layouts, (layout,)),)


_Terms = list[tuple[Any, float]]


def _additions(terms: _Terms, y: Any, least: float, size: int, parts: int) -> list[Work]:
    """Return work that leaves in y the weighted sum of arrays, with nothing below ``least``."""
    from demitasse_cpu.loops import elementwise as loops

    if len(terms) in (1, 3):  # the loops take two or four terms
        terms = [*terms[:-1], *_halves(terms[-1:])]
    stages = list[Work]()
    while len(terms) > 1:
        count = 4 if len(terms) >= 4 else 2
        now, terms = terms[:count], terms[count:]
        loop = getattr(loops, "scaled_sum_of_four" if count == 4 else "scaled_sum")
        arrays, factors = zip(*now, strict=True)
        smallest = -inf if terms else least
        stages.append(spread(loop, (*arrays, y, *factors, smallest), size, parts))
        terms = [(y, 1.0), *terms] if terms else []
    return stages


def _halves(terms: _Terms) -> _Terms:
    """Split a single term into two that add up to it."""
    return [(x, factor / 2) for x, factor in terms * 2]


def weighted_sum_backward(request: Request) -> Iterable[Candidate]:
    if not is_real(*request.inputs, *request.outputs):
        return ()
    layout = like(request, spec(request.inputs[0]))
    size = prod(layout.physical(spec(request.inputs[0]).shape))
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

    layouts = (layout,) * len(request.outputs)
    return (Candidate("numba loop", bind, (layout,), layouts, in_place=False),)


def concat(request: Request) -> Iterable[Candidate]:
    pieces = [spec(x).shape for x in request.inputs]
    return _pieces(request, pieces, joins=True)


def concat_backward(request: Request) -> Iterable[Candidate]:
    return _pieces(request, request.attributes["shapes"], joins=False)


def _pieces(request: Request, pieces: Sequence[Sequence[int]], joins: bool) -> Iterable[Candidate]:
    """Return copies of rows of the pieces into rows of the whole or, unless ``joins``, out of them."""
    whole = spec(request.outputs[0] if joins else request.inputs[0])
    if not is_real(*request.inputs, *request.outputs):
        return ()
    layout = like(request, spec(request.inputs[0]))
    if layout.blocks:
        layout = by_channels(request, spec(request.inputs[0]))
    order = layout.order or tuple(range(len(whole.shape)))
    physical, axis = layout.physical(whole.shape), order.index(request.attributes["axis"])
    rows, inner = prod(physical[:axis]), prod(physical[axis + 1 :])
    widths = [piece[request.attributes["axis"]] * inner for piece in pieces]
    parts = parts_for(request, rows, rows * sum(widths))

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import elementwise as loops

        one = flat(outputs[0] if joins else inputs[0])
        starts = accumulate(widths, initial=0)
        copies = []
        for piece, at, width in zip(inputs if joins else outputs, starts, widths, strict=False):
            if piece is not None:
                mine, theirs = (flat(piece), 0, width), (one, at, sum(widths))
                places = (*mine, *theirs) if joins else (*theirs, *mine)
                copies.append(spread(loops.copied_rows, (*places, width), rows, parts))
        return in_order(copies)

    layouts = (layout,) * len(request.inputs), (layout,) * len(request.outputs)
    return (Candidate("numba copy of rows", bind, *layouts, in_place=False),)


FACTORIES = {
    "sum": weighted_sum,
    "sum_relu": weighted_sum,
    "sum_relu_backward": weighted_sum,
    "sum_backward": weighted_sum_backward,
    "concat": concat,
    "concat_backward": concat_backward,
}
