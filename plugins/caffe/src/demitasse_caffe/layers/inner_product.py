"""Fully connected layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from demitasse import GraphBuilder, Layer, Tensor
from demitasse_caffe.layers.base import CaffeLayer, canonical, learned


class InnerProduct(CaffeLayer):
    """x flattened from an axis on, times learned weights, plus a bias."""

    name = "InnerProduct"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        product, x = message.inner_product_param, bottoms[0]
        axis = canonical(product.axis, x)
        inputs, outputs = math.prod(x.shape[axis:]), product.num_output
        if outputs < 1:
            raise ValueError("inner_product_param needs a num_output of 1 or more")
        shape = (inputs, outputs) if product.transpose else (outputs, inputs)
        w = learned(graph, message, 0, shape, product.weight_filler)
        b = learned(graph, message, 1, (outputs,), product.bias_filler) if product.bias_term else None
        return [graph.apply("inner_product", x, w, b, axis=axis, transpose=product.transpose)]
