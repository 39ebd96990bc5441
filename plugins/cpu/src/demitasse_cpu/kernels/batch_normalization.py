"""Batch normalisation by a batch's statistics or by kept ones, and scales along an axis.

Each has two kernels: one for channels that are innermost (images in NHWC, vectors), which works on lines
of pixels, and one for channels in planes. The loops explain how they work. Both read what they normalise
twice and write it once, already scaled and rectified if that is requested.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import gcd, inf, prod
from typing import Any, NamedTuple

from demitasse import PLAIN, Candidate, Layout, Request, TensorSpec, Work
from demitasse_cpu.kernels.layouts import by_channels, is_by_channels
from demitasse_cpu.kernels.requests import aligned, cut, flat, is_real, parts_for, spec
from demitasse_cpu.kernels.work import ready, spread
from demitasse_cpu.native import at_once, in_order
from demitasse_cpu.threads import divide

_ADDED = 6  # the index of the input that is added, if there is one
_LINE = 512  # elements; in a line of this length, the overhead at the ends of a loop is small
_TOGETHER = 4  # lines the loops in vectors take at a time; parts start at multiples, for equal results
_STEP = 64  # the loops that are written in vectors need lines whose length is a multiple of this
_CACHE_LINE = 64
_LONGEST = 2048  # elements to which a line may be lengthened for those loops; its data stays near

_LOST = 48 << 20, 24 << 20
"""Bytes of a result, in total and per thread, from which on the caches have lost it by the time it is
read. Lower limits do not pay: two threads of a Zen 4 with 32 MiB write 13 MB past the caches in two
thirds of the time, but whoever reads them then loses more than that (ResNet-50 in bf16)."""


class _Channels(NamedTuple):
    """``outer`` x ``channels`` x ``plane`` elements in memory, in ``layout``. If ``plane`` is 1, they
    form ``lines`` of ``width`` elements, of which the last may be shorter."""

    layout: Layout
    outer: int
    channels: int
    plane: int
    width: int
    lines: int
    parts: int

    dtype: str

    @property
    def in_lines(self) -> bool:
        return self.plane == 1

    @property
    def in_vectors(self) -> bool:
        """Whether the loops that are written in vectors serve."""
        return self.in_lines and self.dtype == "float32" and self.width % _STEP == 0


def _channels(
    request: Request, leader: TensorSpec, axis: int = 1, extents: int = 1, apart: bool = False
) -> _Channels:
    """Return how the tensors of a request are laid out, with the ``extents`` axes from ``axis`` on as
    the channels. If nothing is summed (``apart``), the work is divided into planes, otherwise into
    channels."""
    shape, layout = leader.shape, by_channels(request, leader)
    if is_by_channels(layout) and (axis, extents) != (1, 1):
        layout = PLAIN
    outer, channels = prod(shape[:axis]), prod(shape[axis : axis + extents])
    plane = prod(shape[axis + extents :])
    if is_by_channels(layout):
        outer, plane = outer * plane, 1
    width = channels * max(1, min(outer, _pixels(channels)))
    lines = -(-outer * channels // width)
    units = lines if plane == 1 else outer * channels if apart else channels
    parts = parts_for(request, units, prod(shape))
    return _Channels(layout, outer, channels, plane, width, lines, parts, leader.dtype)


def _pixels(channels: int) -> int:
    """Return the number of pixels in a line: enough to make it long and, unless that makes it too long,
    a whole number of vectors."""
    enough, whole = -(-_LINE // channels), _STEP // gcd(channels, _STEP)
    more = -(-enough // whole) * whole
    return more if more * channels <= _LONGEST else enough


def _over_lines(form: _Channels) -> Any:
    """Return the module of the fastest loops over these lines."""
    from demitasse_cpu.loops import batch_normalization, line_vectors

    return line_vectors if form.in_vectors else batch_normalization


def _line_arrays(workspace: Any, dtype: str, form: _Channels, count: int) -> list[Any]:
    """Return ``count`` lines of real numbers at the start of the workspace."""
    return cut(workspace, dtype, *[form.width * _size(dtype)] * count)


def _room(form: _Channels, dtype: str, count: int, sums: bool) -> int:
    """Return the bytes for ``count`` lines and, with ``sums``, for the sums of each part."""
    line = aligned(form.width * _size(dtype))
    return count * line + sums * (2 * form.parts * line + 2 * aligned(form.parts * form.width * 8))


def _sums(workspace: Any, dtype: str, form: _Channels, count: int) -> tuple[list[Any], Any, Any]:
    """Return the sums in the workspace after ``count`` lines: two lines for each part, and two float64
    arrays, each with a line for every part, one after the other."""
    room = workspace[count * aligned(form.width * _size(dtype)) :]
    near = cut(room, dtype, *[form.width * _size(dtype)] * 2 * form.parts)
    far = room[2 * form.parts * aligned(form.width * _size(dtype)) :]
    first, second = cut(far, "float64", *[form.parts * form.width * 8] * 2)
    return near, first, second


def _in_parts(
    loop: Any, arguments: Sequence[Any], form: _Channels, near: Any, first: Any, second: Any
) -> Work:
    """Return work that takes two sums over lines, each part in lines of its own."""
    shares = []
    for i, part in enumerate(divide(form.lines, form.parts)):
        mine = slice(i * form.width, (i + 1) * form.width)
        room = (*near[2 * i : 2 * i + 2], first[mine], second[mine])
        shares.append(ready(loop, *arguments, *room, form.width, *part))
    return at_once(shares)


def _everywhere(
    form: _Channels, what: str, sources: Sequence[Any], target: Any, numbers: Sequence[Any]
) -> Work:
    """Return work that applies the loop ``what`` to each line, or to each plane."""
    from demitasse_cpu.loops import plane_normalization as planes

    arguments = (*sources, target, *numbers)
    if form.in_lines:
        loop = getattr(_over_lines(form), f"line_{what}")
        how = (_is_lost(target, sources, form.parts),) if form.in_vectors else ()
        return spread(loop, (*arguments, *how, form.width), form.lines, form.parts, _TOGETHER)
    planar, units = (form.channels, form.plane), form.outer * form.channels
    return spread(getattr(planes, f"plane_{what}"), (*arguments, *planar), units, form.parts)


def _is_lost(target: Any, sources: Sequence[Any], threads: int) -> bool:
    """Return whether a result is larger than what the caches keep, and may be written past them. It may
    not if its memory was read just before, or does not start at a cache line."""
    at = target.ctypes.data
    own = all(source.ctypes.data != at for source in sources)
    return bool(target.nbytes >= max(_LOST[0], threads * _LOST[1]) and own and at % _CACHE_LINE == 0)


def _size(dtype: str) -> int:
    return 4 if dtype == "float32" else 8


def _learned(instead: Any, w: Any, b: Any) -> tuple[Any, Any, bool, bool]:
    """Return w and b, with ``instead`` in place of an absent one, and whether each is present."""
    given = [instead if each is None else flat(each) for each in (w, b)]
    return given[0], given[1], w is not None, b is not None


def _limits(request: Request) -> tuple[float, float]:
    """Return the smallest and the largest possible result."""
    given = request.attributes
    least, most = float(given.get("least", -inf)), float(given.get("most", inf))
    return (min(max(least, 0.0), most), most) if given["relu"] else (least, most)


def _passing(request: Request, dtype: str) -> tuple[float, float]:
    """Return the two results, both excluded, between which a gradient passes: above 0 for a ReLU and,
    for a clip, from its lower to its upper limit, that is, between the numbers next to these on the
    outside."""
    import numpy as np

    real = np.dtype(dtype).type
    least, most = (real(limit) for limit in _limits(request))
    low, high = float(np.nextafter(least, real(-inf))), float(np.nextafter(most, real(inf)))
    return (max(low, 0.0) if request.attributes["relu"] else low), high


def _least_sum(request: Request) -> float:
    return 0.0 if request.operation.name.endswith("_sum_relu") else -inf


def _written(request: Request, form: _Channels, arrays: Sequence[Any], line: Sequence[Any]) -> Work:
    """Return work that writes the result; ``arrays`` are y, x and, optionally, what to add."""
    (y, x, *others), (least, most) = arrays, _limits(request)
    if others and form.in_lines:
        return _everywhere(form, "normalised_sum", (x, *others), y, (*line, least, _least_sum(request)))
    written = _everywhere(form, "normalised", (x,), y, (*line, least, most))
    return in_order([written, *_added(request, form, y, others)])


def _added(request: Request, form: _Channels, y: Any, others: Sequence[Any]) -> list[Work]:
    """Return work that adds ``others`` to planes of results; there may be none."""
    from demitasse_cpu.loops import elementwise as loops

    arguments = (1.0, 1.0, _least_sum(request))
    return [spread(loops.scaled_sum, (y, z, y, *arguments), y.size, form.parts) for z in others]


def _epsilon(request: Request) -> float:
    return float(request.attributes["epsilon"])


def _kept_shares(attributes: Mapping[str, Any], n: int) -> tuple[float, float, float]:
    """Return the weights of the previous kept statistics, of the batch's mean and of its variance in the
    new kept statistics."""
    keep = float(attributes["keep"])
    if attributes["averaged"]:
        return keep, 1.0 - keep, 1.0 - keep
    return keep, 1.0, n / (n - 1.0) if n > 1 else 1.0


def batch_norm(request: Request) -> Iterable[Candidate]:
    """Return the kernel of ``batch_norm``, ``batch_norm_clip``, ``batch_norm_sum`` and
    ``batch_norm_sum_relu``. The last two add the input that follows w and b."""
    if not is_real(*request.inputs, *request.outputs) or len(request.inputs) > _ADDED + 1:
        return ()
    x = spec(request.inputs[0])
    form, limits = _channels(request, x), _limits(request)
    keeping = *_kept_shares(request.attributes, form.outer * form.plane), _epsilon(request)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import batch_normalization as lines
        from demitasse_cpu.loops import plane_normalization as planes

        (given, mean, variance, factor), added = map(flat, inputs[:4]), list(map(flat, inputs[_ADDED:]))
        y, room = flat(outputs[0]), _line_arrays(workspace, x.dtype, form, 5)
        average, inverse = (
            line[: form.channels] if each is None else flat(each)
            for line, each in zip(room, outputs[1:], strict=False)
        )
        learned, (centre, slope, level) = _learned(inverse, *inputs[4:_ADDED]), room[2:]
        averaged = request.attributes["averaged"]
        counted = [] if averaged else [ready(lines.counted, factor, keeping[0])]
        if not form.in_lines:
            kept = (mean, variance, average, inverse, *learned)
            arguments = (given, *kept, y, *limits, form.plane, form.outer, *keeping)
            work = spread(planes.plane_batch_norm, arguments, form.channels, form.parts)
            return in_order([work, *counted, *_added(request, form, y, added)])
        near, first, second = _sums(workspace, x.dtype, form, 5)
        sums = (centre, first, second, mean, variance, average, inverse)
        numbers = (form.width, len(divide(form.lines, form.parts)), form.outer, *keeping)
        return in_order(
            [
                ready(lines.line_shift, given, centre, form.channels, form.width),
                _in_parts(_over_lines(form).line_moments, (given, centre), form, near, first, second),
                ready(lines.settled, *sums, *numbers),
                *counted,
                ready(lines.along, average, inverse, *learned, centre, slope, level),
                _written(request, form, (y, given, *added), (centre, slope, level)),
            ]
        )

    layouts = _with_sum(request, form), (form.layout, PLAIN, PLAIN)
    room = _room(form, x.dtype, 5, sums=form.in_lines)
    return (Candidate(_name(form), bind, *layouts, workspace=room),)


def batch_norm_backward(request: Request) -> Iterable[Candidate]:
    return _backward(request, learned=2)


def batch_norm_inference_backward(request: Request) -> Iterable[Candidate]:
    return _backward(request, learned=5)


def _backward(request: Request, learned: int) -> Iterable[Candidate]:
    """Return the kernel of a gradient by the batch's statistics, which follow w and b among the inputs,
    or by the kept ones, which precede them. ``learned`` is the index of w."""
    if not is_real(*request.inputs, *request.outputs):
        return ()
    x = spec(request.inputs[1])  # in the layout of the forward pass
    form, passing, of_batch = _channels(request, x), _passing(request, x.dtype), learned == 2
    wanted = [each is not None for each in request.outputs]
    summed = of_batch or any(wanted[1:])

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import batch_normalization as lines
        from demitasse_cpu.loops import plane_normalization as planes

        dy, given = map(flat, inputs[:2])
        room = _line_arrays(workspace, x.dtype, form, 9)
        if of_batch:
            (average, inverse), stages = map(flat, inputs[4:]), list[Work]()
        else:
            average, inverse, stages = _kept(request, inputs[2:5], room)
        w_b = _learned(inverse, *inputs[learned : learned + 2])
        centre, slope, level, offset, tilt, *absent = room[2:]
        stages.append(ready(lines.along, average, inverse, *w_b, centre, slope, level))
        dx = dy if outputs[0] is None else flat(outputs[0])
        dw, db = (
            line[: form.channels] if each is None else flat(each)
            for line, each in zip(absent, outputs[1:], strict=True)
        )
        n = form.outer * form.plane if of_batch else 0
        if not form.in_lines:
            sums = (dw, db, inverse, centre, slope, level, *passing)
            operands = (dy, given, dx, *sums, wanted[0], n, form.plane, form.outer)
            planewise = spread(planes.plane_batch_norm_backward, operands, form.channels, form.parts)
            return in_order([*stages, planewise])
        if summed:
            near, first, second = _sums(workspace, x.dtype, form, 9)
            line = (dy, given, centre, slope, level, *passing)
            stages.append(_in_parts(_over_lines(form).line_arriving, line, form, near, first, second))
            terms = (first, second, inverse, slope, dw, db, offset, tilt)
            numbers = (form.width, len(divide(form.lines, form.parts)), n)
            stages.append(ready(lines.gradients, *terms, *numbers))
        else:
            stages += [ready(lines.emptied, offset), ready(lines.emptied, tilt)]
        if wanted[0]:
            along = (centre, slope, level, offset, tilt, *passing)
            stages.append(_everywhere(form, "normalised_backward", (dy, given), dx, along))
        return in_order(stages)

    inputs = (form.layout, form.layout, *(PLAIN,) * (len(request.inputs) - 2))
    room = _room(form, x.dtype, 9, sums=form.in_lines)
    layouts = inputs, (form.layout, PLAIN, PLAIN)
    return (Candidate(_name(form), bind, *layouts, workspace=room),)


def _kept(request: Request, kept: Sequence[Any], room: Sequence[Any]) -> tuple[Any, Any, list[Work]]:
    """Return the kept mean and inverse deviation of each channel in two lines, and the work that
    computes them."""
    from demitasse_cpu.loops import batch_normalization as lines

    mean, variance, factor = map(flat, kept)
    average, inverse = (line[: mean.size] for line in room[:2])
    arrays = mean, variance, factor, average, inverse
    return average, inverse, [ready(lines.kept, *arrays, _epsilon(request))]


def batch_norm_inference(request: Request) -> Iterable[Candidate]:
    """Return the kernel by kept statistics, also with a sum or a clip as in ``batch_norm``."""
    if not is_real(*request.inputs, *request.outputs) or len(request.inputs) > _ADDED + 1:
        return ()
    x = spec(request.inputs[0])
    form = _channels(request, x, apart=True)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import batch_normalization as lines

        room = _line_arrays(workspace, x.dtype, form, 5)
        average, inverse, first = _kept(request, inputs[1:4], room)
        learned, line = _learned(inverse, *inputs[4:_ADDED]), room[2:]
        arrays = [flat(each) for each in (outputs[0], inputs[0], *inputs[_ADDED:])]
        along = ready(lines.along, average, inverse, *learned, *line)
        return in_order([*first, along, _written(request, form, arrays, line)])

    layouts = _with_sum(request, form), (form.layout,)
    return (Candidate(_name(form), bind, *layouts, workspace=_room(form, x.dtype, 5, sums=False)),)


def _with_sum(request: Request, form: _Channels) -> tuple[Layout, ...]:
    """Return the layouts of a normalisation's inputs, including what is added to its result."""
    return (form.layout, *(PLAIN,) * (_ADDED - 1), *(form.layout,) * len(request.inputs[_ADDED:]))


def scale(request: Request) -> Iterable[Candidate]:
    """Return the kernel of ``scale``, and of ``scale_relu``, which replaces negative results by 0."""
    if not is_real(*request.inputs, *request.outputs):
        return ()
    x, axis = spec(request.inputs[0]), int(request.attributes["axis"])
    form = _channels(request, x, axis, len(spec(request.inputs[1]).shape), apart=True)
    least = 0.0 if request.operation.name == "scale_relu" else -inf

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import batch_normalization as lines

        given, w, y = map(flat, (*inputs[:2], outputs[0]))
        b = flat(inputs[2]) if inputs[2:] and inputs[2] is not None else None
        slope, level = _line_arrays(workspace, x.dtype, form, 2)
        first = [
            ready(lines.repeated, w, slope),
            ready(lines.emptied, level) if b is None else ready(lines.repeated, b, level),
        ]
        return in_order([*first, _everywhere(form, "scaled", (given,), y, (slope, level, least))])

    layouts = (form.layout, *(PLAIN,) * (len(request.inputs) - 1)), (form.layout,)
    return (Candidate(_name(form), bind, *layouts, workspace=_room(form, x.dtype, 2, sums=False)),)


def scale_backward(request: Request) -> Iterable[Candidate]:
    if not is_real(*request.inputs, *request.outputs):
        return ()
    x, axis = spec(request.inputs[1]), int(request.attributes["axis"])
    form = _channels(request, x, axis, len(spec(request.inputs[2]).shape))
    wanted = [each is not None for each in (*request.outputs, None, None, None)[:3]]

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import batch_normalization as lines
        from demitasse_cpu.loops import plane_normalization as planes

        dy, given, w = map(flat, inputs)
        dx, dw, db = (each if each is None else flat(each) for each in (*outputs, None, None)[:3])
        slope, level = _line_arrays(workspace, x.dtype, form, 2)
        absent = level[: form.channels]
        target = dy if dx is None else dx
        stages: list[Work] = [ready(lines.repeated, w, slope)] if wanted[0] else []
        if not any(wanted[1:]):
            scaled = _everywhere(form, "scaled", (dy,), target, (slope, level, -inf))
            return in_order([*stages, ready(lines.emptied, level), scaled])
        if not form.in_lines:
            results = (target, absent if dw is None else dw, absent if db is None else db)
            numbers = (wanted[0], form.plane, form.outer)
            loop, arguments = planes.plane_scaled_backward, (dy, given, w, *results, *numbers)
            return spread(loop, arguments, form.channels, form.parts)
        near, first, second = _sums(workspace, x.dtype, form, 2)
        operands = (dy, given, slope, target, wanted[0])
        stages.append(_in_parts(lines.line_products, operands, form, near, first, second))
        for sums, result in ((second, dw), (first, db)):
            if result is not None:
                parts = len(divide(form.lines, form.parts))
                stages.append(ready(lines.gathered, sums, result, form.width, parts))
        return in_order(stages)

    layouts = (form.layout, form.layout, PLAIN), (form.layout, PLAIN, PLAIN)[: len(request.outputs)]
    room = _room(form, x.dtype, 2, sums=form.in_lines)
    return (Candidate(_name(form), bind, *layouts, workspace=room),)


FACTORIES = {
    "batch_norm": batch_norm,
    "batch_norm_sum": batch_norm,
    "batch_norm_sum_relu": batch_norm,
    "batch_norm_clip": batch_norm,
    "batch_norm_backward": batch_norm_backward,
    "batch_norm_clip_backward": batch_norm_backward,
    "batch_norm_inference": batch_norm_inference,
    "batch_norm_inference_sum": batch_norm_inference,
    "batch_norm_inference_sum_relu": batch_norm_inference,
    "batch_norm_inference_clip": batch_norm_inference,
    "batch_norm_inference_backward": batch_norm_inference_backward,
    "batch_norm_inference_clip_backward": batch_norm_inference_backward,
    "scale": scale,
    "scale_relu": scale,
    "scale_backward": scale_backward,
}


def _name(form: _Channels) -> str:
    return "numba loop over lines" if form.in_lines else "numba loop over planes"
