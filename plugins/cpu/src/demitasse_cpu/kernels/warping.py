"""Images warped by a flow, and the gradients. These are operations of the optical_flow plugin."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from demitasse import PLAIN, Candidate, Request, TensorSpec, Work
from demitasse_cpu.kernels.requests import flat, is_real, parts_for, spec
from demitasse_cpu.kernels.work import spread
from demitasse_cpu.native import in_order

if TYPE_CHECKING:
    from demitasse_cpu.loops.warping import Warped

_MOVES = 8  # work for each pixel, in numbers moved


def warp(request: Request) -> Iterable[Candidate]:
    x, y = spec(request.inputs[0]), spec(request.outputs[0])
    if not is_real(*request.inputs, y):
        return ()
    rows, fill = prod(x.shape[:3]), float(request.attributes["fill"])
    parts = parts_for(request, rows, _MOVES * prod(x.shape))

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import warping as loops

        arguments = (_geometry(request, x), *map(flat, inputs), flat(outputs[0]), fill)
        return spread(loops.warped, arguments, rows, parts)

    return (Candidate("numba loop over rows", bind, (PLAIN, PLAIN), (PLAIN,), in_place=False),)


def warp_backward(request: Request) -> Iterable[Candidate]:
    x = spec(request.inputs[1])
    if not is_real(*request.inputs, *request.outputs):
        return ()
    planes, rows = prod(x.shape[:2]), x.shape[0] * x.shape[2]
    work = 2 * _MOVES * prod(x.shape)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import warping as loops

        dy, image, flow = map(flat, inputs)
        dx, dflow = (*outputs, None)[:2]
        g = _geometry(request, x)
        stages = []
        if dx is not None:
            arguments = (g, dy, flow, flat(dx))
            stages.append(spread(loops.to_image, arguments, planes, parts_for(request, planes, work)))
        if dflow is not None:
            to_flow = (g, dy, image, flow, flat(dflow))
            stages.append(spread(loops.to_flow, to_flow, rows, parts_for(request, rows, work)))
        return in_order(stages)

    layouts = (PLAIN,) * 3, (PLAIN,) * len(request.outputs)
    return (Candidate("numba loop over pixels", bind, *layouts, in_place=False),)


FACTORIES = {"warp": warp, "warp_backward": warp_backward}


def _geometry(request: Request, x: TensorSpec) -> Warped:
    from demitasse_cpu.loops.warping import Warped

    _, channels, height, width = x.shape
    return Warped(channels, height, width, bool(request.attributes["to_corners"]))
