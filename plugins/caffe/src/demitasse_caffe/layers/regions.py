"""Layer types of nets that find objects in regions of images, which BVLC Caffe does not have: Girshick
2015, *Fast R-CNN*; Ren et al. 2015, *Faster R-CNN*."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

from demitasse import GraphBuilder, Layer, Tensor
from demitasse_caffe.layers.base import CaffeLayer, rearranged
from demitasse_caffe.layers.indexing import place_of
from demitasse_caffe.layers.loss import Loss, normalization
from demitasse_caffe.schema import number


class ROIPooling(CaffeLayer):
    """The maxima over ``pooled_h`` x ``pooled_w`` cells of each region. A row of the second bottom is a
    region: the index of a sample, and two corners in pixels of the image. *Fast R-CNN*, section 2.1."""

    name = "ROIPooling"
    bottoms = (2, 2)
    no_gradient = MappingProxyType({1: "regions"})

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        pooling = message.roi_pooling_param
        for field in ("pooled_h", "pooled_w"):
            if getattr(pooling, field) < 1:
                raise ValueError(
                    f"roi_pooling_param {{ {field} }} is 0 or not given; it must be 1 or more"
                )
        if pooling.pad_ratio:
            raise ValueError(
                f"pad_ratio {number(pooling.pad_ratio):g}, of MS-CNN's fork, must be 0: this type does "
                f"not enlarge regions; ROIAlign does"
            )
        scale = number(pooling.spatial_scale)
        if not 0 < scale < math.inf:
            raise ValueError(f"spatial_scale {scale:g} is not a positive number")
        size = (pooling.pooled_h, pooling.pooled_w)
        y, _ = graph.apply("pooling_regions", *bottoms, size=size, scale=scale, source=place_of(layer))
        return [y]


class SmoothL1Loss(Loss):
    """The mean over samples of the sum of sigma^2 d^2 / 2 where |d| is below 1 / sigma^2, else of |d| -
    1 / (2 sigma^2). d is the difference of the first two bottoms, times the third if there is one; a
    fourth bottom multiplies the terms. *Fast R-CNN*, section 2.3."""

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
        term = _smooth(bottoms, 1 / square, graph)
        mean = {"coefficient": square / x.shape[0], "normalization": "full"}
        return [graph.apply("total", term, axis=0, **mean)]


class SmoothL1LossOHEM(Loss):
    """SmoothL1Loss with a sigma of 1, divided by what loss_param selects; by default the number of
    places in all samples. A second top holds the loss of each place, N x 1 x H x W, without a gradient.
    From R-FCN's fork; Shrivastava et al. 2016, *Training Region-based Object Detectors with Online Hard
    Example Mining*, section 4."""

    name = "SmoothL1LossOHEM"
    bottoms = (2, 3)
    tops = (0, 2)
    no_gradient = MappingProxyType({2: "weights"})

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        x = bottoms[0]
        if not 2 <= len(x.shape) <= 4:
            raise ValueError(f"its bottom {x!r} is not samples x channels x rows x columns")
        term = _smooth(bottoms, 1.0, graph)
        samples, channels, *plane = x.shape
        over, fixed = normalization(message.loss_param, "valid")
        places = samples if over == "batch_size" else samples * math.prod(plane)
        mean = {"coefficient": 1 / fixed, "normalization": "none"}
        if over != "none":
            mean = {"coefficient": 1 / max(1, places), "normalization": "full"}
        loss = graph.apply("total", term, axis=0, **mean)
        if len(layer.tops) < 2:
            return [loss]
        lines = graph.apply("reshape", term, shape=(samples, channels, math.prod(plane)))
        if math.prod(plane) > 1:
            lines = rearranged(graph, "permute", lines, order=(0, 2, 1))
        lines = graph.apply("reshape", lines, shape=(samples * math.prod(plane), channels))
        each = graph.apply("stop_gradient", graph.apply("total", lines, axis=1))
        shape = (samples, 1, *plane, *(1,) * (2 - len(plane)))
        return [loss, graph.apply("reshape", each, shape=shape)]


def _smooth(bottoms: Sequence[Tensor], bound: float, graph: GraphBuilder) -> Tensor:
    """Return d^2 / 2 where |d| is below the bound, else bound * (|d| - bound / 2). d is the difference
    of the first two bottoms, times the third if there is one; a fourth multiplies the result."""
    x, target, *weights = (alike(each, bottoms[0], graph) for each in bottoms)
    d = graph.apply("sum", x, target, coefficients=(1.0, -1.0))
    if weights:
        d = graph.apply("product", weights[0], d)
    size = graph.apply("absolute", d)
    # With c = min(|d|, bound) both cases are c (|d| - c / 2).
    near = graph.apply("clip", size, least=0.0, most=bound)
    term: Tensor = graph.apply("product", near, graph.apply("sum", size, near, coefficients=(1.0, -0.5)))
    return graph.apply("product", weights[1], term) if len(weights) > 1 else term


def alike(other: Tensor, x: Tensor, graph: GraphBuilder) -> Tensor:
    """Return another bottom in the shape of x. Raise ValueError unless each has the same number of
    elements per sample."""
    if other.shape == x.shape:
        return other
    if other.shape[:1] != x.shape[:1] or math.prod(other.shape) != math.prod(x.shape):
        raise ValueError(f"its bottoms {x!r} and {other!r} do not have the same shape")
    made: Tensor = graph.apply("reshape", other, shape=x.shape)
    return made
