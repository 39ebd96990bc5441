"""Losses and scores of sequences whose labels are shorter than the sequences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import prod
from typing import Any

from demitasse import Candidate, DataError, Request, SampleError, Work
from demitasse_cpu.kernels.loss import KERNEL
from demitasse_cpu.kernels.requests import aligned, cut, flat, is_real, parts_for, spec
from demitasse_cpu.kernels.work import ready, spread
from demitasse_cpu.native import Call, at_once, in_order
from demitasse_cpu.threads import divide

_LINE = 64  # bytes
_STATE = 20  # a step in a state takes as long as moving this many elements


def ctc_loss(request: Request) -> Iterable[Candidate]:
    return _against_labels(request, 0, 1)


def ctc_loss_backward(request: Request) -> Iterable[Candidate]:
    return _against_labels(request, 1, 1)


def sequences_right(request: Request) -> Iterable[Candidate]:
    return _against_labels(request, 0, 0)


def _against_labels(request: Request, first: int, axis: int) -> Iterable[Candidate]:
    """Return the kernel by a loop over samples, which lie along ``axis`` of input number ``first``; the
    labels are the next input. If samples come after steps (axis 1), the input after the labels may have
    the number of steps of each sample, and the loop gets scratch memory for one sample."""
    x, label = request.inputs[first : first + 2]
    if not is_real(*request.inputs[: first + 1], *request.outputs):
        return ()
    shape, samples = spec(x).shape, spec(x).shape[axis]
    steps, classes, length = shape[1 - axis], shape[2], prod(spec(label).shape[1:])
    width = 2 * length + 3  # the states, and two more
    work = prod(shape) + steps * samples * width * _STATE * axis
    parts, blank = parts_for(request, samples, work), int(request.attributes["blank"])
    doubles = (steps + length + 2 * width + classes + (steps + 2) * width) * axis

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import sequences

        loop, labels = getattr(sequences, request.operation.name), flat(inputs[first + 1])
        (wrong,) = cut(workspace[:_LINE], "int64", 8)
        failed = _wrong(wrong, labels, length, "label", f"to {classes - 1}, and -1, which ends a label")
        checks = [ready(sequences.first_wrong, labels, length, classes, wrong, failed=failed)]
        counts = []
        if axis:
            counts.append(_numbers(inputs[first + 2], labels))
            checks += _checks(counts[0], steps, "number of steps", wrong)
        scratch = _scratch(workspace, parts, doubles)
        before = [flat(array) for array in inputs[:first]]
        shares = [
            ready(loop, *before, inputs[first], labels, *counts, outputs[0], *room, length, blank, *part)
            for part, room in zip(divide(samples, parts), scratch, strict=True)
        ]
        return in_order([*checks, at_once(shares)])

    return (Candidate(KERNEL, bind, workspace=_room(parts, doubles), in_place=False),)


def ctc_greedy_decode(request: Request) -> Iterable[Candidate]:
    x = request.inputs[0]
    if not is_real(x, *request.outputs):
        return ()
    steps, samples, _ = spec(x).shape
    parts = parts_for(request, samples, prod(spec(x).shape))
    options = int(request.attributes["blank"]), bool(request.attributes["merge"])

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import sequences

        (wrong,) = cut(workspace[:_LINE], "int64", 8)
        x, counts = inputs[0], _numbers(inputs[1], inputs[0])
        scores = _numbers(outputs[1], outputs[0])
        arguments = x, counts, outputs[0], scores, *options
        decode = spread(sequences.ctc_greedy_decode, arguments, samples, parts)
        return in_order([*_checks(counts, steps, "number of steps", wrong), decode])

    return (Candidate(KERNEL, bind, workspace=_LINE, in_place=False),)


def edit_distances(request: Request) -> Iterable[Candidate]:
    y, label = request.inputs
    if not is_real(y, *request.outputs):
        return ()
    samples, steps = spec(y).shape
    length = prod(spec(label).shape[1:])
    parts = parts_for(request, samples, samples * steps * length)
    doubles, blank = 2 * length + 1, int(request.attributes["blank"])

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import sequences

        operands = inputs[0], flat(inputs[1]), *outputs
        scratch = _scratch(workspace, parts, doubles)
        return at_once(
            [
                ready(sequences.edit_distances, *operands, *room, length, blank, *part)
                for part, room in zip(divide(samples, parts), scratch, strict=True)
            ]
        )

    return (Candidate(KERNEL, bind, workspace=_room(parts, doubles), in_place=False),)


def labels_of_samples(request: Request) -> Iterable[Candidate]:
    return _of_columns(request, partial(_rows, shift=int(request.attributes["shift"])))


def sequence_lengths(request: Request) -> Iterable[Candidate]:
    return _of_columns(request, _until_it_begins)


def _of_columns(request: Request, made: Callable[..., Work]) -> Iterable[Candidate]:
    """Return a kernel of little work on columns, each of which belongs to a sample."""
    if not is_real(*request.outputs):
        return ()
    rows, samples = spec(request.inputs[0]).shape

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        return made(*inputs, outputs[0], workspace, rows, samples)

    return (Candidate(KERNEL, bind, workspace=_LINE, in_place=False),)


def _rows(
    label: Any, given: Any, y: Any, workspace: Any, length: int, samples: int, *, shift: int
) -> Work:
    from demitasse_cpu.loops import sequences

    (wrong,) = cut(workspace[:_LINE], "int64", 8)
    lengths = _numbers(given, label)
    checks = _checks(lengths, length, "length", wrong)
    return in_order([*checks, ready(sequences.labels_of_samples, label, lengths, y, shift, 0, samples)])


def _until_it_begins(cont: Any, label: Any, steps: Any, workspace: Any, most: int, samples: int) -> Work:
    from demitasse_cpu.loops import sequences

    labels = _numbers(label, cont)
    arguments = cont, labels, steps, labels.size // samples, 0, samples
    return ready(sequences.sequence_lengths, *arguments)


def _numbers(given: Any, like: Any) -> Any:
    """Return an operand as one row, or an empty row of the type of ``like`` if it is absent."""
    return like.reshape(-1)[:0] if given is None else flat(given)


def _checks(counts: Any, most: int, what: str, wrong: Any) -> list[Call]:
    """Return the calls that raise DataError if a sample's count is not a whole number from 0 to
    ``most``; none if there are no counts."""
    from demitasse_cpu.loops import indexing

    if not counts.size:
        return []
    failed = _wrong(wrong, counts, 1, what, f"to {most}")
    return [ready(indexing.first_wrong, counts, most + 1, wrong, failed=failed)]


def _wrong(wrong: Any, found: Any, of_sample: int, what: str, valid: str) -> Callable[[], DataError]:
    """Return the error for the number whose place is in ``wrong``."""

    def failed() -> DataError:
        place = int(wrong[0])
        sample = place // of_sample
        return SampleError(
            f"{what} {found[place]:g} of sample {sample} of the batch is not valid "
            f"(whole numbers from 0 {valid})",
            sample,
            found.size // of_sample,
        )

    return failed


def _room(parts: int, doubles: int) -> int:
    """Return the bytes of a cache line for what is wrong, and of each part's scratch memory."""
    return _LINE + parts * aligned(doubles * 8)


def _scratch(workspace: Any, parts: int, doubles: int) -> list[list[Any]]:
    """Return the scratch memory of each part, if it has any."""
    pieces = cut(workspace[_LINE:], "float64", *[doubles * 8] * parts)
    return [[piece] if doubles else [] for piece in pieces]


FACTORIES = {
    "ctc_loss": ctc_loss,
    "ctc_loss_backward": ctc_loss_backward,
    "sequences_right": sequences_right,
    "ctc_greedy_decode": ctc_greedy_decode,
    "edit_distances": edit_distances,
    "labels_of_samples": labels_of_samples,
    "sequence_lengths": sequence_lengths,
}
