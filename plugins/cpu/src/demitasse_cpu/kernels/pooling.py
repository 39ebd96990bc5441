"""Pooling in two dimensions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from demitasse import Candidate, Request, Work
from demitasse_cpu.kernels.requests import aligned, cut, flat, is_real, parts_for, spec
from demitasse_cpu.kernels.work import ready, spread
from demitasse_cpu.native import at_once
from demitasse_cpu.threads import divide

if TYPE_CHECKING:
    from demitasse_cpu.loops.pooling import Windows

KERNEL = "numba loop over windows"


def maximum(request: Request) -> Iterable[Candidate]:
    (x,), (y, argmax) = request.inputs, (*request.outputs, None)[:2]
    if not is_real(x, y) or not _is_served(request.attributes, spec(x).shape, spec(y).shape):
        return ()
    planes, size = _planes(spec(y).shape)
    parts = _parts(request, planes, size)
    windows = _whole_windows(request.attributes, spec(y).shape)
    stride, width = request.attributes["stride"][1], request.attributes["kernel"][1]
    counts = (windows * stride + width, windows * stride + width, windows, windows)
    kinds = (spec(x).dtype, "int32") * 2
    sizes = [8 * count for count in counts]
    room = sum(map(aligned, sizes))

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import pooling as loops

        geometry = _windows(request.attributes, spec(x).shape, spec(y).shape)
        buffers = [geometry, flat(inputs[0]), flat(outputs[0])]
        shares = []
        for i, part in enumerate(divide(planes, parts)):
            pieces = cut(workspace[i * room : (i + 1) * room], "uint8", *sizes)
            pieces = [piece.view(kind) for piece, kind in zip(pieces, kinds, strict=True)]
            index = pieces[3] if argmax is None else flat(outputs[1])
            arguments = [*buffers, index, argmax is not None, *pieces, *part]
            shares.append(ready(loops.maxima, *arguments))
        return at_once(shares)

    return (Candidate(KERNEL, bind, workspace=parts * room, in_place=False),)


def maximum_backward(request: Request) -> Iterable[Candidate]:
    (dy, argmax), (dx,) = request.inputs, request.outputs
    if not is_real(dy, dx) or spec(argmax).dtype != "int32":
        return ()
    planes, size = _planes(spec(dy).shape)
    _, plane_size = _planes(spec(dx).shape)
    parts = parts_for(request, planes, planes * plane_size)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import pooling as loops

        arguments = (size, plane_size, *map(flat, inputs), flat(outputs[0]))
        return spread(loops.maxima_backward, arguments, planes, parts)

    return (Candidate(KERNEL, bind, in_place=False),)


def average(request: Request) -> Iterable[Candidate]:
    (x,), (y,) = request.inputs, request.outputs
    if not is_real(x, y) or not _is_served(request.attributes, spec(x).shape, spec(y).shape):
        return ()
    planes, size = _planes(spec(y).shape)
    parts = _parts(request, planes, size)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import pooling as loops

        windows = _windows(request.attributes, spec(x).shape, spec(y).shape)
        return spread(loops.averages, (windows, flat(inputs[0]), flat(outputs[0])), planes, parts)

    return (Candidate(KERNEL, bind, in_place=False),)


def average_backward(request: Request) -> Iterable[Candidate]:
    (dy,), (dx,) = request.inputs, request.outputs
    if not is_real(dy, dx) or not _is_served(request.attributes, spec(dx).shape, spec(dy).shape):
        return ()
    planes, size = _planes(spec(dy).shape)
    parts = _parts(request, planes, size)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import pooling as loops

        windows = _windows(request.attributes, spec(dx).shape, spec(dy).shape)
        arguments = (windows, flat(inputs[0]), flat(outputs[0]))
        return spread(loops.averages_backward, arguments, planes, parts)

    return (Candidate(KERNEL, bind, in_place=False),)


FACTORIES = {
    "pooling_max": maximum,
    "pooling_max_backward": maximum_backward,
    "pooling_average": average,
    "pooling_average_backward": average_backward,
}


def _is_served(attributes: Mapping[str, Any], x: Sequence[int], y: Sequence[int]) -> bool:
    """Planes, in which every window has an element: with a stride beyond the kernel the last may
    have none."""
    if len(x) != 4:
        return False
    ends = zip(y[2:], attributes["stride"], attributes["pad"], x[2:], strict=True)
    return all((windows - 1) * stride - pad < extent for windows, stride, pad, extent in ends)


def _whole_windows(attributes: Mapping[str, Any], y: Sequence[int]) -> int:
    """Windows in all rows, each row with as many as cover its columns without a rest."""
    width, stride = attributes["kernel"][1], attributes["stride"][1]
    return int(y[2] * (-(-(stride * (y[3] - 1) + width) // stride)))


def _planes(shape: Sequence[int]) -> tuple[int, int]:
    """How many planes there are, and the elements of one."""
    size = 1
    for extent in shape[2:]:
        size *= extent
    return shape[0] * shape[1], size


def _parts(request: Request, planes: int, size: int) -> int:
    height, width = request.attributes["kernel"]
    return parts_for(request, planes, planes * size * height * width)


def _windows(attributes: Mapping[str, Any], x: Sequence[int], y: Sequence[int]) -> Windows:
    from demitasse_cpu.loops.pooling import Windows

    pairs = (attributes[name] for name in ("kernel", "stride", "pad"))
    return Windows(*x[2:], *y[2:], *(int(number) for pair in pairs for number in pair))
