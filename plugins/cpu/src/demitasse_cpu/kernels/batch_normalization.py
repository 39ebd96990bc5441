"""Batch normalisation by a batch's statistics or by kept ones, and scales along an axis.

Each has two kernels: one for channels that are innermost (images in NHWC, vectors), which works on lines
of pixels, and one for channels in planes. The loops explain how they work. Both read what they normalise
twice and write it once, already scaled and rectified if that is requested.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Any

from demitasse import PLAIN, Candidate, Layout, Request, Work
from demitasse_cpu.kernels.channels import (
    Channels,
    channels_of,
    everywhere,
    in_parts,
    learned_or,
    limits_of,
    line_arrays,
    name_of,
    over_lines,
    passing_of,
    room_for,
    sums_in,
)
from demitasse_cpu.kernels.requests import flat, is_real, spec
from demitasse_cpu.kernels.work import ready, spread
from demitasse_cpu.native import in_order
from demitasse_cpu.threads import divide

_ADDED = 6  # the index of the input that is added, if there is one


def _least_sum(request: Request) -> float:
    return 0.0 if request.operation.name.endswith("_sum_relu") else -inf


def _written(request: Request, form: Channels, arrays: Sequence[Any], line: Sequence[Any]) -> Work:
    """Return work that writes the result; ``arrays`` are y, x and, optionally, what to add."""
    (y, x, *others), (least, most) = arrays, limits_of(request)
    if others and form.in_lines:
        return everywhere(form, "normalised_sum", (x, *others), y, (*line, least, _least_sum(request)))
    written = everywhere(form, "normalised", (x,), y, (*line, least, most))
    return in_order([written, *_added(request, form, y, others)])


def _added(request: Request, form: Channels, y: Any, others: Sequence[Any]) -> list[Work]:
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
    form, limits = channels_of(request, x), limits_of(request)
    keeping = *_kept_shares(request.attributes, form.outer * form.plane), _epsilon(request)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import batch_normalization as lines
        from demitasse_cpu.loops import plane_normalization as planes

        (given, mean, variance, factor), added = map(flat, inputs[:4]), list(map(flat, inputs[_ADDED:]))
        y, room = flat(outputs[0]), line_arrays(workspace, x.dtype, form, 5)
        average, inverse = (
            line[: form.channels] if each is None else flat(each)
            for line, each in zip(room, outputs[1:], strict=False)
        )
        learned, (centre, slope, level) = learned_or(inverse, *inputs[4:_ADDED]), room[2:]
        averaged = request.attributes["averaged"]
        counted = [] if averaged else [ready(lines.counted, factor, keeping[0])]
        if not form.in_lines:
            kept = (mean, variance, average, inverse, *learned)
            arguments = (given, *kept, y, *limits, form.plane, form.outer, *keeping)
            work = spread(planes.plane_batch_norm, arguments, form.channels, form.parts)
            return in_order([work, *counted, *_added(request, form, y, added)])
        near, first, second = sums_in(workspace, x.dtype, form, 5)
        sums = (centre, first, second, mean, variance, average, inverse)
        numbers = (form.width, len(divide(form.lines, form.parts)), form.outer, *keeping)
        return in_order(
            [
                ready(lines.line_shift, given, centre, form.channels, form.width),
                in_parts(over_lines(form).line_moments, (given, centre), form, near, first, second),
                ready(lines.settled, *sums, *numbers),
                *counted,
                ready(lines.along, average, inverse, *learned, centre, slope, level),
                _written(request, form, (y, given, *added), (centre, slope, level)),
            ]
        )

    layouts = _with_sum(request, form), (form.layout, PLAIN, PLAIN)
    room = room_for(form, x.dtype, 5, sums=form.in_lines)
    return (Candidate(name_of(form), bind, *layouts, workspace=room),)


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
    form, passing, of_batch = channels_of(request, x), passing_of(request, x.dtype), learned == 2
    wanted = [each is not None for each in request.outputs]
    summed = of_batch or any(wanted[1:])

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import batch_normalization as lines
        from demitasse_cpu.loops import plane_normalization as planes

        dy, given = map(flat, inputs[:2])
        room = line_arrays(workspace, x.dtype, form, 9)
        if of_batch:
            (average, inverse), stages = map(flat, inputs[4:]), list[Work]()
        else:
            average, inverse, stages = _kept(request, inputs[2:5], room)
        w_b = learned_or(inverse, *inputs[learned : learned + 2])
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
            near, first, second = sums_in(workspace, x.dtype, form, 9)
            line = (dy, given, centre, slope, level, *passing)
            stages.append(in_parts(over_lines(form).line_arriving, line, form, near, first, second))
            terms = (first, second, inverse, slope, dw, db, offset, tilt)
            numbers = (form.width, len(divide(form.lines, form.parts)), n)
            stages.append(ready(lines.gradients, *terms, *numbers))
        else:
            stages += [ready(lines.emptied, offset), ready(lines.emptied, tilt)]
        if wanted[0]:
            along = (centre, slope, level, offset, tilt, *passing)
            stages.append(everywhere(form, "normalised_backward", (dy, given), dx, along))
        return in_order(stages)

    inputs = (form.layout, form.layout, *(PLAIN,) * (len(request.inputs) - 2))
    room = room_for(form, x.dtype, 9, sums=form.in_lines)
    layouts = inputs, (form.layout, PLAIN, PLAIN)
    return (Candidate(name_of(form), bind, *layouts, workspace=room),)


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
    form = channels_of(request, x, apart=True)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import batch_normalization as lines

        room = line_arrays(workspace, x.dtype, form, 5)
        average, inverse, first = _kept(request, inputs[1:4], room)
        learned, line = learned_or(inverse, *inputs[4:_ADDED]), room[2:]
        arrays = [flat(each) for each in (outputs[0], inputs[0], *inputs[_ADDED:])]
        along = ready(lines.along, average, inverse, *learned, *line)
        return in_order([*first, along, _written(request, form, arrays, line)])

    layouts = _with_sum(request, form), (form.layout,)
    return (Candidate(name_of(form), bind, *layouts, workspace=room_for(form, x.dtype, 5, sums=False)),)


def _with_sum(request: Request, form: Channels) -> tuple[Layout, ...]:
    """Return the layouts of a normalisation's inputs, including what is added to its result."""
    return (form.layout, *(PLAIN,) * (_ADDED - 1), *(form.layout,) * len(request.inputs[_ADDED:]))


def scale(request: Request) -> Iterable[Candidate]:
    """Return the kernel of ``scale``, and of ``scale_relu``, which replaces negative results by 0."""
    if not is_real(*request.inputs, *request.outputs):
        return ()
    x, axis = spec(request.inputs[0]), int(request.attributes["axis"])
    form = channels_of(request, x, axis, len(spec(request.inputs[1]).shape), apart=True)
    least = 0.0 if request.operation.name == "scale_relu" else -inf

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import batch_normalization as lines

        given, w, y = map(flat, (*inputs[:2], outputs[0]))
        b = flat(inputs[2]) if inputs[2:] and inputs[2] is not None else None
        slope, level = line_arrays(workspace, x.dtype, form, 2)
        first = [
            ready(lines.repeated, w, slope),
            ready(lines.emptied, level) if b is None else ready(lines.repeated, b, level),
        ]
        return in_order([*first, everywhere(form, "scaled", (given,), y, (slope, level, least))])

    layouts = (form.layout, *(PLAIN,) * (len(request.inputs) - 1)), (form.layout,)
    return (Candidate(name_of(form), bind, *layouts, workspace=room_for(form, x.dtype, 2, sums=False)),)


def scale_backward(request: Request) -> Iterable[Candidate]:
    if not is_real(*request.inputs, *request.outputs):
        return ()
    x, axis = spec(request.inputs[1]), int(request.attributes["axis"])
    form = channels_of(request, x, axis, len(spec(request.inputs[2]).shape))
    wanted = [each is not None for each in (*request.outputs, None, None, None)[:3]]

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import batch_normalization as lines
        from demitasse_cpu.loops import plane_normalization as planes

        dy, given, w = map(flat, inputs)
        dx, dw, db = (each if each is None else flat(each) for each in (*outputs, None, None)[:3])
        slope, level = line_arrays(workspace, x.dtype, form, 2)
        absent = level[: form.channels]
        target = dy if dx is None else dx
        stages: list[Work] = [ready(lines.repeated, w, slope)] if wanted[0] else []
        if not any(wanted[1:]):
            scaled = everywhere(form, "scaled", (dy,), target, (slope, level, -inf))
            return in_order([*stages, ready(lines.emptied, level), scaled])
        if not form.in_lines:
            results = (target, absent if dw is None else dw, absent if db is None else db)
            numbers = (wanted[0], form.plane, form.outer)
            loop, arguments = planes.plane_scaled_backward, (dy, given, w, *results, *numbers)
            return spread(loop, arguments, form.channels, form.parts)
        near, first, second = sums_in(workspace, x.dtype, form, 2)
        operands = (dy, given, slope, target, wanted[0])
        stages.append(in_parts(lines.line_products, operands, form, near, first, second))
        for sums, result in ((second, dw), (first, db)):
            if result is not None:
                parts = len(divide(form.lines, form.parts))
                stages.append(ready(lines.gathered, sums, result, form.width, parts))
        return in_order(stages)

    layouts = (form.layout, form.layout, PLAIN), (form.layout, PLAIN, PLAIN)[: len(request.outputs)]
    room = room_for(form, x.dtype, 2, sums=form.in_lines)
    return (Candidate(name_of(form), bind, *layouts, workspace=room),)


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
