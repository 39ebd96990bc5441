"""The layer types of SSD's fork, R-FCN's pooling, and Faster R-CNN's proposals. Liu et al. 2016, *SSD:
Single Shot MultiBox Detector*; Dai et al. 2016, *R-FCN*; Ren et al. 2015, *Faster R-CNN*."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from demitasse import GraphBuilder, Layer, Tensor, unknown
from demitasse_detection.base import DetectionLayer, check_count, decimal, place, rows_found
from demitasse_detection.boxes import CODES
from demitasse_detection.evaluation import VERSIONS, average_precisions
from demitasse_detection.loss_layers import FocalLoss, RegionLoss, Yolov3
from demitasse_detection.mining_layers import BoxAnnotatorOHEM, SoftmaxWithLossOHEM
from demitasse_detection.priors import PriorBox, PriorBoxClustered
from demitasse_detection.yolo_layers import (
    YoloDetectionOutput,
    Yolov3DetectionOutput,
    pairs,
    shares,
)


class DetectionOutput(DetectionLayer):
    """The objects found in the images, from predictions of boxes (the first bottom) and classes (the
    second) relative to priors (the third). The top is 1 x 1 x N x 7, with a row for each object: its
    image, class, confidence, xmin, ymin, xmax and ymax. The number of objects is only known once they
    are found, so the maximum number of rows is planned; rows after the last object are -1."""

    name = "DetectionOutput"
    bottoms = 3

    def expand(self, layer: Layer, bottoms: Sequence[Tensor], graph: GraphBuilder) -> Tensor:
        about = layer.parameters.detection_output_param
        nms = about.nms_param
        if about.num_classes < 1:
            raise ValueError("detection_output_param { num_classes } is not given")
        if about.keep_top_k == 0 or nms.top_k == 0:
            raise ValueError("a top_k or keep_top_k of 0 keeps nothing; leave it out to keep all")
        if not 0 <= nms.nms_threshold < math.inf or not 0 < nms.eta <= 1:
            raise ValueError(
                f"nms_threshold {nms.nms_threshold:g} and eta {nms.eta:g}: the first must be 0 or more, "
                f"the second above 0 and at most 1"
            )
        least = about.confidence_threshold if about.HasField("confidence_threshold") else -math.inf
        made: Tensor = graph.apply(
            "detections",
            *bottoms,
            classes=about.num_classes,
            background=about.background_label_id,
            shared=about.share_location,
            code=CODES[about.code_type - 1],
            encoded=about.variance_encoded_in_target,
            confidence=least,
            overlap=nms.nms_threshold,
            eta=nms.eta,
            top_k=nms.top_k,
            keep=about.keep_top_k,
        )
        return made

    def found(self, planned: np.ndarray) -> np.ndarray:
        """Return the actual rows of a top as it was planned (a view)."""
        return rows_found(planned)


class MultiBoxLoss(DetectionLayer):
    """The loss of predicted boxes (the first bottom) and classes (the second) relative to priors (the
    third), given the objects in the images (the fourth). Rows of objects are an image, a class, a
    number, xmin, ymin, xmax, ymax and whether the object is difficult. Section 2.2, *Training*."""

    name = "MultiBoxLoss"
    bottoms = 4
    tops = (0, 1)
    loss_weight = 1.0

    def expand(self, layer: Layer, bottoms: Sequence[Tensor], graph: GraphBuilder) -> Tensor:
        message = layer.parameters
        about = message.multibox_loss_param
        _check_served(about)
        if about.num_classes < 1 or about.background_label_id >= about.num_classes:
            raise ValueError(
                f"multibox_loss_param {{ num_classes }} is {about.num_classes}, but the background is "
                f"class {about.background_label_id}, which num_classes must count too"
            )
        made: Sequence[Tensor] = graph.apply(
            "multibox_loss",
            *bottoms,
            classes=about.num_classes,
            background=about.background_label_id,
            code=CODES[about.code_type - 1],
            encoded=about.encode_variance_in_target,
            of_places=about.LocLossType.Name(about.loc_loss_type),
            of_classes=about.ConfLossType.Name(about.conf_loss_type),
            weight=about.loc_weight,
            counted=_counted(message, graph),
            per_prediction=about.match_type == about.PER_PREDICTION,
            by_priors=about.use_prior_for_matching,
            overlap=about.overlap_threshold,
            inside=about.ignore_cross_boundary_bbox,
            difficult=about.use_difficult_gt,
            mining=about.MiningType.Name(about.mining_type),
            ratio=about.neg_pos_ratio,
            apart=about.neg_overlap,
            normalization=_normalization(message.loss_param),
            source=place(layer),
        )
        return made[0]


def _check_served(about: Any) -> None:
    """Raise ValueError for a field that asks for something that is not supported."""
    for field, served in (
        ("share_location", True),
        ("map_object_to_agnostic", False),
        ("bp_inside", False),
        ("use_prior_for_nms", False),
    ):
        if getattr(about, field) != served:
            raise ValueError(
                f"multibox_loss_param {{ {field} }} is supported only as {str(served).lower()}"
            )
    mining = about.mining_type != about.NONE
    if about.mining_type == about.HARD_EXAMPLE or (mining and about.HasField("nms_param")):
        raise ValueError(
            "mines the worst negatives: mining_type must be MAX_NEGATIVE or NONE, without nms_param"
        )
    if about.HasField("do_neg_mining") and about.do_neg_mining != mining:
        raise ValueError("do_neg_mining and mining_type contradict each other; leave out the former")


def _counted(message: Any, graph: GraphBuilder) -> tuple[bool, bool]:
    """Return whether boxes and classes contribute to the loss, according to propagate_down of the first
    two bottoms."""
    wanted = list(message.propagate_down) or [True, True, False, False]
    if len(wanted) != 4 or (graph.phase == "train" and any(wanted[2:])):
        raise ValueError("needs a propagate_down for each of 4 bottoms, false for priors and objects")
    return wanted[0], wanted[1]


def _normalization(loss: Any) -> str:
    if loss.normalization == loss.PRE_FIXED:
        raise ValueError(
            "normalization PRE_FIXED is not supported (valid: VALID, FULL, BATCH_SIZE, NONE)"
        )
    if loss.HasField("normalize") and not loss.HasField("normalization"):
        return "valid" if loss.normalize else "batch_size"
    return str(loss.NormalizationMode.Name(loss.normalization)).lower()


class DetectionEvaluate(DetectionLayer):
    """Which detections (the first bottom, from a DetectionOutput layer) are right, given the objects in
    the images (the second). The top is 1 x 1 x N x 5: first a row for each class with the number of its
    objects, then a row for each detection. A test reports the mean average precision over all its
    batches. Everingham et al. 2010, *The PASCAL Visual Object Classes (VOC) Challenge*, section 4.2."""

    name = "DetectionEvaluate"
    bottoms = 2

    def expand(self, layer: Layer, bottoms: Sequence[Tensor], graph: GraphBuilder) -> Tensor:
        about = layer.parameters.detection_evaluate_param
        if about.num_classes < 1:
            raise ValueError("detection_evaluate_param { num_classes } is not given")
        if about.ap_version not in VERSIONS:
            raise ValueError(unknown("ap_version", about.ap_version, VERSIONS))
        if not 0 < about.overlap_threshold <= 1:
            raise ValueError(
                f"overlap_threshold {about.overlap_threshold:g} is not above 0 and at most 1"
            )
        made: Tensor = graph.apply(
            "evaluate_detections",
            *bottoms,
            classes=about.num_classes,
            background=about.background_label_id,
            overlap=about.overlap_threshold,
            difficult=about.evaluate_difficult_gt,
            source=place(layer),
        )
        return made

    def found(self, planned: np.ndarray) -> np.ndarray:
        """Return the actual rows of a top as it was planned (a view)."""
        return planned[:, :, : int(np.count_nonzero(planned[0, 0, :, 1] >= 0))]

    def score(self, layer: Layer, batches: Sequence[np.ndarray]) -> Mapping[str, float]:
        """Return the mean average precision of the rows of all batches, over the classes that have
        objects. If the layer is asked for it, also that of each class, by ``.class`` and its number."""
        about = layer.parameters.detection_evaluate_param
        precisions = average_precisions(batches, about.ap_version)
        scores = {"": float(np.mean(list(precisions.values()))) if precisions else 0.0}
        if about.show_per_class_result:
            scores |= {f".class{label}": value for label, value in precisions.items()}
        return scores


class EvalDetection(DetectionEvaluate):
    """Which detections of a map (the first bottom, as RegionLoss trains it) are right, given the objects
    in the images (the second; a third is ignored). The rows are those of DetectionEvaluate, and a test
    reports their mean average precision. From Intel's fork; *YOLO9000*, section 2."""

    name = "EvalDetection"

    def check_counts(self, layer: Layer) -> None:
        check_count("bottom", layer.bottoms, (2, 3))
        check_count("top", layer.tops, self.tops)

    def expand(self, layer: Layer, bottoms: Sequence[Tensor], graph: GraphBuilder) -> Tensor:
        about = layer.parameters.eval_detection_param
        if not about.biases:
            raise ValueError(
                "biases are not given: only maps of YOLO's second version are read, not the first's"
            )
        if about.num_class < 1:
            raise ValueError("num_class is 0; it must be 1 or more, without the background")
        if about.score_type != about.MULTIPLY:
            kind = about.ScoreType.Name(about.score_type)
            raise ValueError(
                f"score_type {kind} is not supported (valid: MULTIPLY, an object's score times its "
                f"class's)"
            )
        if not 0 <= about.nms < math.inf:
            raise ValueError(f"nms {about.nms:g} is not 0 or more")
        if not 0 < about.threshold <= 1:
            raise ValueError(f"threshold {about.threshold:g} is not above 0 and at most 1")
        anchors = pairs(about.biases)
        if len(anchors) != about.num_object:
            raise ValueError(f"has {len(anchors)} pairs of biases for {about.num_object} num_object")
        found = graph.apply(
            "detections_in_maps",
            bottoms[0],
            classes=about.num_class,
            anchors=(tuple(shares(anchors, bottoms[0], 1)),),
            exclusive=True,
            confidence=_LEAST,
            overlap=decimal(about.nms),
        )
        made: Tensor = graph.apply(
            "evaluate_detections",
            found,
            bottoms[1],
            classes=about.num_class + 1,
            overlap=about.threshold,
            source=place(layer),
        )
        return made


_LEAST = 0.005
"""Darknet's threshold: detections with less confidence are dropped."""


class PSROIPooling(DetectionLayer):
    """Means over ``group_size`` x ``group_size`` cells of regions (the second bottom: the number of a
    sample and two corners in pixels of the image). Each cell has its own channels of the first bottom,
    ``output_dim`` of them. *R-FCN*, section 2."""

    name = "PSROIPooling"
    bottoms = 2

    def expand(self, layer: Layer, bottoms: Sequence[Tensor], graph: GraphBuilder) -> Tensor:
        about, channels = layer.parameters.psroi_pooling_param, bottoms[0].shape[1:2]
        for field in ("spatial_scale", "output_dim", "group_size"):
            if not 0 < getattr(about, field) < math.inf:
                raise ValueError(f"psroi_pooling_param {{ {field} }} is not given, or not above 0")
        if channels != (about.output_dim * about.group_size**2,):
            raise ValueError(
                f"output_dim {about.output_dim} in {about.group_size} x {about.group_size} cells does "
                f"not make the channels of {bottoms[0]!r}"
            )
        made: Tensor = graph.apply(
            "pooling_positions",
            *bottoms,
            size=about.group_size,
            scale=about.spatial_scale,
            source=place(layer),
        )
        return made


class ROIAlign(DetectionLayer):
    """The first bottom, interpolated linearly at the corners of ``pooled_h`` x ``pooled_w`` cells of
    regions. The second bottom are the regions: the number of a sample and two corners in pixels of the
    image. They are enlarged on each side by ``pad_ratio``. A Pooling layer takes the mean of each cell.
    He et al. 2017, *Mask R-CNN*, section 3; from Cascade R-CNN's fork."""

    name = "ROIAlign"
    bottoms = 2

    def expand(self, layer: Layer, bottoms: Sequence[Tensor], graph: GraphBuilder) -> Tensor:
        about = layer.parameters.roi_pooling_param
        for field in ("pooled_h", "pooled_w", "spatial_scale"):
            if not 0 < getattr(about, field) < math.inf:
                raise ValueError(f"roi_pooling_param {{ {field} }} is not given, or not above 0")
        if not 0 <= about.pad_ratio < math.inf:
            raise ValueError(f"pad_ratio {about.pad_ratio:g} is not 0 or more")
        wanted = list(layer.parameters.propagate_down) or [True, False]
        if len(wanted) != 2 or (graph.phase == "train" and wanted[1]):
            raise ValueError("needs a propagate_down for each of 2 bottoms, false for regions")
        x = bottoms[0] if wanted[0] else graph.apply("stop_gradient", bottoms[0])
        made: Tensor = graph.apply(
            "aligned_regions",
            x,
            bottoms[1],
            size=(about.pooled_h, about.pooled_w),
            scale=about.spatial_scale,
            grown=decimal(about.pad_ratio),
            source=place(layer),
        )
        return made


class Proposal(DetectionLayer):
    """Regions of images (rows of an image's number and two corners in pixels) that may contain an object
    and, with a second top, their scores. The first bottom scores background and object for boxes of all
    ratios and scales at each place; the second locates the object relative to each box; the third has
    the images' height, width and magnification. ``post_nms_topn`` regions are planned for each image; if
    fewer are found, the best one is repeated. No gradient passes. Ren et al. 2015, *Faster R-CNN*,
    section 3.1."""

    name = "Proposal"
    bottoms = 3
    tops = (1, 2)

    def build(self, layer: Layer, bottoms: Sequence[Tensor], graph: GraphBuilder) -> Sequence[Tensor]:
        """Emit the layer's operations and return regions and scores. Raise ValueError."""
        self.check_counts(layer)
        about = layer.parameters.proposal_param
        ratios = tuple(decimal(each) for each in about.ratio) or (0.5, 1.0, 2.0)
        scales = tuple(decimal(each) for each in about.scale) or (8.0, 16.0, 32.0)
        for field, least in (("ratio", min(ratios)), ("scale", min(scales))):
            if not 0 < least < math.inf:
                raise ValueError(f"proposal_param {{ {field}: {least:g} }} is not a positive number")
        for field in ("feat_stride", "base_size"):
            if getattr(about, field) < 1:
                raise ValueError(f"proposal_param {{ {field} }} is 0; it must be 1 or more")
        if not 0 <= about.nms_thresh < math.inf:
            raise ValueError(f"proposal_param {{ nms_thresh: {about.nms_thresh:g} }} is not 0 or more")
        scores, told, images = bottoms
        made: Sequence[Tensor] = graph.apply(
            "proposals",
            graph.apply("stop_gradient", scores),
            graph.apply("stop_gradient", told),
            images,
            stride=about.feat_stride,
            base=about.base_size,
            ratios=ratios,
            scales=scales,
            least=about.min_size,
            before=about.pre_nms_topn,
            after=about.post_nms_topn,
            overlap=decimal(about.nms_thresh),
        )
        return made[: len(layer.tops)]


LAYER_TYPES = (
    BoxAnnotatorOHEM(),
    DetectionEvaluate(),
    DetectionOutput(),
    EvalDetection(),
    MultiBoxLoss(),
    PSROIPooling(),
    PriorBox(),
    PriorBoxClustered(),
    FocalLoss(),
    Proposal(),
    ROIAlign(),
    RegionLoss(),
    SoftmaxWithLossOHEM(),
    YoloDetectionOutput(),
    Yolov3(),
    Yolov3DetectionOutput(),
)
"""All layer types that the plugin provides."""
