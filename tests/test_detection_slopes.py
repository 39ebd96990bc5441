"""Losses and poolings of nets that find objects: what a step of training moves a parameter by is the
slope of the loss."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from slopes import parameter, slope, step, train

import demitasse

PLUGINS = ["caffe", "onnx", "datasets", "detection", "training", "snapshots", "reference"]
DICE = np.random.default_rng(3)
REGIONS = np.array([[0, 1, 2, 9, 12], [1, -3, 4, 8, 30], [1, 5, 5, 5, 5.5], [0, 6, 6, 2, 2]])
OBJECTS = np.zeros((2, 1, 3, 8), np.float32)
OBJECTS[0, 0, 0] = (0, 2, 0, 0.1, 0.2, 0.5, 0.9, 0)
OBJECTS[1, 0, 0] = (1, 1, 0, 0.4, 0.3, 0.9, 0.6, 0)
OBJECTS[1, 0, 1] = (1, 2, 1, 0.0, 0.7, 0.3, 1.0, 1)

NETS = {
    "RegionLoss": (
        (2, 2 * 7, 3, 3),
        OBJECTS,
        """layer { name: "loss" type: "RegionLoss" bottom: "x" bottom: "label" top: "loss" loss_weight: 2
        region_loss_param { num: 2 num_class: 2 rescore: 0 thresh: 0.9 biases: [1, 2, 2, 1] } }""",
    ),
    "Yolov3": (
        (2, 2 * 7, 3, 3),
        OBJECTS,
        """layer { name: "loss" type: "Yolov3" bottom: "x" bottom: "label" top: "loss" loss_weight: 2
        yolov3_param { num: 2 num_class: 2 thresh: 0.9 biases: [30, 40, 60, 35, 10, 12] mask: 0 mask: 1 }
        }""",
    ),
    "FocalLoss": (
        (3, 4, 2),
        np.array([[0, 3], [1, 2], [2, 2]]),
        """layer { name: "loss" type: "FocalLoss" bottom: "x" bottom: "label" top: "loss" loss_weight: 3
        focal_loss_param { gamma: 1.5 alpha: 0.5 } loss_param { ignore_label: 3 } }""",
    ),
    "ROIAlign": (
        (2, 2, 4, 5),
        np.zeros(4),
        """layer { name: "align" type: "ROIAlign" bottom: "x" bottom: "rois" top: "align"
        roi_pooling_param { pooled_h: 2 pooled_w: 3 spatial_scale: 0.5 pad_ratio: 0.25 } }
        layer { name: "mean" type: "Pooling" bottom: "align" top: "mean"
        pooling_param { pool: AVE kernel_size: 2 } }
        layer { name: "score" type: "InnerProduct" bottom: "mean" top: "score"
        inner_product_param { num_output: 3 weight_filler { type: "gaussian" std: 1 } }
        param { lr_mult: 0 }
        param { lr_mult: 0 } }
        layer { name: "loss" type: "SoftmaxWithLoss" bottom: "score" bottom: "label" top: "loss" }""",
    ),
}


@pytest.mark.parametrize("name", NETS)
def test_the_gradient_is_the_slope_of_the_loss(tmp_path: Path, name: str) -> None:
    shape, label, text = NETS[name]
    x = DICE.normal(size=shape)
    layers = parameter("x", x)
    if name == "ROIAlign":
        layers += parameter("rois", REGIONS)
    with demitasse.compose(plugins=PLUGINS) as runtime:
        trainer = train(runtime, tmp_path, layers + text, label)
        fixed = {"rois": REGIONS} if name == "ROIAlign" else {}
        _, gradients = step(trainer, {"x": x, **fixed})
        wanted = slope(lambda moved: step(trainer, {"x": moved, **fixed})[0], x)
        np.testing.assert_allclose(gradients["x"], wanted, rtol=1e-5, atol=1e-8)
        assert np.abs(wanted).max() > 1e-3
