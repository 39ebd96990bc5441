"""Batch normalisation, and means over valid labels, by the statistics of a batch that workers share.
Their sums are float64 in device memory; between two launches the host adds those of all workers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

from demitasse import PLAIN, Candidate, Request, Work
from demitasse_gpu.kernels.batch_normalization import channels_of, statistics
from demitasse_gpu.kernels.launches import THREADS, Source, cut, device_of, real_type, room, spec
from demitasse_gpu.kernels.layouts import like
from demitasse_gpu.kernels.loss import is_label

KERNEL = "CUDA"


def channel_moments(request: Request) -> Iterable[Candidate]:
    x = spec(request.inputs[0])
    if not (real := real_type(x)):
        return ()
    form = channels_of(request, x, real)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_gpu.launch import in_order

        (given,), (moments,), (partial,) = inputs, outputs, cut(workspace, form.partial)
        device, launch, extents = device_of(inputs), form.source.launch, form.extents
        settled = (extents, given, partial, form.slabs, moments)
        return in_order(
            [
                launch(device, "moments", form.sums, form.block, extents, given, partial),
                launch(device, "settle_sums", *form.settled, *settled),
            ]
        )

    return (Candidate(KERNEL, bind, (form.layout,), workspace=room(form.partial)),)


def settle_moments(request: Request) -> Iterable[Candidate]:
    _, *kept = request.inputs
    if not (real := real_type(*kept, *request.outputs)):
        return ()
    keep, epsilon = (float(request.attributes[name]) for name in ("keep", "epsilon"))
    mean = spec(kept[0])
    channels = prod(mean.shape)
    # Of the same types as the kernels around it, so that the file is compiled once.
    source = Source("batch_normalization.cu", real, like(request, mean).stored)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        moments, mean, variance, factor = inputs
        divisor = None if request.attributes["averaged"] else factor
        numbers = source.number(keep), source.number(epsilon)
        arguments = (channels, moments, *numbers, mean, variance, divisor, *outputs)
        grid = -(-channels // THREADS)
        return source.launch(device_of(inputs), "settle_whole", grid, THREADS, *arguments)

    return (Candidate(KERNEL, bind),)


def batch_norm_whole_backward(request: Request) -> Iterable[Candidate]:
    """Return candidates for a result without a clip behind it."""
    *operands, _, _ = request.inputs
    limits = float(request.attributes["least"]), float(request.attributes["most"])
    real = real_type(*operands, *request.outputs)
    if not real or limits != (-math.inf, math.inf):
        return ()
    form = channels_of(request, spec(request.inputs[1]), real)  # as the forward pass left it
    rectified, pieces = int(request.attributes["relu"]), ((real, 2 * form.channels),)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_gpu.launch import in_order

        dy, given, w, b, average, inverse, sums, moments = inputs
        (means,) = cut(workspace, *pieces)
        dw, db = means[: form.channels], means[form.channels :]
        known = statistics(form.source, average, inverse, None, 0.0, kept=False)
        device, launch, count = device_of(inputs), form.source.launch, 2 * form.channels
        last = (form.extents, known, dy, given, w, b, dw, db, outputs[0], rectified)
        grid, share = form.everywhere(device), form.source.number(1.0)
        return in_order(
            [
                launch(device, "share_sums", -(-count // THREADS), THREADS, count, sums, moments, means),
                launch(device, "normalise_backward", grid, form.block, *last, share),
            ]
        )

    layouts = (form.layout, form.layout, *(PLAIN,) * 6), (form.layout,)
    return (Candidate(KERNEL, bind, *layouts, workspace=room(*pieces)),)


def count_labels(request: Request) -> Iterable[Candidate]:
    label = spec(request.inputs[0])
    if not is_label(label.dtype):
        return ()
    source = Source("valid_labels.cu", "float32", types=(("LABEL", label.dtype),))
    ignored = float(request.attributes["ignore_label"])

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        import numpy as np

        arguments = (*inputs, *outputs, np.float64(ignored), np.int64(prod(label.shape)))
        return source.launch(device_of(inputs), "count_labels", 1, THREADS, *arguments)

    return (Candidate(KERNEL, bind),)


def over_divisor(request: Request) -> Iterable[Candidate]:
    x = spec(request.inputs[0])
    if not (real := real_type(x, *request.outputs)):
        return ()
    source, share = Source("valid_labels.cu", real), float(request.attributes["share"])

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        import numpy as np

        arguments = (*inputs, *outputs, np.float64(share))
        return source.flat(device_of(inputs), "over_divisor", prod(x.shape), *arguments, pack=1)

    return (Candidate(KERNEL, bind),)


FACTORIES = {
    "channel_moments": channel_moments,
    "settle_moments": settle_moments,
    "batch_norm_whole_backward": batch_norm_whole_backward,
    "count_labels": count_labels,
    "over_divisor": over_divisor,
}
