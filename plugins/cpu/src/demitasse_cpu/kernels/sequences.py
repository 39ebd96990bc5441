"""Losses and scores of sequences whose labels are shorter than they."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

from demitasse import Candidate, Request, Work
from demitasse_cpu.kernels.loss import KERNEL, wrong_label
from demitasse_cpu.kernels.requests import flat, is_real, parts_for, spec
from demitasse_cpu.kernels.work import ready
from demitasse_cpu.native import at_once, in_order
from demitasse_cpu.threads import divide

_LINE = 64  # bytes
_STATE = 20  # a step in a state takes as long as so many elements moved


def ctc_loss(request: Request) -> Iterable[Candidate]:
    return _by_sample(request, 0, 1)


def ctc_loss_backward(request: Request) -> Iterable[Candidate]:
    return _by_sample(request, 1, 1)


def sequences_right(request: Request) -> Iterable[Candidate]:
    return _by_sample(request, 0, 0)


def _by_sample(request: Request, first: int, axis: int) -> Iterable[Candidate]:
    """A loop over samples, which lie along an ``axis`` of the input number ``first``, labels behind."""
    x, label = request.inputs[first : first + 2]
    if not is_real(*request.inputs[: first + 1], *request.outputs):
        return ()
    shape, samples = spec(x).shape, spec(x).shape[axis]
    steps, classes, length = shape[1 - axis], shape[2], prod(spec(label).shape[1:])
    width = 2 * length + 3  # the states, and two more
    work = prod(shape) + steps * samples * width * _STATE * axis
    parts, blank = parts_for(request, samples, work), int(request.attributes["blank"])
    doubles = (steps + length + 2 * width + classes + (steps + 2) * width) * axis
    room = -(-doubles * 8 // _LINE) * _LINE

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import indexing, sequences

        loop, labels = getattr(sequences, request.operation.name), flat(inputs[first + 1])
        wrong = workspace.view("int64")[:1]
        failed = wrong_label(request, wrong, labels, length, classes)
        check = ready(indexing.first_wrong, labels, classes, wrong, failed=failed)
        before = [flat(array) for array in inputs[:first]]
        shares = []
        for i, part in enumerate(divide(samples, parts)):
            start = _LINE + i * room
            scratch = [workspace[start : start + doubles * 8].view("float64")] if axis else []
            operands = *before, inputs[first], labels, outputs[0], *scratch
            shares.append(ready(loop, *operands, length, blank, *part))
        return in_order([check, at_once(shares)])

    return (Candidate(KERNEL, bind, workspace=_LINE + parts * room, in_place=False),)


FACTORIES = {
    "ctc_loss": ctc_loss,
    "ctc_loss_backward": ctc_loss_backward,
    "sequences_right": sequences_right,
}
