"""R-FCN's layer types that find the hardest regions of each image. Shrivastava et al. 2016, *Training
Region-based Object Detectors with Online Hard Example Mining*; Dai et al. 2016, *R-FCN*."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from demitasse import GraphBuilder, Layer, Tensor
from demitasse_detection.base import DetectionLayer, place


class SoftmaxWithLossOHEM(DetectionLayer):
    """The mean of -log softmax(x)[label], as in SoftmaxWithLoss. A second top is the softmax; a third is
    the loss of each label, in the shape of the labels, 0 where the label is ignored. These two tops pass
    no gradient."""

    name = "SoftmaxWithLossOHEM"
    bottoms = 2
    tops = (0, 1, 2, 3)
    loss_weight = 1.0

    def build(self, layer: Layer, bottoms: Sequence[Tensor], graph: GraphBuilder) -> Sequence[Tensor]:
        """Emit the layer's operations and return the loss, and the other tops if requested.
        Raise ValueError."""
        self.check_counts(layer)
        message, (x, label) = layer.parameters, bottoms
        reached = reached_first(layer, graph)
        axis = message.softmax_param.axis
        if not -len(x.shape) <= axis < len(x.shape):
            raise ValueError(f"axis {axis} is not one of the {len(x.shape)} axes of {x!r}")
        about: dict[str, Any] = {"axis": axis % len(x.shape), "ignore_label": None}
        if message.loss_param.HasField("ignore_label"):
            about["ignore_label"] = message.loss_param.ignore_label
        over, divisor = normalization(message.loss_param)
        given = x if reached else graph.apply("stop_gradient", x)
        loss, probability = graph.apply("softmax_loss", given, label, normalization=over, **about)
        if divisor != 1:
            loss = graph.apply("sum", loss, coefficients=(1 / divisor,))
        made = [loss, probability][: max(1, len(layer.tops))]
        if len(layer.tops) > 2:
            fixed = graph.apply("stop_gradient", probability)
            made.append(graph.apply("label_losses", fixed, label, source=place(layer), **about))
        return made


class BoxAnnotatorOHEM(DetectionLayer):
    """The labels (from the third bottom) and box weights (from the fourth) of the ``roi_per_img``
    regions (the first bottom) of each image with the largest losses (the second). The others get
    ``ignore_label`` and 0. No gradient passes."""

    name = "BoxAnnotatorOHEM"
    bottoms = 4
    tops = (2,)

    def build(self, layer: Layer, bottoms: Sequence[Tensor], graph: GraphBuilder) -> Sequence[Tensor]:
        """Emit the layer's operation and return labels and weights. Raise ValueError."""
        self.check_counts(layer)
        about = layer.parameters.box_annotator_ohem_param
        if about.roi_per_img < 1:
            raise ValueError("box_annotator_ohem_param { roi_per_img } must be 1 or more")
        if graph.phase == "train" and any(layer.parameters.propagate_down):
            raise ValueError(
                "propagate_down is true, but no gradient passes; write false for each bottom"
            )
        made: Sequence[Tensor] = graph.apply(
            "hardest_regions",
            *(graph.apply("stop_gradient", each) for each in bottoms),
            count=about.roi_per_img,
            ignored=about.ignore_label,
            source=place(layer),
        )
        return made


def reached_first(layer: Layer, graph: GraphBuilder) -> bool:
    """Return whether a gradient reaches the first bottom. Raise ValueError for a propagate_down that
    does not cover two bottoms, or that wants a gradient of labels."""
    wanted = list(layer.parameters.propagate_down) or [True, False]
    if len(wanted) != 2 or (graph.phase == "train" and wanted[1]):
        raise ValueError("needs a propagate_down for each of 2 bottoms, false for labels")
    return bool(wanted[0]) or graph.phase != "train"


def normalization(loss: Any) -> tuple[str, float]:
    """Return what the loss is averaged over, and an additional divisor."""
    if loss.HasField("normalize") and not loss.HasField("normalization"):
        return "valid" if loss.normalize else "batch_size", 1.0
    if loss.normalization == loss.PRE_FIXED:
        if not math.isfinite(loss.pre_fixed_normalizer):
            raise ValueError(f"pre_fixed_normalizer {loss.pre_fixed_normalizer} is not a finite number")
        return "none", max(1.0, loss.pre_fixed_normalizer)
    return str(loss.NormalizationMode.Name(loss.normalization)).lower(), 1.0
