"""DetectionOutput compared with a slow implementation of the paper; the number of rows; mistakes."""

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
LAYER = (
    "layer {{ name: 'found' type: 'DetectionOutput' bottom: 'loc' bottom: 'conf' bottom: 'prior' "
    "top: 'found' detection_output_param {{ {} }} }}"
)
CODES = ("CORNER", "CENTER_SIZE", "CORNER_SIZE")


def decoded(told: np.ndarray, prior: np.ndarray, variance: np.ndarray, code: str) -> np.ndarray:
    left, top, right, bottom = prior
    w, h = right - left, bottom - top
    a, b, c, d = told * variance
    if code == "CORNER":
        return np.array([left + a, top + b, right + c, bottom + d])
    if code == "CORNER_SIZE":
        return np.array([left + a * w, top + b * h, right + c * w, bottom + d * h])
    x, y = (left + right) / 2 + a * w, (top + bottom) / 2 + b * h
    w, h = w * math.exp(c), h * math.exp(d)
    return np.array([x - w / 2, y - h / 2, x + w / 2, y + h / 2])


def area(box: np.ndarray) -> float:
    return 0.0 if box[2] < box[0] or box[3] < box[1] else float((box[2] - box[0]) * (box[3] - box[1]))


def overlap(one: np.ndarray, other: np.ndarray) -> float:
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    if width <= 0 or height <= 0:
        return 0.0
    return width * height / (area(one) + area(other) - width * height)


def slow(
    loc: np.ndarray, conf: np.ndarray, prior: np.ndarray, about: dict[str, Any]
) -> list[list[float]]:
    """Find the objects image by image, class by class, box by box."""
    images, count = len(loc), prior.size // 8
    classes, rows = about["num_classes"], []
    boxes, variances = prior.reshape(2, count, 4)
    if about["variance_encoded_in_target"]:
        variances = np.ones_like(variances)
    for image in range(images):
        mine = []
        for label in range(classes):
            if label == about["background_label_id"]:
                continue
            scores = conf[image].reshape(count, classes)[:, label]
            order = [p for p in range(count) if scores[p] > about["confidence_threshold"]]
            order.sort(key=lambda p: -scores[p])
            if about["top_k"] > 0:
                order = order[: about["top_k"]]
            limit, kept = about["nms_threshold"], []
            for p in order:
                told = loc[image].reshape(count, -1, 4)[p, 0 if about["share_location"] else label]
                box = decoded(told, boxes[p], variances[p], about["code_type"])
                if all(overlap(box, other) <= limit for other in kept):
                    kept.append(box)
                    mine.append([image, label, scores[p], *box])
                    if about["eta"] < 1 and limit > 0.5:
                        limit *= about["eta"]
        if 0 < about["keep_top_k"] < len(mine):
            mine.sort(key=lambda row: -row[2])
            mine = sorted(mine[: about["keep_top_k"]], key=lambda row: (row[1], -row[2]))
        rows += mine
    return rows


def text(about: dict[str, Any]) -> str:
    inner = ("nms_threshold", "top_k", "eta")
    told = [
        f"{k}: {str(v).lower() if isinstance(v, bool) else v}"
        for k, v in about.items()
        if k not in inner
    ]
    nms = " ".join(f"{k}: {about[k]}" for k in inner)
    return " ".join(told) + f" nms_param {{ {nms} }}"


def problem(seed: int, images: int, count: int, about: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return random predictions in which no two confidences are equal."""
    dice, classes = np.random.default_rng(seed), about["num_classes"]
    corners = dice.uniform(0, 0.7, (count, 2))
    boxes = np.concatenate([corners, corners + dice.uniform(0.1, 0.5, (count, 2))], 1)
    variances = dice.uniform(0.05, 0.5, (count, 4))
    places = 1 if about["share_location"] else classes
    scores = dice.permutation(images * count * classes) / (images * count * classes)
    return {
        "loc": dice.normal(0, 0.5, (images, count * places * 4)),
        "conf": scores.reshape(images, -1),
        "prior": np.stack([boxes.reshape(-1), variances.reshape(-1)])[None],
    }


ABOUT = st.fixed_dictionaries(
    {
        "num_classes": st.integers(2, 4),
        "share_location": st.booleans(),
        "background_label_id": st.sampled_from([0, 1, -1]),
        "code_type": st.sampled_from(CODES),
        "variance_encoded_in_target": st.booleans(),
        "keep_top_k": st.sampled_from([-1, 1, 3, 50]),
        "confidence_threshold": st.sampled_from([0.0, 0.25, 0.75]),
        "nms_threshold": st.sampled_from([0.0, 0.25, 0.625, 1.0]),
        "top_k": st.sampled_from([-1, 2, 5]),
        "eta": st.sampled_from([1.0, 0.75]),
    }
)


@given(ABOUT, st.integers(0, 99), st.integers(1, 3), st.integers(1, 12))
@PROPERTY
def test_what_is_found_is_what_the_paper_finds(
    run: Any, about: dict[str, Any], seed: int, images: int, count: int
) -> None:
    given = problem(seed, images, count, about)
    made = run(LAYER.format(text(about)), **given)["found"]
    rows = slow(given["loc"], given["conf"], given["prior"], about)
    assert made.shape == (1, 1, len(rows), 7)
    np.testing.assert_allclose(made[0, 0], np.reshape(rows, (-1, 7)), rtol=1e-9, atol=1e-12)


BASE: dict[str, Any] = {
    "num_classes": 3,
    "share_location": True,
    "background_label_id": 0,
    "code_type": "CENTER_SIZE",
    "variance_encoded_in_target": False,
    "keep_top_k": 4,
    "confidence_threshold": 0.5,
    "nms_threshold": 0.45,
    "top_k": 10,
    "eta": 1.0,
}


def test_rows_that_were_planned_and_not_found_are_not_given_to_who_runs_a_net(
    runtime: demitasse.Runtime, written: Any
) -> None:
    """Readers of the blob within the net find -1 in these rows."""
    given = problem(1, 2, 6, BASE)
    given["conf"][1] = 0
    behind = "layer { name: 'b' type: 'Power' bottom: 'found' top: 'all' power_param { scale: 2 } }"
    net = runtime.net(written(LAYER.format(text(BASE)) + behind, **given), retain="all")
    net.forward(**given)
    found, whole = net.blobs["found"], net.blobs["all"]
    there = found.data.shape[2]
    assert 0 < there <= 4 < whole.data.shape[2] == 8
    np.testing.assert_array_equal(whole.data[0, 0, :there], 2 * found.data[0, 0])
    assert (whole.data[0, 0, there:] == -2).all()
    assert (found.data[0, 0, :, 0] == 0).all()
    given["conf"][...] = 0
    assert net.forward(**given)["all"].shape == (1, 1, 8, 7)
    assert net.blobs["found"].data.shape == (1, 1, 0, 7)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("", r"detection_output_param { num_classes } is not given"),
        ("num_classes: 3 keep_top_k: 0", "keep_top_k of 0 keeps nothing; leave it out to keep all"),
        ("num_classes: 3 nms_param { top_k: 0 }", "top_k or keep_top_k of 0 keeps nothing"),
        ("num_classes: 3 nms_param { eta: 1.5 }", "eta 1.5: .* above 0 and at most 1"),
        (
            "num_classes: 3 nms_param { nms_threshold: -1 }",
            "nms_threshold -1 and eta 1: the first must be 0 or more",
        ),
        (
            "num_classes: 4",
            r"confidence \(2, 18\) does not have 4 numbers for each of 6 priors and 2 images",
        ),
        (
            "num_classes: 3 share_location: false",
            r"location \(2, 24\) does not have 12 numbers for each of 6",
        ),
        ("num_classes: 3 code_type: CENTRE_SIZE", "CENTRE_SIZE.*CENTER_SIZE"),
        ("num_classes: 3 nms_param { topk: 3 }", "unknown field 'topk'; did you mean 'top_k'"),
    ],
)
def test_a_wrong_field_is_told_with_its_layer(run: Any, fields: str, message: str) -> None:
    with pytest.raises(demitasse.ModelError, match=message) as caught:
        run(LAYER.format(fields), **problem(0, 2, 6, BASE))
    assert "net.prototxt:4" in str(caught.value)


def test_a_net_of_faceboxes_own_fork_is_told_what_its_priors_are(run: Any) -> None:
    """The fork has 8 x 8 places with 21 boxes, and 3 here; 4 x 4 and 2 x 2 places have one."""
    given = problem(0, 2, 3 * 64 + 16 + 4, BASE)
    count = 21 * 64 + 16 + 4
    given |= {"loc": np.zeros((2, 4 * count)), "conf": np.zeros((2, 3 * count))}
    with pytest.raises(demitasse.ModelError, match=r"for each of 212 priors .*; in FaceBoxes' own fork"):
        run(LAYER.format("num_classes: 3"), **given)
    given["loc"] = np.zeros((2, 4 * count + 4))
    with pytest.raises(demitasse.ModelError, match=r"confidence \(2, 4092\)\) \["):
        run(LAYER.format("num_classes: 3"), **given)


def test_where_results_were_to_be_saved_is_read_over_and_told(
    runtime: demitasse.Runtime, tmp_path: Any
) -> None:
    path = tmp_path / "net.prototxt"
    path.write_text(
        LAYER.format("num_classes: 3 save_output_param { output_directory: 'x' } visualize: 1")
    )
    (note,) = runtime.read(path).net("test").notes
    assert (
        "of SSD's fork that have no effect here: save_output_param (line 1; the detections are the "
        "layer's top), visualize" in note
    )
