"""Margins on the cosine at the label, which help to tell faces apart: those of CosFace and ArcFace."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from demitasse import GraphBuilder, Layer, Tensor
from demitasse_caffe.layers.base import CaffeLayer
from demitasse_caffe.layers.indexing import place_of
from demitasse_caffe.schema import number

_LARGEST = 1 << 24
"""Above this, not every integer is a float32."""
_LEAST = 1e-12
"""The minimum of the square of a sine that is divided by."""


class Margin(CaffeLayer):
    """A batch of scores, one row for each sample, in which the score at the label is changed."""

    bottoms = (2, 2)
    no_gradient = MappingProxyType({1: "labels"})

    def _own(self, layer: Layer, x: Tensor, label: Tensor, graph: GraphBuilder) -> tuple[Tensor, Tensor]:
        """Return the score (N, 1) of each sample at its label, without a gradient, and its index among
        all scores."""
        samples, classes = x.shape[0], math.prod(x.shape[1:])
        if len(x.shape) < 2 or math.prod(label.shape) != samples:
            raise ValueError(f"x {x!r} must be a row per sample, label {label!r} a number each")
        if samples * classes > _LARGEST:
            raise ValueError(
                f"has {samples} x {classes:,} = {samples * classes:,} scores; at most {_LARGEST:,}"
            )
        numbers = graph.constant(f"{layer.name}.classes", np.arange(classes, dtype=np.float64)[:, None])
        rows = graph.constant(f"{layer.name}.rows", np.arange(samples) * float(classes))
        index = graph.apply("reshape", label, shape=(samples,))
        column = graph.apply(
            "gather", numbers, index, source=place_of(layer)
        )  # reports a label that is not a class
        place = graph.apply("sum", graph.apply("reshape", column, shape=(samples,)), rows)
        listed = graph.apply("reshape", graph.apply("stop_gradient", x), shape=(samples * classes, 1))
        return graph.apply("gather", listed, place, source=place_of(layer)), place

    def _spread(self, values: Tensor, place: Tensor, x: Tensor, graph: GraphBuilder) -> Tensor:
        """Return an array like x with the values (N, 1) at their places, and zeros elsewhere."""
        count = math.prod(x.shape)
        flat = graph.apply("gather_backward", values, place, shape=(count, 1))
        spread: Tensor = graph.apply("stop_gradient", graph.apply("reshape", flat, shape=x.shape))
        return spread


class LabelSpecificAdd(Margin):
    """x; in training, ``bias`` is added at the label where x is above -bias. The gradient is that of x.
    Wang et al. 2018, *CosFace*, equation 4, and *Additive Margin Softmax for Face Verification*, with a
    bias of -m. From caffe-windows."""

    name = "LabelSpecificAdd"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        x, label = bottoms
        bias = number(message.label_specific_add_param.bias)
        if graph.phase != "train":  # whatever transform_test says, as in the fork
            return [x]
        own, place = self._own(layer, x, label, graph)
        above = graph.apply("greater", own, threshold=-bias)
        more = graph.apply("power", above, power=1.0, scale=bias)
        return [graph.apply("sum", x, self._spread(more, place, x, graph))]


class CosinAddm(Margin):
    """x, with the cosine cos(t) at the label replaced by cos(t + m) or, where t is above pi - m, by
    cos(t) - m * sin(m), which keeps falling. Deng et al. 2019, *ArcFace*, equation 3. From
    arcface-caffe, which applies the margin in tests, too, and whose gradient is 1 where t is 0 or above
    pi - m."""

    name = "CosinAddm"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        x, label = bottoms
        m = number(message.cosin_add_m_param.m)
        if not 0 <= m < math.pi:
            raise ValueError(f"cosin_add_m_param {{ m: {m:g} }} is not an angle from 0 to below pi")
        own, place = self._own(layer, x, label, graph)
        cosine = graph.apply("clip", own, least=-1.0, most=1.0)
        squares = graph.apply("product", cosine, cosine)
        rest = graph.apply("power", squares, power=1.0, scale=-1.0, shift=1.0)  # the square of the sine
        sine = graph.apply("power", graph.apply("clip", rest, least=0.0, most=1.0), power=0.5)
        near = graph.apply("greater", own, threshold=math.cos(math.pi - m))
        # What is added to the cosine, with the margin or beyond the turning point.
        turned = graph.apply("sum", cosine, sine, own, coefficients=(math.cos(m), -math.sin(m), -1.0))
        fixed = m * math.sin(m)
        lifted = graph.apply("power", turned, power=1.0, shift=fixed)
        gated = graph.apply("product", near, lifted)
        change = graph.apply("power", gated, power=1.0, shift=-fixed)
        moved = self._spread(change, place, x, graph)
        if graph.phase != "train":
            return [graph.apply("sum", x, moved)]
        # The slope of the change: cos(m) + sin(m) * cos(t) / sin(t) - 1.
        over = graph.apply("power", graph.apply("clip", rest, least=_LEAST, most=1.0), power=-0.5)
        cotangent = graph.apply("product", cosine, over)
        slope = graph.apply("power", cotangent, power=1.0, scale=math.sin(m), shift=math.cos(m) - 1)
        open_ = graph.apply("product", near, graph.apply("greater", rest, threshold=0.0))
        more = self._spread(graph.apply("product", open_, slope), place, x, graph)
        steeper = graph.apply("product", x, more)
        still = graph.apply("stop_gradient", steeper)
        return [graph.apply("sum", x, moved, steeper, still, coefficients=(1.0, 1.0, 1.0, -1.0))]
