"""Local response, batch and mean-variance normalisation, and scales and biases."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from demitasse import GraphBuilder, Layer, Tensor
from demitasse_caffe.fillers import Constant
from demitasse_caffe.layers.base import CaffeLayer, Shape, canonical, in_training, learned
from demitasse_caffe.schema import number

LEAST_EPSILON = 2.0**-126
"""Replaces an ``eps`` of 0, so that a constant channel becomes 0 instead of 0 / 0."""


class LRN(CaffeLayer):
    """x divided by a power of the sum of squares around it: across channels, or in a square of one
    channel (where Caffe ignores k: it is 1). Krizhevsky et al. 2012, section 3.3."""

    name = "LRN"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        lrn = message.lrn_param
        within = lrn.norm_region == lrn.WITHIN_CHANNEL
        if lrn.local_size % 2 == 0:
            raise ValueError(f"local_size {lrn.local_size} has no middle: it must be odd")
        if len(bottoms[0].shape) != 4:
            raise ValueError(f"normalises samples x channels x rows x columns, not {bottoms[0]!r}")
        normalised, _ = graph.apply(
            "lrn_within_channel" if within else "lrn_across_channels",
            bottoms[0],
            size=lrn.local_size,
            alpha=number(lrn.alpha),
            beta=number(lrn.beta),
            k=1.0 if within else number(lrn.k),
        )
        return [normalised]


class BatchNorm(CaffeLayer):
    """x minus the mean of its channel, divided by the standard deviation: those of the batch in
    training, otherwise the stored ones. These are in three blobs that no gradient reaches: running sums
    of means and of variances, and their divisor. Ioffe and Szegedy 2015. In NVIDIA's fork two more
    blobs, a scale and a bias for each channel, may follow."""

    name = "BatchNorm"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        norm, x = message.batch_norm_param, bottoms[0]
        if len(x.shape) == 1:  # a single channel
            x = graph.apply("reshape", x, shape=(*x.shape, 1))
        check_channels(x)
        epsilon, keep = number(norm.eps), number(norm.moving_average_fraction)
        if not 0 <= epsilon < math.inf:
            raise ValueError(f"eps {epsilon} is not a number >= 0")
        epsilon = epsilon or LEAST_EPSILON
        kept = [
            untrained(graph, message, index, shape, Constant())
            for index, shape in enumerate((x.shape[1:2], x.shape[1:2], (1,)))
        ]
        learnt: list[Tensor] = []
        if norm.scale_bias or norm.HasField("scale_filler"):
            w = filled(graph, message, 3, x.shape[1:2], norm, "scale_filler", 1.0)
            learnt = [w, filled(graph, message, 4, x.shape[1:2], norm, "bias_filler", 0.0)]
        uses_kept = not in_training(message, graph)
        if norm.HasField("use_global_stats"):
            uses_kept = norm.use_global_stats
        if uses_kept:
            y = graph.apply("batch_norm_inference", x, *kept, *learnt, epsilon=epsilon)
        else:
            y, *_ = graph.apply("batch_norm", x, *kept, *learnt, keep=keep, epsilon=epsilon)
        return [y if x is bottoms[0] else graph.apply("reshape", y, shape=bottoms[0].shape)]


class MVN(CaffeLayer):
    """Each channel of each sample (or each whole sample) minus its mean and, unless disabled, divided by
    its standard deviation plus ``eps``. The top has at least four axes, as in Caffe."""

    name = "MVN"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        mvn, x = message.mvn_param, bottoms[0]
        axis = min(1 if mvn.across_channels else 2, len(x.shape))
        if mvn.normalize_variance:
            y, _ = graph.apply("standardize", x, axis=axis, epsilon=number(mvn.eps))
        else:
            y = graph.apply("centre", x, axis=axis)
        if len(x.shape) < 4:
            y = graph.apply("reshape", y, shape=(*x.shape, *[1] * (4 - len(x.shape))))
        return [y]


class GroupNorm(CaffeLayer):
    """The channels of each sample in ``group_num`` groups, each normalised by its mean and by the root
    of its variance plus ``eps``. A Scale layer after it learns scale and bias. Wu and He 2018, *Group
    Normalization*, section 3.1."""

    name = "GroupNorm"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        about, x = message.group_norm_param, bottoms[0]
        check_channels(x)
        groups, epsilon = about.group_num, number(about.eps)
        if groups < 1 or x.shape[1] % groups:
            raise ValueError(f"group_num {groups} does not divide {x.shape[1]} channels")
        if not 0 <= epsilon < math.inf:
            raise ValueError(f"eps {epsilon} is not a number >= 0")
        rows, each = x.shape[0] * groups, math.prod(x.shape[1:]) // groups
        apart = graph.apply("centre", graph.apply("reshape", x, shape=(rows, each)), axis=1)
        squares = graph.apply("square_total", apart, axis=1)
        about_all = {"power": -0.5, "scale": 1 / each, "shift": epsilon or LEAST_EPSILON}
        y = graph.apply("scale", apart, graph.apply("power", squares, **about_all), None, axis=0)
        return [graph.apply("reshape", y, shape=x.shape)]


class Scale(CaffeLayer):
    """x times a learned scale along some axes, plus a learned bias if requested. A second bottom
    replaces the scale."""

    name = "Scale"
    bottoms = (1, 2)

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        scale, x = message.scale_param, bottoms[0]
        axis, shape = _extent(scale, bottoms)
        w = bottoms[1] if bottoms[1:] else filled(graph, message, 0, shape, scale, "filler", 1.0)
        b = None
        if scale.bias_term:
            index = 2 - len(bottoms)
            b = filled(graph, message, index, shape, scale, "bias_filler", 0.0)
        return [graph.apply("scale", x, w, b, axis=axis)]


class Bias(CaffeLayer):
    """x plus a learned bias along some axes. A second bottom replaces the bias."""

    name = "Bias"
    bottoms = (1, 2)

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        bias, x = message.bias_param, bottoms[0]
        axis, shape = _extent(bias, bottoms)
        b = bottoms[1] if bottoms[1:] else filled(graph, message, 0, shape, bias, "filler", 0.0)
        return [
            graph.apply("scale", x, graph.constant(f"{layer.name}.one", np.ones(shape)), b, axis=axis)
        ]


def check_channels(x: Tensor) -> None:
    """Raise ValueError for a blob without channels."""
    if len(x.shape) < 2:
        raise ValueError(f"normalises samples x channels x space; its bottom is {x!r}")


def untrained(graph: GraphBuilder, message: Any, index: int, shape: Shape, fill: Any) -> Tensor:
    """Return parameter ``index`` of a layer, filled by ``fill``, which no gradient changes."""
    shared = message.param[index].name or None if index < len(message.param) else None
    return graph.parameter(shape, fill, rate=0.0, decay=0.0, trainable=False, shared=shared)


def _extent(message: Any, bottoms: Sequence[Tensor]) -> tuple[int, Shape]:
    """Return the first axis of a scale or bias, and its shape. Raise ValueError where
    Caffe would stop."""
    x = bottoms[0]
    if bottoms[1:] and not bottoms[1].shape:
        return 0, ()
    axis, axes = canonical(message.axis, x), message.num_axes
    if bottoms[1:]:
        if x.shape[axis : axis + len(bottoms[1].shape)] != bottoms[1].shape:
            raise ValueError(f"{bottoms[1]!r} does not have the extents of {x!r} from axis {axis} on")
        return axis, bottoms[1].shape
    if axes < -1 or axis + axes > len(x.shape):
        raise ValueError(
            f"num_axes {axes} from axis {axis} on is more than {x!r} has; -1 is all of them"
        )
    return axis, x.shape[axis:] if axes == -1 else x.shape[axis : axis + axes]


def filled(
    graph: GraphBuilder, message: Any, index: int, shape: Shape, given: Any, field: str, default: float
) -> Tensor:
    """Return learned parameter ``index``, filled by the filler in field ``field`` of ``given``, else
    with ``default``."""
    fill = getattr(given, field)
    if not given.HasField(field):
        fill = type(fill)(type="constant", value=default)
    return learned(graph, message, index, shape, fill)
