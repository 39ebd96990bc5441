"""Solver updates of a slice of flat memory in one pass, and the sums of squares that some need."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from demitasse import Candidate, Request, Work
from demitasse_gpu.kernels.launches import THREADS, Source, cut, device_of, real_type, room, structure

KERNEL = "CUDA, one pass"
_TOGETHER = 64  # segments per launch
_CHUNK = 2**13  # elements that a block updates
_SUMMED = 2**15  # elements whose squares a block sums
_SCALARS = {"iteration": "uint64", "rate": "float64", "scale": "float64", "squares": "float64"}
_FIELDS = (
    *(("count", "i4"), ("chunk", "i4"), ("first", "i4"), ("padding", "i4")),
    *(("start", "i8", _TOGETHER), ("stop", "i8", _TOGETHER)),
    *(("rate", "f8", _TOGETHER), ("decay", "f8", _TOGETHER), ("chunks", "i4", _TOGETHER)),
)
_SLICE = (
    *(("parameter", "u8"), ("gradient", "u8"), ("history", "u8"), ("second", "u8")),
    *(("rate", "u8"), ("scale", "u8"), ("decay", "f8"), ("lasso", "i4")),
)


def _tables(segments: Sequence[Sequence[Any]], chunk: int) -> Iterator[tuple[Any, int, int]]:
    """Yield segments as kernels take them, their number, and the number of blocks that they need."""
    import numpy as np

    for first in range(0, len(segments), _TOGETHER):
        some = segments[first : first + _TOGETHER]
        table = np.zeros((_TOGETHER, 5))
        chunks = np.cumsum([-(-(stop - start) // chunk) for start, stop, *_ in some])
        for i, each in enumerate(some):
            table[i] = *each, chunks[i]
        yield structure(_FIELDS, len(some), chunk, first, 0, *table.T), len(some), int(chunks[-1])


def _update(request: Request, numbers: tuple[str, ...], second: bool = False) -> Iterable[Candidate]:
    """Return the kernel of the operation's name. Its arguments are segments, the slice, further arrays,
    then ``numbers``: attributes (``1-name`` stands for 1 minus the attribute)."""
    given, name = request.attributes, request.operation.name
    operands = dict(zip((o.name for o in request.operation.inputs), request.inputs, strict=False))
    lying = request.inputs[: 4 if second else 3]
    if not (real := real_type(*lying)) or given.get("regularization", "L2") not in ("L1", "L2"):
        return ()
    for operand, kind in _SCALARS.items():
        if (scalar := operands.get(operand)) is not None and scalar.dtype != kind:
            return ()
    source = Source("update.cu", real)
    lasso = int(given.get("regularization", "L2") == "L1")

    def value(number: str) -> Any:
        import numpy as np

        of_one = number.startswith("1-")
        plain = float(given[number.removeprefix("1-")])
        if (name == "adam_update" and number != "delta") or number == "trust":
            return np.float64(plain)
        return source.number(1 - plain if of_one else plain)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_gpu.launch import in_order

        arrays = dict(zip(operands, inputs, strict=False))
        device = device_of(inputs)
        names = ("parameter", "gradient", "history", "second", "rate", "scale")
        found = (arrays.get(each) for each in names)
        addresses = [0 if array is None else array.address for array in found]
        piece = structure(_SLICE, *addresses, float(given["decay"]), lasso)
        more = [arrays[each] for each in ("iteration", "squares") if each in arrays]
        more += [value(number) for number in numbers]
        stages: list[Work] = [
            source.launch(device, name, grid, THREADS, table, piece, *more)
            for table, _, grid in _tables(given["segments"], _CHUNK)
            if grid
        ]
        return in_order(stages)

    return (Candidate(KERNEL, bind),)


def squares(request: Request) -> Iterable[Candidate]:
    parameter, gradient, total = request.inputs
    if not (real := real_type(parameter, gradient)) or total is None or total.dtype != "float64":
        return ()
    source = Source("update.cu", real)
    segments = request.attributes["segments"]
    chunks = sum(-(-(stop - start) // _SUMMED) for start, stop, *_ in segments)
    pieces = (("float64", 2 * max(1, chunks)),)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_gpu.launch import in_order

        device, (sums,) = device_of(inputs), cut(workspace, *pieces)
        stages = list[Work]()
        for table, count, grid in _tables(segments, _SUMMED):
            arrays = (*inputs[:2], sums)
            if grid:
                stages.append(source.launch(device, "chunk_squares", grid, THREADS, table, *arrays))
            stages.append(
                source.launch(device, "segment_squares", count, THREADS, table, sums, inputs[2])
            )
        return in_order(stages)

    return (Candidate("CUDA, double precision", bind, workspace=room(*pieces)),)


FACTORIES: Mapping[str, Callable[[Request], Iterable[Candidate]]] = MappingProxyType(
    {
        "adadelta_update": partial(_update, numbers=("momentum", "1-momentum", "delta"), second=True),
        "adagrad_update": partial(_update, numbers=("delta",)),
        "adam_update": partial(_update, numbers=("momentum", "momentum2", "delta"), second=True),
        "larc_update": partial(_update, numbers=("momentum", "trust", "clip")),
        "lars_update": partial(_update, numbers=("momentum", "trust")),
        "momentum_update": partial(_update, numbers=("momentum",)),
        "nesterov_update": partial(_update, numbers=("momentum",)),
        "rmsprop_update": partial(_update, numbers=("rms_decay", "1-rms_decay", "delta")),
        "squares": squares,
    }
)
