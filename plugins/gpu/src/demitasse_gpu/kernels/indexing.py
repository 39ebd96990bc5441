"""Parts and copies of tensors, and rows by index: in plain layout, in the tensors' own type."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import Any

from demitasse import Candidate, Request, Work
from demitasse_gpu.kernels.labels import checked_rows
from demitasse_gpu.kernels.launches import Source, device_of, real_type, spec, structure
from demitasse_gpu.kernels.loss import is_label

KERNEL = "CUDA"
_DIMENSIONS = 8
_FIELDS = (("rank", "i4"), ("extents", "u4", _DIMENSIONS), ("steps", "i8", _DIMENSIONS))


def _steps(shape: Sequence[int]) -> list[int]:
    """Return the distances, in elements, between neighbours along each dimension."""
    return [prod(shape[d + 1 :]) for d in range(len(shape))]


def _box(extents: Sequence[int], steps: Sequence[int]) -> Any:
    padded = [[*given, *[1] * _DIMENSIONS][:_DIMENSIONS] for given in (extents, steps)]
    return structure(_FIELDS, len(extents), *padded)


def _start(offset: Sequence[int], shape: Sequence[int]) -> int:
    """Return the index in memory of a box's first element."""
    return sum(o * step for o, step in zip(offset, _steps(shape), strict=True))


def _seen(
    request: Request, start: int, extents: Sequence[int], steps: Sequence[int]
) -> Iterable[Candidate]:
    """Return a candidate that makes y of the elements of x from ``start`` on, ``steps`` apart."""
    real = real_type(*request.inputs, *request.outputs)
    if not real or len(extents) > _DIMENSIONS:
        return ()
    source = Source("reorder.cu", real)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        arguments = (inputs[0].reshape(-1)[start:], outputs[0], _box(extents, steps))
        return source.flat(device_of(inputs), "permute", prod(extents), *arguments, pack=1)

    return (Candidate(KERNEL, bind, in_place=False),)


def crop(request: Request) -> Iterable[Candidate]:
    x, y = spec(request.inputs[0]).shape, spec(request.outputs[0]).shape
    return _seen(request, _start(request.attributes["offset"], x), y, _steps(x))


def tile(request: Request) -> Iterable[Candidate]:
    x, axis = spec(request.inputs[0]).shape, int(request.attributes["axis"])
    width = prod(x[axis:])
    extents = (prod(x[:axis]), int(request.attributes["tiles"]), width)
    return _seen(request, 0, extents, (width, 0, 1))


def crop_backward(request: Request) -> Iterable[Candidate]:
    dy, dx = spec(request.inputs[0]).shape, spec(request.outputs[0]).shape
    real = real_type(*request.inputs, *request.outputs)
    if not real or len(dx) > _DIMENSIONS:
        return ()
    source, start = Source("indexing.cu", real), _start(request.attributes["offset"], dx)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_gpu.launch import in_order

        device, whole = device_of(inputs), outputs[0].reshape(-1)
        clear = Source("reorder.cu", real)
        arguments = (inputs[0], whole[start:], _box(dy, _steps(dx)))
        return in_order(
            [
                clear.flat(device, "set_all", prod(dx), whole, clear.number(0), pack=1),
                source.flat(device, "into_box", prod(dy), *arguments, pack=1),
            ]
        )

    return (Candidate(KERNEL, bind, in_place=False),)


def tile_backward(request: Request) -> Iterable[Candidate]:
    dx, axis = spec(request.outputs[0]).shape, int(request.attributes["axis"])
    if not (real := real_type(*request.inputs, *request.outputs)):
        return ()
    source = Source("indexing.cu", real)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        import numpy as np

        numbers = (int(request.attributes["tiles"]), np.int64(prod(dx[axis:])))
        arguments = (*inputs, *outputs, *numbers)
        return source.flat(device_of(inputs), "tile_backward", prod(dx), *arguments, pack=1)

    return (Candidate(KERNEL, bind, in_place=False),)


def gather(request: Request) -> Iterable[Candidate]:
    """Return candidates that copy rows by index. An index out of range gives a row of NaN."""
    return _gathered(request, "gather", spec(request.inputs[0]).shape, backward=False)


def gather_backward(request: Request) -> Iterable[Candidate]:
    return _gathered(request, "gather_backward", spec(request.outputs[0]).shape, backward=True)


def _gathered(request: Request, name: str, x: Sequence[int], backward: bool) -> Iterable[Candidate]:
    given, index = map(spec, request.inputs)
    real = real_type(given, *request.outputs)
    if not real or not is_label(index.dtype):
        return ()
    source = Source("indexing.cu", real, types=(("INDEX", index.dtype),))
    size = prod(spec(request.outputs[0]).shape)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        import numpy as np

        rows = prod(index.shape) if backward else x[0]
        arguments = (*inputs, *outputs, np.int64(rows), np.int64(prod(x[1:])))
        work = source.flat(device_of(inputs), name, size, *arguments, pack=1)
        if backward:
            return work
        return checked_rows([work], inputs[1], rows, str(request.attributes["source"]))

    return (Candidate(KERNEL, bind, in_place=False),)


FACTORIES: Mapping[str, Callable[[Request], Iterable[Candidate]]] = MappingProxyType(
    {
        "crop": crop,
        "crop_backward": crop_backward,
        "tile": tile,
        "tile_backward": tile_backward,
        "gather": gather,
        "gather_backward": gather_backward,
    }
)
