"""Local response normalisation, across channels and within one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

from demitasse import Candidate, Layout, Request, Work
from demitasse_cpu.kernels.layouts import by_channels, is_by_channels
from demitasse_cpu.kernels.requests import aligned, flat, is_real, parts_for, spec
from demitasse_cpu.kernels.work import ready
from demitasse_cpu.native import at_once
from demitasse_cpu.threads import divide

KERNEL = "numba loop, a plane at a time"
_TOGETHER = 1024  # elements, four rows of which stay in a cache of 32 KB


def across_channels(request: Request) -> Iterable[Candidate]:
    if is_by_channels(layout := by_channels(request, spec(request.inputs[0]))):
        outputs = (layout,) * len(request.outputs)
        return _rows(request, "across_channels", (layout,), outputs)
    images, channels, *extents = spec(request.inputs[0]).shape
    plane = prod(extents)
    scratch = 0 if _keeps_scale(request) else plane
    return _lrn(request, "across_channels", images, (channels, plane), scratch)


def across_channels_backward(request: Request) -> Iterable[Candidate]:
    if is_by_channels(layout := by_channels(request, spec(request.inputs[1]))):
        # y and scale keep their layouts, because nobody reads them.
        inputs = (layout, layout, *(spec(given).layout for given in request.inputs[2:]))
        return _rows(request, "across_channels_backward", inputs, (layout,))
    images, channels, *extents = spec(request.inputs[0]).shape
    plane = prod(extents)
    return _lrn(request, "across_channels_backward", images, (channels, plane), channels * plane)


def within_channel(request: Request) -> Iterable[Candidate]:
    return _within(request, "within_channel", 2 if _keeps_scale(request) else 3)


def within_channel_backward(request: Request) -> Iterable[Candidate]:
    return _within(request, "within_channel_backward", 2)


FACTORIES = {
    "lrn_across_channels": across_channels,
    "lrn_across_channels_backward": across_channels_backward,
    "lrn_within_channel": within_channel,
    "lrn_within_channel_backward": within_channel_backward,
}


def _keeps_scale(request: Request) -> bool:
    return request.outputs[1:] != () and request.outputs[1] is not None


def _rows(
    request: Request, loop: str, inputs: Sequence[Layout], outputs: Sequence[Layout]
) -> Iterable[Candidate]:
    """Return the kernel for images whose channels are innermost, with a row of channels for each
    point."""
    if not is_real(*request.inputs, *request.outputs):
        return ()
    images, channels, *extents = spec(request.inputs[0]).shape
    points, given = images * prod(extents), request.attributes
    size, backward = int(given["size"]), loop.endswith("backward")
    parts = parts_for(request, points, points * channels * 4)
    some = max(1, _TOGETHER // channels)
    room = aligned((4 if backward else 2) * (some * channels + size) * 8)
    kept = _keeps_scale(request)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import normalization_by_channels as loops

        share, beta = float(given["alpha"]) / size, float(given["beta"])
        numbers = some, channels, size // 2, share, beta, float(given["k"])
        buffers = [flat(array) for array in (*inputs[:2], outputs[0])]
        if not backward:
            scale = flat(outputs[1]) if kept else buffers[1][:0]
            buffers += [scale, kept]
        shares = []
        for i, part in enumerate(divide(points, parts)):
            mine = workspace[i * room : (i + 1) * room].view(spec(request.inputs[0]).dtype)
            shares.append(ready(getattr(loops, loop), *buffers, mine, *numbers, *part))
        return at_once(shares)

    kernel = "numba loop over channels"
    return (Candidate(kernel, bind, tuple(inputs), tuple(outputs), parts * room, in_place=False),)


def _within(request: Request, loop: str, planes: int) -> Iterable[Candidate]:
    shape = spec(request.inputs[0]).shape
    if len(shape) != 4:
        return ()
    return _lrn(request, loop, shape[0] * shape[1], shape[2:], planes * prod(shape[2:]))


def _lrn(
    request: Request, loop: str, units: int, extents: Sequence[int], scratch: int
) -> Iterable[Candidate]:
    """Return the kernel for ``units`` images or planes. ``scratch`` is the number of elements of scratch
    memory that each part needs."""
    if not is_real(*request.inputs, *request.outputs):
        return ()
    given = request.attributes
    size, alpha, beta = int(given["size"]), float(given["alpha"]), float(given["beta"])
    within, backward = loop.startswith("within"), loop.endswith("backward")
    share = alpha / (size * size if within else size)
    parts = parts_for(request, units, prod(spec(request.inputs[0]).shape) * 4)
    room = aligned(scratch * 8)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import normalization as loops

        source = [flat(array) for array in inputs]
        target = [flat(array) for array in outputs if array is not None]
        nothing = source[0][:0]

        def arguments(mine: Any) -> list[Any]:
            if backward:
                return [*source, *target, mine]
            plane = prod(extents)
            kept = len(target) > 1
            scale = target[1] if kept else mine[:plane] if not within else mine[2 * plane :]
            return [*source, target[0], scale, kept, *([mine] if within else [])]

        numbers = [*extents, size // 2, 2 * alpha * beta * share / alpha if alpha else 0.0, beta]
        if not backward:
            numbers[-2:] = [share, beta, float(given["k"])]
        shares = []
        for i, part in enumerate(divide(units, parts)):
            mine = nothing
            if room:
                mine = workspace[i * room : (i + 1) * room].view(source[0].dtype)
            shares.append(ready(getattr(loops, loop), *arguments(mine), *numbers, *part))
        return at_once(shares)

    return (Candidate(KERNEL, bind, workspace=parts * room, in_place=False),)
