"""Losses and scores of predictions: against one label each, against targets, or of pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import nan, prod
from typing import Any

from demitasse import Candidate, DataError, Request, SampleError, TensorSpec, Work
from demitasse_cpu.kernels.layouts import like
from demitasse_cpu.kernels.requests import (
    ROOM_OF_ROWS,
    flat,
    is_real,
    parts_for,
    rows_along,
    rows_together,
    spec,
)
from demitasse_cpu.kernels.work import ready, spread
from demitasse_cpu.native import at_once, in_order
from demitasse_cpu.threads import divide

KERNEL = "numba loop"
_EXP = 8  # an exponential takes as long as moving this many elements
_PARTIAL = 64  # bytes of a part's sums: a cache line of its own
_ROOM = 8192  # bytes of losses that stay in the first cache until they are added up
_LEAST = 1e-20  # smaller probabilities are raised to this before a logarithm is taken


def softmax_loss(request: Request) -> Iterable[Candidate]:
    return _loss_of_softmax(request, "softmax_loss")


def infogain_loss(request: Request) -> Iterable[Candidate]:
    return _loss_of_softmax(request, "infogain_loss", _LEAST)


def _loss_of_softmax(request: Request, loop: str, *numbers: float) -> Iterable[Candidate]:
    """Return the kernel of a loss that also returns the softmax, or that has room in each part for the
    softmax of one sample's predictions."""
    x, *_ = request.inputs
    loss, probability = (*request.outputs, None)[:2]
    if not is_real(x, loss, probability, *request.inputs[2:]):
        return ()
    axis = request.attributes["axis"]
    rows, classes, inner = rows_along(spec(x).shape, axis)
    parts = parts_for(request, rows, rows * classes * _EXP)
    room = -(-classes * inner * 8 // _PARTIAL) * _PARTIAL if probability is None else 0

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import loss as loops

        operands = [flat(array) for array in inputs]
        scores, labels = operands[:2]
        partials, wrong = _sums(workspace, parts)
        shares = []
        for i, part in enumerate(divide(rows, parts)):
            own = _room(workspace, parts, i, ROOM_OF_ROWS + room, "uint8")
            beside = rows_together(own, scores.dtype)
            kept = own[ROOM_OF_ROWS:].view(scores.dtype) if probability is None else flat(outputs[1])
            arguments = *operands, kept, probability is not None, partials[i], *beside
            figures = _ignored(request), *numbers, classes, inner
            shares.append(ready(getattr(loops, loop), *arguments, *figures, *part))
        divisor = _divisor(request, _samples(request, axis), rows)
        failed = wrong_label(request, wrong, labels, rows // spec(x).shape[0], classes)
        total = ready(loops.total_loss, partials, flat(outputs[0]), wrong, divisor, failed=failed)
        return in_order([at_once(shares), total])

    room_of_all = parts * (_PARTIAL + ROOM_OF_ROWS + room) + _PARTIAL
    return (Candidate(KERNEL, bind, workspace=room_of_all, in_place=False),)


def _sums(workspace: Any, parts: int) -> tuple[Any, Any]:
    """Return a row for each part's sums, and the cell for the row whose label is not a class."""
    lines = workspace[: (parts + 1) * _PARTIAL].view("float64").reshape(parts + 1, -1)
    return lines[:parts, :3], lines[parts, :1].view("int64")


def _room(workspace: Any, parts: int, part: int, room: int, dtype: Any) -> Any:
    """Return the ``room`` bytes that one part has after the sums."""
    start = (parts + 1) * _PARTIAL + part * room
    return workspace[start : start + room].view(dtype)


def _samples(request: Request, axis: int) -> int:
    """Return the number of samples: the product of the predictions' extents before an axis."""
    return prod(spec(request.inputs[0]).shape[:axis])


def softmax_loss_backward(request: Request) -> Iterable[Candidate]:
    dloss, probability, _ = request.inputs
    if not is_real(dloss, probability, *request.outputs):
        return ()
    shape = spec(probability).shape
    rows, classes, inner = rows_along(shape, request.attributes["axis"])
    parts = parts_for(request, rows, rows * classes)
    layout = like(request, TensorSpec(shape, spec(probability).dtype))  # as a gradient of activations

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import loss as loops

        arguments = (
            *map(flat, inputs),
            flat(outputs[0]),
            _ignored(request),
            _divisor(request, prod(shape[: request.attributes["axis"]]), rows),
            classes,
            inner,
        )
        return spread(loops.softmax_loss_backward, arguments, rows, parts)

    return (Candidate(KERNEL, bind, output_layouts=(layout,)),)


def infogain_loss_backward(request: Request) -> Iterable[Candidate]:
    shape, axis = spec(request.inputs[1]).shape, request.attributes["axis"]
    rows, classes, inner = rows_along(shape, axis)
    divisor = _divisor(request, prod(shape[:axis]), rows)
    numbers = _ignored(request), divisor, classes, inner
    return _backward(request, "infogain_loss_backward", numbers, rows, rows * classes)


def accuracy(request: Request) -> Iterable[Candidate]:
    x, _ = request.inputs
    result, per_class = (*request.outputs, None)[:2]
    if not is_real(x, result, per_class):
        return ()
    rows, classes, inner = rows_along(spec(x).shape, request.attributes["axis"])

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import scores as loops

        scores, labels = map(flat, inputs)
        cells = workspace[2 * ROOM_OF_ROWS :].view("int64")
        wrong, counters = cells[:1], cells[1:].reshape(2, classes)
        own, wanted = rows_together(workspace, scores.dtype)
        _, better = rows_together(workspace[ROOM_OF_ROWS:], scores.dtype)
        target = flat(outputs[0])
        by_class = flat(outputs[1]) if per_class is not None else target[:0]
        numbers = (_ignored(request), int(request.attributes["top_k"]), classes, inner)
        buffers = scores, labels, target, by_class, counters, wrong, own, wanted, better
        failed = wrong_label(request, wrong, labels, rows // spec(x).shape[0], classes)
        return ready(loops.accuracy, *buffers, *numbers, failed=failed)

    room = 2 * ROOM_OF_ROWS + (1 + 2 * classes) * 8
    return (Candidate(KERNEL, bind, workspace=room, in_place=False),)


def segment_scores(request: Request) -> Iterable[Candidate]:
    x, _ = request.inputs
    if not is_real(x, *request.outputs):
        return ()
    _, classes, *image = spec(x).shape
    ignored = tuple(map(float, request.attributes["ignored"]))

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        import numpy as np

        from demitasse_cpu.loops import scores as loops

        scores, labels = map(flat, inputs)
        cells = workspace.view("int64")
        wrong, table = cells[:1], cells[1:].reshape(classes, classes)
        failed = wrong_label(request, wrong, labels, prod(image), classes)
        buffers = scores, labels, flat(outputs[0]), table, wrong, np.array(ignored, np.float64)
        return ready(loops.segment_scores, *buffers, classes, prod(image), failed=failed)

    return (Candidate(KERNEL, bind, workspace=(1 + classes**2) * 8, in_place=False),)


def hinge_loss(request: Request) -> Iterable[Candidate]:
    samples, classes = _by_sample(request, 0)
    numbers = request.attributes["norm"] == "L2", classes
    return _loss(request, "hinge_loss", numbers, samples, samples * classes, samples, classes)


def hinge_loss_backward(request: Request) -> Iterable[Candidate]:
    samples, classes = _by_sample(request, 1)
    numbers = request.attributes["norm"] == "L2", float(samples), classes
    return _backward(request, "hinge_loss_backward", numbers, samples, samples * classes)


def negative_log_likelihood(request: Request) -> Iterable[Candidate]:
    samples, classes = _by_sample(request, 0)
    name = request.operation.name
    return _loss(request, name, (_LEAST, classes), samples, samples * _EXP, samples, classes)


def negative_log_likelihood_backward(request: Request) -> Iterable[Candidate]:
    samples, classes = _by_sample(request, 1)
    numbers = _LEAST, float(samples), classes
    return _backward(request, request.operation.name, numbers, samples, samples * classes)


def sigmoid_cross_entropy_loss(request: Request) -> Iterable[Candidate]:
    size, divisor = prod(spec(request.inputs[0]).shape), _divisor_of_elements(request, 0)
    work, name = size * 2 * _EXP, request.operation.name
    return _loss(request, name, (_ignored(request),), size, work, divisor, room=_ROOM)


def sigmoid_cross_entropy_loss_backward(request: Request) -> Iterable[Candidate]:
    size, divisor = prod(spec(request.inputs[1]).shape), _divisor_of_elements(request, 1)
    numbers = _ignored(request), divisor
    return _backward(request, request.operation.name, numbers, size, size * _EXP)


def half_squared_distance(request: Request) -> Iterable[Candidate]:
    samples, length = _by_sample(request, 0)
    size = samples * length
    return _loss(request, request.operation.name, (), size, size, samples)


def half_squared_distance_backward(request: Request) -> Iterable[Candidate]:
    samples, length = _by_sample(request, 1)
    size = samples * length
    return _backward(request, request.operation.name, (float(samples),), size, 2 * size)


def contrastive_loss(request: Request) -> Iterable[Candidate]:
    samples, length = _by_sample(request, 0)
    numbers = *_contrast(request), length
    return _loss(request, request.operation.name, numbers, samples, samples * length, samples)


def contrastive_loss_backward(request: Request) -> Iterable[Candidate]:
    samples, length = _by_sample(request, 1)
    numbers = float(samples), *_contrast(request), length
    return _backward(request, request.operation.name, numbers, samples, 3 * samples * length)


def angular_margin(request: Request) -> Iterable[Candidate]:
    x, length, _, iteration = map(spec, request.inputs)
    if not is_real(x, length, *request.outputs) or iteration.dtype != "uint64":
        return ()
    samples, classes = x.shape
    parts, given = parts_for(request, samples, samples * classes), request.attributes
    factors = [float(given[name]) for name in ("base", "gamma", "power", "least")]

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import indexing, margin

        operands, wrong = [flat(array) for array in inputs], workspace.view("int64")[:1]
        failed = wrong_label(request, wrong, operands[2], 1, classes)
        check = ready(indexing.first_wrong, operands[2], classes, wrong, failed=failed)
        numbers = int(given["margin"]), *factors, int(given["first"]), classes
        arguments = *operands, *map(flat, outputs), *numbers
        return in_order([check, spread(margin.angular_margin, arguments, samples, parts)])

    return (Candidate(KERNEL, bind, workspace=_PARTIAL, in_place=False),)


def angular_margin_backward(request: Request) -> Iterable[Candidate]:
    samples, classes = _by_sample(request, 1)
    numbers = int(request.attributes["margin"]), classes
    return _backward(request, request.operation.name, numbers, samples, samples * classes)


def _contrast(request: Request) -> tuple[float, bool]:
    return float(request.attributes["margin"]), bool(request.attributes["legacy"])


def _by_sample(request: Request, operand: int) -> tuple[int, int]:
    """Return the number of samples of an input, and of values in each."""
    shape = spec(request.inputs[operand]).shape
    return shape[0], prod(shape[1:])


def _divisor_of_elements(request: Request, operand: int) -> float:
    samples, each = _by_sample(request, operand)
    return _divisor(request, samples, samples * each)


def _loss(
    request: Request,
    loop: str,
    numbers: Sequence[Any],
    units: int,
    work: float,
    divisor: float,
    classes: int = 0,
    room: int = 0,
) -> Iterable[Candidate]:
    """Return the kernel of a loss that a loop of (operands, partial, numbers, begin, end) sums over
    ``units``. With ``classes``, the second operand has one label for each unit, which is checked to be a
    class. ``room`` is the number of bytes of scratch memory after the partial sums."""
    if not is_real(request.inputs[0], *request.outputs):
        return ()
    parts = parts_for(request, units, work)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops.loss import total_loss

        operands = [flat(array) for array in inputs]
        partials, wrong = _sums(workspace, parts)
        shares = []
        for i, part in enumerate(divide(units, parts)):
            kept = [_room(workspace, parts, i, room, operands[0].dtype)] if room else []
            shares.append(ready(_loop(loop), *operands, partials[i], *kept, *numbers, *part))
        failed = wrong_label(request, wrong, operands[1], 1, classes)
        total = ready(total_loss, partials, flat(outputs[0]), wrong, float(divisor), failed=failed)
        return in_order([at_once(shares), total])

    size = (parts + 1) * _PARTIAL + parts * room
    return (Candidate(KERNEL, bind, workspace=size, in_place=False),)


def _backward(
    request: Request, loop: str, numbers: Sequence[Any], units: int, work: float
) -> Iterable[Candidate]:
    """Return the kernel of a gradient that a loop of (operands, results, numbers, begin, end) computes
    for ``units``. The loop receives an empty array in place of a result that nobody reads."""
    if not is_real(*request.inputs[:2], *request.outputs):
        return ()
    parts = parts_for(request, units, work)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        operands = [flat(array) for array in inputs]
        targets = [operands[0][:0] if array is None else flat(array) for array in outputs]
        return spread(_loop(loop), (*operands, *targets, *numbers), units, parts)

    return (Candidate(KERNEL, bind),)


def _loop(name: str) -> Any:
    from demitasse_cpu.loops import loss, margin, pair_loss

    return next(getattr(each, name) for each in (loss, pair_loss, margin) if hasattr(each, name))


FACTORIES = {
    "softmax_loss": softmax_loss,
    "softmax_loss_backward": softmax_loss_backward,
    "accuracy": accuracy,
    "segment_scores": segment_scores,
    "infogain_loss": infogain_loss,
    "infogain_loss_backward": infogain_loss_backward,
    "hinge_loss": hinge_loss,
    "hinge_loss_backward": hinge_loss_backward,
    "negative_log_likelihood": negative_log_likelihood,
    "negative_log_likelihood_backward": negative_log_likelihood_backward,
    "sigmoid_cross_entropy_loss": sigmoid_cross_entropy_loss,
    "sigmoid_cross_entropy_loss_backward": sigmoid_cross_entropy_loss_backward,
    "half_squared_distance": half_squared_distance,
    "half_squared_distance_backward": half_squared_distance_backward,
    "contrastive_loss": contrastive_loss,
    "contrastive_loss_backward": contrastive_loss_backward,
    "angular_margin": angular_margin,
    "angular_margin_backward": angular_margin_backward,
}


def _ignored(request: Request) -> float:
    """Return the label that is ignored, or NaN, which equals no label, if none is."""
    given = request.attributes["ignore_label"]
    return nan if given is None else float(given)


def _divisor(request: Request, samples: int, rows: int) -> float:
    """Return the number by which the sum is divided, or 0 for the number of labels that count."""
    valid = 0.0 if request.attributes["ignore_label"] is not None else float(rows)
    kinds = {"valid": valid, "full": float(rows), "batch_size": float(samples), "none": 1.0}
    return kinds[request.attributes["normalization"]]


def wrong_label(
    request: Request, wrong: Any, labels: Any, labels_of_sample: int, classes: int
) -> Callable[[], DataError]:
    """Return the error for the row in ``wrong``, whose label is not a class."""

    def failed() -> DataError:
        row, ignored = int(wrong[0]), request.attributes.get("ignore_label")
        sample = row // labels_of_sample
        also = "" if ignored is None else f", or {ignored}, which is ignored"
        return SampleError(
            f"label {labels[row]:g} of sample {sample} of the batch is not a class "
            f"(valid: whole numbers from 0 to {classes - 1}{also})",
            sample,
            labels.size // labels_of_sample,
        )

    return failed
