"""Losses other than softmax's: of predictions and labels or targets, or of two tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import prod
from types import MappingProxyType
from typing import Any

from demitasse import Candidate, Request, Work
from demitasse_gpu.kernels.labels import checked
from demitasse_gpu.kernels.launches import THREADS, Source, cut, device_of, real_type, room, spec
from demitasse_gpu.kernels.loss import KERNEL, Labelled, is_label, threads_for

_PARTS = 256  # the blocks that sum a loss; their number depends on the shape alone


def _source(real: str, label: str = "") -> Source:
    return Source("losses.cu", real, types=(("LABEL", label or real),))


def _blocks(count: int) -> int:
    return max(1, min(_PARTS, -(-count // (4 * THREADS))))


def _summed(
    first: Callable[[Any, Any, Any, Sequence[Any], Sequence[Any]], Work],
    parts: int,
    normaliser: float,
    real: str,
    look: Callable[[Sequence[Any], Any], Work] | None = None,
) -> Iterable[Candidate]:
    """Return a loss of two kernels: ``first(device, losses, counts, inputs, outputs)`` leaves ``parts``
    sums, which the second adds up. ``look(works, labels)`` adds a check of the labels, the second
    input."""
    pieces = ((real, parts), ("int32", parts))

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        import numpy as np

        from demitasse_gpu.launch import in_order

        device, (losses, counts) = device_of(inputs), cut(workspace, *pieces)
        total = (losses, counts, outputs[0], parts, np.float64(normaliser))
        last = Source("softmax.cu", real).launch(device, "total_loss", 1, THREADS, *total)
        works: list[Work] = [first(device, losses, counts, inputs, outputs), last]
        return in_order(works) if look is None else look(works, inputs[1])

    return (Candidate(KERNEL, bind, workspace=room(*pieces)),)


def _elements(request: Request) -> tuple[int, int, int]:
    """Return the number of samples, of all elements, and of elements per sample, of the first operand
    that is not a scalar."""
    shape = next(s.shape for s in request.inputs if s is not None and s.shape)
    return shape[0], prod(shape), prod(shape[1:])


def half_squared_distance(request: Request) -> Iterable[Candidate]:
    if not (real := real_type(*request.inputs, *request.outputs)):
        return ()
    samples, size, _ = _elements(request)
    parts, source = _blocks(size), _source(real)

    def first(device: Any, losses: Any, counts: Any, inputs: Sequence[Any], _: Any) -> Work:
        import numpy as np

        arguments = (*inputs, losses, counts, np.int64(size))
        return source.launch(device, "half_squared_distance", parts, THREADS, *arguments)

    return _summed(first, parts, 2.0 * samples, real)


def half_squared_distance_backward(request: Request) -> Iterable[Candidate]:
    if not (real := real_type(*request.inputs, *request.outputs)):
        return ()
    samples, size, _ = _elements(request)
    source, name = _source(real), "half_squared_distance_backward"

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        arguments = (*inputs, *(*outputs, None)[:2], samples)
        return source.flat(device_of(inputs), name, size, *arguments, pack=1)

    return (Candidate(KERNEL, bind),)


def _by_label(name: str, request: Request) -> Iterable[Candidate]:
    """Return a loss with one label per sample: hinge losses, and the negative log-likelihood."""
    x, label = map(spec, request.inputs)
    if not (real := real_type(x, *request.outputs)) or not is_label(label.dtype):
        return ()
    samples, size, classes = _elements(request)
    hinged = name == "hinge_loss"
    count = size if hinged else samples
    parts, source = _blocks(count), _source(real, label.dtype)

    def first(device: Any, losses: Any, counts: Any, inputs: Sequence[Any], _: Any) -> Work:
        import numpy as np

        norm = [int(request.attributes["norm"] == "L2")] if hinged else []
        arguments = (*inputs, losses, counts, classes, *norm, np.int64(count))
        return source.launch(device, name, parts, THREADS, *arguments)

    look = partial(checked, classes=classes, of_sample=1)
    return _summed(first, parts, float(samples), real, look)


def _by_label_backward(name: str, request: Request) -> Iterable[Candidate]:
    dloss, x, label = map(spec, request.inputs)
    if not (real := real_type(dloss, x, *request.outputs)) or not is_label(label.dtype):
        return ()
    samples, size, classes = x.shape[0], prod(x.shape), prod(x.shape[1:])
    source = _source(real, label.dtype)
    norm = [int(request.attributes["norm"] == "L2")] if "norm" in request.attributes else []

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        arguments = (*inputs, *outputs, classes, *norm, samples)
        return source.flat(device_of(inputs), f"{name}_backward", size, *arguments, pack=1)

    return (Candidate(KERNEL, bind),)


def angular_margin(request: Request) -> Iterable[Candidate]:
    x, length, label, iteration = map(spec, request.inputs)
    real = real_type(x, length, *request.outputs)
    if not real or not is_label(label.dtype) or iteration.dtype != "uint64":
        return ()
    source, given, (_, classes) = _source(real, label.dtype), request.attributes, x.shape
    names = ("base", "gamma", "power", "least", "first")

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        import numpy as np

        factors = (np.float64(given[name]) for name in names)
        arguments = (*inputs, *outputs, int(given["margin"]), *factors, classes)
        work = source.flat(device_of(inputs), "angular_margin", prod(x.shape), *arguments, pack=1)
        return checked([work], inputs[2], classes, 1)

    return (Candidate(KERNEL, bind, in_place=False),)


def angular_margin_backward(request: Request) -> Iterable[Candidate]:
    dy, x, length, label, factor = map(spec, request.inputs)
    real = real_type(dy, x, length, factor, *request.outputs)
    if not real or not is_label(label.dtype):
        return ()
    source, name = _source(real, label.dtype), request.operation.name

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        arguments = (*inputs, *outputs, int(request.attributes["margin"]), x.shape[1])
        return source.flat(device_of(inputs), name, prod(x.shape), *arguments, pack=1)

    return (Candidate(KERNEL, bind),)


def _ignored(request: Request) -> tuple[int, float]:
    given = request.attributes["ignore_label"]
    return int(given is not None), 0.0 if given is None else float(given)


def _cross_entropy_normaliser(request: Request, samples: int, size: int) -> float:
    """Return the number that divides the loss, or 0 if the targets that count are to be counted."""
    counted = 0.0 if request.attributes["ignore_label"] is not None else float(size)
    kinds = {"valid": counted, "full": float(size), "batch_size": float(samples), "none": 1.0}
    return kinds[request.attributes["normalization"]]


def sigmoid_cross_entropy_loss(request: Request) -> Iterable[Candidate]:
    x, target = map(spec, request.inputs)
    if not (real := real_type(x, *request.outputs)) or not is_label(target.dtype):
        return ()
    samples, size, _ = _elements(request)
    parts, source = _blocks(size), _source(real, target.dtype)

    def first(device: Any, losses: Any, counts: Any, inputs: Sequence[Any], _: Any) -> Work:
        import numpy as np

        ignores, ignored = _ignored(request)
        arguments = (*inputs, losses, counts, ignores, np.float64(ignored), np.int64(size))
        return source.launch(device, "sigmoid_cross_entropy_loss", parts, THREADS, *arguments)

    return _summed(first, parts, _cross_entropy_normaliser(request, samples, size), real)


def sigmoid_cross_entropy_loss_backward(request: Request) -> Iterable[Candidate]:
    dloss, x, target = map(spec, request.inputs)
    if not (real := real_type(dloss, x, *request.outputs)) or not is_label(target.dtype):
        return ()
    samples, size = x.shape[0], prod(x.shape)
    normaliser = _cross_entropy_normaliser(request, samples, size)
    source, name = _source(real, target.dtype), "sigmoid_cross_entropy_loss_backward"

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        import numpy as np

        from demitasse_gpu.launch import in_order

        device, stages, count = device_of(inputs), list[Work](), None
        ignores, ignored = _ignored(request)
        numbers = (ignores, np.float64(ignored))
        if not normaliser:
            (count,) = cut(workspace, ("int32", 1))
            counting = (inputs[2], count, *numbers, np.int64(size))
            stages.append(source.launch(device, "count_targets", 1, THREADS, *counting))
        arguments = (*inputs, count, *outputs, *numbers, np.float64(normaliser))
        stages.append(source.flat(device, name, size, *arguments, pack=1))
        return in_order(stages)

    return (Candidate(KERNEL, bind, workspace=0 if normaliser else room(("int32", 1))),)


def infogain_loss(request: Request) -> Iterable[Candidate]:
    x, _, matrix = map(spec, request.inputs)
    about = Labelled(request, 0, 1)
    real = real_type(x, matrix, *request.outputs)
    if not real or not is_label(about.kind):
        return ()
    source = _source(real, about.kind)

    def first(
        device: Any, losses: Any, counts: Any, inputs: Sequence[Any], outputs: Sequence[Any]
    ) -> Work:
        arguments = (*inputs, (*outputs, None)[1], losses, counts, *about.numbers)
        threads = threads_for(about.classes)
        return source.launch(device, "infogain_loss", about.rows, threads, *arguments)

    return _summed(first, about.rows, about.normaliser, real, about.checked)


def infogain_loss_backward(request: Request) -> Iterable[Candidate]:
    dloss, probability, _, matrix = map(spec, request.inputs)
    about = Labelled(request, 1, 2)
    real = real_type(dloss, probability, matrix, *request.outputs)
    if not real or not is_label(about.kind):
        return ()
    source = _source(real, about.kind)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        import numpy as np

        from demitasse_gpu.launch import in_order

        device, stages, count = device_of(inputs), list[Work](), None
        if not about.normaliser:
            (count,) = cut(workspace, ("int32", 1))
            stages.append(about.counted(device, inputs[2], count, real))
        arguments = (*inputs, count, *outputs, *about.numbers, np.float64(about.normaliser))
        threads = threads_for(about.classes)
        stages.append(source.launch(device, "infogain_loss_backward", about.rows, threads, *arguments))
        return in_order(stages)

    return (Candidate(KERNEL, bind, workspace=0 if about.normaliser else room(("int32", 1))),)


def contrastive_loss(request: Request) -> Iterable[Candidate]:
    a, b, similar = map(spec, request.inputs)
    if not (real := real_type(a, b, *request.outputs)) or not is_label(similar.dtype):
        return ()
    samples, _, length = _elements(request)
    source = _source(real, similar.dtype)

    def first(device: Any, losses: Any, counts: Any, inputs: Sequence[Any], _: Any) -> Work:
        arguments = (*inputs, losses, counts, length, *_margin(request, source))
        return source.launch(device, "contrastive_loss", samples, THREADS, *arguments)

    return _summed(first, samples, 2.0 * samples, real)


def contrastive_loss_backward(request: Request) -> Iterable[Candidate]:
    dloss, a, b, similar = map(spec, request.inputs)
    if not (real := real_type(dloss, a, b, *request.outputs)) or not is_label(similar.dtype):
        return ()
    source, name = _source(real, similar.dtype), "contrastive_loss_backward"

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        made = (*outputs, None)[:2]
        arguments = (*inputs, *made, prod(a.shape[1:]), *_margin(request, source))
        return source.launch(device_of(inputs), name, a.shape[0], THREADS, *arguments)

    return (Candidate(KERNEL, bind),)


def _margin(request: Request, source: Source) -> tuple[Any, int]:
    return source.number(request.attributes["margin"]), int(request.attributes["legacy"])


FACTORIES: Mapping[str, Callable[[Request], Iterable[Candidate]]] = MappingProxyType(
    {
        "half_squared_distance": half_squared_distance,
        "half_squared_distance_backward": half_squared_distance_backward,
        **{name: partial(_by_label, name) for name in ("hinge_loss", "negative_log_likelihood")},
        **{
            f"{name}_backward": partial(_by_label_backward, name)
            for name in ("hinge_loss", "negative_log_likelihood")
        },
        "sigmoid_cross_entropy_loss": sigmoid_cross_entropy_loss,
        "sigmoid_cross_entropy_loss_backward": sigmoid_cross_entropy_loss_backward,
        "angular_margin": angular_margin,
        "angular_margin_backward": angular_margin_backward,
        "infogain_loss": infogain_loss,
        "infogain_loss_backward": infogain_loss_backward,
        "contrastive_loss": contrastive_loss,
        "contrastive_loss_backward": contrastive_loss_backward,
    }
)
