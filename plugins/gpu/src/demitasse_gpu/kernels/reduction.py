"""Sums over trailing axes, standardised rows (mean and deviation), and the largest elements of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import prod
from types import MappingProxyType
from typing import Any

from demitasse import Candidate, Request, Work
from demitasse_gpu.kernels.launches import (
    THREADS,
    Source,
    blocks,
    device_of,
    real_type,
    rows_along,
    spec,
)

KERNEL = "CUDA, a block to a row"
_TERMS = {"total": 0, "absolute_total": 1, "square_total": 2}
_GIVES = {"places": 1, "values": 2, "both": 3}


def _rows(shape: Sequence[int], axis: int) -> tuple[int, int]:
    """Return the number of rows over the axes from ``axis`` on, and the length of each."""
    return prod(shape[:axis]), prod(shape[axis:])


def _total(name: str, request: Request) -> Iterable[Candidate]:
    x = spec(request.inputs[0])
    if not (real := real_type(*request.inputs, *request.outputs)):
        return ()
    source = Source("reduction.cu", real)
    rows, length = _rows(x.shape, request.attributes["axis"])

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        import numpy as np

        coefficient = source.number(request.attributes["coefficient"])
        arguments = (inputs[0], outputs[0], np.int64(length), _TERMS[name], coefficient)
        return source.launch(device_of(inputs), "row_totals", rows, THREADS, *arguments)

    return (Candidate(KERNEL, bind),)


def _total_backward(name: str, request: Request) -> Iterable[Candidate]:
    dx = spec(request.outputs[0])
    if not (real := real_type(*request.inputs, *request.outputs)):
        return ()
    source, (rows, _) = Source("reduction.cu", real), (prod(spec(request.inputs[0]).shape), 0)
    size = prod(dx.shape)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        import numpy as np

        coefficient = source.number(request.attributes["coefficient"])
        dy, x = (*inputs, None)[:2]
        arguments = (dy, x, outputs[0], np.int64(size // rows), _TERMS[name], coefficient)
        return source.flat(device_of(inputs), "row_totals_backward", size, *arguments, pack=1)

    return (Candidate(KERNEL, bind),)


def _by_row(name: str, request: Request) -> Iterable[Candidate]:
    """Return the kernel of that name. Its arguments are all arrays, the length of a row, and epsilon if
    there is one."""
    if not (real := real_type(*request.inputs, *request.outputs)):
        return ()
    source, given = Source("reduction.cu", real), request.attributes
    rows, length = _rows(spec(request.inputs[0]).shape, given["axis"])
    outputs_wanted = 2 if name == "standardize" else 1

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        import numpy as np

        made = (*outputs, None)[:outputs_wanted]
        more = [source.number(given["epsilon"])] if "epsilon" in given else []
        arguments = (*inputs, *made, np.int64(length), *more)
        return source.launch(device_of(inputs), name, rows, THREADS, *arguments)

    return (Candidate(KERNEL, bind),)


def largest(request: Request) -> Iterable[Candidate]:
    x, given = spec(request.inputs[0]), request.attributes
    if not (real := real_type(*request.inputs, *request.outputs)):
        return ()
    source = Source("reduction.cu", real)
    rows, classes, inner = rows_along(x.shape, given["axis"])

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        import numpy as np

        device = device_of(inputs)
        numbers = (classes, inner, int(given["count"]), _GIVES[given["give"]], np.int64(rows))
        return source.launch(
            device, "largest", blocks(device, rows), THREADS, *inputs, *outputs, *numbers
        )

    return (Candidate("CUDA, a thread to a row", bind),)


FACTORIES: Mapping[str, Callable[[Request], Iterable[Candidate]]] = MappingProxyType(
    {
        **{name: partial(_total, name) for name in _TERMS},
        **{f"{name}_backward": partial(_total_backward, name) for name in _TERMS},
        **{name: partial(_by_row, name) for name in ("centre", "standardize", "standardize_backward")},
        "largest": largest,
    }
)
