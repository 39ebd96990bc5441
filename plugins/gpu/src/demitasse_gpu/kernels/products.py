"""The plugin's own kernels for inner products and convolutions, for use without cuBLAS and cuDNN."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from demitasse import PLAIN, Candidate, Layout, Request, TensorSpec, Work
from demitasse_gpu.kernels.batch_normalization import Channels, channel_sums
from demitasse_gpu.kernels.launches import (
    Source,
    blocks,
    cut,
    device_of,
    real_type,
    room,
    spec,
    structure,
)
from demitasse_gpu.kernels.layouts import PLAIN_BF16, by_channels, is_innermost

KERNEL = "CUDA, tiles in shared memory"
_TILE = 64
_MOST_BLOCKS = 65535  # of a grid's second and third axis: 4,194,240 columns
_MOST = 2**31  # points and taps are counted in 32 bits
_MATRICES = (
    *("rows", "columns", "depth"),
    *("left_row", "left_step", "right_step", "right_column"),
)


def _tiles(rows: int, columns: int) -> tuple[int, int]:
    """Return the blocks along both sides. If there are more tiles of columns than blocks allowed, each
    block takes several."""
    return -(-rows // _TILE), min(-(-columns // _TILE), _MOST_BLOCKS)


def _flat_layout(request: Request, real: str) -> Layout:
    return PLAIN_BF16 if request.precision == "bf16" and real == "float32" else PLAIN


def inner_product(request: Request) -> Iterable[Candidate]:
    """Return candidates for ``inner_product`` and ``inner_product_relu``."""
    x, w = spec(request.inputs[0]), spec(request.inputs[1])
    if not (real := real_type(*request.inputs, *request.outputs)):
        return ()
    layout, transpose = _flat_layout(request, real), request.attributes["transpose"]
    rows = prod(x.shape[: request.attributes["axis"]])
    outputs, depth = reversed(w.shape) if transpose else w.shape
    source = Source("inner_product.cu", real, layout.stored)
    steps = (1, depth) if not transpose else (outputs, 1)
    numbers = (rows, outputs, depth, depth, 1, *steps)
    rectified = int(request.operation.name == "inner_product_relu")

    def bind(inputs: Sequence[Any], outputs_: Sequence[Any], workspace: Any) -> Work:
        matrices = structure([(name, "i8") for name in _MATRICES], *numbers)
        arguments = (matrices, *(*inputs, None)[:3], outputs_[0], rectified)
        return source.launch(device_of(inputs), "multiply", _tiles(rows, outputs), 256, *arguments)

    layouts = (layout, PLAIN, PLAIN)[: len(request.inputs)], (layout,)
    return (Candidate(KERNEL, bind, *layouts, in_place=False),)


def inner_product_backward_data(request: Request) -> Iterable[Candidate]:
    dy, w = map(spec, request.inputs)
    if not (real := real_type(*request.inputs, *request.outputs)):
        return ()
    layout, transpose = _flat_layout(request, real), request.attributes["transpose"]
    outputs, columns = reversed(w.shape) if transpose else w.shape
    rows = prod(dy.shape[:-1])
    source = Source("inner_product.cu", real, layout.stored)
    steps = (columns, 1) if not transpose else (1, outputs)
    numbers = (rows, columns, outputs, outputs, 1, *steps)

    def bind(inputs: Sequence[Any], made: Sequence[Any], workspace: Any) -> Work:
        matrices = structure([(name, "i8") for name in _MATRICES], *numbers)
        arguments = (matrices, *inputs, None, made[0], 0)
        return source.launch(device_of(inputs), "multiply", _tiles(rows, columns), 256, *arguments)

    return (Candidate(KERNEL, bind, (layout, PLAIN), (layout,), in_place=False),)


def inner_product_backward_weights(request: Request) -> Iterable[Candidate]:
    dy, x = map(spec, request.inputs)
    if not (real := real_type(*request.inputs, *request.outputs)):
        return ()
    layout = _flat_layout(request, real)
    rows = prod(x.shape[: request.attributes["axis"]])
    outputs, columns = dy.shape[-1], prod(x.shape[request.attributes["axis"] :])
    kind = layout.stored or real
    types = (("LEFT", kind), ("RIGHT", kind), ("RESULT", real))
    source = Source("inner_product.cu", real, layout.stored, types)
    if request.attributes["transpose"]:  # dw^T = x^T dy
        numbers, sides = (columns, outputs, rows, 1, columns, outputs, 1), (columns, outputs)
    else:
        numbers, sides = (outputs, columns, rows, 1, outputs, columns, 1), (outputs, columns)
    biased = len(request.outputs) > 1 and request.outputs[1] is not None
    normal = Source("batch_normalization.cu", real, layout.stored)
    form = Channels(layout, rows, outputs, 1, normal)
    pieces = (form.partial,) if biased else ()

    def bind(inputs: Sequence[Any], made: Sequence[Any], workspace: Any) -> Work:
        from demitasse_gpu.launch import in_order

        matrices = structure([(name, "i8") for name in _MATRICES], *numbers)
        pair = reversed(inputs) if request.attributes["transpose"] else inputs
        arguments = (matrices, *pair, None, made[0], 0)
        stages: list[Work] = [
            source.launch(device_of(inputs), "multiply", _tiles(*sides), 256, *arguments)
        ]
        if biased:
            stages += channel_sums(form, inputs[0], None, None, made[1], *cut(workspace, *pieces))
        return in_order(stages)

    layouts = (layout, layout), (PLAIN, PLAIN)[: len(request.outputs)]
    return (Candidate(KERNEL, bind, *layouts, workspace=room(*pieces), in_place=False),)


def _steps(layout: Layout, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the distances, in elements, between neighbours along each logical dimension."""
    order = layout.order or tuple(range(len(shape)))
    physical = layout.physical(shape)
    return tuple(prod(physical[order.index(d) + 1 :]) for d in range(len(shape)))


_GEOMETRY = (
    *("samples", "groups", "inputs", "outputs", "height", "width", "rows", "columns"),
    *("kernel_h", "kernel_w", "stride_h", "stride_w", "pad_h", "pad_w", "dilation_h", "dilation_w"),
)
_STEPS = tuple(f"{array}_{along}" for array in "xyw" for along in ("outer", "channel", "row", "column"))


class _Convolution:
    """One of the three passes of a convolution: shapes, layouts, and the structure that kernels take."""

    def __init__(self, request: Request, x: TensorSpec, y: TensorSpec, w: TensorSpec) -> None:
        self.real = real_type(*request.inputs, *request.outputs)
        self.served = bool(self.real) and len(x.shape) == 4 and max(prod(x.shape), prod(y.shape)) < _MOST
        if not self.served:
            return
        lead = spec(request.inputs[1] if "weights" in request.operation.name else request.inputs[0])
        self.layout = by_channels(request, lead)
        # Weights keep the layout that their first reader chose. If we are the first, it is that of the
        # activations.
        self.weights = replace(w.layout if w.layout.order else self.layout, stored="")
        if w.layout.blocks:
            self.weights = PLAIN
        self.source = Source("convolution.cu", self.real, self.layout.stored)
        self.groups = int(request.attributes["groups"])
        self.x, self.y, self.w = x.shape, y.shape, w.shape
        pairs = (request.attributes[name] for name in ("stride", "pad", "dilation"))
        self._numbers = [
            *(x.shape[0], self.groups, w.shape[1], w.shape[0] // self.groups),
            *(*x.shape[2:], *y.shape[2:], *w.shape[2:]),
            *(int(number) for pair in pairs for number in pair),
            *_steps(self.layout, x.shape),
            *_steps(self.layout, y.shape),
            *_steps(self.weights, w.shape),
        ]

    @property
    def geometry(self) -> Any:
        fields = [*((name, "i4") for name in _GEOMETRY), *((name, "i8") for name in _STEPS)]
        return structure(fields, *self._numbers)


def convolution(request: Request) -> Iterable[Candidate]:
    """Return candidates for ``convolution`` and ``convolution_relu``."""
    x, w, y = spec(request.inputs[0]), spec(request.inputs[1]), spec(request.outputs[0])
    about = _Convolution(request, x, y, w)
    if not about.served:
        return ()
    rectified = int(request.operation.name == "convolution_relu")
    grid = (*_tiles(y.shape[0] * prod(y.shape[2:]), w.shape[0] // about.groups), about.groups)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        arguments = (about.geometry, *(*inputs, None)[:3], outputs[0], rectified)
        return about.source.launch(device_of(inputs), "convolution", grid, 256, *arguments)

    layouts = (about.layout, about.weights, PLAIN)[: len(request.inputs)], (about.layout,)
    return (Candidate(KERNEL, bind, *layouts, in_place=False),)


def convolution_backward_data(request: Request) -> Iterable[Candidate]:
    dy, w = map(spec, request.inputs)
    dx = spec(request.outputs[0])
    about = _Convolution(request, dx, dy, w)
    if not about.served:
        return ()
    grid = (*_tiles(dx.shape[0] * prod(dx.shape[2:]), w.shape[1]), about.groups)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        arguments = (about.geometry, *inputs, *outputs)
        return about.source.launch(device_of(inputs), "convolution_backward_data", grid, 256, *arguments)

    layouts = (about.layout, about.weights), (about.layout,)
    return (Candidate(KERNEL, bind, *layouts, in_place=False),)


def convolution_backward_weights(request: Request) -> Iterable[Candidate]:
    dy, x = map(spec, request.inputs)
    dw = spec(request.outputs[0])
    about = _Convolution(request, x, dy, dw)
    if not about.served:
        return ()
    points, taps, outputs = (
        dy.shape[0] * prod(dy.shape[2:]),
        prod(dw.shape[1:]),
        dw.shape[0] // about.groups,
    )
    tiles = _tiles(outputs, taps)
    # Split the sum over points so that there are some hundred blocks, each with enough work.
    slabs = max(1, min(512 // (prod(tiles) * about.groups), points // 512, 64))
    biased = len(request.outputs) > 1 and request.outputs[1] is not None
    inner = 1 if is_innermost(about.layout) else prod(dy.shape[2:])
    normal = Source("batch_normalization.cu", about.real, about.layout.stored)
    form = Channels(about.layout, points // inner, dy.shape[1], inner, normal)
    pieces = [(about.real, slabs * prod(dw.shape)), *([form.partial] if biased else [])]

    def bind(inputs: Sequence[Any], made: Sequence[Any], workspace: Any) -> Work:
        from demitasse_gpu.launch import in_order

        device, (partial, *more) = device_of(inputs), cut(workspace, *pieces)
        grid, launch, geometry = (*tiles, about.groups * slabs), about.source.launch, about.geometry
        arguments = (geometry, *inputs, partial, slabs)
        stages: list[Work] = [
            launch(device, "convolution_backward_weights", grid, 256, *arguments),
            launch(
                device,
                "join_slabs",
                blocks(device, prod(dw.shape)),
                256,
                *(geometry, partial, made[0], slabs),
            ),
        ]
        if biased:
            stages += channel_sums(form, inputs[0], None, None, made[1], *more)
        return in_order(stages)

    layouts = (about.layout, about.layout), (about.weights, PLAIN)[: len(request.outputs)]
    return (Candidate(KERNEL, bind, *layouts, workspace=room(*pieces), in_place=False),)


FACTORIES = {
    "inner_product": inner_product,
    "inner_product_relu": inner_product,
    "inner_product_backward_data": inner_product_backward_data,
    "inner_product_backward_weights": inner_product_backward_weights,
    "convolution": convolution,
    "convolution_relu": convolution,
    "convolution_backward_data": convolution_backward_data,
    "convolution_backward_weights": convolution_backward_weights,
}
