"""Losses of nets that predict at every place: YOLO's, and the focal loss. Redmon and Farhadi 2017,
*YOLO9000*; Lin et al. 2017, *Focal Loss for Dense Object Detection*."""

from __future__ import annotations

import math
from collections.abc import Sequence

from demitasse import GraphBuilder, Layer, Tensor
from demitasse_detection.base import DetectionLayer, decimal, place
from demitasse_detection.mining_layers import normalization, reached_first
from demitasse_detection.yolo_layers import check_mask, pairs, shares


class RegionLoss(DetectionLayer):
    """The loss of a map (the first bottom) of ``num`` anchors, given the objects in the images (the
    second: rows as AnnotatedData makes them, or Darknet's). ``biases`` are the widths and heights of the
    anchors in places of the map. *YOLO9000*, section 2."""

    name = "RegionLoss"
    bottoms = 2
    tops = (0, 1)
    loss_weight = 1.0

    def expand(self, layer: Layer, bottoms: Sequence[Tensor], graph: GraphBuilder) -> Tensor:
        about, (maps, label) = layer.parameters.region_loss_param, bottoms
        for field in ("softmax_tree", "class_map"):
            if getattr(about, field):
                raise ValueError(
                    f"{field} {getattr(about, field)!r}: hierarchies of classes are not supported; "
                    f"leave it out"
                )
        if about.coords != 4 or not about.softmax:
            raise ValueError(
                f"coords {about.coords} and softmax {about.softmax} are not supported (valid: 4, as a "
                f"box has, "
                f"and 1)"
            )
        check_classes(about.num_class)
        anchors = pairs(about.biases)
        if len(anchors) != about.num:
            raise ValueError(f"has {len(anchors)} pairs of biases for {about.num} num")
        scales = {
            name: getattr(about, f"{name}_scale") for name in ("coord", "object", "noobject", "class")
        }
        check_positive(**{f"{name}_scale": scales[name] for name in scales}, thresh=about.thresh)
        made: Sequence[Tensor] = graph.apply(
            "region_loss",
            maps if reached_first(layer, graph) else graph.apply("stop_gradient", maps),
            label,
            classes=about.num_class,
            anchors=tuple(anchors),
            overlap=decimal(about.thresh),
            placed=decimal(scales["coord"]),
            present=decimal(scales["object"]),
            absent=decimal(scales["noobject"]),
            classed=decimal(scales["class"]),
            rescored=bool(about.rescore),
            by_anchors=bool(about.bias_match),
            source=place(layer),
        )
        return made[0]


class Yolov3(DetectionLayer):
    """The loss of one of a net's maps (the first bottom), with ``num`` anchors, given the objects in the
    images (the second: rows as AnnotatedData makes them, or Darknet's). ``biases`` are the anchors of
    all maps, in pixels of an image that is ``anchors_scale`` times as large as the map; ``mask`` has the
    numbers of this map's anchors. *YOLOv3*, section 2."""

    name = "Yolov3"
    bottoms = 2
    tops = (0, 1)
    loss_weight = 1.0

    def expand(self, layer: Layer, bottoms: Sequence[Tensor], graph: GraphBuilder) -> Tensor:
        about, (maps, label) = layer.parameters.yolov3_param, bottoms
        if about.iou_loss != about.MSE:
            told = about.IouLoss.Name(about.iou_loss)
            raise ValueError(
                f"iou_loss {told}: the overlap of boxes is not supported as a loss (valid: MSE)"
            )
        if about.use_focal_loss:
            raise ValueError("use_focal_loss true is not supported; leave it out, or set it to false")
        check_classes(about.num_class)
        biases, mask = pairs(about.biases), list(about.mask)
        if not 0 < len(set(mask)) == len(mask) == about.num:
            raise ValueError(
                f"mask {mask} must be {about.num} (num) different numbers of pairs of biases"
            )
        check_mask(mask, biases)
        if about.anchors_scale < 1:
            raise ValueError(
                "anchors_scale is 0; it must be 1 or more, pixels of the image for each place"
            )
        fields = ("coord_scale", "object_scale", "class_scale", "thresh", "iou_thresh")
        numbers = {name: decimal(getattr(about, name)) for name in fields}
        check_positive(**numbers)
        smoothed = decimal(about.label_smooth_eps)
        if not 0 <= smoothed <= 1:
            raise ValueError(f"label_smooth_eps {smoothed:g} is not from 0 to 1")
        made: Sequence[Tensor] = graph.apply(
            "yolov3_loss",
            maps if reached_first(layer, graph) else graph.apply("stop_gradient", maps),
            label,
            classes=about.num_class,
            anchors=tuple(shares(biases, maps, about.anchors_scale)),
            mask=tuple(mask),
            overlap=numbers["thresh"],
            alike=numbers["iou_thresh"],
            placed=numbers["coord_scale"],
            present=numbers["object_scale"] if about.use_logic_gradient else 1.0,
            classed=numbers["class_scale"],
            smoothed=smoothed,
            squared=about.use_logic_gradient,
            source=place(layer),
        )
        return made[0]


def check_classes(count: int) -> None:
    """Raise ValueError if there are no classes."""
    if count < 1:
        raise ValueError("num_class is 0; it must be 1 or more, without the background")


def check_positive(**numbers: float) -> None:
    """Raise ValueError if a field's number is negative or infinite."""
    for name, value in numbers.items():
        if not 0 <= value < math.inf:
            raise ValueError(f"{name} {value:g} is not 0 or more")


class FocalLoss(DetectionLayer):
    """The mean of -alpha (1 - p)^gamma log p, where p is the softmax at the label. A second top is the
    softmax. *Focal Loss for Dense Object Detection*, section 3.2, for several classes."""

    name = "FocalLoss"
    bottoms = 2
    tops = (0, 1, 2)
    loss_weight = 1.0

    def build(self, layer: Layer, bottoms: Sequence[Tensor], graph: GraphBuilder) -> Sequence[Tensor]:
        """Emit the layer's operation and return the loss and, for a second top, the softmax.
        Raise ValueError."""
        self.check_counts(layer)
        message, (x, label) = layer.parameters, bottoms
        about = message.focal_loss_param
        if about.type != about.ORIGIN:
            raise ValueError("focal_loss_param { type } must be ORIGIN; LINEAR is for two classes")
        if not (0 <= about.gamma < math.inf and 0 < about.alpha < math.inf):
            raise ValueError(
                f"gamma {about.gamma:g} and alpha {about.alpha:g}: the first must be 0 or more, the "
                f"second "
                f"above 0"
            )
        axis = message.softmax_param.axis if message.HasField("softmax_param") else about.axis
        if not -len(x.shape) <= axis < len(x.shape):
            raise ValueError(f"axis {axis} is not one of the {len(x.shape)} axes of {x!r}")
        over, divisor = normalization(message.loss_param)
        ignored = message.loss_param.HasField("ignore_label")
        loss, probability, _ = graph.apply(
            "focal_loss",
            x if reached_first(layer, graph) else graph.apply("stop_gradient", x),
            label,
            axis=axis % len(x.shape),
            ignore_label=message.loss_param.ignore_label if ignored else None,
            normalization=over,
            alpha=decimal(about.alpha),
            gamma=decimal(about.gamma),
            source=place(layer),
        )
        if divisor != 1:
            loss = graph.apply("sum", loss, coefficients=(1 / divisor,))
        return [loss, probability][: max(1, len(layer.tops))]
