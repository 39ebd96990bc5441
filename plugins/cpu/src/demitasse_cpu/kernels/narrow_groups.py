"""Convolutions in groups of few channels, which oneDNN computes with products of small matrices; see
loops.narrow_groups. Xie et al. 2017, *Aggregated Residual Transformations for Deep Neural Networks*."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import inf, prod
from typing import TYPE_CHECKING, Any

from demitasse import PLAIN, Candidate, Request, TensorSpec, Work
from demitasse_cpu.kernels.layouts import NHWC, NHWC_BF16
from demitasse_cpu.kernels.requests import LINE, aligned, cut, flat, pair, parts_for, spec
from demitasse_cpu.kernels.work import ready
from demitasse_cpu.native import at_once, in_order
from demitasse_cpu.threads import divide

if TYPE_CHECKING:
    from demitasse_cpu.loops.narrow_groups import Groups

KERNEL = "numba loop over groups of channels"

_WIDTHS = (4, 8)
_FLOAT, _INDEX = 4, 8


def forward(request: Request, relu: bool = False) -> Iterable[Candidate]:
    """Return the kernel for y = w * x + b or, with ``relu``, for max(y, 0)."""
    x, w, y = (spec(each).shape for each in (*request.inputs[:2], request.outputs[0]))
    if not _serves(request, w, x, y):
        return ()
    window = tuple(tuple(request.attributes[name]) for name in ("stride", "pad", "dilation"))
    return (_correlating(request, x, w, y, window, floor=0.0 if relu else -inf),)


def backward_data(request: Request) -> Iterable[Candidate]:
    """Return the kernel for dx if windows have stride 1: a convolution of dy with the weights
    flipped."""
    dy, w = map(spec, request.inputs)
    dx, given = spec(request.outputs[0]), request.attributes
    if tuple(given["stride"]) != (1, 1):
        return ()
    reach = [d * (n - 1) for d, n in zip(given["dilation"], w.shape[2:], strict=False)]
    pad = tuple(r - p for r, p in zip(reach, given["pad"], strict=False))
    window = ((1, 1), pad, tuple(given["dilation"]))
    if not _serves(request, w.shape, dy.shape, dx.shape, window):
        return ()
    return (_correlating(request, dy.shape, w.shape, dx.shape, window, turned=True),)


def _correlating(
    request: Request,
    x: Sequence[int],
    w: Sequence[int],
    y: Sequence[int],
    window: tuple[Any, ...],
    floor: float = -inf,
    turned: bool = False,
) -> Candidate:
    layout = NHWC_BF16 if request.precision == "bf16" else NHWC
    channels, width, taps = w[0], w[1], prod(w[2:])
    lines = y[0] * y[2]
    parts = parts_for(request, lines, prod(y) * taps * width / 32)
    sizes = [_FLOAT * prod(w), _FLOAT * channels, *[2 * _INDEX * taps] * parts]

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import narrow_groups as loops

        geometry = _geometry(x, w, y, window)
        packed, none, *rooms = cut(workspace, "float32", *sizes)
        stages: list[Work] = [ready(loops.pack, flat(inputs[1]), packed, channels, width, taps, turned)]
        bias = none
        if not turned and len(inputs) > 2 and inputs[2] is not None:
            bias = flat(inputs[2])
        else:
            stages.append(ready(loops.clear, none))
        images, results = flat(inputs[0]), flat(outputs[0])
        buffers = geometry, images, packed, bias, floor, results
        shares = [
            ready(loops.correlate, *buffers, room.view("int64"), *part)
            for room, part in zip(rooms, divide(lines, parts), strict=True)
        ]
        return in_order([*stages, at_once(shares)])

    inward = (layout, *[PLAIN] * (len(request.inputs) - 1))
    return Candidate(KERNEL, bind, inward, (layout,), sum(map(aligned, sizes)), in_place=False)


def backward_weights(request: Request) -> Iterable[Candidate]:
    """Return the kernel for dw and, if requested, db."""
    dy, x = map(spec, request.inputs)
    dw, db = (*request.outputs, None)[:2]
    w = spec(dw).shape
    if not _serves(request, w, x.shape, dy.shape):
        return ()
    layout = NHWC_BF16 if request.precision == "bf16" else NHWC
    channels, width, taps = w[0], w[1], prod(w[2:])
    lines = dy.shape[0] * dy.shape[2]
    parts = parts_for(request, lines, prod(dy.shape) * taps * width / 32)
    size, of_bias = aligned(_FLOAT * prod(w)), aligned(_FLOAT * channels) if db is not None else 0
    sizes = [parts * size, parts * of_bias, *[4 * _INDEX * taps] * parts]
    window = tuple(tuple(request.attributes[name]) for name in ("stride", "pad", "dilation"))

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import narrow_groups as loops

        geometry = _geometry(x.shape, w, dy.shape, window)
        sums, biases, *rooms = cut(workspace, "float32", *sizes)
        each, each_bias = sums.reshape(parts, -1), biases.reshape(parts, -1)
        slopes, seen = map(flat, inputs)
        shares = [
            ready(
                *(loops.gradient, geometry, slopes, seen, each[i], each_bias[i]),
                *(rooms[i].view("int64"), *part),
            )
            for i, part in enumerate(divide(lines, parts))
        ]
        bias = biases[:0] if db is None else flat(outputs[1])
        total = ready(loops.add_up, each, each_bias, flat(outputs[0]), bias, channels, width, taps)
        return in_order([at_once(shares), total])

    outward = (PLAIN,) * len(request.outputs)
    return (
        Candidate(KERNEL, bind, (layout, layout), outward, sum(map(aligned, sizes)), in_place=False),
    )


FACTORIES: Mapping[str, Callable[[Request], Iterable[Candidate]]] = {
    "convolution": forward,
    "convolution_relu": partial(forward, relu=True),
    "convolution_backward_data": backward_data,
    "convolution_backward_weights": backward_weights,
}


def _serves(
    request: Request,
    w: Sequence[int],
    x: Sequence[int],
    y: Sequence[int],
    window: tuple[Any, ...] | None = None,
) -> bool:
    """Return whether these are float32 images convolved in groups of few channels, each with as many
    outputs as channels, such that whole vectors hold all channels and every result reads at least one
    pixel."""
    given = request.attributes
    operands: list[TensorSpec | None] = [*request.inputs, *request.outputs]
    if {operand.dtype for operand in operands if operand is not None} != {"float32"} or len(w) != 4:
        return False
    stride, pad, dilation = window or (given["stride"], given["pad"], given["dilation"])
    channels, width = w[0], w[1]
    return (
        width in _WIDTHS
        and channels == width * given["groups"]
        and channels % (LINE // _FLOAT) == 0
        and min(pad) >= 0
        and prod(x) > 0
        and all(
            _always_sees(*each) for each in zip(x[2:], y[2:], w[2:], stride, pad, dilation, strict=True)
        )
    )


def _always_sees(image: int, result: int, kernel: int, stride: int, pad: int, dilation: int) -> bool:
    """Return whether each result along an axis has at least one tap inside the image."""
    return all(
        any(0 <= at * stride - pad + tap * dilation < image for tap in range(kernel))
        for at in range(result)
    )


def _geometry(x: Sequence[int], w: Sequence[int], y: Sequence[int], window: tuple[Any, ...]) -> Groups:
    from demitasse_cpu.loops.narrow_groups import Groups

    stride, pad, dilation = map(pair, window)
    return Groups(
        form=(0,) * w[1],
        image=pair(x[2:]),
        result=pair(y[2:]),
        kernel=pair(w[2:]),
        stride=stride,
        pad=pad,
        dilation=dilation,
        channels=w[0],
    )
