"""Proposal compared with a slow implementation of the paper's own code and with OpenCV, and mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import demitasse
from demitasse_detection.proposals import anchors, proposals

PROPERTY = settings(max_examples=examples(25), suppress_health_check=list(HealthCheck), deadline=None)
LAYER = (
    "layer {{ name: 'p' type: 'Proposal' bottom: 'scores' bottom: 'told' bottom: 'im_info' "
    "top: 'rois' {} proposal_param {{ {} }} }}"
)
PUBLISHED = """
     -83   -39   100    56
    -175   -87   192   104
    -359  -183   376   200
     -55   -55    72    72
    -119  -119   136   136
    -247  -247   264   264
     -35   -79    52    96
     -79  -167    96   184
    -167  -343   184   360
"""
"""The boxes in Ren et al.'s own anchors.mat, which py-faster-rcnn's generate_anchors.py prints: corners
counted from 1."""


def problem(seed: int, images: int = 1, shapes: int = 4) -> dict[str, np.ndarray]:
    dice = np.random.default_rng(seed)
    return {
        "scores": dice.random((images, 2 * shapes, 6, 7)),
        "told": dice.normal(0, 0.4, (images, 4 * shapes, 6, 7)),
        "im_info": np.array([[48.0, 56.0, 1.5]]),
    }


def slow(scores: Any, told: Any, info: Any, about: dict[str, Any]) -> list[tuple[float, list[float]]]:
    """Return the scores and corners of the regions of one image, computed box by box."""
    height, width, taller, wider = info[0][[0, 1, 2, min(3, len(info[0]) - 1)]]
    boxes = anchors(about["base"], about["ratios"], about["scales"])
    found = []
    for row, column in np.ndindex(*scores.shape[1:]):
        for number, box in enumerate(boxes):
            left, top, right, bottom = box + np.array([column, row] * 2) * about["stride"]
            wide, tall = right - left + 1, bottom - top + 1
            dx, dy, dw, dh = told[4 * number : 4 * number + 4, row, column]
            x, y = left + wide / 2 + dx * wide, top + tall / 2 + dy * tall
            wide, tall = wide * np.exp(dw), tall * np.exp(dh)
            corners = [x - wide / 2, y - tall / 2, x + wide / 2, y + tall / 2]
            ends = (width - 1, height - 1) * 2
            corners = [min(max(c, 0.0), end) for c, end in zip(corners, ends, strict=True)]
            sides = corners[2] - corners[0] + 1, corners[3] - corners[1] + 1
            if sides[0] >= about["least"] * wider and sides[1] >= about["least"] * taller:
                found.append((float(scores[len(boxes) + number, row, column]), corners))
    found = sorted(found, key=lambda each: -each[0])[: about["before"]]
    kept: list[tuple[float, list[float]]] = []
    for score, one in found:
        if all(_overlap(one, other) <= about["overlap"] for _, other in kept):
            kept.append((score, one))
    return kept[: about["after"]]


def _overlap(one: list[float], other: list[float]) -> float:
    def area(box: list[float]) -> float:
        return max(0.0, box[2] - box[0] + 1) * max(0.0, box[3] - box[1] + 1)

    low, high = np.maximum(one[:2], other[:2]), np.minimum(one[2:], other[2:])
    both = area([*low, *high])
    return both / (area(one) + area(other) - both)


def test_boxes_are_those_of_the_authors() -> None:
    published = np.array(PUBLISHED.split(), float).reshape(9, 4)
    np.testing.assert_array_equal(anchors(16, (0.5, 1, 2), (8, 16, 32)), published - 1)


@PROPERTY
@given(
    seed=st.integers(0, 999),
    least=st.integers(0, 12),
    before=st.sampled_from([0, 5, 60]),
    after=st.sampled_from([0, 3, 20]),
    overlap=st.sampled_from([0.3, 0.7]),
    factors=st.sampled_from([(1.5,), (0.7, 2.5), (2.0, 0.5, 9.0, 9.0)]),
)
def test_regions_are_what_box_by_box_gives(
    seed: int, least: int, before: int, after: int, overlap: float, factors: tuple[float, ...]
) -> None:
    """Also where heights and widths have a factor each, among six numbers, as in PVANet."""
    given = problem(seed, images=2)
    given["im_info"] = np.array([[48.0, 56.0, *factors]])
    about = {"stride": 8, "base": 8, "ratios": (0.5, 2.0), "scales": (1.0, 2.0), "least": least}
    about |= {"before": before, "after": after, "overlap": overlap}
    regions, scores = proposals(*given.values(), about)
    each = len(regions) // 2
    assert each == min(168, *(n for n in (before, after) if n)) if before or after else each == 168
    limits = about | {"before": before or 168, "after": after or 168}
    for image in range(2):
        right = slow(given["scores"][image], given["told"][image], given["im_info"], limits)
        rows, found = regions[image * each :][:each], scores[image * each :][:each]
        assert (rows[:, 0] == image).all()
        count = len(right)
        if not count:
            assert (rows[:, 1:] == [0, 0, 55, 47]).all() and not found.any()
            continue
        np.testing.assert_allclose(rows[:count, 1:], [corners for _, corners in right], atol=1e-9)
        np.testing.assert_allclose(found[:count], [score for score, _ in right])
        assert (rows[count:] == rows[0]).all() and (found[count:] == found[0]).all()


def test_a_net_gives_opencvs_regions(written: Any, tmp_path: Path) -> None:
    cv2 = pytest.importorskip("cv2", reason="OpenCV 4 is not installed (opencv-python-headless<5)")
    given = {name: array.astype("f4") for name, array in problem(3).items()}
    given["im_info"][0, 2] = 1
    # OpenCV has no minimum size, and appends rows of zeros to those that it finds.
    more = "ratio: [0.5, 2] scale: [1, 2] feat_stride: 8 base_size: 8 min_size: 0"
    for limits in ("nms_thresh: 0.7", "nms_thresh: 0.3", "post_nms_topn: 9", "pre_nms_topn: 20"):
        path = written(LAYER.format("top: 'likely'", f"{more} {limits}"), **given)
        with demitasse.compose(plugins=["-tuning"]) as runtime:
            net = runtime.net(path)
            made = net.forward(**given)
            net.close()
        text = path.read_text().replace("'", '"').replace("[0.5, 2]", "0.5 ratio: 2")
        (tmp_path / "cv.prototxt").write_text(
            text.replace("[1, 2]", "1 scale: 2").replace('top: "likely"', "")
        )
        other = cv2.dnn.readNetFromCaffe(str(tmp_path / "cv.prototxt"))
        for name, array in given.items():
            other.setInput(array, name)
        theirs = other.forward().reshape(-1, 5)
        theirs = theirs[theirs.any(-1)]
        assert len(theirs) > 5, limits
        np.testing.assert_allclose(made["rois"][: len(theirs)], theirs, atol=1e-4)
        assert (made["rois"][len(theirs) :] == made["rois"][0]).all()
        assert made["likely"].shape == (len(made["rois"]), 1)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("scale: 0", r"proposal_param \{ scale: 0 \} is not a positive number"),
        ("ratio: -1", r"ratio: -1 \} is not a positive number"),
        ("feat_stride: 0", "feat_stride } is 0; it must be 1 or more"),
        ("nms_thresh: -1", "nms_thresh: -1 } is not 0 or more"),
        ("", r"scores \(1, 8, 6, 7\) are not images x 18 x rows x columns: .* 9 boxes"),
        ("ratio: 1 scale: [1, 2, 3, 4] feet_stride: 1", "'feet_stride'; did you mean 'feat_stride'"),
    ],
)
def test_a_mistake_is_told_with_its_place(more: str, message: str, written: Any) -> None:
    path = written(LAYER.format("", more), **problem(0))
    with (
        demitasse.compose(plugins=["-tuning"]) as runtime,
        pytest.raises(demitasse.DemitasseError, match=message) as told,
    ):
        runtime.net(path)
    assert "net.prototxt:" in str(told.value)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"told": (1, 12, 6, 7)}, r"told \(1, 12, 6, 7\) does not have 4 numbers for each box"),
        ({"im_info": (1, 2)}, r"images \(1, 2\) are not rows of height, width"),
        ({"im_info": (3, 3)}, r"images \(3, 3\) are not rows"),
    ],
)
def test_shapes_that_do_not_meet_are_told(
    shapes: dict[str, tuple[int, ...]], message: str, written: Any
) -> None:
    given = problem(0) | {name: np.zeros(shape) for name, shape in shapes.items()}
    path = written(LAYER.format("", "ratio: 1 scale: [1, 2, 3, 4]"), **given)
    with (
        demitasse.compose(plugins=["-tuning"]) as runtime,
        pytest.raises(demitasse.DemitasseError, match=message),
    ):
        runtime.net(path)
