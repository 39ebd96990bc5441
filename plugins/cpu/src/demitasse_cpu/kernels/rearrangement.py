"""Axes in another order, and weighted sums along an axis."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

from demitasse import Candidate, Request, TensorSpec, Work
from demitasse_cpu.kernels.requests import flat, is_real, parts_for, spec
from demitasse_cpu.kernels.work import spread

KERNEL = "numba copy of rows"


def permute(request: Request) -> Iterable[Candidate]:
    return _moved(request, tuple(request.attributes["order"]))


def permute_backward(request: Request) -> Iterable[Candidate]:
    order = tuple(request.attributes["order"])
    return _moved(request, tuple(order.index(axis) for axis in range(len(order))))


def _moved(request: Request, order: Sequence[int]) -> Iterable[Candidate]:
    x, y = spec(request.inputs[0]), spec(request.outputs[0])
    if not is_real(x, y):
        return ()
    extents, steps = _merged(x.shape, order)
    rows, width = prod(extents[:-1]), extents[-1]
    parts = parts_for(request, rows, 2 * rows * width)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import rearrangement as loops

        arguments = (flat(inputs[0]), flat(outputs[0]), _starts(extents, steps), steps[-1], width)
        return spread(loops.gathered_rows, arguments, rows, parts)

    return (Candidate(KERNEL, bind, in_place=False),)


def _merged(shape: Sequence[int], order: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the extents of the result and the distances between its numbers in x. Axes that stay
    together are merged."""
    extents, steps = [1], [1]
    for axis in order:
        extent, step = shape[axis], prod(shape[axis + 1 :])
        if extent == 1:
            continue
        if steps[-1] == extent * step or extents == [1]:
            extents[-1], steps[-1] = extents[-1] * extent, step
        else:
            extents.append(extent)
            steps.append(step)
    return extents, steps


def _starts(extents: Sequence[int], steps: Sequence[int]) -> Any:
    """Return where in x each row of the result starts."""
    import numpy as np

    starts = np.zeros(1, np.int64)
    for extent, step in zip(extents[:-1], steps[:-1], strict=True):
        starts = (starts[:, None] + step * np.arange(extent)).reshape(-1)
    return starts


def resample(request: Request) -> Iterable[Candidate]:
    x, places, y = spec(request.inputs[0]), spec(request.inputs[1]), spec(request.outputs[0])
    inner, outer = _sides(request, x)
    lines = outer if inner == 1 else outer * places.shape[0]
    loop = "resampled_last" if inner == 1 else "resampled"
    return _sums(request, x, y, loop, lines)


def resample_backward(request: Request) -> Iterable[Candidate]:
    dy, dx = spec(request.inputs[0]), spec(request.outputs[0])
    return _sums(request, dx, dy, "resampled_backward", _sides(request, dx)[1])


def _sums(
    request: Request, narrow: TensorSpec, wide: TensorSpec, loop: str, lines: int
) -> Iterable[Candidate]:
    """Return the kernel by a loop over ``lines``. ``narrow`` is the tensor to which the places refer,
    ``wide`` the other one."""
    if not is_real(*request.inputs, *request.outputs):
        return ()
    inner, _ = _sides(request, narrow)
    extent, taps = narrow.shape[request.attributes["axis"]], spec(request.inputs[1]).shape[1]
    parts = parts_for(request, lines, prod(wide.shape) * taps)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import rearrangement as loops

        arguments = (flat(inputs[0]), *inputs[1:], flat(outputs[0]), extent, inner)
        return spread(getattr(loops, loop), arguments, lines, parts)

    return (Candidate(KERNEL, bind, in_place=False),)


def _sides(request: Request, of: TensorSpec) -> tuple[int, int]:
    """Return how many numbers an element of the axis contains, and how often the axis occurs."""
    axis = request.attributes["axis"]
    return prod(of.shape[axis + 1 :]), prod(of.shape[:axis])


FACTORIES = {
    "permute": permute,
    "permute_backward": permute_backward,
    "resample": resample,
    "resample_backward": resample_backward,
}
