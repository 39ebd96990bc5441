"""Solver updates of a slice of flat memory, and the norms that some solvers need."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import prod
from typing import Any

from demitasse import Candidate, Request, Work
from demitasse_cpu.kernels.requests import cut, flat, is_real, parts_for, spec
from demitasse_cpu.kernels.work import ready, spread
from demitasse_cpu.native import in_order

_BLOCK = 2**15  # elements; sums by block do not depend on which thread adds them up
_SCALARS = {"iteration": "uint64", "rate": "float64", "scale": "float64", "squares": "float64"}


def _update(request: Request, numbers: tuple[str, ...], state: int = 1) -> Iterable[Candidate]:
    """Return the kernel by the loop with the operation's name. The loop takes the operands (parameter,
    gradient, ``state`` kept tensors and scalars, the scale last), the segments, the decay, the
    regularization if the operation has that attribute, and the attributes ``numbers``."""
    given, name = request.attributes, request.operation.name
    operands = dict(zip((o.name for o in request.operation.inputs), request.inputs, strict=False))
    lying = request.inputs[: 2 + state]
    if not is_real(*lying) or given.get("regularization", "L2") not in ("L1", "L2"):
        return ()
    for operand, kind in _SCALARS.items():
        if (scalar := operands.get(operand)) is not None and scalar.dtype != kind:
            return ()
    size = prod(spec(request.inputs[0]).shape)
    parts = parts_for(request, size, size)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        import numpy as np

        from demitasse_cpu.loops import update as loops

        arrays = [flat(array) for array in inputs if array is not None]
        if operands.get("scale") is None:
            arrays.append(np.ones(1))
        which = (given["regularization"] == "L1",) if "regularization" in given else ()
        arguments = (
            *arrays,
            np.array([segment[:2] for segment in given["segments"]], np.int64).reshape(-1, 2),
            np.array([segment[2:] for segment in given["segments"]], np.float64).reshape(-1, 2),
            float(given["decay"]),
            *which,
            *(float(given[number]) for number in numbers),
        )
        return spread(getattr(loops, name), arguments, size, parts)

    return (Candidate("numba loop, one pass", bind),)


def squares(request: Request) -> Iterable[Candidate]:
    parameter, gradient, total = request.inputs
    if not is_real(parameter, gradient) or spec(total).dtype != "float64":
        return ()
    blocks: list[tuple[int, int]] = []
    edges = [0]
    for start, stop, *_ in request.attributes["segments"]:
        blocks += [(at, min(at + _BLOCK, stop)) for at in range(start, stop, _BLOCK)]
        edges.append(len(blocks))
    size = prod(spec(parameter).shape)
    parts = parts_for(request, len(blocks), size)
    nbytes = 16 * len(blocks)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        import numpy as np

        from demitasse_cpu.loops import update as loops

        value, slope, sums = map(flat, inputs)
        (kept,) = cut(workspace, np.float64, nbytes) if blocks else (np.empty(0),)
        limits = np.array(blocks, np.int64).reshape(-1, 2)
        by_segment = ready(loops.squares_by_segment, kept, np.array(edges, np.int64), sums)
        if not blocks:
            return by_segment
        by_block = spread(loops.squares_by_block, (value, slope, limits, kept), len(blocks), parts)
        return in_order([by_block, by_segment])

    return (Candidate("numba loop, blocks in double precision", bind, workspace=nbytes),)


FACTORIES: dict[str, Callable[[Request], Iterable[Candidate]]] = {
    "adadelta_update": partial(_update, numbers=("momentum", "delta"), state=2),
    "adagrad_update": partial(_update, numbers=("delta",)),
    "adam_update": partial(_update, numbers=("momentum", "momentum2", "delta"), state=2),
    "larc_update": partial(_update, numbers=("momentum", "trust", "clip")),
    "lars_update": partial(_update, numbers=("momentum", "trust")),
    "momentum_update": partial(_update, numbers=("momentum",)),
    "nesterov_update": partial(_update, numbers=("momentum",)),
    "rmsprop_update": partial(_update, numbers=("rms_decay", "delta")),
    "squares": squares,
}
