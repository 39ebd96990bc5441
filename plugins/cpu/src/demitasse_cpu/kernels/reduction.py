"""Sums over trailing axes, maxima along an axis, and rows standardised by their mean and deviation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import prod
from typing import Any

from demitasse import Candidate, Request, Work
from demitasse_cpu.kernels.requests import aligned, flat, is_real, parts_for, rows_along, spec
from demitasse_cpu.kernels.work import ready, spread
from demitasse_cpu.native import at_once, in_order
from demitasse_cpu.threads import divide

KERNEL = "numba loop"
_PIECE = 32_768
_HEAP = 4


def _pieces(shape: Sequence[int], axis: int) -> tuple[int, int, int]:
    """Return the number of rows of the axes from ``axis`` on, the length of a row, and the number of
    pieces into which it is cut. Pieces let threads share a long row, and make sums independent of the
    number of threads."""
    inner = prod(shape[axis:])
    return prod(shape[:axis]), inner, max(1, -(-inner // _PIECE))


def total(term: int, request: Request) -> Iterable[Candidate]:
    (x,) = request.inputs
    if not is_real(x, *request.outputs):
        return ()
    rows, inner, pieces = _pieces(spec(x).shape, request.attributes["axis"])
    parts = parts_for(request, rows * pieces, rows * inner)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        import numpy as np

        from demitasse_cpu.loops import reduction as loops

        sums, numbers = workspace.view(np.float64)[: rows * pieces], (term, inner, pieces, _PIECE)
        coefficient = float(request.attributes["coefficient"])
        first = spread(loops.pieces_summed, (flat(inputs[0]), sums, *numbers), rows * pieces, parts)
        result = (sums, flat(outputs[0]), pieces, coefficient)
        return in_order([first, spread(loops.rows_summed, result, rows, 1)])

    return (Candidate(KERNEL, bind, workspace=aligned(8 * rows * pieces)),)


def total_backward(term: int, request: Request) -> Iterable[Candidate]:
    if not is_real(*request.inputs, *request.outputs):
        return ()
    shape = spec(request.outputs[0]).shape
    rows, inner, pieces = _pieces(shape, request.attributes["axis"])
    parts = parts_for(request, rows * pieces, rows * inner)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import reduction as loops

        dx = flat(outputs[0])
        x = flat(inputs[1]) if inputs[1:] else dx
        numbers = (float(request.attributes["coefficient"]), term, inner, pieces, _PIECE)
        return spread(loops.pieces_spread, (flat(inputs[0]), x, dx, *numbers), rows * pieces, parts)

    return (Candidate(KERNEL, bind),)


def largest(request: Request) -> Iterable[Candidate]:
    (x,) = request.inputs
    if not is_real(x, *request.outputs):
        return ()
    count, give = request.attributes["count"], request.attributes["give"]
    rows, classes, inner = rows_along(spec(x).shape, request.attributes["axis"])
    parts = parts_for(request, rows, rows * classes * _HEAP)
    room = aligned(8 * count)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        import numpy as np

        from demitasse_cpu.loops import reduction as loops

        heaps = workspace.view(np.int64).reshape(parts, -1)[:, :count]
        arrays = flat(inputs[0]), flat(outputs[0])
        asked = give in ("places", "both"), give in ("values", "both"), classes, inner
        shares = zip(heaps, divide(rows, parts), strict=True)
        return at_once([ready(loops.largest, *arrays, heap, *asked, *part) for heap, part in shares])

    return (Candidate("numba heap", bind, workspace=parts * room),)


def _by_row(loop: str, work: float, request: Request) -> Iterable[Candidate]:
    """Return the kernel by a loop over contiguous rows."""
    if not is_real(*request.inputs, *request.outputs):
        return ()
    shape, axis = spec(request.inputs[0]).shape, request.attributes["axis"]
    rows, inner = prod(shape[:axis]), prod(shape[axis:])
    parts = parts_for(request, rows, rows * inner * work)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        import numpy as np

        from demitasse_cpu.loops import reduction as loops

        arrays = [flat(x) for x in inputs]
        wanted = [*outputs, None][: len(request.operation.outputs)]
        arrays += [np.empty(0, arrays[0].dtype) if y is None else flat(y) for y in wanted]
        epsilon = [float(request.attributes["epsilon"])] if "epsilon" in request.attributes else []
        return spread(getattr(loops, loop), (*arrays, *epsilon, inner), rows, parts)

    return (Candidate(KERNEL, bind),)


FACTORIES: dict[str, Callable[[Request], Iterable[Candidate]]] = {
    "total": partial(total, 0),
    "absolute_total": partial(total, 1),
    "square_total": partial(total, 2),
    "total_backward": partial(total_backward, 0),
    "absolute_total_backward": partial(total_backward, 1),
    "square_total_backward": partial(total_backward, 2),
    "largest": largest,
    "centre": partial(_by_row, "centre", 2),
    "standardize": partial(_by_row, "standardize", 4),
    "standardize_backward": partial(_by_row, "standardize_backward", 3),
}
