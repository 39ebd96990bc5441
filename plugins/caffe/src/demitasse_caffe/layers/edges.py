"""Layer types of nets that find edges and shapes, which BVLC Caffe does not have: Xie and Tu 2015,
*Holistically-Nested Edge Detection*; Caelles et al. 2017, *One-Shot Video Object Segmentation*;
Milletari et al. 2016, *V-Net*."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

from demitasse import DataSpec, GraphBuilder, Layer, Tensor
from demitasse_caffe.layers.base import CaffeLayer
from demitasse_caffe.layers.data import of_listed_images, read, source_of
from demitasse_caffe.layers.loss import Loss
from demitasse_caffe.layers.regions import alike
from demitasse_caffe.layers.transformation import check_mean_by_channels, check_served, subtracted
from demitasse_caffe.schema import number

_ALL = 0.999
"""Targets above this count as 1; those between 0 and this count as neither 0 nor 1."""


class ImageLabelmapData(CaffeLayer):
    """Pairs of images from a text file: an image, and the certainty of an edge at each pixel. Values
    above half of white become 1 and the others 0; with ``normalize: false`` gray values are kept. Both
    are resized, cropped at random places and mirrored in the same way."""

    name = "ImageLabelmapData"
    bottoms = (0, 0)
    tops = (2, 2)

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        data, parameters = message.image_data_param, message.transform_param
        check_served(parameters)
        source = source_of(data, "image_data_param", layer)
        check_mean_by_channels(parameters)
        mean = subtracted(layer, parameters, 3 if data.is_color else 1)
        options = {
            **of_listed_images(data, layer, graph),
            "crop_height": parameters.crop_size,
            "crop_width": parameters.crop_size,
            "mirror": parameters.mirror,
            "edges": data.normalize,
            "mean": [0.0] if mean is None else mean.ravel().tolist(),
        }
        spec = DataSpec(source, "image_pairs", data.shuffle, graph.seed, options, layer.location)
        fields = {"data": "real", "label": "real"}
        samples, labels = read("image_data_param", layer, spec, data.batch_size, fields, graph)
        if (scale := number(parameters.scale)) != 1:
            samples = graph.apply("power", samples, scale=scale)
        return [samples, labels]


class SigmoidCrossEntropyBalanceLoss(Loss):
    """The cross entropy of sigmoid(x) with targets of 0 and 1, summed over each sample, as the mean over
    samples. In each sample targets of 1 are weighted by the fraction of 0 among both, those of 0 by the
    fraction of 1; other targets are ignored. HED, equation 2."""

    name = "SigmoidCrossEntropyBalanceLoss"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        samples, (x, target) = bottoms[0].shape[0], _rows(bottoms, graph)
        ones = graph.apply("greater", target, threshold=_ALL)
        zeros = graph.apply(
            "power", graph.apply("greater", target, threshold=0.0), scale=-1.0, shift=1.0
        )
        of_ones, of_zeros = (graph.apply("total", each, axis=1) for each in (ones, zeros))
        # If a sample has neither kind, there is nothing that its fraction could multiply.
        each = graph.apply("power", graph.apply("sum", of_ones, of_zeros), power=-1.0, shift=1e-30)
        weights = [
            graph.apply("scale", here, graph.apply("product", others, each), axis=0)
            for here, others in ((ones, of_zeros), (zeros, of_ones))
        ]
        # A target of 1 costs -log p = log(1 + exp(-x)), one of 0 -log(1 - p) = log(1 + exp(x)).
        against = graph.apply("sum", zeros, ones, coefficients=(1.0, -1.0))
        terms = graph.apply("softplus", graph.apply("product", x, against))
        weighted = graph.apply("product", graph.apply("sum", *weights), terms)
        mean = {"coefficient": 1 / samples, "normalization": "full"}
        return [graph.apply("total", weighted, axis=0, **mean)]


class DiceCoefLoss(Loss):
    """1 minus the mean over samples of (1 + 2 * sum(x t)) / (1 + sum(x^2) + sum(t^2)), which measures
    the overlap of two shapes of 0 and 1. V-Net, section 3, with the 1 added for empty shapes. Gradients
    reach both bottoms."""

    name = "DiceCoefLoss"
    no_gradient = MappingProxyType({})

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        samples, (x, target) = bottoms[0].shape[0], _rows(bottoms, graph)
        common = graph.apply("total", graph.apply("product", x, target), axis=1, coefficient=2.0)
        sizes = [graph.apply("square_total", each, axis=1) for each in (x, target)]
        both = graph.apply("sum", *sizes)
        shares = graph.apply(
            "product",
            graph.apply("power", common, shift=1.0),
            graph.apply("power", both, power=-1.0, shift=1.0),
        )
        mean = {"coefficient": -1 / samples, "normalization": "full"}
        return [graph.apply("power", graph.apply("total", shares, axis=0, **mean), shift=1.0)]


def _rows(bottoms: Sequence[Tensor], graph: GraphBuilder) -> list[Tensor]:
    """Return the prediction and its target, one row for each sample."""
    shape = bottoms[0].shape[0], math.prod(bottoms[0].shape[1:])
    target = alike(bottoms[1], bottoms[0], graph)
    return [graph.apply("reshape", each, shape=shape) for each in (bottoms[0], target)]
