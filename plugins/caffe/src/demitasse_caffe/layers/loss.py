"""Losses and scores of predictions against labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from demitasse import GraphBuilder, Layer, Tensor
from demitasse_caffe.layers.base import CaffeLayer, canonical


class SoftmaxWithLoss(CaffeLayer):
    """The mean of -log softmax(x)[label]; a second top is the softmax."""

    name = "SoftmaxWithLoss"
    bottoms = (2, 2)
    tops = (0, 2)
    loss_weight = 1.0

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        loss, probability = graph.apply(
            "softmax_loss",
            *bottoms,
            axis=canonical(message.softmax_param.axis, bottoms[0]),
            ignore_label=_ignored(message.loss_param),
            normalization=_normalization(message.loss_param),
        )
        return [loss, probability][: max(1, len(layer.tops))]


class Accuracy(CaffeLayer):
    """The share of labels among the top_k predictions; a second top is that share by class."""

    name = "Accuracy"
    bottoms = (2, 2)
    tops = (1, 2)

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        accuracy = message.accuracy_param
        shares = graph.apply(
            "accuracy",
            *bottoms,
            axis=canonical(accuracy.axis, bottoms[0]),
            ignore_label=_ignored(accuracy),
            top_k=accuracy.top_k,
        )
        return list(shares[: len(layer.tops)])


def _ignored(message: Any) -> int | None:
    return message.ignore_label if message.HasField("ignore_label") else None


def _normalization(loss: Any) -> str:
    """What the loss is divided by; ``normalize`` is the older way to say it."""
    if loss.HasField("normalize") and not loss.HasField("normalization"):
        return "valid" if loss.normalize else "batch_size"
    return str(loss.NormalizationMode.Name(loss.normalization).lower())
