"""MultiBoxLoss compared with a slow implementation of the paper; its slopes; mistakes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import demitasse
from demitasse_detection.multibox import multibox_loss
from demitasse_detection.operations import OPERATIONS

PROPERTY = settings(max_examples=examples(40), suppress_health_check=list(HealthCheck))
DEFAULTS = next(word for word in OPERATIONS if word.name == "multibox_loss").attributes


def overlap(a: np.ndarray, b: np.ndarray) -> float:
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    if min(width, height) <= 0:
        return 0.0
    both = width * height
    return both / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - both)


def told(box: np.ndarray, prior: np.ndarray, variance: np.ndarray, code: str) -> np.ndarray:
    w, h = prior[2] - prior[0], prior[3] - prior[1]
    if code == "CORNER":
        return (box - prior) / variance
    if code == "CORNER_SIZE":
        return (box - prior) / [w, h, w, h] / variance
    x = ((box[0] + box[2]) - (prior[0] + prior[2])) / 2 / w
    y = ((box[1] + box[3]) - (prior[1] + prior[3])) / 2 / h
    return np.array([x, y, math.log((box[2] - box[0]) / w), math.log((box[3] - box[1]) / h)]) / variance


def decoded(told: np.ndarray, prior: np.ndarray, code: str) -> np.ndarray:
    w, h = prior[2] - prior[0], prior[3] - prior[1]
    if code == "CORNER":
        return prior + told
    if code == "CORNER_SIZE":
        return prior + told * [w, h, w, h]
    x, y = (prior[0] + prior[2]) / 2 + told[0] * w, (prior[1] + prior[3]) / 2 + told[1] * h
    w, h = w * math.exp(told[2]) / 2, h * math.exp(told[3]) / 2
    return np.array([x - w, y - h, x + w, y + h])


def of_classes(scores: np.ndarray, label: int, kind: str) -> float:
    if kind == "SOFTMAX":
        return math.log(sum(math.exp(s) for s in scores)) - scores[label]
    return sum(math.log(1 + math.exp(-s if c == label else s)) for c, s in enumerate(scores))


def slow(loc: np.ndarray, conf: np.ndarray, prior: np.ndarray, truth: np.ndarray, about: Any) -> float:
    """Compute the loss image by image, prior by prior, as in the paper."""
    count = prior.size // 8
    priors, variances = prior.reshape(2, count, 4)
    loc, conf = loc.reshape(len(loc), count, 4), conf.reshape(len(conf), count, -1)
    places, classes, matched = 0.0, 0.0, 0
    for image in range(len(loc)):
        mine = [r for r in truth.reshape(-1, 8) if r[0] == image and (about["difficult"] or not r[7])]
        boxes = priors
        if not about["by_priors"]:
            spread = np.ones_like(variances) if about["encoded"] else variances
            each = zip(loc[image] * spread, priors, strict=True)
            boxes = np.array([decoded(*pair, about["code"]) for pair in each])
        near = {
            (p, g): overlap(boxes[p], row[3:7])
            for p in range(count)
            if not (about["inside"] and (boxes[p].min() < 0 or boxes[p].max() > 1))
            for g, row in enumerate(mine)
        }
        match: dict[int, int] = {}
        while pairs := {
            (p, g): o
            for (p, g), o in near.items()
            if p not in match and g not in match.values() and o > 1e-6
        }:
            p, g = max(pairs, key=lambda pair: pairs[pair])
            match[p] = g
        most = {p: max((o for (q, _), o in near.items() if q == p), default=0.0) for p in range(count)}
        if about["per_prediction"]:
            for p in set(range(count)) - set(match):
                if mine and most[p] >= about["overlap"]:
                    match[p] = max(range(len(mine)), key=lambda g, p=p: near[p, g])
        matched += len(match)
        for p, g in match.items():
            variance = np.ones(4) if about["encoded"] else variances[p]
            away = loc[image, p] - told(mine[g][3:7], priors[p], variance, about["code"])
            away = away / variances[p] if about["encoded"] else away
            for d in np.abs(away):
                places += d * d / 2 if about["of_places"] == "L2" or d < 1 else d - 0.5
            classes += of_classes(conf[image, p], int(mine[g][1]), about["of_classes"])
        rest = [
            of_classes(conf[image, p], about["background"], about["of_classes"])
            for p in range(count)
            if p not in match
            and (
                about["mining"] == "NONE" or (((p, 0) in near or not mine) and most[p] < about["apart"])
            )
        ]
        if about["mining"] != "NONE":
            rest = sorted(rest, reverse=True)[: int(len(match) * about["ratio"])]
        classes += sum(rest)
    over = {"valid": matched, "full": len(loc) * count, "batch_size": len(loc), "none": 1}
    return float((about["weight"] * places + classes) / max(1, over[about["normalization"]]))


def problem(seed: int, images: int, count: int, classes: int, found: int) -> list[np.ndarray]:
    dice = np.random.default_rng(seed)

    def boxes(number: int) -> np.ndarray:
        low = dice.uniform(-0.05, 0.7, (number, 2))
        return np.concatenate([low, low + dice.uniform(0.1, 0.5, (number, 2))], 1)

    rows = np.concatenate(
        [
            dice.integers(-1, images, (found, 1)),
            dice.integers(1, classes, (found, 1)),
            np.zeros((found, 1)),
            boxes(found),
            dice.integers(0, 2, (found, 1)),
        ],
        1,
    )
    return [
        dice.normal(0, 1, (images, 4 * count)),
        dice.normal(0, 2, (images, classes * count)),
        np.stack([boxes(count).reshape(-1), dice.uniform(0.1, 0.5, 4 * count)])[None],
        rows.reshape(1, 1, found, 8),
    ]


ABOUT = st.fixed_dictionaries(
    {
        "code": st.sampled_from(["CORNER", "CENTER_SIZE", "CORNER_SIZE"]),
        "encoded": st.booleans(),
        "of_places": st.sampled_from(["SMOOTH_L1", "L2"]),
        "of_classes": st.sampled_from(["SOFTMAX", "LOGISTIC"]),
        "weight": st.sampled_from([1.0, 0.5]),
        "per_prediction": st.booleans(),
        "by_priors": st.booleans(),
        "overlap": st.sampled_from([0.25, 0.5]),
        "inside": st.booleans(),
        "difficult": st.booleans(),
        "mining": st.sampled_from(["MAX_NEGATIVE", "NONE"]),
        "ratio": st.sampled_from([0.5, 3.0]),
        "apart": st.sampled_from([0.125, 0.5]),
        "normalization": st.sampled_from(["valid", "full", "batch_size", "none"]),
    }
)


@given(ABOUT, st.integers(0, 99), st.integers(1, 3), st.integers(1, 14), st.integers(1, 6))
@PROPERTY
def test_the_loss_is_the_papers_and_its_slopes_are_slopes(
    about: dict[str, Any], seed: int, images: int, count: int, found: int
) -> None:
    about = {**DEFAULTS, **about, "classes": 3}
    inputs = problem(seed, images, count, 3, found)
    loss, *slopes, _ = multibox_loss(*inputs, about)
    assert loss == pytest.approx(slow(*inputs, about), rel=1e-9, abs=1e-12)
    dice = np.random.default_rng(seed)
    for number, slope in enumerate(slopes):
        for i in dice.permutation(slope.size)[:4]:
            sides = []
            for change in (1e-6, -1e-6):
                moved = [array.copy() for array in inputs]
                moved[number].flat[i] += change
                sides.append(multibox_loss(*moved, about)[0])
            assert slope.flat[i] == pytest.approx((sides[0] - sides[1]) / 2e-6, rel=1e-4, abs=1e-7)


def test_objects_of_each_image_by_itself_are_those_of_all_together() -> None:
    about = {**DEFAULTS, "classes": 3}
    location, confidence, priors, _ = problem(4, 2, 9, 3, 1)
    box = [0.2, 0.2, 0.6, 0.7, 0]
    rows = np.array([[0, 1, 0, *box], [0, 2, 1, *box], [1, 2, 0, *box], [-1, *[0] * 7]])
    together = multibox_loss(location, confidence, priors, rows[None, None], about)
    rows[:, 0] = (5, 0, 7, -1)  # numbers other than -1 do not matter
    apart = multibox_loss(location, confidence, priors, rows.reshape(2, 1, 2, 8), about)
    padded = np.concatenate([rows.reshape(2, 1, 2, 8), np.zeros((2, 1, 3, 8))], 2)  # zeros: no object
    assert together[0] == apart[0] == multibox_loss(location, confidence, priors, padded, about)[0] != 0


LOSS = (
    "layer {{ name: 'l' type: 'MultiBoxLoss' bottom: 'loc' bottom: 'conf' bottom: 'prior' "
    "bottom: 'label' top: 'l' {} }}"
)


def blobs(*inputs: np.ndarray) -> dict[str, np.ndarray]:
    return dict(zip(("loc", "conf", "prior", "label"), inputs, strict=True))


@pytest.mark.parametrize(
    ("fields", "about"),
    [
        ("", {}),
        (
            "loc_weight: 0.25 neg_pos_ratio: 1 neg_overlap: 0.25",
            {"weight": 0.25, "ratio": 1, "apart": 0.25},
        ),
        ("code_type: CENTER_SIZE loc_loss_type: L2", {"code": "CENTER_SIZE", "of_places": "L2"}),
        ("conf_loss_type: LOGISTIC mining_type: NONE", {"of_classes": "LOGISTIC", "mining": "NONE"}),
        ("match_type: BIPARTITE use_difficult_gt: false", {"per_prediction": False, "difficult": False}),
        ("ignore_cross_boundary_bbox: true overlap_threshold: 0.25", {"inside": True, "overlap": 0.25}),
        ("use_prior_for_matching: false", {"by_priors": False}),
        ("encode_variance_in_target: true do_neg_mining: true", {"encoded": True}),
        ("} loss_param { normalization: FULL", {"normalization": "full"}),
        ("} loss_param { normalize: false", {"normalization": "batch_size"}),
        ("} propagate_down: [true, false, false, false] loss_param {", {"counted": (True, False)}),
    ],
)
def test_a_layers_fields_are_those_of_the_loss(run: Any, fields: str, about: dict[str, Any]) -> None:
    inputs = problem(11, 2, 40, 3, 5)
    whole = {**DEFAULTS, "classes": 3, **about}
    made = run(LOSS.format(f"multibox_loss_param {{ num_classes: 3 {fields} }}"), **blobs(*inputs))
    assert float(made["l"]) == pytest.approx(multibox_loss(*inputs, whole)[0], rel=1e-9)
    if about:
        assert float(made["l"]) != pytest.approx(slow(*inputs, {**DEFAULTS, "classes": 3}), rel=1e-3)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("", "num_classes } is 0, but the background is class 0"),
        ("num_classes: 3 background_label_id: 3", "num_classes } is 3, but the background is class 3"),
        (
            "num_classes: 4",
            r"confidence \(2, 18\) does not have 4 numbers for each of 6 priors and 2 images",
        ),
        (
            "num_classes: 3 share_location: false",
            r"multibox_loss_param { share_location } is supported only as true",
        ),
        ("num_classes: 3 bp_inside: true", r"{ bp_inside } is supported only as false"),
        ("num_classes: 3 mining_type: HARD_EXAMPLE", "mining_type must be MAX_NEGATIVE or NONE"),
        ("num_classes: 3 do_neg_mining: false", "do_neg_mining and mining_type contradict each other"),
        ("num_classes: 3 } propagate_down: true loss_param {", "a propagate_down for each of 4 bottoms"),
    ],
)
def test_a_wrong_field_is_told_with_its_layer(run: Any, fields: str, message: str) -> None:
    with pytest.raises(demitasse.ModelError, match=message) as caught:
        run(LOSS.format(f"multibox_loss_param {{ {fields} }}"), **blobs(*problem(0, 2, 6, 3, 3)))
    assert "net.prototxt:5" in str(caught.value)


@pytest.mark.parametrize(
    ("at", "value", "told"),
    [(0, 2, "image 2 and class 1"), (1, 3, "image 0 and class 3"), (1, 0, "0 and class 0")],
)
def test_an_object_of_no_image_or_class_is_an_error(run: Any, at: int, value: float, told: str) -> None:
    inputs = problem(0, 2, 6, 3, 2)
    inputs[3][0, 0, :, :2] = (0, 1)
    inputs[3][0, 0, 1, at] = value
    message = (
        rf"net.prototxt:5: layer 'l' \(MultiBoxLoss\): row 1 of the objects has .*{told} .valid: images"
    )
    with pytest.raises(demitasse.DataError, match=message):
        run(LOSS.format("multibox_loss_param { num_classes: 3 }"), **blobs(*inputs))
