"""Dropout, softmax, softmax's loss, and accuracy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from demitasse import PLAIN, Candidate, Request, Work
from demitasse_gpu.kernels.labels import checked
from demitasse_gpu.kernels.launches import (
    TYPES,
    Source,
    blocks,
    cut,
    device_of,
    philox_key,
    real_type,
    room,
    rows_along,
    spec,
)
from demitasse_gpu.kernels.layouts import by_channels, is_innermost, like, unconverted

if TYPE_CHECKING:
    from demitasse_gpu.device import Device

KERNEL = "CUDA"
_ROW = 1024  # from this many classes on, a row is worth a block of eight warps


def dropout(request: Request) -> Iterable[Candidate]:
    x, iteration, sample = map(spec, request.inputs)
    real = real_type(x, spec(request.outputs[0]))
    if not real or {iteration.dtype, sample.dtype} != {"uint64"}:
        return ()
    samples, *shape = x.shape
    layout = by_channels(request, x)
    source = Source("dropout.cu", real, layout.stored)
    ratio = float(request.attributes["ratio"])
    channels, plane = (shape[0], prod(shape[1:])) if is_innermost(layout) else (1, prod(shape))

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        import numpy as np

        device = device_of(inputs)
        scale = source.number(1.0 / (1.0 - ratio) if ratio < 1.0 else 0.0)
        threshold = np.uint64(math.ceil(ratio * 2**32))
        arrays = (*inputs, *outputs, None)[:5]
        extents = (np.uint32(n) for n in (samples, channels, plane))
        numbers = (*philox_key(request), threshold, scale, *extents, int(is_innermost(layout)))
        grid = blocks(device, samples * -(-channels * plane // 4))
        return source.launch(device, "dropout", grid, 256, *arrays, *numbers)

    layouts = (layout, PLAIN, PLAIN), (layout, unconverted(layout))[: len(request.outputs)]
    return (Candidate("CUDA, Philox", bind, *layouts),)


def softmax(request: Request) -> Iterable[Candidate]:
    return _by_row(request, "softmax")


def softmax_backward(request: Request) -> Iterable[Candidate]:
    return _by_row(request, "softmax_backward")


def _by_row(request: Request, name: str) -> Iterable[Candidate]:
    if not (real := real_type(*request.inputs, *request.outputs)):
        return ()
    layout = unordered = like(request, spec(request.inputs[0]))
    if unordered.order:
        layout = by_channels(request, spec(request.inputs[0]))
    shape, axis = spec(request.inputs[0]).shape, request.attributes["axis"]
    order = layout.order or tuple(range(len(shape)))
    rows, classes, inner = rows_along(layout.physical(shape), order.index(axis))
    source = Source("softmax.cu", real, layout.stored)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        arguments = (*inputs, *outputs, classes, inner)
        return source.launch(device_of(inputs), name, rows, threads_for(classes), *arguments)

    return (Candidate(KERNEL, bind, (layout,) * len(request.inputs), (layout,)),)


def threads_for(classes: int) -> int:
    """Return the threads per row: a warp for a short row, so that no thread waits for others; more for a
    long one."""
    return 32 if classes <= 128 else 128 if classes < _ROW else 256


class Labelled:
    """What the operations on predictions and labels have in common."""

    def __init__(self, request: Request, x: int, label: int) -> None:
        given = request.attributes
        shape = spec(request.inputs[x]).shape
        self.rows, self.classes, self.inner = rows_along(shape, given["axis"])
        self.samples = shape[0] if given["axis"] else 1
        ignored = given["ignore_label"]
        self.ignored = 0.0 if ignored is None else float(ignored)
        self.ignores = int(ignored is not None)
        self.kind = spec(request.inputs[label]).dtype
        kinds = {
            "valid": 0.0 if self.ignores else float(self.rows),
            "full": float(self.rows),
            "batch_size": float(prod(shape[: given["axis"]])),
            "none": 1.0,
        }
        self.normaliser = kinds[given.get("normalization", "none")]

    @property
    def numbers(self) -> tuple[Any, ...]:
        """The last arguments of kernels that use a block per prediction."""
        import numpy as np

        return self.classes, self.inner, self.ignores, np.float64(self.ignored)

    def source(self, real: str) -> Source:
        return Source("softmax.cu", real, types=(("LABEL", self.kind),))

    def counted(self, device: Device, label: Any, count: Any, real: str) -> Work:
        """Return the work that puts the number of labels that are not ignored into ``count``."""
        import numpy as np

        numbers = (self.rows, self.classes, self.ignores, np.float64(self.ignored))
        return self.source(real).launch(device, "count_labels", 1, 256, label, count, *numbers)

    def checked(self, works: Sequence[Any], label: Any) -> Work:
        """Return a loss's works with a check of its labels, for the search for an error."""
        ignored = self.ignored if self.ignores else None
        return checked(works, label, self.classes, self.rows // self.samples, ignored)

    def is_served(self, real: str) -> bool:
        return bool(real) and is_label(self.kind)


def is_label(kind: str) -> bool:
    """Return whether labels and targets may have an element type."""
    return kind in TYPES and kind != "bfloat16"


def softmax_loss(request: Request) -> Iterable[Candidate]:
    """Return candidates. A label that is not a class makes the loss NaN, which stops the step."""
    x, (loss, probability) = spec(request.inputs[0]), (*request.outputs, None)[:2]
    about, real = Labelled(request, 0, 1), real_type(x, loss, probability)
    if not about.is_served(real):
        return ()
    source = about.source(real)
    pieces = ((real, about.rows), ("int32", about.rows))

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        import numpy as np

        device, (losses, counts) = device_of(inputs), cut(workspace, *pieces)
        kept, launch, threads = (*outputs, None)[1], source.launch, threads_for(about.classes)
        arrays = (*inputs, kept, losses, counts)
        total = (losses, counts, outputs[0], about.rows, np.float64(about.normaliser))
        works = [
            launch(device, "row_losses", about.rows, threads, *arrays, *about.numbers),
            launch(device, "total_loss", 1, 256, *total),
        ]
        return about.checked(works, inputs[1])

    return (Candidate(KERNEL, bind, workspace=room(*pieces)),)


def softmax_loss_backward(request: Request) -> Iterable[Candidate]:
    dloss, probability, _ = map(spec, request.inputs)
    about, real = Labelled(request, 1, 2), real_type(dloss, probability, *request.outputs)
    if not about.is_served(real):
        return ()
    source, counted = about.source(real), about.normaliser == 0

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        import numpy as np

        from demitasse_gpu.launch import in_order

        device, stages, count = device_of(inputs), list[Work](), None
        if counted:
            (count,) = cut(workspace, ("int32", 1))
            stages.append(about.counted(device, inputs[2], count, real))
        arrays = (*inputs, count, *outputs)
        more = (*about.numbers, np.float64(about.normaliser))
        size = prod(probability.shape)
        stages.append(source.flat(device, "softmax_loss_backward", size, *arrays, *more, pack=1))
        return in_order(stages)

    return (Candidate(KERNEL, bind, workspace=room(("int32", 1)) if counted else 0),)


def accuracy(request: Request) -> Iterable[Candidate]:
    x = spec(request.inputs[0])
    about, real = Labelled(request, 0, 1), real_type(x, *request.outputs)
    if not about.is_served(real):
        return ()
    source = about.source(real)
    pieces = (("int32", about.rows), ("int32", about.rows))

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        import numpy as np

        from demitasse_gpu.launch import in_order

        device, (own, hits) = device_of(inputs), cut(workspace, *pieces)
        best = int(request.attributes["top_k"])
        numbers = (about.classes, about.inner, best, about.ignores, np.float64(about.ignored))
        threads = threads_for(about.classes)
        stages: list[Work] = [
            source.launch(device, "score_rows", about.rows, threads, *inputs, own, hits, *numbers)
        ]
        for by_class, target in enumerate(outputs):
            if target is not None:
                grid = -(-about.classes // 256) if by_class else 1
                sizes = (about.rows, about.classes, by_class)
                stages.append(source.launch(device, "accuracy", grid, 256, own, hits, target, *sizes))
        return in_order(stages)

    return (Candidate(KERNEL, bind, workspace=room(*pieces)),)


FACTORIES = {
    "dropout": dropout,
    "softmax": softmax,
    "softmax_backward": softmax_backward,
    "softmax_loss": softmax_loss,
    "softmax_loss_backward": softmax_loss_backward,
    "accuracy": accuracy,
}
