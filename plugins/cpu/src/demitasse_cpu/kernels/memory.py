"""Constants, running totals, and images converted to blobs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf, prod
from typing import Any

from demitasse import PLAIN, Candidate, Request, Work
from demitasse_cpu.kernels.reorder import reorder
from demitasse_cpu.kernels.requests import REALS, flat, is_real, parts_for, philox_key, spec
from demitasse_cpu.kernels.work import spread


def fill(request: Request) -> Iterable[Candidate]:
    x = spec(request.inputs[0])
    if x.dtype == "uint16":  # which is what bfloat16 looks like
        return ()
    layout = PLAIN if x.layout.blocks else x.layout  # the padding of blocks stays 0
    size = prod(x.shape)
    parts = parts_for(request, size, size)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import elementwise as loops

        value = float(request.attributes["value"])
        return spread(loops.filled, (flat(inputs[0]), value), size, parts)

    return (Candidate("numba loop", bind, (layout,)),)


def accumulate(request: Request) -> Iterable[Candidate]:
    if not is_real(*request.inputs):
        return ()
    total = spec(request.inputs[0])
    layout, size = total.layout, prod(total.physical)  # sums keep their type
    parts = parts_for(request, size, size)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import elementwise as loops

        total, x = map(flat, inputs)
        return spread(loops.scaled_sum, (total, x, total, 1.0, 1.0, -inf), size, parts)

    return (Candidate("numba loop", bind, (layout, layout)),)


def image_transform(request: Request) -> Iterable[Candidate]:
    x, mean, iteration, sample = request.inputs
    y = spec(request.outputs[0])
    shape, kind = spec(x).shape, spec(x).dtype
    is_image = len(shape) == 4 and (kind in REALS or kind in ("uint8", "int8", "int32"))
    numbers = {spec(iteration).dtype, spec(sample).dtype}
    if not is_image or y.dtype not in REALS or numbers != {"uint64"}:
        return ()
    if mean is not None and mean.dtype not in REALS:
        return ()
    parts = parts_for(request, shape[0], prod(y.shape))

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        import numpy as np

        from demitasse_cpu.loops import random_numbers as loops

        given = request.attributes
        subtracted = np.zeros((1, 1, 1), y.dtype) if inputs[1] is None else inputs[1]
        arguments = (
            inputs[0],
            outputs[0],
            np.lib.stride_tricks.as_strided(
                subtracted,
                shape[1:],
                [0 if n == 1 else s for n, s in zip(subtracted.shape, subtracted.strides, strict=True)],
            ),
            *map(flat, inputs[2:]),
            philox_key(given),
            float(given["scale"]),
            bool(given["random"]),
            bool(given["mirror"]),
        )
        return spread(loops.image_transform, arguments, shape[0], parts)

    return (Candidate("numba loop, Philox", bind, in_place=False),)


FACTORIES = {
    "fill": fill,
    "accumulate": accumulate,
    "image_transform": image_transform,
    "reorder": reorder,
}
