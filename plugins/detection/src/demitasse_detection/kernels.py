"""NumPy kernels for the plugin's operations, in float64 whatever the tensors' type is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from demitasse import Candidate, Request, Work
from demitasse_detection.aligned import aligned, aligned_backward
from demitasse_detection.detections import detections
from demitasse_detection.evaluation import evaluated
from demitasse_detection.focal import focal_loss
from demitasse_detection.mining import hardest, label_losses
from demitasse_detection.multibox import multibox_loss
from demitasse_detection.proposals import proposals
from demitasse_detection.regions import pooled, pooled_backward
from demitasse_detection.yolo import found_in_maps
from demitasse_detection.yolo_loss import region_loss
from demitasse_detection.yolov3_loss import yolov3_loss

Bind: TypeAlias = Callable[[Request, Sequence[Any], Sequence[Any]], Work]


def candidates(request: Request) -> Iterable[Candidate]:
    """Return one candidate for each of the plugin's own operations."""
    made = _WORKS.get(request.operation.name)
    if made is None:
        return ()

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        return made(request, inputs, outputs)

    return (Candidate(f"numpy {request.operation.name}", bind, in_place=False),)


def _detections(request: Request, inputs: Sequence[Any], outputs: Sequence[Any]) -> Work:
    (location, confidence, priors), (found,) = inputs, outputs

    def work() -> None:
        rows = np.concatenate(detections(location, confidence, priors, request.attributes))
        found[0, 0, : len(rows)] = rows
        found[0, 0, len(rows) :] = -1

    return work


def _detections_in_maps(request: Request, inputs: Sequence[Any], outputs: Sequence[Any]) -> Work:
    (found,) = outputs

    def work() -> None:
        rows = np.concatenate(found_in_maps(inputs, request.attributes))
        found[0, 0, : len(rows)] = rows
        found[0, 0, len(rows) :] = -1

    return work


def _loss(function: Callable[..., Any]) -> Bind:
    """Return the kernel of a loss, given a function of its inputs and attributes that returns the loss
    and its slopes."""

    def bind(request: Request, inputs: Sequence[Any], outputs: Sequence[Any]) -> Work:
        def work() -> None:
            made = function(*inputs, request.attributes)
            for result, value in zip(outputs, made, strict=False):
                if result is not None:
                    result[...] = np.asarray(value).reshape(result.shape)

        return work

    return bind


def _of_slopes(request: Request, inputs: Sequence[Any], outputs: Sequence[Any]) -> Work:
    dloss, *slopes = inputs

    def work() -> None:
        for result, slope in zip(outputs, slopes, strict=False):
            if result is not None:
                np.multiply(slope, dloss, out=result)

    return work


def _evaluate_detections(request: Request, inputs: Sequence[Any], outputs: Sequence[Any]) -> Work:
    (found, label), (counts,) = inputs, outputs

    def work() -> None:
        rows = evaluated(found, label, request.attributes)
        counts[0, 0, : len(rows)] = rows
        counts[0, 0, len(rows) :] = -1

    return work


def _proposals(request: Request, inputs: Sequence[Any], outputs: Sequence[Any]) -> Work:
    scores, told, images = inputs
    regions, found = outputs

    def work() -> None:
        rows, likely = proposals(scores, told, images, request.attributes)
        regions[...] = rows
        if found is not None:
            found[:, 0] = likely

    return work


def _of_regions(function: Callable[..., Any]) -> Bind:
    """Return the kernel of an operation that reads regions of planes."""

    def bind(request: Request, inputs: Sequence[Any], outputs: Sequence[Any]) -> Work:
        (x, regions), (y,) = inputs, outputs

        def work() -> None:
            y[...] = function(x, regions, request.attributes)

        return work

    return bind


def _of_regions_backward(function: Callable[..., Any]) -> Bind:
    def bind(request: Request, inputs: Sequence[Any], outputs: Sequence[Any]) -> Work:
        (dy, regions), (dx,) = inputs, outputs

        def work() -> None:
            dx[...] = function(dy, regions, dx.shape, request.attributes)

        return work

    return bind


def _label_losses(request: Request, inputs: Sequence[Any], outputs: Sequence[Any]) -> Work:
    (probability, label), (losses,) = inputs, outputs

    def work() -> None:
        losses[...] = label_losses(probability, label, request.attributes)

    return work


def _hardest_regions(request: Request, inputs: Sequence[Any], outputs: Sequence[Any]) -> Work:
    regions, losses, label, weights = inputs

    def work() -> None:
        made = hardest(regions, losses, label, weights, request.attributes)
        for result, value in zip(outputs, made, strict=True):
            result[...] = value.reshape(result.shape)

    return work


_WORKS: dict[str, Bind] = {
    "detections": _detections,
    "detections_in_maps": _detections_in_maps,
    "multibox_loss": _loss(multibox_loss),
    "multibox_loss_backward": _of_slopes,
    "region_loss": _loss(region_loss),
    "region_loss_backward": _of_slopes,
    "yolov3_loss": _loss(yolov3_loss),
    "focal_loss": _loss(focal_loss),
    "focal_loss_backward": _of_slopes,
    "evaluate_detections": _evaluate_detections,
    "proposals": _proposals,
    "label_losses": _label_losses,
    "hardest_regions": _hardest_regions,
    "pooling_positions": _of_regions(pooled),
    "pooling_positions_backward": _of_regions_backward(pooled_backward),
    "aligned_regions": _of_regions(aligned),
    "aligned_regions_backward": _of_regions_backward(aligned_backward),
}
