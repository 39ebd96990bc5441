"""Margins of the angle to the label's vector, which help to tell faces apart: those of CosFace, ArcFace
and L-Softmax."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from demitasse import GraphBuilder, Layer, Tensor
from demitasse_caffe.layers.base import CaffeLayer, canonical, learned
from demitasse_caffe.layers.indexing import place_of
from demitasse_caffe.layers.inner_product import lengths
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


class LargeMarginInnerProduct(Margin):
    """The products of samples and learned vectors, one for each class. At a sample's label the angle t
    between them is multiplied by ``type``: the product is their lengths times (-1)^k cos(type * t) - 2k,
    where k is the number of multiples of pi / type below t. The result is mixed with the plain product,
    whose weight relative to it is the second top and falls from iteration to iteration. Liu et al. 2016,
    *Large-Margin Softmax Loss for Convolutional Neural Networks*, section 3."""

    name = "LargeMarginInnerProduct"
    tops = (1, 2)

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        given, (x, label) = message.largemargin_inner_product_param, bottoms
        samples, classes = x.shape[0], given.num_output
        if classes < 1:
            raise ValueError(
                "largemargin_inner_product_param needs a num_output of 1 or more, the classes"
            )
        if canonical(given.axis, x) != 1:
            raise ValueError(f"axis {given.axis} of x {x!r} is not 1: a row per sample is needed")
        rows = graph.apply("reshape", x, shape=(samples, math.prod(x.shape[1:])))
        w = learned(graph, message, 0, (classes, rows.shape[1]), given.weight_filler)
        y = graph.apply("inner_product", rows, w, None)
        _, place = self._own(layer, y, label, graph)
        index = graph.apply("reshape", label, shape=(samples,))
        long = lengths(graph, rows)
        # The layer's weight of the plain product; at a margin of 1 its product stays as it is.
        _, factor = graph.apply(
            "angular_margin",
            graph.apply("stop_gradient", y),
            graph.apply("stop_gradient", long),
            index,
            graph.scalar("iteration"),
            margin=1,
            base=number(given.base),
            gamma=number(given.gamma),
            power=number(given.power),
            least=number(given.lambda_min),
            first=given.iteration,
        )
        if given.type:
            listed = graph.apply("reshape", y, shape=(samples * classes, 1))
            own = graph.apply("gather", listed, place, source=place_of(layer))
            vectors = graph.apply("reshape", lengths(graph, w), shape=(classes, 1))
            nearest = graph.apply("gather", vectors, index, source=place_of(layer))
            most = graph.apply("product", graph.apply("reshape", long, shape=(samples, 1)), nearest)
            turned = graph.apply("product", most, _of_angle(given.type + 1, own, most, graph))
            change = graph.apply("sum", turned, own, coefficients=(1.0, -1.0))
            share = graph.apply("power", factor, power=-1.0, shift=1.0)
            mixed = graph.apply("scale", change, graph.apply("stop_gradient", share), None)
            ones = graph.constant(f"{layer.name}.ones", np.ones((samples, 1)))
            at_label = self._spread(ones, place, y, graph)
            column = graph.apply("reshape", mixed, shape=(samples,))
            y = graph.apply("sum", y, graph.apply("scale", at_label, column, None, axis=0))
        return [y, factor][: len(layer.tops)]


def _of_angle(times: int, product: Tensor, most: Tensor, graph: GraphBuilder) -> Tensor:
    """Return (-1)^k cos(times * t) - 2k for the angle t whose cosine is a product divided by the most
    that it can be; ``times`` is from 2 to 4."""

    def line(values: Tensor, scale: float, shift: float) -> Tensor:
        made: Tensor = graph.apply("power", values, power=1.0, scale=scale, shift=shift)
        return made

    cosine = graph.apply("product", product, graph.apply("power", most, power=-1.0))
    square = graph.apply("product", cosine, cosine)
    if times == 2:
        multiple = line(square, 2, -1)
    elif times == 3:
        multiple = graph.apply("product", cosine, line(square, 4, -3))
    else:
        multiple = line(graph.apply("product", square, line(square, 8, -8)), 1, 1)
    fixed = graph.apply("stop_gradient", cosine)
    turns = [math.cos(turn * math.pi / times) for turn in range(1, times)]
    before = [graph.apply("greater", fixed, threshold=turn) for turn in turns]
    signs = [line(each, 2, -1) for each in before]
    signed = graph.apply("product", multiple, *signs)
    steps = graph.apply("sum", signed, *before, coefficients=(1.0, *[2.0] * len(before)))
    return line(steps, 1, -2 * (times - 1))
