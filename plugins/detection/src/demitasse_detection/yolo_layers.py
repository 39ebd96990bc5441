"""The layer types at the end of YOLO's nets, as in the forks of MobileNet-YOLO. Redmon and Farhadi 2017,
*YOLO9000: Better, Faster, Stronger*; 2018, *YOLOv3: An Incremental Improvement*."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from demitasse import GraphBuilder, Layer, Tensor
from demitasse_detection.base import DetectionLayer, check_count, decimal, rows_found

Sides = list[tuple[float, float]]


class YoloDetectionOutput(DetectionLayer):
    """The objects found in the images by one or two maps, whose anchors (``biases``) are in places of
    the map. The top is 1 x 1 x N x 7, with a row for each object: its image, class, confidence, xmin,
    ymin, xmax and ymax as fractions of the image, sorted by image and confidence. Classes are mutually
    exclusive. The number of objects is only known once they are found; rows after the last are -1.
    *YOLO9000*, section 2."""

    name = "YoloDetectionOutput"
    exclusive = True

    def check_counts(self, layer: Layer) -> None:
        check_count("bottom", layer.bottoms, (1, 2))
        check_count("top", layer.tops, self.tops)

    def expand(self, layer: Layer, bottoms: Sequence[Tensor], graph: GraphBuilder) -> Tensor:
        about = layer.parameters.yolo_detection_output_param
        if about.coords != 4:
            raise ValueError(f"coords is {about.coords}, but a box has 4")
        biases = pairs(about.biases)
        if len(biases) != about.num_box:
            raise ValueError(f"has {len(biases)} pairs of biases for {about.num_box} num_box")
        anchors = [shares(biases, each, 1) for each in bottoms]
        return self.made(graph, bottoms, about, anchors, decimal(about.confidence_threshold))

    def made(
        self,
        graph: GraphBuilder,
        bottoms: Sequence[Tensor],
        about: Any,
        anchors: list[Sides],
        confidence: float,
        uncertain: bool = False,
    ) -> Tensor:
        """Return the operation's result. Raise ValueError for invalid parameters."""
        if about.num_classes < 1:
            raise ValueError("num_classes is 0; it must be 1 or more, without the background")
        if not 0 <= about.nms_threshold < math.inf:
            raise ValueError(f"nms_threshold {about.nms_threshold:g} is not 0 or more")
        found: Tensor = graph.apply(
            "detections_in_maps",
            *bottoms,
            classes=about.num_classes,
            anchors=tuple(map(tuple, anchors)),
            exclusive=self.exclusive,
            uncertain=uncertain,
            confidence=confidence,
            overlap=decimal(about.nms_threshold),
        )
        return found

    def found(self, planned: np.ndarray) -> np.ndarray:
        """Return the actual rows of a top as it was planned (a view)."""
        return rows_found(planned)


class Yolov3DetectionOutput(YoloDetectionOutput):
    """The objects found in the images by ``mask_group_num`` maps. Each map has its own part of ``mask``,
    with the numbers of its anchors among the ``biases``. These are in pixels of an image that is
    ``anchors_scale`` times as large as the map. The rows are those of YoloDetectionOutput. *YOLOv3*,
    section 2."""

    name = "Yolov3DetectionOutput"
    exclusive = False

    def check_counts(self, layer: Layer) -> None:
        about = layer.parameters.yolov3_detection_output_param
        check_count("bottom", layer.bottoms, (about.mask_group_num,))
        check_count("top", layer.tops, self.tops)

    def expand(self, layer: Layer, bottoms: Sequence[Tensor], graph: GraphBuilder) -> Tensor:
        about = layer.parameters.yolov3_detection_output_param
        biases, mask, each = pairs(about.biases), list(about.mask), about.num_box
        if not bottoms or len(mask) != each * len(bottoms):
            raise ValueError(f"has {len(mask)} mask for {len(bottoms)} bottoms of {each} num_box each")
        check_mask(mask, biases)
        scales = list(about.anchors_scale)
        if len(scales) != len(bottoms) or min(scales) < 1:
            raise ValueError(
                f"anchors_scale {scales}: give one for each of {len(bottoms)} bottoms, 1 or more"
            )
        anchors = [
            shares([biases[at] for at in mask[number * each : (number + 1) * each]], x, scale)
            for number, (x, scale) in enumerate(zip(bottoms, scales, strict=True))
        ]
        # This layer requires more than the threshold; the older one also accepts equality.
        confidence = float(np.nextafter(decimal(about.confidence_threshold), math.inf))
        return self.made(graph, bottoms, about, anchors, confidence, uncertain=about.gaussian_box)


def pairs(biases: Sequence[float]) -> Sides:
    """Return the anchors' widths and heights, which alternate in the list. Raise ValueError."""
    numbers = [decimal(value) for value in biases]
    if not numbers or len(numbers) % 2 or not 0 < min(numbers) <= max(numbers) < math.inf:
        raise ValueError(
            f"biases {numbers} are not positive numbers, two (width, height) for each anchor"
        )
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def check_mask(mask: Sequence[int], biases: Sides) -> None:
    """Raise ValueError for the number of an anchor that does not exist."""
    if max(mask) >= len(biases):
        raise ValueError(f"mask {max(mask)} is not one of {len(biases)} pairs of biases, counted from 0")


def shares(biases: Sides, x: Tensor, scale: int) -> Sides:
    """Return anchors as fractions of the image, which has ``scale`` pixels for each
    place of the map x."""
    if len(x.shape) != 4:
        raise ValueError(f"its bottom {x!r} is not a map: images x channels x rows x columns")
    rows, columns = x.shape[2:]
    return [(width / (columns * scale), height / (rows * scale)) for width, height in biases]
