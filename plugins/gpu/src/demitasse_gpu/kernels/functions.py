"""Functions of one element, learned slopes, and products and maxima of several tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import prod
from types import MappingProxyType
from typing import Any

from demitasse import PLAIN, Candidate, Request, Work
from demitasse_gpu.kernels.batch_normalization import Channels, channels_of
from demitasse_gpu.kernels.launches import Source, cut, device_of, real_type, room, spec
from demitasse_gpu.kernels.layouts import like, unconverted

KERNEL = "CUDA"

ATTRIBUTES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "absolute": (),
        "clip": ("least", "most"),
        "elu": ("alpha",),
        "error_function": (),
        "exponential": ("scale", "shift"),
        "floor": (),
        "gelu": (),
        "hard_sigmoid": ("scale", "shift"),
        "hard_swish": ("scale", "shift"),
        "leaky_relu": ("negative_slope",),
        "logarithm": ("factor", "scale", "shift"),
        "power": ("power", "scale", "shift"),
        "round": (),
        "sigmoid": (),
        "sine": ("scale", "shift"),
        "softplus": (),
        "swish": ("beta",),
        "tanh": (),
        "greater": ("threshold",),
    }
)
"""The numeric attributes of each function, in the order of its kernel's arguments."""

_NAMED = {name: f"{name}_of" for name in ("exponential", "floor", "logarithm", "round", "sine", "tanh")}
"""The kernels' names of functions whose own name C uses for something else."""

_ONLY_FORWARD = ("floor", "greater", "leaky_relu", "round")


def _function(name: str, backward: bool, request: Request) -> Iterable[Candidate]:
    """Return a candidate. All tensors have the layout of the last input, which in backward is the one
    that forward left."""
    if not (real := real_type(*request.inputs, *request.outputs)):
        return ()
    lead = spec(request.inputs[-1])
    layout = like(request, lead)
    source = Source("functions.cu", real, layout.stored)
    kernel = _NAMED.get(name, name) + ("_backward" if backward else "")

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        numbers = [float(request.attributes[each]) for each in ATTRIBUTES[name]]
        padded = [source.number(number) for number in (*numbers, 0.0, 0.0, 0.0)[:3]]
        arguments = (*inputs, *outputs, *padded)
        return source.flat(device_of(inputs), kernel, prod(lead.shape), *arguments)

    return (Candidate(KERNEL, bind, (layout,) * len(request.inputs), (layout,)),)


def product(request: Request) -> Iterable[Candidate]:
    if not (real := real_type(*request.inputs, *request.outputs)):
        return ()
    lead = spec(request.inputs[0])
    layout = like(request, lead)
    source, size = Source("functions.cu", real, layout.stored), prod(lead.shape)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        return _chain(source, size, [*inputs], outputs[0])

    layouts = (layout,) * len(request.inputs), (layout,)
    return (Candidate(KERNEL, bind, *layouts, in_place=len(request.inputs) == 2),)


def product_backward(request: Request) -> Iterable[Candidate]:
    if not (real := real_type(*request.inputs, *request.outputs)):
        return ()
    lead = spec(request.inputs[1])
    layout = like(request, lead)
    source, size = Source("functions.cu", real, layout.stored), prod(lead.shape)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_gpu.launch import in_order

        (dy, *xs), stages = inputs, list[Work]()
        for number, dx in enumerate(outputs):
            if dx is None:
                continue
            if request.attributes["by_division"]:
                stages.append(_chain(source, size, [*xs], dx))
                for name, other in (("over", xs[number]), ("times", dy)):
                    stages.append(source.flat(dy.device, name, size, dx, other, dx))
            else:
                others = [x for i, x in enumerate(xs) if i != number]
                stages.append(_chain(source, size, [dy, *others], dx))
        return in_order(stages)

    layouts = (layout,) * len(request.inputs), (layout,) * len(request.outputs)
    return (Candidate(KERNEL, bind, *layouts, in_place=False),)


def _chain(source: Source, size: int, xs: list[Any], y: Any) -> Work:
    """Return the work for y = the product of xs."""
    from demitasse_gpu.launch import in_order

    device = xs[0].device
    if len(xs) == 1:
        nothing = source.number(0)
        return source.flat(device, "leaky_relu", size, xs[0], y, source.number(1), nothing, nothing)
    stages: list[Work] = [source.flat(device, "times", size, xs[0], xs[1], y)]
    stages += [source.flat(device, "times", size, y, x, y) for x in xs[2:]]
    return in_order(stages)


def maximum(request: Request) -> Iterable[Candidate]:
    real = real_type(*request.inputs, request.outputs[0])
    if not real:
        return ()
    lead = spec(request.inputs[0])
    layout = like(request, lead)
    source, size = Source("functions.cu", real, layout.stored), prod(lead.shape)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_gpu.launch import in_order

        y, argmax = (*outputs, None)[:2]
        device, nothing = device_of(inputs), source.number(0)
        first = (inputs[0], y, source.number(1), nothing, nothing)
        stages: list[Work] = [source.flat(device, "leaky_relu", size, *first)]
        if len(inputs) == 1 and argmax is not None:
            stages.append(source.flat(device, "larger", size, inputs[0], y, argmax, 0, pack=1))
        for number, x in enumerate(inputs[1:], start=1):
            stages.append(source.flat(device, "larger", size, x, y, argmax, number, pack=1))
        return in_order(stages)

    layouts = (layout,) * len(request.inputs), (layout, unconverted(layout))[: len(request.outputs)]
    return (Candidate(KERNEL, bind, *layouts, in_place=False),)


def maximum_backward(request: Request) -> Iterable[Candidate]:
    dy, argmax = map(spec, request.inputs)
    if not (real := real_type(dy, *request.outputs)) or argmax.dtype != "int32":
        return ()
    layout = like(request, argmax, dy.dtype)
    source, size = Source("functions.cu", real, layout.stored), prod(dy.shape)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_gpu.launch import in_order

        device = device_of(inputs)
        return in_order(
            [
                source.flat(device, "where_largest", size, *inputs, dx, number, pack=1)
                for number, dx in enumerate(outputs)
                if dx is not None
            ]
        )

    layouts = (layout, unconverted(layout)), (layout,) * len(request.outputs)
    return (Candidate(KERNEL, bind, *layouts, in_place=False),)


def _slopes(request: Request, x: int, w: int, real: str) -> Channels:
    """Return how slopes per channel lie, or the one slope of all channels, which then count as one
    channel, line by line."""
    lead, rank = spec(request.inputs[x]), len(spec(request.inputs[w]).shape)
    if rank:
        return channels_of(request, lead, real, file="reduction.cu")
    layout = like(request, lead)
    return Channels(layout, prod(lead.shape), 1, 1, Source("reduction.cu", real, layout.stored))


def parametric_relu(request: Request) -> Iterable[Candidate]:
    if not (real := real_type(*request.inputs, *request.outputs)):
        return ()
    form = _slopes(request, 0, 1, real)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        (x, w), device = inputs, device_of(inputs)
        arguments = (form.extents, x, x, w, outputs[0])
        return form.source.launch(device, "sloped", form.everywhere(device), form.block, *arguments)

    return (Candidate(KERNEL, bind, (form.layout, PLAIN), (form.layout,)),)


def parametric_relu_backward(request: Request) -> Iterable[Candidate]:
    if not (real := real_type(*request.inputs, *request.outputs)):
        return ()
    form = _slopes(request, 1, 2, real)
    pieces = (form.partial,)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_gpu.launch import in_order

        (dy, x, w), (dx, dw) = inputs, (*outputs, None)[:2]
        device, launch, stages = device_of(inputs), form.source.launch, list[Work]()
        arguments = (form.extents, x, dy, w)
        if dw is not None:
            (partial_sums,) = cut(workspace, *pieces)
            grid, block = form.settled
            stages.append(launch(device, "sloped_sums", form.sums, form.block, *arguments, partial_sums))
            last = (form.extents, partial_sums, form.slabs, dw)
            stages.append(launch(device, "settle_slopes", grid, block, *last))
        if dx is not None:
            stages.append(launch(device, "sloped", form.everywhere(device), form.block, *arguments, dx))
        return in_order(stages)

    layouts = (form.layout, form.layout, PLAIN), (form.layout, PLAIN)[: len(request.outputs)]
    return (Candidate(KERNEL, bind, *layouts, workspace=room(*pieces)),)


FACTORIES: Mapping[str, Callable[[Request], Iterable[Candidate]]] = MappingProxyType(
    {
        **{name: partial(_function, name, False) for name in ATTRIBUTES},
        **{
            f"{name}_backward": partial(_function, name, True)
            for name in ATTRIBUTES
            if name not in _ONLY_FORWARD
        },
        "product": product,
        "product_backward": product_backward,
        "maximum": maximum,
        "maximum_backward": maximum_backward,
        "parametric_relu": parametric_relu,
        "parametric_relu_backward": parametric_relu_backward,
    }
)
