"""Pooling in two dimensions, and local response normalisation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from demitasse import Candidate, Layout, Request, Work
from demitasse_gpu.kernels.launches import (
    DIVISOR,
    THREADS,
    Source,
    blocks,
    device_of,
    divisor,
    real_type,
    spec,
    structure,
)
from demitasse_gpu.kernels.layouts import by_channels, is_innermost, unconverted
from demitasse_gpu.kernels.united import made_rectified, summed_before

if TYPE_CHECKING:
    from demitasse_gpu.launch import Launch

KERNEL = "CUDA"
_FIELDS = (
    *("samples", "channels", "height", "width", "rows", "columns"),
    *("kernel_h", "kernel_w", "stride_h", "stride_w", "pad_h", "pad_w"),
)
_DIVISORS = ("fastest", "second", "third", "by_stride_h", "by_stride_w")
_MOST = 2**31  # elements: indices of groups of channels have 32 bits


def maximum(request: Request) -> Iterable[Candidate]:
    x, y = spec(request.inputs[0]), spec(request.outputs[0])
    if not _is_served(request.attributes, x.shape, y.shape):
        return ()
    layout = by_channels(request, x)
    index = _index_layout(layout, x.shape)
    outputs = (layout, index)[: len(request.outputs)]
    return _pool(request, "pooling_max", (layout,), outputs, index, real_type(x, y), x.shape, y.shape)


def maximum_backward(request: Request) -> Iterable[Candidate]:
    dy, argmax = map(spec, request.inputs)
    dx = spec(request.outputs[0])
    if argmax.dtype != "int32" or not _is_served(request.attributes, dx.shape, dy.shape):
        return ()
    layout = by_channels(request, argmax, dy.dtype)
    index = _index_layout(layout, dx.shape)
    layouts = (layout, index), (layout,)
    return _pool(request, "pooling_max_backward", *layouts, index, real_type(dy, dx), dx.shape, dy.shape)


def average(request: Request) -> Iterable[Candidate]:
    x, y = spec(request.inputs[0]), spec(request.outputs[0])
    if not _is_served(request.attributes, x.shape, y.shape):
        return ()
    layout = by_channels(request, x)
    return _pool(
        request, "pooling_average", (layout,), (layout,), None, real_type(x, y), x.shape, y.shape
    )


def average_backward(request: Request) -> Iterable[Candidate]:
    dy, dx = spec(request.inputs[0]), spec(request.outputs[0])
    if not _is_served(request.attributes, dx.shape, dy.shape):
        return ()
    layout = by_channels(request, dy)
    kind = real_type(dy, dx)
    name = "pooling_average_backward"
    return _pool(request, name, (layout,), (layout,), None, kind, dx.shape, dy.shape)


def _pool(
    request: Request,
    name: str,
    inputs: Sequence[Layout],
    outputs: Sequence[Layout],
    index: Layout | None,
    real: str,
    x: Sequence[int],
    y: Sequence[int],
) -> Iterable[Candidate]:
    """Return the kernel of that name, whose arguments are the windows, then all arrays. x and y are the
    shapes of the larger and the smaller images."""
    if not real or max(prod(x), prod(y)) >= _MOST:
        return ()
    layout = inputs[0]
    types = (("PLACE", index.stored or "int32"),) if index else ()
    source = Source("pooling.cu", real, layout.stored, types)
    target = x if name.endswith("backward") else y

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        pairs = (request.attributes[key] for key in ("kernel", "stride", "pad"))
        numbers = (*x, *y[2:], *(int(number) for pair in pairs for number in pair))
        channels, device = x[1], device_of(inputs)
        together = source.pack if is_innermost(layout) and channels % source.pack == 0 else 1
        height, width = target[2:]
        if name == "pooling_max_backward":  # two by two points at a time
            height, width = -(-height // 2), -(-width // 2)
        order = (
            (channels // together, width, height) if is_innermost(layout) else (width, height, channels)
        )
        divisors = (divisor(int(by)) for by in (*order, *request.attributes["stride"]))
        fields = [
            *((field, "i4") for field in _FIELDS),
            *((field, list(DIVISOR)) for field in _DIVISORS),
        ]
        windows = structure(fields, *numbers, *divisors)
        grid = blocks(device, x[0] * channels * height * width // together)
        arrays = (*inputs, *outputs, *[None] * (name == "pooling_max" and len(outputs) == 1))

        def launched(*more: Any) -> Launch:
            given = windows, int(is_innermost(layout)), *arrays, *more
            return source.launch(device, name, grid, THREADS, *given)

        if name != "pooling_max_backward":
            return launched()
        launch, (dy, _), (dx,) = launched(None, source.number(0)), inputs, outputs
        rectified = made_rectified(dx, lambda of, slope: launched(of, source.number(slope)))
        of_dy, of_dx = (
            (prod(shape) // channels, channels, 1)
            if is_innermost(layout)
            else (shape[0], channels, prod(shape[2:]))
            for shape in (y, x)
        )
        summed = summed_before(launch, dy, dx, of_dy, of_dx)
        launch.with_next = lambda following: rectified(following) or summed(following)
        return launch

    return (Candidate(KERNEL, bind, tuple(inputs), tuple(outputs), in_place=False),)


def _index_layout(layout: Layout, x: Sequence[int]) -> Layout:
    """Return the layout of indices. In planes of at most 2**16 elements they are stored as uint16, in
    half the bytes."""
    if prod(x[2:]) > 2**16:
        return unconverted(layout)
    return Layout(f"{unconverted(layout).name} uint16", layout.order, stored="uint16")


def _is_served(attributes: Mapping[str, Any], x: Sequence[int], y: Sequence[int]) -> bool:
    """Return whether these are planes in which every window has an element. If the stride is larger than
    the kernel, the last window may have none."""
    if len(x) != 4:
        return False
    ends = zip(y[2:], attributes["stride"], attributes["pad"], x[2:], strict=True)
    return all((windows - 1) * stride - pad < extent for windows, stride, pad, extent in ends)


def across_channels(request: Request) -> Iterable[Candidate]:
    return _lrn(request, "across_channels", by_channels(request, spec(request.inputs[0])), within=False)


def across_channels_backward(request: Request) -> Iterable[Candidate]:
    layout = by_channels(request, spec(request.inputs[1]))
    return _lrn(request, "across_channels_backward", layout, within=False)


def within_channel(request: Request) -> Iterable[Candidate]:
    return _lrn(request, "within_channel", by_channels(request, spec(request.inputs[0])), within=True)


def within_channel_backward(request: Request) -> Iterable[Candidate]:
    layout = by_channels(request, spec(request.inputs[1]))
    return _lrn(request, "within_channel_backward", layout, within=True)


def _lrn(request: Request, name: str, layout: Layout, within: bool) -> Iterable[Candidate]:
    real, shape = real_type(*request.inputs, *request.outputs), spec(request.inputs[0]).shape
    backward = name.endswith("backward")
    if not real or (within and len(shape) != 4):
        return ()
    source = Source("normalization.cu", real, layout.stored)
    inner, channels = 1 if is_innermost(layout) else prod(shape[2:]), shape[1]
    given = request.attributes
    size = int(given["size"])
    share = float(given["alpha"]) / (size * size if within else size)
    numbers = [share, float(given["beta"]), *([] if backward else [float(given["k"])])]

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        arrays = [*inputs, *outputs]
        if not backward:
            arrays = [*inputs, *outputs, None][:3]
        extents: tuple[int, ...] = channels, inner
        if within:
            extents = *shape[2:], channels if is_innermost(layout) else 1
        values = (*extents, size // 2, *map(source.number, numbers))
        together = source.pack if not within and inner == 1 and channels % source.pack == 0 else 1
        return source.flat(device_of(inputs), name, prod(shape), *arrays, *values, pack=together)

    kept = unconverted(layout)  # the scale, by which the gradient is divided
    if backward:
        return (Candidate(KERNEL, bind, (layout, layout, layout, kept), (layout,), in_place=False),)
    outputs = (layout, kept)[: len(request.outputs)]
    return (Candidate(KERNEL, bind, (layout,), outputs, in_place=False),)


FACTORIES = {
    "pooling_max": maximum,
    "pooling_max_backward": maximum_backward,
    "pooling_average": average,
    "pooling_average_backward": average_backward,
    "lrn_across_channels": across_channels,
    "lrn_across_channels_backward": across_channels_backward,
    "lrn_within_channel": within_channel,
    "lrn_within_channel_backward": within_channel_backward,
}
