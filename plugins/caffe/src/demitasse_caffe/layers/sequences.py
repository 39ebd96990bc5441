"""Layer types of the forks with CTC, of sequences whose labels are shorter than they: Graves et al.
2006, *Connectionist Temporal Classification*."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from demitasse import GraphBuilder, Layer, Tensor
from demitasse_caffe.layers.base import CaffeLayer, check_size
from demitasse_caffe.layers.loss import Loss


class ContinuationIndicator(CaffeLayer):
    """What an LSTM is told of sequences that are a batch each: 0 at the first of ``time_step`` steps, 1
    at the others."""

    name = "ContinuationIndicator"
    bottoms = (0, 0)

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        given = message.continuation_indicator_param
        if given.time_step < 1 or given.batch_size < 1:
            raise ValueError(
                f"continuation_indicator_param {{ time_step: {given.time_step} batch_size: "
                f"{given.batch_size} }}: both are 1 or more"
            )
        check_size(f"top {layer.tops[0]!r}", (given.time_step, given.batch_size))
        steps = np.ones((given.time_step, given.batch_size), np.float32)
        steps[0] = 0
        made = graph.constant(f"{layer.name}.steps", steps)
        return [graph.apply("stop_gradient", made)]


class CtcLoss(Loss):
    """Minus the log of the chance that scores (T, N, C) of C classes at T steps read as N labels; blanks
    are no part of a label. Told is the mean over samples, learned from is their sum, as in the forks."""

    name = "CtcLoss"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        given = message.ctc_loss_param
        x = _scores(bottoms[0], graph)
        asked = {"time_step": (given.time_step, x.shape[0])}
        asked["alphabet_size"] = given.alphabet_size, x.shape[2]
        for field, (wanted, there) in asked.items():
            if wanted not in (0, there):
                raise ValueError(
                    f"ctc_loss_param {{ {field}: {wanted} }}, and {bottoms[0]!r} has {there}"
                )
        blank = given.blank_index if given.HasField("blank_index") else given.blank_label
        if graph.workers > 1:
            raise ValueError(
                f"scores are (steps, samples, classes), and {graph.workers} workers would divide them "
                f"by steps; train it with one worker"
            )
        losses = graph.apply("ctc_loss", x, bottoms[1], blank=blank)
        total = graph.apply("total", losses, axis=0)
        less = 1 - 1 / x.shape[1]
        kept = graph.apply("stop_gradient", total)
        return [graph.apply("sum", total, kept, coefficients=(1.0, -less))]


class WarpCTCLoss(CtcLoss):
    """CtcLoss by the name that it has in other forks; ``blank_index`` is its word for the blank."""

    name = "WarpCTCLoss"


class LabelsequenceAccuracy(CaffeLayer):
    """The share of samples whose scores (N, T, C) read as their label: the best class of each step, what
    repeats joined, and blanks left out."""

    name = "LabelsequenceAccuracy"
    bottoms = (2, 2)
    no_gradient = MappingProxyType({0: "scores", 1: "labels"})

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        x = _scores(bottoms[0], graph)
        blank = message.labelsequence_accuracy_param.blank_label
        right = graph.apply("sequences_right", x, bottoms[1], blank=blank)
        mean = {"coefficient": 1 / x.shape[0], "normalization": "full"}
        return [graph.apply("total", right, axis=0, **mean)]


def _scores(x: Tensor, graph: GraphBuilder) -> Tensor:
    """Scores with three axes. Raises ValueError for others than those and ones of 1 behind."""
    if len(x.shape) < 3 or math.prod(x.shape[3:]) != 1:
        raise ValueError(f"scores {x!r} have not the three axes of steps, samples and classes")
    made: Tensor = x if len(x.shape) == 3 else graph.apply("reshape", x, shape=x.shape[:3])
    return made
