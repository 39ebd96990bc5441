"""Losses, and scores of predictions against labels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from demitasse import GraphBuilder, Layer, Tensor
from demitasse_caffe.layers.base import CaffeLayer, canonical, check_whole, learned
from demitasse_caffe.layers.indexing import place_of
from demitasse_caffe.paths import find, find_file
from demitasse_caffe.schema import number
from demitasse_caffe.weights import read_blob

_LEAST = 1.2e-38
"""About the least normal float32."""


class Loss(CaffeLayer):
    """A scalar that is minimised with a weight of 1 unless loss_weight says otherwise, even if the file
    does not name its top."""

    bottoms = (2, 2)
    tops = (0, 1)
    loss_weight = 1.0
    no_gradient = MappingProxyType({1: "labels"})


class SoftmaxWithLoss(Loss):
    """The mean of -log softmax(x)[label], times the label's weight in SegNet's fork. A second
    top is the softmax."""

    name = "SoftmaxWithLoss"
    tops = (0, 2)

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        axis = canonical(message.softmax_param.axis, bottoms[0])
        check_whole("the number of classes", bottoms[0].shape[axis], bottoms[1])
        weights = self._weights(message, bottoms[0].shape[axis])
        # A matrix with only the weights, on its diagonal, adds nothing from other classes.
        diagonal = () if weights is None else (np.diag(np.array(weights)),)
        matrix = (graph.constant(f"{layer.name}.weights", each) for each in diagonal)
        over, fixed = normalization(message.loss_param, "valid")
        loss, probability = graph.apply(
            "infogain_loss" if diagonal else "softmax_loss",
            *bottoms,
            *matrix,
            axis=axis,
            ignore_label=_ignored(message.loss_param),
            normalization=over,
        )
        return [_divided(loss, fixed, graph), probability][: max(1, len(layer.tops))]

    def _weights(self, message: Any, classes: int) -> list[float] | None:
        """Return the weight of each class; None if all are 1. Raise ValueError."""
        if not message.loss_param.weight_by_label_freqs:
            return None
        weights = list(map(number, message.loss_param.class_weighting))
        if len(weights) != classes:
            raise ValueError(f"has {len(weights)} class_weighting for {classes} classes; give one each")
        return weights


class WeightedSoftmaxWithLoss(SoftmaxWithLoss):
    """As SoftmaxWithLoss, with the losses of one class, ``pos_cid``, times ``pos_mult``; what they are
    divided by does not change. From several forks."""

    name = "WeightedSoftmaxWithLoss"

    def _weights(self, message: Any, classes: int) -> list[float]:
        given = message.softmax_param
        chosen, weight = given.pos_cid, number(given.pos_mult)
        if not 0 <= chosen < classes:
            raise ValueError(
                f"softmax_param {{ pos_cid: {chosen} }} (valid: a class from 0 to {classes - 1})"
            )
        if not 0 <= weight < math.inf:
            raise ValueError(f"softmax_param {{ pos_mult: {weight:g} }} must be 0 or more")
        return [weight if each == chosen else 1.0 for each in range(classes)]


class SoftmaxCrossEntropyLoss(Loss):
    """By how much the softmax of x diverges from targets, which are shares of 1: the sum of
    target * log(target / softmax(x)), divided by the number of samples. The gradient is softmax(x) -
    target. From the forks with this type; Zhang et al. 2016, *Colorful Image Colorization*, equation
    2."""

    name = "SoftmaxCrossEntropyLoss"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        x, target = bottoms
        if math.prod(x.shape) != math.prod(target.shape):
            raise ValueError(f"its targets {target!r} are not as many as the numbers of {x!r}")
        if message.HasField("loss_param"):
            raise ValueError("loss_param is not for this type: the sum is divided by the samples")
        axis = canonical(message.softmax_param.axis, x)
        target = graph.apply("reshape", graph.apply("stop_gradient", target), shape=x.shape)
        share = graph.apply("stop_gradient", graph.apply("softmax", x, axis=axis))
        logs = [_logarithm(each, graph) for each in (target, share)]
        apart = graph.apply("sum", *logs, coefficients=(1.0, -1.0))
        mean = {"axis": 0, "coefficient": 1 / x.shape[0], "normalization": "full"}
        loss: Tensor = graph.apply("total", graph.apply("product", target, apart), **mean)
        if graph.phase != "train":
            return [loss]
        # This adds nothing to the loss, but has its gradient, whatever the targets' sum is.
        more = graph.apply("sum", share, target, coefficients=(1.0, -1.0))
        leaned = graph.apply("total", graph.apply("product", x, more), **mean)
        nothing = graph.apply("stop_gradient", leaned)
        return [graph.apply("sum", loss, leaned, nothing, coefficients=(1.0, 1.0, -1.0))]


class InfogainLoss(Loss):
    """The cross entropy of a softmax with the row of a matrix at the label. The matrix is the third
    bottom, or is in a binaryproto file. A second top is the softmax."""

    name = "InfogainLoss"
    bottoms = (2, 3)
    tops = (0, 2)
    no_gradient = MappingProxyType({1: "labels", 2: "infogain matrix"})

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        if message.loss_param.HasField("normalize"):
            raise ValueError("loss_param { normalize } is not for this type; write normalization")
        x, label, *given = bottoms
        axis = canonical(message.infogain_loss_param.axis, x)
        over, fixed = normalization(message.loss_param, "valid")
        loss, probability = graph.apply(
            "infogain_loss",
            x,
            label,
            given[0]
            if given
            else _infogain_matrix(layer, message.infogain_loss_param, x.shape[axis], graph),
            axis=axis,
            ignore_label=_ignored(message.loss_param),
            normalization=over,
        )
        return [_divided(loss, fixed, graph), probability][: max(1, len(layer.tops))]


class SigmoidCrossEntropyLoss(Loss):
    """The cross entropy of sigmoid(x) with targets from 0 to 1, as the mean over the batch."""

    name = "SigmoidCrossEntropyLoss"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        over, fixed = normalization(message.loss_param, "batch_size")
        loss = graph.apply(
            "sigmoid_cross_entropy_loss",
            *bottoms,
            ignore_label=_ignored(message.loss_param),
            normalization=over,
        )
        return [_divided(loss, fixed, graph)]


class MultinomialLogisticLoss(Loss):
    """The mean of -log x[label], where x are probabilities."""

    name = "MultinomialLogisticLoss"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        return [graph.apply("negative_log_likelihood", *bottoms)]


class HingeLoss(Loss):
    """max(0, 1 - x) of the score x at the label, and max(0, 1 + x) of all others: summed, or squared
    and summed."""

    name = "HingeLoss"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        hinge = message.hinge_loss_param
        return [graph.apply("hinge_loss", *bottoms, norm=hinge.Norm.Name(hinge.norm))]


class EuclideanLoss(Loss):
    """Half the squared distance of the bottoms, as the mean over samples; gradients reach both."""

    name = "EuclideanLoss"
    no_gradient = MappingProxyType({})

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        return [graph.apply("half_squared_distance", *bottoms)]


class CenterLoss(Loss):
    """Half the squared distance of each sample to the centre of its class, as the mean over samples.
    Centres are learned: each moves by the sum of its distances to its samples, divided by one more than
    their number in the batch, whatever the weight of the loss. Wen et al. 2016, *A Discriminative
    Feature Learning Approach for Deep Face Recognition*, section 3.2."""

    name = "CenterLoss"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        given, (x, label) = message.center_loss_param, bottoms
        samples, classes = x.shape[0], given.num_output
        if graph.workers > 1:
            raise ValueError(
                f"how far centres move depends on how often a class occurs in the whole batch, but each "
                f"of {graph.workers} workers has only a part of it; train it with one worker"
            )
        if classes < 1:
            raise ValueError("center_loss_param needs a num_output of 1 or more, the number of classes")
        if canonical(given.axis, x) != 1 or math.prod(label.shape) != samples:
            raise ValueError(
                f"x {x!r} must be a row per sample from axis 1 on, label {label!r} a number each"
            )
        shape = samples, math.prod(x.shape[1:])
        rows = graph.apply("reshape", x, shape=shape)
        index = graph.apply("reshape", label, shape=(samples,))
        centres = learned(graph, message, 0, (classes, shape[1]), given.center_filler)
        nearest = graph.apply("gather", centres, index, source=place_of(layer))
        loss = graph.apply("half_squared_distance", rows, graph.apply("stop_gradient", nearest))
        weight = layer.loss_weights[0] if layer.loss_weights else self.loss_weight
        if not weight or graph.phase != "train":
            return [loss]
        # This adds nothing to the loss, but gives the centres a gradient of their own.
        ones = graph.constant(f"{layer.name}.ones", np.ones((samples, 1), np.float32))
        counts = graph.apply("gather_backward", ones, index, shape=(classes, 1))
        of_label = graph.apply("gather", counts, index, source=place_of(layer))
        share = graph.apply("power", of_label, power=-1.0, shift=1.0)
        away = graph.apply("sum", graph.apply("stop_gradient", rows), nearest, coefficients=(1.0, -1.0))
        squares = graph.apply("product", away, away)
        pulled = graph.apply("scale", squares, graph.apply("reshape", share, shape=(samples,)), axis=0)
        half = {"coefficient": 0.5 / weight, "normalization": "full"}
        pull = graph.apply("total", pulled, axis=0, **half)
        nothing = graph.apply("sum", pull, graph.apply("stop_gradient", pull), coefficients=(1.0, -1.0))
        return [graph.apply("sum", loss, nothing)]


class ContrastiveLoss(Loss):
    """Pulls similar pairs of vectors together, and pushes others apart up to a margin."""

    name = "ContrastiveLoss"
    bottoms = (3, 3)
    no_gradient = MappingProxyType({})

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        contrast = message.contrastive_loss_param
        margin, legacy = number(contrast.margin), contrast.legacy_version
        return [graph.apply("contrastive_loss", *bottoms, margin=margin, legacy=legacy)]


class TripletLoss(Loss):
    """Half the mean over samples of max(0, margin + d(anchor, positive) - d(anchor, negative)), where d
    is the squared distance; the bottoms are anchors, positives, negatives. From the forks whose type has
    three bottoms. Schroff et al. 2015, *FaceNet*, equation 3."""

    name = "TripletLoss"
    bottoms = (3, 3)
    no_gradient = MappingProxyType({})

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        shape, given = bottoms[0].shape, message.triplet_loss_param
        if not given.HasField("margin"):
            raise ValueError(
                "needs triplet_loss_param { margin: ... }: forks with this type differ in its default"
            )
        if len(shape) < 2 or any(each.shape != shape for each in bottoms):
            told = ", ".join(map(repr, bottoms))
            raise ValueError(f"anchors, positives and negatives {told} must be rows of the same length")
        rows = (shape[0], math.prod(shape[1:]))
        anchor, *others = (graph.apply("reshape", each, shape=rows) for each in bottoms)
        away = [graph.apply("sum", anchor, each, coefficients=(1.0, -1.0)) for each in others]
        near, far = (graph.apply("square_total", each, axis=1) for each in away)
        farther = graph.apply("sum", near, far, coefficients=(1.0, -1.0))
        margin = number(given.margin)
        above = graph.apply("relu", graph.apply("power", farther, power=1.0, shift=margin))
        mean = {"coefficient": 0.5 / shape[0], "normalization": "full"}
        return [graph.apply("total", above, axis=0, **mean)]


class Accuracy(CaffeLayer):
    """The fraction of labels among the top_k predictions. A second top is that
    fraction for each class."""

    name = "Accuracy"
    bottoms = (2, 2)
    tops = (1, 2)

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        if any(layer.loss_weights) and graph.phase == "train":
            raise ValueError("an accuracy has no gradient, so a loss_weight cannot be trained with")
        accuracy = message.accuracy_param
        axis = canonical(accuracy.axis, bottoms[0])
        check_whole("the number of classes", bottoms[0].shape[axis], bottoms[1])
        shares = graph.apply(
            "accuracy",
            *bottoms,
            axis=axis,
            ignore_label=_ignored(accuracy),
            top_k=accuracy.top_k,
        )
        return list(shares[: len(layer.tops)])


class SegAccuracy(CaffeLayer):
    """Three scores of the best class predicted for each pixel: the fraction of correct pixels; its mean
    over the classes that occur; and the mean over all classes of correct pixels divided by those that
    are of the class or are predicted as it. Everingham et al. 2010; Chen et al. 2015, *DeepLab*."""

    name = "SegAccuracy"
    bottoms = (2, 2)
    no_gradient = MappingProxyType({1: "labels"})

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        if any(layer.loss_weights) and graph.phase == "train":
            raise ValueError("an accuracy has no gradient, so a loss_weight cannot be trained with")
        about = message.seg_accuracy_param
        if not about.reset:
            raise ValueError(
                "reset: false accumulates over batches; here a test reports the mean over them"
            )
        return [graph.apply("segment_scores", *bottoms, ignored=tuple(about.ignore_label))]


def _logarithm(x: Tensor, graph: GraphBuilder) -> Tensor:
    """Return the logarithm of shares, or of the least float32 for those that are 0."""
    made: Tensor = graph.apply("clip", x, least=_LEAST, most=1.0)
    made = graph.apply("logarithm", made, factor=1.0, scale=1.0, shift=0.0)
    return made


def _ignored(message: Any) -> int | None:
    return message.ignore_label if message.HasField("ignore_label") else None


def normalization(loss: Any, default: str) -> tuple[str, float]:
    """Return what the loss is averaged over, as the operations name it, and an additional divisor: 1, or
    the number of PRE_FIXED, at least 1. ``normalize`` is the older field for the former."""
    if loss.HasField("normalization"):
        if loss.normalization == loss.PRE_FIXED:
            return "none", max(1.0, number(loss.pre_fixed_normalizer))
        return str(loss.NormalizationMode.Name(loss.normalization).lower()), 1.0
    if loss.HasField("normalize"):
        return "valid" if loss.normalize else "batch_size", 1.0
    return default, 1.0


def _divided(loss: Tensor, divisor: float, graph: GraphBuilder) -> Tensor:
    made: Tensor = loss if divisor == 1 else graph.apply("sum", loss, coefficients=(1 / divisor,))
    return made


def _infogain_matrix(layer: Layer, infogain: Any, classes: int, graph: GraphBuilder) -> Tensor:
    """Return the matrix of a file. If only shapes matter, a missing file is replaced by a
    matrix for ``classes``."""
    if not infogain.source:
        raise ValueError(
            "needs an infogain matrix: a third bottom, or infogain_loss_param { source: ... }"
        )
    what = f"{layer.location}: layer {layer.name!r} ({layer.type}): infogain matrix"
    if graph.counted and find(infogain.source, layer.location.file)[0] is None:
        matrix = np.broadcast_to(np.float32(0), (1, 1, classes, classes))
    else:
        matrix = read_blob(find_file(infogain.source, layer.location.file, what))
    return graph.constant(f"{layer.name}.matrix", matrix)
