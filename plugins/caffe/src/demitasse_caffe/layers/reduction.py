"""Sums over the last axes, and the places of maxima."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from demitasse import GraphBuilder, Layer, Tensor
from demitasse_caffe.layers.base import CaffeLayer, canonical, check_whole
from demitasse_caffe.schema import number

_TOTALS = {"SUM": "total", "ASUM": "absolute_total", "SUMSQ": "square_total", "MEAN": "total"}


class Reduction(CaffeLayer):
    """The sum, the mean, the sum of absolute values or the sum of squares over an axis and all after it,
    times a coefficient."""

    name = "Reduction"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        reduction, x = message.reduction_param, bottoms[0]
        operation = reduction.ReductionOp.Name(reduction.operation)
        axis = canonical(reduction.axis, x) if x.shape else 0
        coefficient, normalization = number(reduction.coeff), "none"
        if operation == "MEAN":
            coefficient, normalization = coefficient / max(math.prod(x.shape[axis:]), 1), "full"
        given = {"axis": axis, "coefficient": coefficient, "normalization": normalization}
        return [graph.apply(_TOTALS[operation], x, **given)]


class ArgMax(CaffeLayer):
    """The places of the top_k largest elements along an axis, or with ``out_max_val`` their values.
    Without an axis, those of each sample; ``out_max_val`` then adds the values to the places. No
    gradient passes."""

    name = "ArgMax"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        argmax, x = message.argmax_param, bottoms[0]
        count, values = argmax.top_k, argmax.out_max_val
        if count < 1:
            raise ValueError("top_k is 0; it must be 1 or more")
        if argmax.HasField("axis"):
            axis, give = canonical(argmax.axis, x), "values" if values else "places"
            if not values:
                check_whole(f"the extent of axis {axis}", x.shape[axis], x)
            return [graph.apply("largest", x, axis=axis, count=count, give=give)]
        if not x.shape:
            raise ValueError(
                f"looks for the largest value of each sample, but its bottom {x!r} has no axis of "
                f"samples"
            )
        check_whole("the size of a sample", math.prod(x.shape[1:]), x)
        samples = graph.apply("reshape", x, shape=(x.shape[0], math.prod(x.shape[1:])))
        found = graph.apply("largest", samples, axis=1, count=count, give="both" if values else "places")
        # The axes are samples, places and values, then the largest; further ones have extent 1.
        kinds, ones = 2 if values else 1, [1] * (len(x.shape) - 3)
        return [graph.apply("reshape", found, shape=(x.shape[0], kinds, count, *ones))]
