"""Losses and scores of predictions against labels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import nan
from typing import Any

from demitasse import Candidate, DataError, Request, TensorSpec, Work
from demitasse_cpu.kernels.layouts import like
from demitasse_cpu.kernels.requests import flat, is_real, parts_for, rows_along, spec
from demitasse_cpu.kernels.work import ready, spread
from demitasse_cpu.native import at_once, in_order
from demitasse_cpu.threads import divide

KERNEL = "numba loop"
_EXP = 8  # an exponential takes as long as so many elements moved
_PARTIAL = 64  # bytes of a part's sums: a line of its own


def softmax_loss(request: Request) -> Iterable[Candidate]:
    x, _ = request.inputs
    loss, probability = (*request.outputs, None)[:2]
    if not is_real(x, loss, probability):
        return ()
    rows, classes, inner = rows_along(spec(x).shape, request.attributes["axis"])
    parts = parts_for(request, rows, rows * classes * _EXP)
    room = -(-classes * inner * 8 // _PARTIAL) * _PARTIAL if probability is None else 0

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import loss as loops

        scores, labels = map(flat, inputs)
        partials = workspace[: parts * _PARTIAL].view("float64").reshape(parts, -1)[:, :3]
        ignored = _ignored(request)
        shares = []
        for i, part in enumerate(divide(rows, parts)):
            if probability is not None:
                kept = flat(outputs[1])
            else:
                start = parts * _PARTIAL + i * room
                kept = workspace[start : start + room].view(scores.dtype)
            shares.append(
                ready(
                    loops.softmax_loss,
                    scores,
                    labels,
                    kept,
                    probability is not None,
                    partials[i],
                    ignored,
                    classes,
                    inner,
                    *part,
                )
            )
        losses, samples = at_once(shares), spec(x).shape[0]
        divisor = _divisor(request, samples, rows)
        wrong = workspace[-_PARTIAL:].view("int64")[:1]
        total = ready(loops.total_loss, partials, flat(outputs[0]), wrong, divisor)
        return _checked(request, in_order([losses, total]), wrong, labels, rows // samples, classes)

    room_of_all = parts * (_PARTIAL + room) + _PARTIAL
    return (Candidate(KERNEL, bind, workspace=room_of_all, in_place=False),)


def softmax_loss_backward(request: Request) -> Iterable[Candidate]:
    dloss, probability, _ = request.inputs
    if not is_real(dloss, probability, *request.outputs):
        return ()
    shape = spec(probability).shape
    rows, classes, inner = rows_along(shape, request.attributes["axis"])
    parts = parts_for(request, rows, rows * classes)
    layout = like(request, TensorSpec(shape, spec(probability).dtype))  # of a gradient of activations

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import loss as loops

        arguments = (
            *map(flat, inputs),
            flat(outputs[0]),
            _ignored(request),
            _divisor(request, shape[0], rows),
            classes,
            inner,
        )
        return spread(loops.softmax_loss_backward, arguments, rows, parts)

    return (Candidate(KERNEL, bind, output_layouts=(layout,)),)


def accuracy(request: Request) -> Iterable[Candidate]:
    x, _ = request.inputs
    result, per_class = (*request.outputs, None)[:2]
    if not is_real(x, result, per_class):
        return ()
    rows, classes, inner = rows_along(spec(x).shape, request.attributes["axis"])

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import loss as loops

        scores, labels = map(flat, inputs)
        cells = workspace.view("int64")
        wrong, counters = cells[:1], cells[1:].reshape(2, classes)
        target = flat(outputs[0])
        by_class = flat(outputs[1]) if per_class is not None else target[:0]
        numbers = (_ignored(request), int(request.attributes["top_k"]), classes, inner)
        buffers = scores, labels, target, by_class, counters, wrong
        score = ready(loops.accuracy, *buffers, *numbers)
        labels_of_sample = rows // spec(x).shape[0]
        return _checked(request, score, wrong, labels, labels_of_sample, classes)

    return (Candidate(KERNEL, bind, workspace=(1 + 2 * classes) * 8, in_place=False),)


FACTORIES = {
    "softmax_loss": softmax_loss,
    "softmax_loss_backward": softmax_loss_backward,
    "accuracy": accuracy,
}


def _ignored(request: Request) -> float:
    """The label that does not count; NaN, which equals no label, for none."""
    given = request.attributes["ignore_label"]
    return nan if given is None else float(given)


def _divisor(request: Request, samples: int, rows: int) -> float:
    """What the sum is divided by; 0 for the number of labels that count."""
    kinds = {"valid": 0.0, "full": float(rows), "batch_size": float(samples), "none": 1.0}
    return kinds[request.attributes["normalization"]]


def _checked(
    request: Request, work: Work, wrong: Any, labels: Any, labels_of_sample: int, classes: int
) -> Work:
    """Work that leaves in ``wrong`` the row of a label that is no class, or -1, with the error it makes:
    all of it that is Python's, and why it does not join with its neighbours."""

    def checked() -> None:
        work()
        if wrong[0] >= 0:
            raise _wrong_label(request, labels, int(wrong[0]), labels_of_sample, classes)

    return checked


def _wrong_label(
    request: Request, labels: Any, row: int, labels_of_sample: int, classes: int
) -> DataError:
    ignored = request.attributes["ignore_label"]
    also = "" if ignored is None else f", or {ignored}, which is ignored"
    return DataError(
        f"label {labels[row]:g} of sample {row // labels_of_sample} of the batch is no class "
        f"(valid: whole numbers from 0 to {classes - 1}{also})"
    )
