"""Nets of YOLOv3 are trained: a small one finds what it was shown, MnasNet's runs from its own files."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from annotated_files import annotated_database
from real_files import DATA

import demitasse

MNAS = DATA / "prototxt" / "eric612+MnasNet-caffe" / "yolov3"
needs_mnas = pytest.mark.skipif(not MNAS.is_dir(), reason=f"no YOLOv3 of MnasNet under {DATA}")

SOLVER = """net: "net.prototxt" type: "Adam" base_lr: 0.003 momentum: 0.9 lr_policy: "multistep"
stepvalue: 100 gamma: 0.2 max_iter: 140 random_seed: 1 snapshot_after_train: false"""
BIASES = " ".join(f"biases: {side}" for side in (10, 10, 20, 10, 10, 20, 30, 30, 40, 24, 24, 40))
CONVOLUTION = """
layer {{ name: "{0}" type: "Convolution" bottom: "{1}" top: "{0}" convolution_param {{ num_output: {2}
  kernel_size: {3} stride: {4} pad: {5} weight_filler {{ type: "{6}" }} }} }}"""
RELU = """
layer {{ name: "{0}_r" type: "ReLU" bottom: "{0}" top: "{0}" relu_param {{ negative_slope: 0.1 }} }}"""
LOSS = """
layer {{ name: "loss_{0}" type: "Yolov3" bottom: "{0}" bottom: "label" top: "loss_{0}"
  include {{ phase: TRAIN }} yolov3_param {{ num_class: 3 num: 3 mask: {1} anchors_scale: {2} thresh: 0.6
  coord_scale: 1 label_smooth_eps: 0.02 {3} }} }}"""


def layer(name: str, bottom: str, outputs: int, size: int, stride: int, filler: str = "msra") -> str:
    """A convolution, with a ReLU unless it is a map of boxes."""
    text = CONVOLUTION.format(name, bottom, outputs, size, stride, size // 2, filler)
    return text + ("" if filler == "xavier" else RELU.format(name))


NET = (
    """
layer { name: "data" type: "Data" top: "data" top: "label"
  data_param { source: "given" batch_size: 8 } include { phase: TRAIN } }
layer { name: "in" type: "Input" top: "data" input_param { shape { dim: 8 dim: 1 dim: 64 dim: 64 } }
  include { phase: TEST } }"""
    + layer("c1", "data", 12, 3, 2)
    + layer("c2", "c1", 24, 3, 2)
    + layer("fine", "c2", 32, 3, 2)
    + layer("coarse", "fine", 48, 3, 2)
    + layer("large", "coarse", 24, 1, 1, "xavier")
    + layer("small", "fine", 24, 3, 1, "xavier")
    + LOSS.format("large", "[3, 4, 5]", 16, BIASES)
    + LOSS.format("small", "[0, 1, 2]", 8, BIASES)
    + """
layer { name: "found" type: "Yolov3DetectionOutput" bottom: "large" bottom: "small" top: "found"
  include { phase: TEST } yolov3_detection_output_param { num_classes: 3 mask: [3, 4, 5, 0, 1, 2]
  anchors_scale: 16 anchors_scale: 8 confidence_threshold: 0.5 nms_threshold: 0.45 """
    + BIASES
    + " } }"
)


def drawn(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Images of a large and a small rectangle apart from each other, bright (class 1), dark (2) or
    striped (3), and their objects as AnnotatedData makes them."""
    dice = np.random.default_rng(seed)
    images = dice.normal(0, 0.2, (count, 1, 64, 64)).astype("f4")
    rows = np.full((count, 1, 4, 8), -1, np.float32)
    for image, objects in zip(images, rows[:, 0], strict=True):
        sides = dice.integers(24, 40, 2), dice.integers(9, 20, 2)
        for number, (first, (height, width)) in enumerate(zip((0, 42), sides, strict=True)):
            top = int(first + dice.integers(0, (40 if number == 0 else 22) - height + 1))
            left, label = int(dice.integers(0, 65 - width)), int(dice.integers(1, 4))
            part = image[0, top : top + height, left : left + width]
            part += {1: 2.0, 2: -2.0, 3: 2.0 * (-1) ** np.arange(width)}[label]
            corners = np.array([left, top, left + width, top + height]) / 64
            objects[number] = (0, label, number, *corners, 0)
    return images, rows


def test_a_net_with_two_maps_finds_what_it_was_shown(tmp_path: Path) -> None:
    """Large rectangles in the coarse map, small ones in the fine map; the loss falls to a tenth."""
    (tmp_path / "net.prototxt").write_text(NET)
    (tmp_path / "solver.prototxt").write_text(SOLVER)
    images, rows = drawn(8, 3)
    data = {"train": {"data": images, "label": rows}}
    with demitasse.compose(plugins=["-tuning"]) as runtime:
        trainer = runtime.trainer(tmp_path / "solver.prototxt", data=data)
        losses = [trainer.step().loss for _ in range(140)]
        model = runtime.write(tmp_path / "net.caffemodel", demitasse.Weights(dict(trainer.net.params)))
        net = runtime.net(tmp_path / "net.prototxt", weights=model, phase="test")
        found = net.forward(data=images)["found"][0, 0]
    assert np.mean(losses[-10:]) < 0.1 * losses[0]
    assert len(found) == 16, "each object once, and nothing else"
    for image, objects in enumerate(rows[:, 0, :2]):
        mine = found[found[:, 0] == image]
        for _, label, _, *corners, _ in objects:
            shared = [overlap(box, np.array(corners)) for box in mine[:, 3:]]
            assert max(shared) > 0.7
            assert mine[np.argmax(shared), 1] == label


def overlap(one: np.ndarray, other: np.ndarray) -> float:
    """The area that two boxes have in common over what they cover together."""
    common = (np.minimum(one[2:], other[2:]) - np.maximum(one[:2], other[:2])).clip(0).prod()
    return float(common / ((one[2:] - one[:2]).prod() + (other[2:] - other[:2]).prod() - common))


def of_one_size(text: str) -> str:
    """Each layer's first resize_param alone, for sure, and to 160 pixels."""
    resizing = re.compile(r" *resize_param \{.*?\n    \}\n", re.S)
    layers = []
    for each in text.split("\nlayer {"):
        (first, *_), kept = resizing.findall(each) or ("",), resizing.sub("", each)
        first = re.sub(r"prob: [0-9.]+", "prob: 1", first).replace("416", "160")
        layers.append(kept.replace("    mirror:", f"{first}    mirror:"))
    return "\nlayer {".join(layers)


@needs_mnas
def test_mnasnet_is_trained_and_tested_from_its_own_files(tmp_path: Path) -> None:
    """As they are, but for one size of images in the place of ten, and one batch a step."""
    dice, samples = np.random.default_rng(0), []
    for number in range(4):
        low = dice.uniform(0, 0.4, 2)
        pixels = dice.integers(0, 256, (90, 120, 3)).astype(np.uint8)
        samples.append((pixels, [(1 + number, 0, *low, *(low + 0.4), 0), (20, 1, 0, 0, 0.1, 0.1, 1)]))
    for name in ("trainval", "test"):
        annotated_database(tmp_path / f"VOC0712_{name}_lmdb", samples)
    text = of_one_size((MNAS / "train_val.prototxt").read_text())
    assert text.count("resize_param") == 2
    (tmp_path / "train_val.prototxt").write_text(text.replace("examples/VOC0712/", ""))
    solver = (MNAS / "solver.prototxt").read_text().replace("models/MnasNet-YOLO/", "")
    (tmp_path / "solver.prototxt").write_text(solver)
    with demitasse.compose(plugins=["-tuning"]) as runtime:
        overrides = {"iter_size": 1, "test_iter": 1}
        trainer = runtime.trainer(tmp_path / "solver.prototxt", overrides=overrides)
        before = trainer.net.params["conv1"][0].copy()
        losses = [trainer.step().loss for _ in range(3)]
        scores = trainer.test()
        assert np.abs(trainer.net.params["conv1"][0] - before).max() > 0
    assert np.isfinite(losses).all() and min(losses) > 0
    assert 0 <= scores["DetectionEvaluate"] <= 1


def test_an_object_of_no_class_is_told_with_its_record(tmp_path: Path) -> None:
    samples = [(np.zeros((64, 64, 1), np.uint8), [(1, 0, 0.2, 0.2, 0.6, 0.6, 0)]) for _ in range(8)]
    samples[5][1][0] = (4, 0, 0.2, 0.2, 0.6, 0.6, 0)
    annotated_database(tmp_path / "lmdb", samples)
    about = 'type: "AnnotatedData" annotated_data_param { batch_sampler { } } '
    text = NET.replace('type: "Data"', about).replace('"given"', '"lmdb" backend: LMDB')
    (tmp_path / "net.prototxt").write_text(text)
    (tmp_path / "solver.prototxt").write_text(SOLVER)
    with demitasse.compose(plugins=["-tuning"]) as runtime:
        trainer = runtime.trainer(tmp_path / "solver.prototxt")
        with pytest.raises(demitasse.SampleError, match="image 5 and class 4 ") as caught:
            trainer.step()
    assert str(caught.value).endswith(f"; the sample is {tmp_path / 'lmdb'}: key '00000005'")
