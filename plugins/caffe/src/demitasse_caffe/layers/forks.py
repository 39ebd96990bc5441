"""Layer types that BVLC Caffe has not, but the published nets of many: MobileNet, ShuffleNet, SENet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from demitasse import GraphBuilder, Layer, Tensor
from demitasse_caffe.layers.base import CaffeLayer
from demitasse_caffe.layers.convolution import Convolution
from demitasse_caffe.layers.indexing import place_of


class DepthwiseConvolution(Convolution):
    """A convolution with a group for each channel, whose file need not say so; where the type is called
    ConvolutionDepthwise, a ``group`` has no effect. Howard et al. 2017, *MobileNets*, section 3.1."""

    def __init__(self, name: str) -> None:
        self.name = name

    def _groups(self, convolution: Any, channels: int) -> int:
        if self.name != "ConvolutionDepthwise" and convolution.group not in (1, channels):
            raise ValueError(f"has a group for each of its {channels} channels, not {convolution.group}")
        return channels


class ReLU6(CaffeLayer):
    """min(max(x, 0), 6). Sandler et al. 2018, *MobileNetV2*, section 3."""

    name = "ReLU6"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        return [graph.apply("clip", bottoms[0], least=0.0, most=6.0)]


class Axpy(CaffeLayer):
    """a * x + y, with a number of a for each sample and channel of x; the bottoms are a, x, y. Hu et al.
    2018, *Squeeze-and-Excitation Networks*, section 3."""

    name = "Axpy"
    bottoms = (3, 3)

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        a, x, y = bottoms
        rows = x.shape[:2]
        if len(rows) < 2 or a.shape[:2] != rows or any(extent != 1 for extent in a.shape[2:]):
            raise ValueError(f"its first bottom {a!r} has no number for each channel of {x!r}")
        if len(a.shape) > 2:
            a = graph.apply("reshape", a, shape=rows)
        return [graph.apply("sum", graph.apply("scale", x, a, None, axis=0), y)]


class ShuffleChannel(CaffeLayer):
    """The channels dealt out: as a table with a row for each group, read by columns. Zhang et al. 2018,
    *ShuffleNet*, section 3.1."""

    name = "ShuffleChannel"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        x, groups = bottoms[0], message.shuffle_channel_param.group
        if len(x.shape) < 2:
            raise ValueError(f"shuffles channels, axis 1, which its bottom {x!r} lacks")
        samples, channels = x.shape[:2]
        if groups < 1 or channels % groups:
            raise ValueError(f"group {groups} does not divide {channels} channels")
        order = np.arange(samples * channels).reshape(samples, groups, -1).swapaxes(1, 2)
        index = graph.constant(f"{layer.name}.order", order.reshape(-1))
        rows = graph.apply("reshape", x, shape=(samples * channels, *x.shape[2:]))
        dealt = graph.apply("gather", rows, index, source=place_of(layer))
        return [graph.apply("reshape", dealt, shape=x.shape)]
