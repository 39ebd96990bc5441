"""Sums, products, maxima and concatenations of several blobs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from demitasse import GraphBuilder, Layer, Tensor
from demitasse_caffe.layers.base import CaffeLayer, canonical
from demitasse_caffe.schema import number


class Concat(CaffeLayer):
    """The bottoms concatenated along an axis."""

    name = "Concat"
    bottoms = (1, None)

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        concat = message.concat_param
        if concat.HasField("concat_dim") and concat.HasField("axis"):
            raise ValueError("axis and the older concat_dim cannot be combined")
        axis = concat.concat_dim if concat.HasField("concat_dim") else concat.axis
        axis = canonical(axis, bottoms[0])
        if len(bottoms) == 1:
            return [bottoms[0]]
        return [graph.apply("concat", *bottoms, axis=axis)]


class Mul(CaffeLayer):
    """The product of two bottoms. One of them may have leading and trailing extents of 1, like the
    factors of squeeze-and-excitation. From Synopsys's fork."""

    name = "Mul"
    bottoms = (2, 2)

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        x, factor = bottoms
        if math.prod(x.shape) < math.prod(factor.shape):
            x, factor = factor, x
        if x.shape == factor.shape:
            return [graph.apply("product", x, factor)]
        wide = [axis for axis, extent in enumerate(factor.shape) if extent != 1]
        first, end = (wide[0], wide[-1] + 1) if wide else (0, 0)
        inner = factor.shape[first:end]
        if x.shape[first:end] != inner or len(factor.shape) not in (0, len(x.shape)):
            raise ValueError(
                f"multiplies blobs of the same shape, or one by another whose first and last extents "
                f"are 1; its bottoms are {x!r} and {factor!r}"
            )
        numbers = graph.apply("reshape", factor, shape=inner)
        return [graph.apply("scale", x, numbers, None, axis=first)]


class Eltwise(CaffeLayer):
    """The sum of the bottoms, each times its coefficient, their product, or their maximum. As in
    FlowNet's fork, there may be one bottom, times its coefficient."""

    name = "Eltwise"
    bottoms = (1, None)

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        eltwise = message.eltwise_param
        operation = eltwise.EltwiseOp.Name(eltwise.operation)
        coefficients = tuple(number(value) for value in eltwise.coeff)
        if coefficients and len(coefficients) != len(bottoms):
            raise ValueError(f"has {len(coefficients)} coeff for {len(bottoms)} bottoms")
        if len(bottoms) == 1 and not (operation == "SUM" and coefficients):
            raise ValueError(f"has 1 bottom ({layer.bottoms[0]}), not 2 or more (1 with its coeff)")
        if operation == "PROD":
            if coefficients:
                raise ValueError("coeff is for sums, not for operation PROD")
            return [graph.apply("product", *bottoms, by_division=not eltwise.stable_prod_grad)]
        if operation == "MAX":
            largest, _ = graph.apply("maximum", *bottoms)
            return [largest]
        return [graph.apply("sum", *bottoms, coefficients=coefficients)]
