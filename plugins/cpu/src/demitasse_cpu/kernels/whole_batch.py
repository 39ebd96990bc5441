"""Batch normalisation, and means over valid labels, by the statistics of a batch that workers share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from demitasse import PLAIN, Candidate, Request, Work
from demitasse_cpu.kernels.channels import (
    channels_of,
    everywhere,
    in_parts,
    learned_or,
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


def channel_moments(request: Request) -> Iterable[Candidate]:
    x = spec(request.inputs[0])
    if not is_real(x):
        return ()
    form = channels_of(request, x)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import batch_normalization as lines
        from demitasse_cpu.loops import whole_batch as loops

        given, (moments,) = flat(inputs[0]), outputs
        if not form.in_lines:
            arguments = given, moments, form.plane, form.outer
            return spread(loops.plane_whole_moments, arguments, form.channels, form.parts)
        (shift,) = line_arrays(workspace, x.dtype, form, 1)
        near, first, second = sums_in(workspace, x.dtype, form, 1)
        numbers = form.width, len(divide(form.lines, form.parts)), form.outer
        return in_order(
            [
                ready(lines.line_shift, given, shift, form.channels, form.width),
                in_parts(over_lines(form).line_moments, (given, shift), form, near, first, second),
                ready(loops.line_whole_moments, shift, first, second, moments, *numbers),
            ]
        )

    room = room_for(form, x.dtype, 1, sums=form.in_lines)
    return (Candidate(name_of(form), bind, (form.layout,), workspace=room),)


def settle_moments(request: Request) -> Iterable[Candidate]:
    _, *kept = request.inputs
    if not is_real(*kept, *request.outputs):
        return ()
    keep, epsilon = (float(request.attributes[name]) for name in ("keep", "epsilon"))
    averaged = bool(request.attributes["averaged"])

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import whole_batch as loops

        return ready(loops.whole_settled, *inputs, *outputs, keep, averaged, epsilon)

    return (Candidate("numba loop", bind),)


def batch_norm_whole_backward(request: Request) -> Iterable[Candidate]:
    *operands, _, _ = request.inputs
    if not is_real(*operands, *request.outputs):
        return ()
    x = spec(request.inputs[1])  # in the layout of the forward pass
    form, passing = channels_of(request, x, apart=True), passing_of(request, x.dtype)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import batch_normalization as lines
        from demitasse_cpu.loops import whole_batch as loops

        dy, given, dx = map(flat, (*inputs[:2], outputs[0]))
        average, inverse, sums, moments = inputs[4:]
        w_b = learned_or(inverse, *inputs[2:4])
        centre, slope, level, offset, tilt = along = line_arrays(workspace, x.dtype, form, 5)
        return in_order(
            [
                ready(lines.along, average, inverse, *w_b, centre, slope, level),
                ready(loops.whole_tilts, sums, moments, inverse, slope, offset, tilt),
                everywhere(form, "normalised_backward", (dy, given), dx, (*along, *passing)),
            ]
        )

    inputs = (form.layout, form.layout, *(PLAIN,) * 6)
    room = room_for(form, x.dtype, 5, sums=False)
    return (Candidate(name_of(form), bind, inputs, (form.layout,), workspace=room),)


def count_labels(request: Request) -> Iterable[Candidate]:
    ignored = float(request.attributes["ignore_label"])

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import whole_batch as loops

        return ready(loops.count_labels, flat(inputs[0]), outputs[0], ignored)

    return (Candidate("numba loop", bind),)


def over_divisor(request: Request) -> Iterable[Candidate]:
    share = float(request.attributes["share"])
    if not is_real(request.inputs[0], *request.outputs):
        return ()

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import whole_batch as loops

        return ready(loops.over_divisor, flat(inputs[0]), inputs[1], flat(outputs[0]), share)

    return (Candidate("numba loop", bind),)


FACTORIES = {
    "count_labels": count_labels,
    "over_divisor": over_divisor,
    "channel_moments": channel_moments,
    "settle_moments": settle_moments,
    "batch_norm_whole_backward": batch_norm_whole_backward,
}
