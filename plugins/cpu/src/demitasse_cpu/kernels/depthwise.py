"""Gradients of depthwise convolutions (one group per channel) that oneDNN computes as if channels were
connected: strided ones in bfloat16, dilated ones, and the weights of windows larger than 3 x 3."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from demitasse import PLAIN, Candidate, Request, Work
from demitasse_cpu.kernels.layouts import NHWC, NHWC_BF16
from demitasse_cpu.kernels.requests import aligned, cut, flat, pair, parts_for, spec
from demitasse_cpu.kernels.work import ready
from demitasse_cpu.native import at_once, in_order
from demitasse_cpu.threads import divide

if TYPE_CHECKING:
    from demitasse_cpu.loops.depthwise import Depthwise

KERNEL = "numba loop over channels, depthwise"


def serves(request: Request, w: Sequence[int]) -> bool:
    """Return whether this is a convolution of float32 images with as many groups as there are channels,
    each with one output."""
    operands = (*request.inputs, *request.outputs)
    kinds = {operand.dtype for operand in operands if operand is not None}
    return (
        kinds == {"float32"} and len(w) == 4 and w[1] == 1 and w[0] == request.attributes["groups"] > 1
    )


def backward_data(request: Request) -> Iterable[Candidate]:
    dy, w = map(spec, request.inputs)
    dx = spec(request.outputs[0])
    layout = NHWC_BF16 if request.precision == "bf16" else NHWC
    channels, taps = w.shape[0], prod(w.shape[2:])
    lines, line = dx.shape[0] * dx.shape[2], 4 * dx.shape[3] * channels
    parts = parts_for(request, lines, prod(dy.shape) * taps / 4)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import depthwise as loops

        geometry = _geometry(request, dx.shape, w.shape, dy.shape)
        sizes = [4 * taps * channels, *[line] * parts]
        packed, *scratch = cut(workspace, "float32", *sizes)
        pack = ready(loops.by_taps, flat(inputs[1]), packed, channels, taps)
        buffers = (geometry, flat(inputs[0]), packed, flat(outputs[0]))
        shares = [
            ready(loops.to_data, *buffers, mine, *part)
            for mine, part in zip(scratch, divide(lines, parts), strict=True)
        ]
        return in_order([pack, at_once(shares)])

    room = aligned(4 * taps * channels) + parts * aligned(line)
    return (Candidate(KERNEL, bind, (layout, PLAIN), (layout,), room, in_place=False),)


def backward_weights(request: Request) -> Iterable[Candidate]:
    dy, x = map(spec, request.inputs)
    dw, db = (*request.outputs, None)[:2]
    w = spec(dw).shape
    layout = NHWC_BF16 if request.precision == "bf16" else NHWC
    channels, taps = w[0], prod(w[2:])
    lines = dy.shape[0] * dy.shape[2]
    parts = parts_for(request, lines, prod(dy.shape) * taps / 4)
    size = 4 * (taps + 1) * channels

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import depthwise as loops

        geometry = _geometry(request, x.shape, w, dy.shape)
        whole, *lines_of = cut(workspace, "float32", parts * size, *[size] * parts)
        sums = whole.reshape(parts, -1)
        slopes, seen = map(flat, inputs)
        shares = [
            ready(loops.to_weights, geometry, slopes, seen, sums[i], lines_of[i], *part)
            for i, part in enumerate(divide(lines, parts))
        ]
        bias = sums[0, :0] if db is None else flat(outputs[1])
        total = ready(loops.add_up, sums, flat(outputs[0]), bias, channels, taps)
        return in_order([at_once(shares), total])

    room = aligned(parts * size) + parts * aligned(size)
    outward = (PLAIN,) * len(request.outputs)
    return (Candidate(KERNEL, bind, (layout, layout), outward, room, in_place=False),)


def _geometry(request: Request, x: Sequence[int], w: Sequence[int], y: Sequence[int]) -> Depthwise:
    from demitasse_cpu.loops.depthwise import Depthwise

    given = request.attributes
    return Depthwise(
        image=pair(x[2:]),
        result=pair(y[2:]),
        kernel=pair(w[2:]),
        stride=pair(given["stride"]),
        pad=pair(given["pad"]),
        dilation=pair(given["dilation"]),
        channels=w[0],
    )
