"""Layer types of nets that find objects in regions of images, which BVLC Caffe has not: Girshick 2015,
*Fast R-CNN*; Ren et al. 2015, *Faster R-CNN*."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

from demitasse import GraphBuilder, Layer, Tensor
from demitasse_caffe.layers.base import CaffeLayer
from demitasse_caffe.layers.indexing import place_of
from demitasse_caffe.layers.loss import Loss
from demitasse_caffe.schema import number


class ROIPooling(CaffeLayer):
    """The maxima over ``pooled_h`` x ``pooled_w`` cells of each region of the second bottom, whose rows
    are the number of a sample and two corners in pixels of the image. *Fast R-CNN*, section 2.1."""

    name = "ROIPooling"
    bottoms = (2, 2)
    no_gradient = MappingProxyType({1: "regions"})

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        pooling = message.roi_pooling_param
        for field in ("pooled_h", "pooled_w"):
            if getattr(pooling, field) < 1:
                raise ValueError(f"roi_pooling_param {{ {field} }} is 0 or not given; it is 1 or more")
        scale = number(pooling.spatial_scale)
        if not 0 < scale < math.inf:
            raise ValueError(f"spatial_scale {scale:g} is not a positive number")
        size = (pooling.pooled_h, pooling.pooled_w)
        y, _ = graph.apply("pooling_regions", *bottoms, size=size, scale=scale, source=place_of(layer))
        return [y]


class SmoothL1Loss(Loss):
    """The sum, over samples the mean, of sigma^2 d^2 / 2 where |d| is below 1 / sigma^2, else of
    |d| - 1 / (2 sigma^2): d is the difference of the first two bottoms, times the third where there is
    one; a fourth multiplies the terms. *Fast R-CNN*, section 2.3."""

    name = "SmoothL1Loss"
    bottoms = (2, 4)
    no_gradient = MappingProxyType({2: "weights", 3: "weights"})

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        x, square = bottoms[0], number(message.smooth_l1_loss_param.sigma) ** 2
        if not 0 < square < math.inf or not x.shape:
            raise ValueError(
                f"sigma {number(message.smooth_l1_loss_param.sigma):g} is not a number above 0"
            )
        x, target, *weights = (alike(each, x, graph) for each in bottoms)
        d = graph.apply("sum", x, target, coefficients=(1.0, -1.0))
        if weights:
            d = graph.apply("product", weights[0], d)
        size = graph.apply("absolute", d)
        # With c = min(|d|, 1 / sigma^2) both cases are sigma^2 c (|d| - c / 2).
        near = graph.apply("clip", size, least=0.0, most=1 / square)
        term = graph.apply("product", near, graph.apply("sum", size, near, coefficients=(1.0, -0.5)))
        if len(weights) > 1:
            term = graph.apply("product", weights[1], term)
        mean = {"coefficient": square / x.shape[0], "normalization": "full"}
        return [graph.apply("total", term, axis=0, **mean)]


class L1Loss(Loss):
    """The sum of |a - b|, over samples the mean, of NVIDIA's fork (its DetectNet)."""

    name = "L1Loss"
    no_gradient = MappingProxyType({})

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        x = bottoms[0]
        d = graph.apply("sum", x, alike(bottoms[1], x, graph), coefficients=(1.0, -1.0))
        mean = {"coefficient": 1 / x.shape[0], "normalization": "full"}
        return [graph.apply("total", graph.apply("absolute", d), axis=0, **mean)]


def alike(other: Tensor, x: Tensor, graph: GraphBuilder) -> Tensor:
    """Another bottom in the shape of x. Raises ValueError unless it has as many numbers a sample."""
    if other.shape == x.shape:
        return other
    if other.shape[:1] != x.shape[:1] or math.prod(other.shape) != math.prod(x.shape):
        raise ValueError(f"its bottoms {x!r} and {other!r} are not of one shape")
    made: Tensor = graph.apply("reshape", other, shape=x.shape)
    return made
