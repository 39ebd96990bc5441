"""Sums, products, the largest and joins of several blobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from demitasse import GraphBuilder, Layer, Tensor
from demitasse_caffe.layers.base import CaffeLayer, canonical
from demitasse_caffe.schema import number


class Concat(CaffeLayer):
    """The bottoms joined along an axis."""

    name = "Concat"
    bottoms = (1, None)

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        concat = message.concat_param
        if concat.HasField("concat_dim") and concat.HasField("axis"):
            raise ValueError("axis and the older concat_dim exclude each other")
        axis = concat.concat_dim if concat.HasField("concat_dim") else concat.axis
        axis = canonical(axis, bottoms[0])
        if len(bottoms) == 1:
            return [bottoms[0]]
        return [graph.apply("concat", *bottoms, axis=axis)]


class Eltwise(CaffeLayer):
    """The sum of the bottoms, each times its coefficient, their product, or the largest of them."""

    name = "Eltwise"
    bottoms = (2, None)

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        eltwise = message.eltwise_param
        operation = eltwise.EltwiseOp.Name(eltwise.operation)
        coefficients = tuple(number(value) for value in eltwise.coeff)
        if coefficients and len(coefficients) != len(bottoms):
            raise ValueError(f"has {len(coefficients)} coeff for {len(bottoms)} bottoms")
        if operation == "PROD":
            if coefficients:
                raise ValueError("coeff is for sums, not for operation PROD")
            return [graph.apply("product", *bottoms, by_division=not eltwise.stable_prod_grad)]
        if operation == "MAX":
            largest, _ = graph.apply("maximum", *bottoms)
            return [largest]
        return [graph.apply("sum", *bottoms, coefficients=coefficients)]
