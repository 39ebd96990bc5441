"""Pooling in two dimensions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from demitasse import Candidate, Layout, Request, TensorSpec, Work
from demitasse_cpu.kernels.layouts import NHWC, by_channels, is_by_channels, unconverted
from demitasse_cpu.kernels.requests import aligned, cut, flat, is_real, parts_for, spec
from demitasse_cpu.kernels.work import ready, spread
from demitasse_cpu.native import at_once
from demitasse_cpu.threads import divide

if TYPE_CHECKING:
    from demitasse_cpu.loops.pooling import Windows

KERNEL = "numba loop over windows"
BY_CHANNELS = "numba loop over channels"
LARGEST = "numba loop over lines"

_NEAR = 2**14
"""Bytes of a line whose maxima are held at a time. Together with the lines that they come from, they
stay in the nearest cache."""

_MANY_CHANNELS = 16
"""No processor's vectors have more numbers."""

_FAR = 2**23
"""Bytes of images from which on too few are still in the caches when they are read. Prefetching them
saves a third of the time for 26 MB in bfloat16, but adds two thirds for 6 MB."""


def maximum(request: Request) -> Iterable[Candidate]:
    (x,), (y, argmax) = request.inputs, (*request.outputs, None)[:2]
    if not is_real(x, y) or not _is_served(request.attributes, spec(x).shape, spec(y).shape):
        return ()
    if is_by_channels(layout := by_channels(request, spec(x))):
        return _maximum_by_channels(request, layout)
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
    if len(spec(dx).shape) != 4:
        return ()
    # The index has the layout of the forward pass, which is that of x.
    if is_by_channels(layout := by_channels(request, spec(argmax), spec(dy).dtype)):
        index = _index_layout(layout, spec(dx).shape)
        if _side_by_side(request.attributes, spec(dx).shape, spec(dy).shape):
            return _spread(request, layout, index)
        return _gathered(request, "maxima_backward", layout, (layout, index))
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
    if is_by_channels(layout := by_channels(request, spec(x))):
        return _average_by_channels(request, layout)
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
    if is_by_channels(layout := by_channels(request, spec(dy))):
        return _gathered(request, "averages_backward", layout, (layout,))
    planes, size = _planes(spec(dy).shape)
    parts = _parts(request, planes, size)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import pooling as loops

        windows = _windows(request.attributes, spec(dx).shape, spec(dy).shape)
        arguments = (windows, flat(inputs[0]), flat(outputs[0]))
        return spread(loops.averages_backward, arguments, planes, parts)

    offered = Candidate(KERNEL, bind, in_place=False)
    if spec(dy).dtype != "float32" or spec(dy).shape[1] < _MANY_CHANNELS:
        return (offered,)
    # An inner product's gradient is plain, but whoever reads dx usually has the channels innermost.
    return (offered, *_gathered(request, "averages_backward", NHWC, (NHWC,)))


FACTORIES = {
    "pooling_max": maximum,
    "pooling_max_backward": maximum_backward,
    "pooling_average": average,
    "pooling_average_backward": average_backward,
}


def _maximum_by_channels(request: Request, layout: Layout) -> Iterable[Candidate]:
    (x,), (y, argmax) = request.inputs, (*request.outputs, None)[:2]
    channels, lines = spec(x).shape[1], spec(y).shape[0] * spec(y).shape[2]
    parts = _parts_by_channels(request, lines, spec(y).shape)
    if argmax is None:
        return _largest(request, layout, lines, parts)
    index = _index_layout(layout, spec(x).shape)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import pooling_by_channels as loops

        geometry = _windows(request.attributes, spec(x).shape, spec(y).shape)
        arguments = (geometry, channels, *map(flat, (*inputs, *outputs)))
        return spread(loops.maxima, arguments, lines, parts)

    return (Candidate(BY_CHANNELS, bind, (layout,), (layout, index), in_place=False),)


def _largest(request: Request, layout: Layout, lines: int, parts: int) -> Iterable[Candidate]:
    """Return the kernel for maxima, without their places, of images whose channels are innermost."""
    x, y = spec(request.inputs[0]), spec(request.outputs[0])
    channels, window = x.shape[1], request.attributes["kernel"][1]
    point = channels * (2 if layout.stored else 4 if x.dtype == "float32" else 8)
    room = aligned(point * min(x.shape[3], max(window, _NEAR // point)))
    far_away = point * prod(x.shape) // channels > _FAR

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import largest as loops

        geometry = _windows(request.attributes, x.shape, y.shape)
        arguments = (geometry, channels, flat(inputs[0]), flat(outputs[0]))
        rooms = cut(workspace, "int16" if layout.stored else x.dtype, *[room] * parts)
        shares = zip(rooms, divide(lines, parts), strict=False)
        return at_once([ready(loops.largest, *arguments, near, far_away, *p) for near, p in shares])

    layouts = (layout,), (layout,) * len(request.outputs)
    return (Candidate(LARGEST, bind, *layouts, parts * room, in_place=False),)


def _average_by_channels(request: Request, layout: Layout) -> Iterable[Candidate]:
    (x,), (y,) = request.inputs, request.outputs
    lines, channels = spec(y).shape[0] * spec(y).shape[2], spec(x).shape[1]
    return _summed(request, "averages", layout, (layout,), (spec(x), spec(y)), lines, channels)


def _side_by_side(attributes: Mapping[str, Any], x: Sequence[int], y: Sequence[int]) -> bool:
    """Return whether windows of 2 x 2 cover x, with each point in exactly one."""
    usual = [tuple(attributes[name]) for name in ("kernel", "stride", "pad")]
    return usual == [(2, 2), (2, 2), (0, 0)] and tuple(x[2:]) == (2 * y[2], 2 * y[3])


def _spread(request: Request, layout: Layout, index: Layout) -> Iterable[Candidate]:
    """Return the kernel for the gradient of maxima of windows that do not overlap. Its units are lines
    of dy."""
    dy = spec(request.inputs[0])
    lines, channels = dy.shape[0] * dy.shape[2], dy.shape[1]
    parts = _parts_by_channels(request, lines, dy.shape)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import pooling_by_channels as loops

        geometry = _windows(request.attributes, spec(request.outputs[0]).shape, dy.shape)
        arrays = [array.view("int16") if layout.stored else array for array in (inputs[0], outputs[0])]
        arguments = (geometry, channels, flat(arrays[0]), flat(inputs[1]), flat(arrays[1]))
        return spread(loops.maxima_backward_apart, arguments, lines, parts)

    return (Candidate(BY_CHANNELS, bind, (layout, index), (layout,), in_place=False),)


def _gathered(
    request: Request, loop: str, layout: Layout, layouts: Sequence[Layout]
) -> Iterable[Candidate]:
    """Return the kernel for a gradient of images whose channels are innermost. Its units are lines of
    dx."""
    dy, dx = spec(request.inputs[0]), spec(request.outputs[0])
    lines, channels = dx.shape[0] * dx.shape[2], dx.shape[1]
    return _summed(request, loop, layout, layouts, (dx, dy), lines, channels)


def _summed(
    request: Request,
    loop: str,
    layout: Layout,
    layouts: Sequence[Layout],
    ends: tuple[TensorSpec, TensorSpec],
    lines: int,
    channels: int,
) -> Iterable[Candidate]:
    """Return the kernel by a loop that sums in a row of numbers. ``ends`` are x, or its gradient, and y,
    or its gradient."""
    parts = _parts_by_channels(request, lines, ends[1].shape)
    room = aligned(channels * 8)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import pooling_by_channels as loops

        geometry = _windows(request.attributes, ends[0].shape, ends[1].shape)
        arguments = (geometry, channels, *map(flat, inputs), flat(outputs[0]))
        shares = []
        for i, part in enumerate(divide(lines, parts)):
            total = workspace[i * room : (i + 1) * room].view(ends[0].dtype)
            shares.append(ready(getattr(loops, loop), *arguments, total, *part))
        return at_once(shares)

    room_of_all = parts * room
    return (Candidate(BY_CHANNELS, bind, tuple(layouts), (layout,), room_of_all, in_place=False),)


def _index_layout(layout: Layout, x: Sequence[int]) -> Layout:
    """Return the layout of places. In planes of less than 2**15 elements they are stored as int16, so
    that the largest 3 x 3 pooling reads and writes a tenth less."""
    if prod(x[2:]) >= 2**15:
        return unconverted(layout)
    return Layout("NHWC int16", layout.order, stored="int16")


def _parts_by_channels(request: Request, lines: int, y: Sequence[int]) -> int:
    return parts_for(request, lines, prod(y) * prod(request.attributes["kernel"]) / 2)


def _is_served(attributes: Mapping[str, Any], x: Sequence[int], y: Sequence[int]) -> bool:
    """Return whether these are planes in which every window has an element. With a stride larger than
    the kernel, the last window may have none."""
    if len(x) != 4:
        return False
    ends = zip(y[2:], attributes["stride"], attributes["pad"], x[2:], strict=True)
    return all((windows - 1) * stride - pad < extent for windows, stride, pad, extent in ends)


def _whole_windows(attributes: Mapping[str, Any], y: Sequence[int]) -> int:
    """Return the number of windows in all rows, with as many per row as cover its columns exactly."""
    width, stride = attributes["kernel"][1], attributes["stride"][1]
    return int(y[2] * (-(-(stride * (y[3] - 1) + width) // stride)))


def _planes(shape: Sequence[int]) -> tuple[int, int]:
    """Return the number of planes, and of elements in each."""
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
