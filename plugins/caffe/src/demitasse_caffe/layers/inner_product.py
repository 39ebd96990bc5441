"""Fully connected layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from demitasse import GraphBuilder, Layer, Tensor
from demitasse_caffe.layers.base import CaffeLayer, canonical, learned
from demitasse_caffe.layers.normalization import LEAST_EPSILON
from demitasse_caffe.schema import number


class InnerProduct(CaffeLayer):
    """x, flattened from an axis on, times learned weights, plus a bias. With ``normalize`` the weights
    of each output are divided by their length: Wang et al. 2017, *NormFace*, section 3."""

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
        if product.normalize:
            if product.transpose:
                raise ValueError("normalize cannot be combined with transpose")
            rows = graph.apply("reshape", x, shape=(math.prod(x.shape[:axis]), inputs))
            y = _by_unit_vectors(graph, rows, w, b)
            return [graph.apply("reshape", y, shape=(*x.shape[:axis], outputs))]
        return [graph.apply("inner_product", x, w, b, axis=axis, transpose=product.transpose)]


class MarginInnerProduct(CaffeLayer):
    """The lengths of samples times the cosines of their angles to learned vectors, one for each class.
    At a sample's label the angle is multiplied by ``type``, and the result is mixed with the plain
    product. The second top is the weight of the plain product relative to it, which falls from iteration
    to iteration. Liu et al. 2017, *SphereFace*, section 3, with the gradients of its fork: the gradient
    that a sample receives from its label's term has length 1, and the vectors' gradients are those of a
    plain product.

    The fork normalises the stored vectors. Here they are normalised where they are used, and their
    gradients are multiplied by their lengths. The trained result is the same, except that the momentum
    of earlier steps is not rescaled when a vector's length has changed since.
    """

    name = "MarginInnerProduct"
    bottoms = (2, 2)
    tops = (1, 2)

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        given, (x, label) = message.margin_inner_product_param, bottoms
        samples, classes = x.shape[0], given.num_output
        if classes < 1:
            raise ValueError("margin_inner_product_param needs a num_output of 1 or more, the classes")
        if canonical(given.axis, x) != 1 or math.prod(label.shape) != samples:
            raise ValueError(
                f"x {x!r} must be a row per sample from axis 1 on, label {label!r} a number each"
            )
        rows = graph.apply("reshape", x, shape=(samples, math.prod(x.shape[1:])))
        index = graph.apply("reshape", label, shape=(samples,))
        w = learned(graph, message, 0, (classes, rows.shape[1]), given.weight_filler)
        norms, unit = _unit_vectors(graph, w)
        y, factor = graph.apply(
            "angular_margin",
            graph.apply("inner_product", rows, unit, None),
            lengths(graph, rows),
            index,
            graph.scalar("iteration"),
            margin=given.type + 1,
            base=number(given.base),
            gamma=number(given.gamma),
            power=number(given.power),
            least=number(given.lambda_min),
            first=given.iteration,
        )
        if graph.phase == "train":
            y = graph.apply("sum", y, _vectors_gradient(graph, rows, w, norms))
        return [y, factor][: len(layer.tops)]


def _unit_vectors(graph: GraphBuilder, w: Tensor) -> tuple[Tensor, Tensor]:
    """Return the lengths of vectors, and the vectors divided by their lengths, without gradients."""
    norms = graph.apply("stop_gradient", lengths(graph, w))
    shares = graph.apply("power", norms, power=-1.0)
    return norms, graph.apply("scale", graph.apply("stop_gradient", w), shares, None, axis=0)


def _vectors_gradient(graph: GraphBuilder, rows: Tensor, w: Tensor, norms: Tensor) -> Tensor:
    """Return zeros that carry a gradient for the vectors: that of a product with the unit vectors, times
    the lengths. This is how the fork trains, which overwrites the vectors with unit vectors."""
    fixed = graph.apply("stop_gradient", rows)
    plain = graph.apply("scale", graph.apply("inner_product", fixed, w, None), norms, None)
    rest = graph.apply("stop_gradient", plain)
    nothing: Tensor = graph.apply("sum", plain, rest, coefficients=(1.0, -1.0))
    return nothing


def _by_unit_vectors(graph: GraphBuilder, rows: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    norms, unit = _unit_vectors(graph, w)
    y: Tensor = graph.apply("inner_product", rows, unit, b)
    if graph.phase == "train":
        y = graph.apply("sum", y, _vectors_gradient(graph, rows, w, norms))
    return y


def lengths(graph: GraphBuilder, rows: Tensor) -> Tensor:
    """Return the length of each row, slightly above 0 for a row of zeros."""
    squares = graph.apply("square_total", rows, axis=1)
    lengths: Tensor = graph.apply("power", squares, power=0.5, shift=LEAST_EPSILON)
    return lengths
