"""Images sampled at the places that an affine transformation gives, and the gradients. These are
operations of the caffe plugin."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

from demitasse import PLAIN, Candidate, Request, Work
from demitasse_cpu.kernels.requests import flat, is_real, parts_for, spec
from demitasse_cpu.kernels.work import spread
from demitasse_cpu.native import in_order

_MOVES = 12  # work for each pixel, in numbers moved


def affine_sampling(request: Request) -> Iterable[Candidate]:
    y = spec(request.outputs[0])
    if not _is_plain(request):
        return ()
    lines = y.shape[0] * y.shape[2]
    parts = parts_for(request, lines, _MOVES * prod(y.shape))

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import affine as loops

        arguments = (*_geometry(request, spec(request.inputs[0])), *map(flat, inputs), flat(outputs[0]))
        return spread(loops.sampled, arguments, lines, parts)

    return (Candidate("numba loop over rows", bind, (PLAIN, PLAIN), (PLAIN,), in_place=False),)


def affine_sampling_backward(request: Request) -> Iterable[Candidate]:
    dy = spec(request.inputs[0])
    if not _is_plain(request):
        return ()
    samples = dy.shape[0]
    parts = parts_for(request, samples, 2 * _MOVES * prod(dy.shape))

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        import numpy as np

        from demitasse_cpu.loops import affine as loops

        given, x, theta = map(flat, inputs)
        dx, dtheta = (*outputs, None)[:2]
        about = _geometry(request, spec(request.inputs[1]))
        stages = []
        if dx is not None:
            stages.append(spread(loops.to_images, (*about, given, theta, flat(dx)), samples, parts))
        if dtheta is not None:
            sums = np.empty(6 * samples)
            arguments = (*about, given, x, theta, flat(dtheta), sums)
            stages.append(spread(loops.to_numbers, arguments, samples, parts))
        return in_order(stages)

    layouts = (PLAIN,) * 3, (PLAIN,) * len(request.outputs)
    return (Candidate("numba loop over samples", bind, *layouts, in_place=False),)


FACTORIES = {
    "affine_sampling": affine_sampling,
    "affine_sampling_backward": affine_sampling_backward,
}


def _is_plain(request: Request) -> bool:
    """Return whether no operand is bfloat16. The sums of dx are taken in its own type, and bfloat16
    would be too short for them."""
    tensors = [spec(each) for each in (*request.inputs, *request.outputs) if each is not None]
    return is_real(*tensors) and {tensor.dtype for tensor in tensors} <= {"float32", "float64"}


def _geometry(request: Request, x: Any) -> tuple[Any, Any, Any]:
    """Return the extents; the place of each of the transformation's six numbers among a sample's own, or
    -1; and the fixed numbers."""
    import numpy as np

    from demitasse_cpu.loops.affine import Sampled

    fixed = request.attributes["fixed"]
    learned = [number for number, value in enumerate(fixed) if value is None]
    slots = np.full(6, -1, np.int64)
    slots[learned] = np.arange(len(learned))
    numbers = np.array([0.0 if value is None else value for value in fixed])
    (_, channels, height, width), (rows, columns) = x.shape, request.attributes["size"]
    return Sampled(channels, height, width, rows, columns, len(learned)), slots, numbers
