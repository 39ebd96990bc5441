"""The detections in YOLO's maps, compared with a slow implementation of the papers; the number of rows;
mistakes. The comparison with OpenCV, which reads Darknet's own files, is in tests/test_yolo_nets.py."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import demitasse

PROPERTY = settings(max_examples=examples(40), suppress_health_check=list(HealthCheck))
LAYER = "layer {{ name: 'l' type: '{}' {} top: 'found' {} {{ {} }} }}"


def older(fields: str, maps: int = 1) -> str:
    bottoms = " ".join(f"bottom: 'm{number}'" for number in range(maps))
    return LAYER.format("YoloDetectionOutput", bottoms, "yolo_detection_output_param", fields)


def newer(fields: str, maps: int = 2) -> str:
    bottoms = " ".join(f"bottom: 'm{number}'" for number in range(maps))
    return LAYER.format("Yolov3DetectionOutput", bottoms, "yolov3_detection_output_param", fields)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def boxes(
    given: np.ndarray, anchors: list[tuple[float, float]], classes: int, kind: str
) -> list[tuple[list[float], list[float]]]:
    """Return each box of an image's map (A (5 + C), H, W), and its confidence by class."""
    channels, rows, columns = given.shape
    each, found = channels // len(anchors), []
    for anchor, (width, height) in enumerate(anchors):
        for row in range(rows):
            for column in range(columns):
                t = [float(v) for v in given[anchor * each : (anchor + 1) * each, row, column]]
                unsure = 0.0
                if kind == "gaussian":
                    unsure = sum(map(sigmoid, t[1:8:2])) / 4
                    t = [*t[0:8:2], *t[8:]]
                x, y = (column + sigmoid(t[0])) / columns, (row + sigmoid(t[1])) / rows
                w, h = math.exp(t[2]) * width, math.exp(t[3]) * height
                belief = [sigmoid(v) for v in t[5:]]
                if kind == "softmax":
                    belief = [math.exp(v) / sum(map(math.exp, t[5:])) for v in t[5:]]
                sure = sigmoid(t[4]) * (1 - unsure)
                found.append(([x - w / 2, y - h / 2, x + w / 2, y + h / 2], [sure * b for b in belief]))
                assert len(belief) == classes
    return found


def common(one: list[float], other: list[float]) -> float:
    w = min(one[2], other[2]) - max(one[0], other[0])
    h = min(one[3], other[3]) - max(one[1], other[1])
    if w < 0 or h < 0:
        return 0.0
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    return w * h / (sum(areas) - w * h)


def chosen(
    candidates: list[tuple[list[float], list[float]]], number: int, least: float, overlap: float
) -> list[list[float]]:
    """Choose as the fork does: a prediction for each class above the threshold, without those that
    overlap a better one."""
    told = [
        (belief, label + 1, box)
        for box, beliefs in candidates
        for label, belief in enumerate(beliefs)
        if belief > least
    ]
    told.sort(key=lambda each: -each[0])
    kept: list[Any] = []
    for each in told:
        if all(common(each[2], other[2]) < overlap for other in kept):
            kept.append(each)
    return [[number, label, belief, *box] for belief, label, box in kept]


@given(
    st.sampled_from(["softmax", "sigmoid", "gaussian"]),
    st.integers(1, 3),
    st.tuples(*[st.integers(1, 3)] * 4),
    st.sampled_from([0.05, 0.3]),
    st.sampled_from([0.2, 0.45, 0.8]),
    st.integers(0, 2**32 - 1),
)
@PROPERTY
def test_what_is_found_is_what_the_papers_say(
    run: Any, kind: str, classes: int, sides: Any, least: float, overlap: float, seed: int
) -> None:
    dice, anchors = np.random.default_rng(seed), 2
    each = classes + (9 if kind == "gaussian" else 5)
    maps = {
        f"m{number}": dice.normal(0, 1.5, (2, anchors * each, *sides[number * 2 : number * 2 + 2]))
        for number in range(2)
    }
    about = f"num_classes: {classes} num_box: 2 confidence_threshold: {least} nms_threshold: {overlap} "
    if kind == "softmax":
        biases = [(0.5, 0.75), (1.25, 2.0)]
        shares = [[(w / m.shape[3], h / m.shape[2]) for w, h in biases] for m in maps.values()]
        text = older(about + "biases: [0.5, 0.75, 1.25, 2]", 2)
    else:
        biases = [(8.0, 12.0), (20.0, 32.0), (4.0, 6.0), (30.0, 9.0)]
        shares = [
            [(biases[n][0] / (m.shape[3] * scale), biases[n][1] / (m.shape[2] * scale)) for n in mask]
            for m, scale, mask in zip(maps.values(), (16, 8), ((3, 1), (0, 2)), strict=True)
        ]
        about += f"gaussian_box: {str(kind == 'gaussian').lower()} "
        about += "biases: [8, 12, 20, 32, 4, 6, 30, 9] mask: [3, 1, 0, 2] anchors_scale: [16, 8]"
        text = newer(about)
    rows = run(text, **maps)["found"]
    expected: list[list[float]] = []
    for number in range(2):
        candidates = [
            box
            for m, anchor in zip(maps.values(), shares, strict=True)
            for box in boxes(m[number], anchor, classes, kind)
        ]
        expected += chosen(candidates, number, least, overlap)
    assert rows.shape == (1, 1, len(expected), 7)
    np.testing.assert_allclose(rows[0, 0], np.reshape(expected, (-1, 7)), rtol=1e-9, atol=1e-12)


def test_boxes_without_bounds_are_boxes(run: Any) -> None:
    """An untrained net makes such boxes. The second one covers the first, which is as large."""
    maps = np.zeros((1, 14, 1, 1))
    maps[0, [2, 3, 9, 10]], maps[0, [4, 11]] = 1e30, 5
    (row,) = run(older("num_classes: 2 num_box: 2 biases: [1, 1, 1, 1]"), m0=maps)["found"][0, 0]
    assert np.isfinite(row).all()
    assert row[3] < -1e9 and row[6] > 1e9


def test_as_many_rows_are_planned_as_there_are_boxes(runtime: Any, written: Any) -> None:
    maps = {"m0": np.zeros((2, 14, 3, 4)), "m1": np.zeros((2, 14, 1, 2))}
    about = "num_classes: 2 num_box: 2 biases: [1, 2, 3, 4] mask: [0, 1, 1, 0] anchors_scale: [4, 8]"
    net = runtime.net(written(newer(about), **maps))
    assert net.blobs["found"].shape == (1, 1, 2 * 2 * (12 + 2), 7)
    assert net.forward(**maps)["found"].shape[2] > 0
    maps["m0"][:], maps["m1"][:] = -9, -9
    assert net.forward(**maps)["found"].shape == (1, 1, 0, 7)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (older("num_classes: 2"), r"biases \[\] are not positive numbers, two \(width, height\) for"),
        (older("num_classes: 2 biases: [1, -2]"), r"biases \[1.0, -2.0\] are not positive numbers"),
        (older("num_classes: 2 biases: [1, 2]"), "has 1 pairs of biases for 5 num_box"),
        (older("num_classes: 2 num_box: 1 biases: [1, 2] coords: 5"), "coords is 5, but a box has 4"),
        (
            older("num_classes: 0 num_box: 2 biases: [1, 2, 3, 4]"),
            "num_classes is 0; it must be 1 or more",
        ),
        (
            older("num_classes: 3 num_box: 2 biases: [1, 2, 3, 4]"),
            r"map \(1, 14, 3, 4\) is not 1 images x 16 x rows x columns: 8 numbers \(3 classes\) for",
        ),
        (
            older("num_classes: 2 num_box: 2 nms_threshold: -1 biases: [1, 2, 3, 4]"),
            "nms_threshold -1 is not 0 or more",
        ),
        (newer("biases: [1, 2] mask: 0"), "has 1 mask for 2 bottoms of 3 num_box each"),
        (
            newer("biases: [1, 2] num_box: 1 mask: [0, 1] anchors_scale: [8, 8]"),
            "mask 1 is not one of 1 pairs of biases, counted from 0",
        ),
        (
            newer("biases: [1, 2] num_box: 1 mask: [0, 0] anchors_scale: 8"),
            r"anchors_scale \[8\]: give one for each of 2 bottoms",
        ),
        (newer("biases: [1, 2] mask: 0", 1), r"has 1 bottom \(m0\), not 2"),
        (newer("anchor_scale: 8"), "unknown field 'anchor_scale'; did you mean 'anchors_scale'"),
    ],
)
def test_a_wrong_field_is_told_with_its_layer(text: str, message: str, run: Any) -> None:
    with pytest.raises(demitasse.ModelError, match=message) as caught:
        run(text, m0=np.zeros((1, 14, 3, 4)), m1=np.zeros((1, 14, 3, 4)))
    assert "net.prototxt:3" in str(caught.value)
