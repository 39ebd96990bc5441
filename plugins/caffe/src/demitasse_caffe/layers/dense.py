"""DenseBlock of caffe_ocr's and the DenseNet authors' forks: Huang et al. 2017, *Densely Connected
Convolutional Networks*, sections 3.2 and 3.3."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from demitasse import GraphBuilder, Layer, Tensor
from demitasse_caffe.fillers import Constant
from demitasse_caffe.layers.base import CaffeLayer, Shape, in_training, learned
from demitasse_caffe.layers.normalization import check_channels, untrained
from demitasse_caffe.schema import number

_EPSILON = 1e-5
_WIDTH = 4
"""Channels of a bottleneck for each channel that a step adds."""
_FIXED = {"pad_h": 1, "pad_w": 1, "conv_verticalStride": 1, "conv_horizentalStride": 1} | {
    "filter_H": 3,
    "filter_W": 3,
    "use_dropout": False,
}


class DenseBlock(CaffeLayer):
    """A sequence of steps, each of which adds ``growthRate`` channels to all earlier ones: normalise,
    rectify, convolve 3 x 3. With ``use_BC`` a bottleneck comes first: normalise, rectify, convolve 1 x 1
    to 4 * ``growthRate`` channels.

    Parameters, each with one blob for each step: filters, scales, shifts, average means and variances;
    with ``use_BC`` the same five for the 1 x 1 convolutions; finally one unused number. The averages
    follow the fork's GPU code, which alone wrote files: a new batch has the weight
    ``moving_average_fraction``.
    """

    name = "DenseBlock"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        given, x = message.denseblock_param, bottoms[0]
        check_channels(x)
        steps, growth = given.numTransition, given.growthRate
        if len(x.shape) != 4 or min(steps, growth) < 1:
            raise ValueError(
                f"needs images (four axes), and a numTransition and growthRate of 1 or more; it has "
                f"{x!r}, {steps} and {growth}"
            )
        for field, served in _FIXED.items():
            if getattr(given, field) != served:
                raise ValueError(f"denseblock_param {{ {field} }} is supported only as {served}")
        fraction = number(given.moving_average_fraction)
        if not 0 <= fraction <= 1:
            raise ValueError(f"moving_average_fraction {fraction:g} is not from 0 to 1")
        wide = _WIDTH * growth
        channels = [x.shape[1] + i * growth for i in range(steps)]
        filters = [(growth, wide if given.use_BC else count, 3, 3) for count in channels]
        kept = _Blobs(message, graph)
        outer = kept.of_steps(filters, channels)
        inner = []
        if given.use_BC:
            inner = kept.of_steps([(wide, count, 1, 1) for count in channels], [wide] * steps)
        kept.still((1,), 0.0)
        one = graph.constant(f"{layer.name}.one", np.ones(1))
        trains = in_training(message, graph)

        def rectified(x: Tensor, about: Sequence[Tensor]) -> Tensor:
            w, b, mean, variance = about
            if trains:
                x = graph.apply(
                    "batch_norm",
                    *(x, mean, variance, one, w, b),
                    keep=1 - fraction,
                    epsilon=_EPSILON,
                    averaged=True,
                )[0]
            else:
                x = graph.apply("batch_norm_inference", x, mean, variance, one, w, b, epsilon=_EPSILON)
            made: Tensor = graph.apply("relu", x)
            return made

        for step, (filter_, *about) in enumerate(outer):
            if inner:
                narrow, *about_narrow = inner[step]
                narrowed = graph.apply("convolution", rectified(x, about), narrow, None, **_square(0))
                ready = rectified(narrowed, about_narrow)
            else:
                ready = rectified(x, about)
            new = graph.apply("convolution", ready, filter_, None, **_square(1))
            x = graph.apply("concat", x, new, axis=1)
        return [x]


def _square(padding: int) -> dict[str, Any]:
    return {"stride": (1, 1), "pad": (padding, padding), "dilation": (1, 1)}


class _Blobs:
    """A block's parameters, in their order in files."""

    def __init__(self, message: Any, graph: GraphBuilder) -> None:
        self._message, self._given, self._graph, self._made = message, message.denseblock_param, graph, 0

    def of_steps(self, filters: Sequence[Shape], channels: Sequence[int]) -> list[tuple[Tensor, ...]]:
        """Return filter, scale, shift, mean and variance of each step; in files all
        filters come first."""
        given = self._given
        return list(
            zip(
                [self._learned(shape, given.Filter_Filler) for shape in filters],
                [self._learned((count,), given.BN_Scaler_Filler) for count in channels],
                [self._learned((count,), given.BN_Bias_Filler) for count in channels],
                [self.still((count,), 0.0) for count in channels],
                [self.still((count,), 1.0) for count in channels],
                strict=True,
            )
        )

    def still(self, shape: Shape, value: float) -> Tensor:
        """Return a parameter that is not learned."""
        self._made += 1
        return untrained(self._graph, self._message, self._made - 1, shape, Constant(value))

    def _learned(self, shape: Shape, fill: Any) -> Tensor:
        self._made += 1
        return learned(self._graph, self._message, self._made - 1, shape, fill)
