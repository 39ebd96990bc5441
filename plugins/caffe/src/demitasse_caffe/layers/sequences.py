"""Layer types of the forks with CTC, for sequences with shorter label sequences: Graves et al. 2006,
*Connectionist Temporal Classification*."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from demitasse import GraphBuilder, Layer, Tensor
from demitasse_caffe.layers.base import CaffeLayer, canonical, check_size
from demitasse_caffe.layers.loss import Loss
from demitasse_caffe.layers.sample_axes import all_samples, check_samples, share_of

log = logging.getLogger("demitasse.caffe")


class ContinuationIndicator(CaffeLayer):
    """Sequence indicators for an LSTM when each batch is a whole sequence: 0 at the first of
    ``time_step`` steps, 1 at the others. With a bottom, its extent along ``axis`` is the batch size, as
    in DeepDetect's fork."""

    name = "ContinuationIndicator"
    bottoms = (0, 1)

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        given = message.continuation_indicator_param
        batch = given.batch_size
        if bottoms:
            batch = bottoms[0].shape[canonical(given.axis, bottoms[0])]
        if given.time_step < 1 or batch < 1:
            raise ValueError(
                f"continuation_indicator_param {{ time_step: {given.time_step} batch_size: "
                f"{batch} }}: both must be 1 or more"
            )
        check_size(f"top {layer.tops[0]!r}", (given.time_step, batch))
        streams = batch if bottoms or graph.workers == 1 else share_of(batch, graph)
        steps = np.ones((given.time_step, streams), np.float32)
        steps[0] = 0
        made = graph.constant(f"{layer.name}.steps", steps)
        return [graph.apply("stop_gradient", made)]


class CtcLoss(Loss):
    """The negative log of the probability that scores (T, N, C) of C classes at T steps read as N
    labels. Blanks are not part of a label, and a -1 ends one. As in the forks, the value is the mean
    over samples, but the gradient is that of the sum."""

    name = "CtcLoss"
    mean = False
    """Whether, with two bottoms, the gradient is that of the mean."""

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
                    f"ctc_loss_param {{ {field}: {wanted} }}, but {bottoms[0]!r} has {there}"
                )
        for field, served in (
            ("output_delay", 0),
            ("preprocess_collapse_repeated", False),
            ("ctc_merge_repeated", True),
        ):
            if getattr(given, field) != served:
                raise ValueError(
                    f"ctc_loss_param {{ {field} }} is supported only as {str(served).lower()}"
                )
        check_samples(x, 1, "samples", graph)
        label, steps, blank = self.labels(given, x, bottoms[1:], graph)
        if math.prod(label.shape[1:]) > x.shape[0] and len(bottoms) == 2:
            log.warning(
                "%s: layer %r: labels have room for %d classes and scores for %d steps: a longer label "
                "counts 0 and is not learned from",
                layer.location,
                layer.name,
                math.prod(label.shape[1:]),
                x.shape[0],
            )
        losses = graph.apply("ctc_loss", x, label, steps, blank=blank)
        mean = 1 / x.shape[1]
        if self.mean and len(bottoms) == 2:
            return [graph.apply("total", losses, axis=0, coefficient=mean, normalization="full")]
        total = graph.apply("total", losses, axis=0)
        less = 1 - 1 / all_samples(x.shape[1], graph)
        kept = graph.apply("stop_gradient", total)
        return [graph.apply("sum", total, kept, coefficients=(1.0, -less))]

    def labels(
        self, given: Any, x: Tensor, rest: Sequence[Tensor], graph: GraphBuilder
    ) -> tuple[Tensor, Tensor | None, int]:
        """Return labels (N, L), the steps of each sample unless all have T, and the blank."""
        field = "blank_index" if given.HasField("blank_index") else "blank_label"
        return rest[0], None, _counted(getattr(given, field), x)


class WarpCTCLoss(CtcLoss):
    """CtcLoss under its name in other forks; its field for the blank is ``blank_index``, by default 0.
    With three bottoms (scores, sequence indicators, labels (T, N)) the blank 0 is not among the labels'
    classes, so a label of 0 is class 1. With four bottoms the second and third are the number of steps
    and of label classes of each sample, and labels are (L, N)."""

    name = "WarpCTCLoss"
    bottoms = (2, 4)
    no_gradient = MappingProxyType({1: "labels or indicators", 2: "labels", 3: "labels"})

    def labels(
        self, given: Any, x: Tensor, rest: Sequence[Tensor], graph: GraphBuilder
    ) -> tuple[Tensor, Tensor | None, int]:
        if len(rest) == 1:
            return super().labels(given, x, rest, graph)
        blank = _counted(given.blank_index, x) if given.blank_index > 0 else 0
        if len(rest) == 3:
            steps, lengths = (_line(each, x, graph) for each in rest[:2])
            return _rows(rest[2], x, graph, lengths), steps, blank
        label = _rows(rest[1], x, graph, shift=int(not blank))
        return label, _steps(rest[0], x, graph, label), blank


class CTCLoss(CtcLoss):
    """The loss of scores (T, N, C), sequence indicators (T, N) and labels (T, N). The blank is the last
    class unless ``blank_index`` says otherwise. With two bottoms, scores and labels (N, L), the blank is
    0 and the gradient is that of the mean, as in the forks with that form."""

    name = "CTCLoss"
    bottoms = (2, 3)
    no_gradient = MappingProxyType({1: "labels or indicators", 2: "labels"})
    mean = True

    def labels(
        self, given: Any, x: Tensor, rest: Sequence[Tensor], graph: GraphBuilder
    ) -> tuple[Tensor, Tensor | None, int]:
        if len(rest) == 1:
            return super().labels(given, x, rest, graph)
        label = _rows(rest[1], x, graph)
        return label, _steps(rest[0], x, graph, label), _counted(given.blank_index, x)


class CTCGreedyDecoder(CaffeLayer):
    """The classes that scores (T, N, C) read as: the best class of each step, with repetitions merged,
    blanks removed, and -1 at the end, (N, T, 1, 1). The bottoms after the scores, and the tops, are
    those of one of the forks:

    - none: the classes;
    - labels (N, L): one minus the mean edit distance divided by the longer length, and the fraction of
      samples that are right, (1, 2, 1, 1);
    - sequence indicators (T, N): the classes, and the negated sum of the best scores, (N, 1, 1, 1);
    - indicators and labels (T, N): the classes, those sums if there are three tops, and one minus the
      mean distance.

    The blank is 0, or with indicators the last class, unless ``blank_index`` says otherwise.
    """

    name = "CTCGreedyDecoder"
    bottoms = (1, 3)
    tops = (1, 3)
    no_gradient = MappingProxyType({0: "scores", 1: "labels or indicators", 2: "labels"})

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        given, x, rest = message.ctc_decoder_param, _scores(bottoms[0], graph), bottoms[1:]
        check_samples(x, 1, "samples", graph)
        indicated = len(rest) == 2 or (bool(rest) and rest[0].shape[:2] == x.shape[:2])
        most = len(bottoms) if indicated else 1
        if len(layer.tops) > most:
            raise ValueError(f"has {len(layer.tops)} tops for {len(bottoms)} bottoms; at most {most}")
        blank = _counted(given.blank_index if indicated or given.HasField("blank_index") else 0, x)
        steps = _steps(rest[0], x, graph) if indicated else None
        merge = bool(given.ctc_merge_repeated)
        y, scores = graph.apply("ctc_greedy_decode", x, steps, blank=blank, merge=merge)
        samples = x.shape[1]
        if rest and not indicated:
            both = [
                graph.apply("reshape", each, shape=(1,)) for each in _agreement(y, rest[0], blank, graph)
            ]
            return [graph.apply("reshape", graph.apply("concat", *both, axis=0), shape=(1, 2, 1, 1))]
        tops = [graph.apply("reshape", y, shape=(samples, x.shape[0], 1, 1))]
        if len(layer.tops) > 1 and (len(rest) == 1 or len(layer.tops) == 3):
            tops.append(graph.apply("reshape", scores, shape=(samples, 1, 1, 1)))
        if len(layer.tops) > 1 and len(rest) == 2:
            close, _ = _agreement(y, _rows(rest[1], x, graph), blank, graph)
            tops.append(graph.apply("reshape", close, shape=(1, 1, 1, 1)))
        return tops

    def score(self, layer: Layer, batches: Sequence[np.ndarray]) -> Mapping[str, float]:
        """Return means over batches; the two numbers of the form with labels are named
        ``.edit`` and ``.line``."""
        if len(layer.bottoms) == 2 and all(batch.shape == (2, 1) for batch in batches):
            edit, line = np.mean(batches, axis=0)[:, 0]
            return {".edit": float(edit), ".line": float(line)}
        return {"": float(np.mean([np.mean(batch) for batch in batches]))}


class LabelsequenceAccuracy(CaffeLayer):
    """The fraction of samples whose scores (N, T, C) read as their label: the best class of each step,
    with repetitions merged and blanks removed."""

    name = "LabelsequenceAccuracy"
    bottoms = (2, 2)
    no_gradient = MappingProxyType({0: "scores", 1: "labels"})

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        x = _scores(bottoms[0], graph)
        blank = message.labelsequence_accuracy_param.blank_label
        right = graph.apply("sequences_right", x, bottoms[1], blank=blank)
        return [_mean(right, graph)]


def _scores(x: Tensor, graph: GraphBuilder) -> Tensor:
    """Return scores with three axes. Raise ValueError for other shapes, unless the additional axes have
    extent 1."""
    if len(x.shape) < 3 or math.prod(x.shape[3:]) != 1:
        raise ValueError(f"scores {x!r} do not have the three axes steps, samples and classes")
    made: Tensor = x if len(x.shape) == 3 else graph.apply("reshape", x, shape=x.shape[:3])
    return made


def _counted(blank: int, x: Tensor) -> int:
    """Return the blank; a negative one is counted from the last class."""
    return blank + x.shape[2] if blank < 0 else blank


def _columns(given: Tensor, x: Tensor, what: str, graph: GraphBuilder) -> Tensor:
    """Return a tensor as (places, samples). Raise ValueError if it lacks a column for a sample of x."""
    if len(given.shape) < 2 or given.shape[1] != x.shape[1] or math.prod(given.shape[2:]) != 1:
        raise ValueError(
            f"{what} {given!r} should be (places, samples), a column for each of the {x.shape[1]} "
            f"samples of {x!r}"
        )
    made: Tensor = graph.apply("reshape", given, shape=given.shape[:2]) if given.shape[2:] else given
    return made


def _rows(
    label: Tensor, x: Tensor, graph: GraphBuilder, lengths: Tensor | None = None, shift: int = 0
) -> Tensor:
    """Return labels (places, samples) with one row for each sample."""
    columns = _columns(label, x, "labels", graph)
    made: Tensor = graph.apply("labels_of_samples", columns, lengths, shift=shift)
    return made


def _steps(cont: Tensor, x: Tensor, graph: GraphBuilder, label: Tensor | None = None) -> Tensor:
    """Return the number of steps of each sample, according to its sequence indicators."""
    columns = _columns(cont, x, "sequence indicators", graph)
    if columns.shape[0] != x.shape[0]:
        raise ValueError(f"sequence indicators {cont!r} should have the {x.shape[0]} steps of {x!r}")
    made: Tensor = graph.apply("sequence_lengths", columns, label)
    return made


def _line(given: Tensor, x: Tensor, graph: GraphBuilder) -> Tensor:
    """Return one number for each sample."""
    if math.prod(given.shape) != x.shape[1]:
        raise ValueError(f"{given!r} should have a number for each of the {x.shape[1]} samples of {x!r}")
    made: Tensor = graph.apply("reshape", given, shape=(x.shape[1],))
    return made


def _agreement(y: Tensor, label: Tensor, blank: int, graph: GraphBuilder) -> tuple[Tensor, Tensor]:
    """Return one minus the mean edit distance, and the fraction of samples that are right."""
    distances, right = graph.apply("edit_distances", y, label, blank=blank)
    close = graph.apply("power", distances, scale=-1.0, shift=1.0)
    return _mean(close, graph), _mean(right, graph)


def _mean(x: Tensor, graph: GraphBuilder) -> Tensor:
    """Return the mean over samples."""
    over = {"coefficient": 1 / x.shape[0], "normalization": "full"}
    made: Tensor = graph.apply("total", x, axis=0, **over)
    return made
