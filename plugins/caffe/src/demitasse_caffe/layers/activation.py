"""Functions of one element, Dropout and Softmax."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from demitasse import GraphBuilder, Layer, Tensor
from demitasse_caffe.layers.base import CaffeLayer, canonical, in_training, learned, rearranged
from demitasse_caffe.layers.sample_axes import sample_axis
from demitasse_caffe.schema import number


class Function(CaffeLayer):
    """A layer that applies one operation of the vocabulary, without attributes, to each element."""

    def __init__(self, name: str, operation: str) -> None:
        self.name, self._operation = name, operation

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        return [graph.apply(self._operation, bottoms[0])]


class ReLU(CaffeLayer):
    """max(x, 0) + negative_slope * min(x, 0), at most 6 with ``relu6``."""

    name = "ReLU"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        slope = number(message.relu_param.negative_slope)
        # With a negative slope the gradient needs x, because y does not have its sign. Otherwise y is
        # enough, and x need not be kept.
        word = "leaky_relu" if slope < 0 else "relu"
        if not message.relu_param.relu6:
            return [graph.apply(word, bottoms[0], negative_slope=slope)]
        if slope == 0:
            return [graph.apply("clip", bottoms[0], least=0.0, most=6.0)]
        y = graph.apply(word, bottoms[0], negative_slope=slope)
        return [graph.apply("clip", y, least=-math.inf, most=6.0)]


class PReLU(CaffeLayer):
    """max(x, 0) + w * min(x, 0), where w is learned for each channel or, with ``channel_shared``, for
    all channels together. He et al. 2015, *Delving Deep into Rectifiers*, section 2.1."""

    name = "PReLU"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        prelu, x = message.prelu_param, bottoms[0]
        if len(x.shape) < 2:
            raise ValueError(f"has slopes for channels (axis 1), but its bottom {x!r} has none")
        fill = prelu.filler
        if not prelu.HasField("filler"):
            fill = type(fill)(type="constant", value=0.25)
        shape = () if prelu.channel_shared else x.shape[1:2]
        return [graph.apply("parametric_relu", x, learned(graph, message, 0, shape, fill))]


class ELU(CaffeLayer):
    """x where x > 0, else alpha * (exp(x) - 1), all times lambda. Clevert et al. 2015; with the lambda
    of NVIDIA's fork: Klambauer et al. 2017, *Self-Normalizing Neural Networks*."""

    name = "ELU"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        y = self._unscaled(number(message.elu_param.alpha), bottoms[0], graph)
        factor = number(getattr(message.elu_param, "lambda"))
        return [y if factor == 1 else graph.apply("power", y, power=1.0, scale=factor)]

    def _unscaled(self, alpha: float, x: Tensor, graph: GraphBuilder) -> Tensor:
        if alpha >= 0:
            made: Tensor = graph.apply("elu", x, alpha=alpha)
            return made
        # Such a y does not have the sign of x, so it is composed: 0 + alpha * exp(x) - alpha.
        powers = graph.apply("exponential", graph.apply("clip", x, least=-math.inf, most=0.0))
        below = graph.apply("power", powers, power=1.0, scale=alpha, shift=-alpha)
        made = graph.apply("sum", graph.apply("relu", x), below)
        return made


class Clip(CaffeLayer):
    """x, limited to the range from min to max."""

    name = "Clip"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        clip = message.clip_param
        if not (clip.HasField("min") and clip.HasField("max")):
            raise ValueError("clip_param needs both min and max")
        if clip.min > clip.max:
            raise ValueError(f"clip_param has a min of {clip.min:g} above its max of {clip.max:g}")
        return [graph.apply("clip", bottoms[0], least=number(clip.min), most=number(clip.max))]


class Exp(CaffeLayer):
    """base ^ (scale * x + shift); a base of -1 means e."""

    name = "Exp"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        exp = message.exp_param
        logarithm = _logarithm(number(exp.base))
        scale, shift = number(exp.scale) * logarithm, number(exp.shift) * logarithm
        return [graph.apply("exponential", bottoms[0], scale=scale, shift=shift)]


class Log(CaffeLayer):
    """The logarithm of scale * x + shift to a base; a base of -1 means e."""

    name = "Log"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        log = message.log_param
        logarithm = _logarithm(number(log.base))
        if logarithm == 0:
            raise ValueError("there is no logarithm to base 1")
        scale, shift = number(log.scale), number(log.shift)
        return [graph.apply("logarithm", bottoms[0], factor=1 / logarithm, scale=scale, shift=shift)]


class Power(CaffeLayer):
    """(scale * x + shift) ^ power."""

    name = "Power"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        power = message.power_param
        exponent, scale, shift = number(power.power), number(power.scale), number(power.shift)
        if exponent == 1 and shift == 0:  # its gradient does not need x
            return [graph.apply("sum", bottoms[0], coefficients=(scale,))]
        return [graph.apply("power", bottoms[0], power=exponent, scale=scale, shift=shift)]


class Swish(CaffeLayer):
    """x / (1 + exp(-beta * x)). Ramachandran et al. 2017."""

    name = "Swish"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        return [graph.apply("swish", bottoms[0], beta=number(message.swish_param.beta))]


class HardSwish(CaffeLayer):
    """x * min(max(x + 3, 0), 6) / 6, from Synopsys's fork. Howard et al. 2019, *Searching for
    MobileNetV3*, section 5.2."""

    name = "HardSwish"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        return [rearranged(graph, "hard_swish", bottoms[0], scale=1 / 6, shift=0.5)]


class Threshold(CaffeLayer):
    """1 where x is above the threshold, else 0. No gradient passes."""

    name = "Threshold"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        return [graph.apply("greater", bottoms[0], threshold=number(message.threshold_param.threshold))]


class Dropout(CaffeLayer):
    """Sets a fraction of the elements to 0 in training and scales the others up; the identity in
    tests. With Faster R-CNN's ``scale_train: false`` the others are not scaled, and tests scale all
    elements down. With SegNet's ``sample_weights_test`` tests drop elements, too. Kendall et al. 2017,
    *Bayesian SegNet*."""

    name = "Dropout"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        x, scaled = bottoms[0], message.dropout_param.scale_train
        drops = drops_now(message, graph)
        if scaled and not drops:
            return [x]
        ratio = number(message.dropout_param.dropout_ratio)
        x = _dropped_by_sample(x, ratio, graph) if drops else x
        return [x if scaled or not ratio else graph.apply("power", x, scale=1 - ratio)]


def _dropped_by_sample(x: Tensor, ratio: float, graph: GraphBuilder) -> Tensor:
    """Apply ``dropped`` to samples that may lie along another axis than the first. Random numbers are
    drawn by row, so each row must be a sample, however many workers divide them."""
    axis = sample_axis(x, graph)
    if not axis:
        return dropped(x, ratio, graph)
    rest = [each for each in range(len(x.shape)) if each != axis]
    rows = rearranged(graph, "permute", x, order=(axis, *rest))
    back = tuple([axis, *rest].index(each) for each in range(len(x.shape)))
    return rearranged(graph, "permute", dropped(rows, ratio, graph), order=back)


def drops_now(message: Any, graph: GraphBuilder) -> bool:
    """Return whether a dropout drops anything in the graph's phase."""
    return in_training(message, graph) or bool(message.dropout_param.sample_weights_test)


def dropped(x: Tensor, ratio: float, graph: GraphBuilder) -> Tensor:
    """Return x with a fraction of its elements set to 0 and the others scaled up. Raise ValueError
    unless the ratio is in [0, 1)."""
    if ratio == 0:
        return x
    if not 0 < ratio < 1:
        raise ValueError(f"dropout_ratio {ratio} is not in [0, 1)")
    counters = graph.scalar("iteration"), graph.scalar("sample")
    made: Tensor = graph.apply(
        "dropout", x, *counters, ratio=ratio, seed=graph.seed, stream=graph.stream
    )[0]
    return made


class Softmax(CaffeLayer):
    """exp(x) divided by its sum along the axis."""

    name = "Softmax"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        axis = canonical(message.softmax_param.axis, bottoms[0])
        return [graph.apply("softmax", bottoms[0], axis=axis)]


FUNCTIONS = (
    Function("AbsVal", "absolute"),
    Function("BNLL", "softplus"),
    Function("Sigmoid", "sigmoid"),
    Function("TanH", "tanh"),
)
"""The layers that have no parameters of any kind."""


def _logarithm(base: float) -> float:
    """Return the natural logarithm of a base; -1 stands for e."""
    if base == -1:
        return 1.0
    if not 0 < base < math.inf:
        raise ValueError(f"base {base} is not positive; -1 stands for e")
    return math.log(base)
