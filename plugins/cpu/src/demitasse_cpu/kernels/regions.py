"""Maxima over the cells of regions of images."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

from demitasse import PLAIN, Candidate, DataError, Request, Work
from demitasse_cpu.kernels.requests import flat, is_real, parts_for, spec
from demitasse_cpu.kernels.work import ready, spread
from demitasse_cpu.native import in_order

KERNEL = "numba loop over cells"
_CELL = 64  # bytes of a cache line, so that each number has its own


def pooling_regions(request: Request) -> Iterable[Candidate]:
    x, regions = map(spec, request.inputs)
    y = spec(request.outputs[0])
    if not is_real(x, y, regions):
        return ()
    samples, channels, height, width = x.shape
    rows, columns = request.attributes["size"]
    scale, source = float(request.attributes["scale"]), str(request.attributes["source"])
    units = regions.shape[0] * channels
    parts = parts_for(request, units, prod(y.shape) + prod(x.shape))

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        import numpy as np

        from demitasse_cpu.loops import regions as loops

        given = flat(inputs[1])
        wrong = workspace.view("int64")[:1]
        y, place = (*outputs, None)[:2]
        kept = np.empty(0, np.int32) if place is None else flat(place)

        def failed() -> DataError:
            r = int(wrong[0])
            told = " ".join(f"{number:g}" for number in given[5 * r : 5 * r + 5])
            return DataError(
                f"{source}: region {r} is {told} (valid: a sample from 0 to {samples - 1}, and corners "
                f"below 2^24)"
            )

        check = ready(loops.first_wrong, given, samples, wrong, failed=failed)
        sizes = (channels, height, width, rows, columns, scale)
        arguments = (flat(inputs[0]), given, flat(y), kept, *sizes)
        return in_order([check, spread(loops.pooled, arguments, units, parts)])

    outward = (PLAIN, PLAIN)[: len(request.outputs)]
    return (Candidate(KERNEL, bind, (PLAIN, PLAIN), outward, _CELL, in_place=False),)


def pooling_regions_backward(request: Request) -> Iterable[Candidate]:
    dy, regions, _ = map(spec, request.inputs)
    dx = spec(request.outputs[0])
    if not is_real(dy, dx, regions):
        return ()
    samples, channels, height, width = dx.shape
    planes, plane = samples * channels, height * width
    parts = parts_for(request, planes, prod(dy.shape) + prod(dx.shape))

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import regions as loops

        arguments = (*map(flat, inputs), flat(outputs[0]), channels, plane, prod(dy.shape[2:]))
        return spread(loops.spread_back, arguments, planes, parts)

    return (Candidate(KERNEL, bind, (PLAIN,) * 3, (PLAIN,), in_place=False),)


FACTORIES = {
    "pooling_regions": pooling_regions,
    "pooling_regions_backward": pooling_regions_backward,
}
