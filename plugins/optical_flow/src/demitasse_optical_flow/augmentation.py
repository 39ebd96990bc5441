"""The layer type that prepares images in FlowNet's fork, except for its random parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from demitasse import GraphBuilder, Layer, RandomStream, Tensor
from demitasse_optical_flow.base import FlowLayer, check_image, decimal, resampled

_LAST = np.float32(1.05)
"""The distance from the number of pixels to the last place that the fork reads from."""


class DataAugmentation(FlowLayer):
    """Images cropped to ``crop_width`` x ``crop_height`` at their centre, minus a mean. With
    ``recompute_mean`` the mean comes from the weights, in three blobs: the number of its batches, and
    twice the channels' means, the first of them in the place of the fork's mean of each pixel. Otherwise
    it is ``mean``, for three channels."""

    name = "DataAugmentation"
    bottoms = (1, 2)
    tops = (1, 2)

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        about, x = message.augmentation_param, bottoms[0]
        check_image(x)
        cuts = about.HasField("crop_width") and about.HasField("crop_height")
        trains = message.phase == 0 if message.HasField("phase") else graph.phase == "train"
        if len(bottoms) > 1 or len(layer.tops) > 1:
            raise ValueError(
                "takes or gives what another layer draws at random, which is not supported: give one "
                "bottom and one top"
            )
        drawn = [field.name for field, _ in about.ListFields() if field.message_type is not None]
        if drawn and cuts and (trains or about.augment_during_test):
            raise ValueError(
                f"augmentation_param {{ {drawn[0]} }} changes images at random, which is not supported: "
                f"leave out the random parts, or train on images that were changed before"
            )
        if cuts:
            for axis, size in ((2, about.crop_height), (3, about.crop_width)):
                if not 1 <= size <= x.shape[axis]:
                    raise ValueError(f"a crop of {size} must be from 1 to the {x.shape[axis]} of {x!r}")
                x = resampled(layer, graph, x, axis, _middle(x.shape[axis], size))
        if about.recompute_mean:
            return [self._less_kept_mean(layer, about, trains, x, graph)]
        if len(about.mean) == 3 and not about.mean_per_pixel:
            if x.shape[1] != 3:
                raise ValueError(f"3 means do not fit the {x.shape[1]} channels of {x!r}")
            shift = np.array([-decimal(each) for each in about.mean])
            return [_shifted(graph, x, graph.constant(f"{layer.name}.mean", shift), layer)]
        return [x]

    def _less_kept_mean(
        self, layer: Layer, about: Any, trains: bool, x: Tensor, graph: GraphBuilder
    ) -> Tensor:
        if trains:
            raise ValueError(
                f"augmentation_param {{ recompute_mean: {about.recompute_mean} }} takes the mean of the "
                f"first batches, which is not supported in training: give mean, three numbers, and "
                f"mean_per_pixel: false"
            )
        if about.mean_per_pixel:
            raise ValueError(
                "augmentation_param { mean_per_pixel } is true, its default, but of the mean in the "
                "weights only that of each channel is supported; write mean_per_pixel: false"
            )
        shapes = ((1, 1, 1, 1), (1, x.shape[1], 1, 1), (1, x.shape[1], 1, 1))
        *_, mean = (
            graph.parameter(shape, _zeros, rate=0.0, decay=0.0, trainable=False) for shape in shapes
        )
        less = graph.apply("sum", mean, coefficients=(-1.0,))
        return _shifted(graph, x, graph.apply("reshape", less, shape=(x.shape[1],)), layer)


def _middle(extent: int, size: int) -> np.ndarray:
    """Return the weights of pixels for ``size`` places at the centre, which may lie between pixels."""
    last = max(float(np.float32(extent) - _LAST), 0.0)
    at = np.clip(np.arange(size) + (extent - size) / 2, 0.0, last)
    low = np.minimum(np.floor(at).astype(np.int64), extent - 1)
    weights = np.zeros((size, extent))
    rows = np.arange(size)
    weights[rows, low] = 1 - (at - low)
    weights[rows, np.minimum(low + 1, extent - 1)] += at - low
    return weights


def _shifted(graph: GraphBuilder, x: Tensor, shift: Tensor, layer: Layer) -> Tensor:
    ones = graph.constant(f"{layer.name}.ones", np.ones(x.shape[1]))
    made: Tensor = graph.apply("scale", x, ones, shift)
    return made


def _zeros(shape: tuple[int, ...], stream: RandomStream) -> np.ndarray:
    return np.zeros(shape)
