"""ReLU, Dropout and Softmax."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from demitasse import GraphBuilder, Layer, Tensor
from demitasse_caffe.layers.base import CaffeLayer, canonical, in_training
from demitasse_caffe.schema import number


class ReLU(CaffeLayer):
    """max(x, 0) + negative_slope * min(x, 0)."""

    name = "ReLU"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        slope = number(message.relu_param.negative_slope)
        if slope < 0:
            raise ValueError(f"negative_slope {slope} is below 0, where the sign of x would be lost")
        return [graph.apply("relu", bottoms[0], negative_slope=slope)]


class Dropout(CaffeLayer):
    """Drops a share of the elements in training and scales the rest up; the identity in tests."""

    name = "Dropout"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        ratio = number(message.dropout_param.dropout_ratio)
        if not 0 <= ratio < 1:
            raise ValueError(f"dropout_ratio {ratio} is not in [0, 1)")
        if ratio == 0 or not in_training(message, graph):
            return [bottoms[0]]
        kept, _ = graph.apply(
            "dropout",
            bottoms[0],
            graph.scalar("iteration"),
            graph.scalar("sample"),
            ratio=ratio,
            seed=graph.seed,
            stream=graph.stream,
        )
        return [kept]


class Softmax(CaffeLayer):
    """exp(x) over its sum along the axis."""

    name = "Softmax"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        axis = canonical(message.softmax_param.axis, bottoms[0])
        return [graph.apply("softmax", bottoms[0], axis=axis)]
