"""The evaluation of detections, compared with a slow implementation of the paper and with scikit-learn's
average precision."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import demitasse
from demitasse_detection.evaluation import VERSIONS, average_precisions, evaluated

ABOUT = {"classes": 4, "background": 0, "overlap": 0.5, "difficult": True, "source": "here"}
EVALUATE = (
    "layer {{ name: 'e' type: 'DetectionEvaluate' bottom: 'found' bottom: 'label' top: 'e' "
    "detection_evaluate_param {{ {0} }} }}"
)


def problem(seed: int, images: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of detections, near the objects and elsewhere, and rows of objects, one part for each
    image."""
    dice = np.random.default_rng(seed)
    objects = np.full((images, 1, 6, 8), -1.0)
    found = []
    for image in range(images):
        for row in objects[image, 0, : dice.integers(0, 6)]:
            low = dice.uniform(0, 0.6, 2)
            size = dice.uniform(0.2, 0.4, 2)
            row[:] = (0, dice.integers(1, 4), 0, *low, *(low + size), dice.integers(0, 2))
            for _ in range(dice.integers(0, 3)):
                label = row[1] if dice.random() < 0.7 else dice.integers(1, 4)
                box = row[3:7] + dice.normal(0, 0.05, 4)
                found.append([image, label, dice.random(), *box])
        for _ in range(dice.integers(0, 3)):
            low = dice.uniform(0, 0.6, 2)
            found.append([image, dice.integers(1, 4), dice.random(), *low, *(low + 0.3)])
    dice.shuffle(found)
    rows = np.full((1, 1, len(found) + 3, 7), -1.0)
    rows[0, 0, : len(found)] = np.array(found).reshape(-1, 7)
    return rows, objects


def slowly(found: np.ndarray, objects: np.ndarray, about: Mapping[str, Any]) -> list[list[float]]:
    rows = []
    there = [[row for row in image[0] if row[0] != -1] for image in objects]
    for label in range(1, about["classes"]):
        mine = [row for image in there for row in image if row[1] == label]
        rows.append([-1, label, len([r for r in mine if about["difficult"] or not r[7]]), -1, -1])
    valid = [row for row in found[0, 0] if row[0] >= 0]
    for image, label in sorted({(row[0], row[1]) for row in valid}):
        chosen = [row for row in valid if (row[0], row[1]) == (image, label)]
        boxes = [row for row in there[int(image)] if row[1] == label]
        used: set[int] = set()
        for row in sorted(chosen, key=lambda row: -row[2]):
            best, most = -1, 0.0
            for number, box in enumerate(boxes):
                if (shared := jaccard(row[3:7], box[3:7])) > most:
                    best, most = number, shared
            right = wrong = 0
            if most < about["overlap"]:
                wrong = 1
            elif about["difficult"] or not boxes[best][7]:
                right, wrong = (0, 1) if best in used else (1, 0)
                used.add(best)
            rows.append([image, label, row[2], right, wrong])
    return rows


def jaccard(one: np.ndarray, other: np.ndarray) -> float:
    sides = np.minimum(one[2:], other[2:]) - np.maximum(one[:2], other[:2])
    if (sides <= 0).any():
        return 0.0
    areas = [np.prod(box[2:] - box[:2]) for box in (one, other)]
    return float(sides.prod() / (sum(areas) - sides.prod()))


@given(st.integers(0, 10**6), st.booleans(), st.sampled_from([0.3, 0.5, 0.8]))
def test_each_object_is_found_once_by_the_most_confident(
    seed: int, difficult: bool, overlap: float
) -> None:
    about = {**ABOUT, "difficult": difficult, "overlap": overlap}
    found, objects = problem(seed)
    wanted = slowly(found, objects, about)
    np.testing.assert_allclose(evaluated(found, objects, about), wanted)
    together = objects.copy()
    together[..., 0] = np.where(
        objects[..., 0] == -1, -1, np.arange(len(objects))[:, None, None]
    )  # as in SSD
    np.testing.assert_allclose(evaluated(found, together.reshape(1, 1, -1, 8), about), wanted)


@given(st.integers(0, 10**6))
def test_average_precisions_are_scikit_learns_and_a_slow_readings(seed: int) -> None:
    """Two batches are evaluated together. scikit-learn counts only the objects that are found."""
    from sklearn.metrics import average_precision_score  # takes two seconds

    batches = []
    for part in range(2):
        found, objects = problem(2 * seed + part)
        batches.append(evaluated(found, objects, ABOUT))
    rows = np.concatenate(batches)
    by_version = {version: average_precisions(batches, version) for version in VERSIONS}
    for label in range(1, 4):
        number = rows[(rows[:, 0] == -1) & (rows[:, 1] == label), 2].sum()
        mine = rows[(rows[:, 0] >= 0) & (rows[:, 1] == label)]
        if number == 0:
            assert all(label not in found for found in by_version.values())
            continue
        hits = int(mine[:, 3].sum())
        area = average_precision_score(mine[:, 3], mine[:, 2]) * hits / number if hits else 0
        assert by_version["Integral"][label] == pytest.approx(area)
        curve, right = [], 0
        for count, row in enumerate(sorted(mine.tolist(), key=lambda row: -row[2]), 1):
            right += row[3]
            curve.append((right / number, right / count))
        eleven = [max((p for r, p in curve if r >= n / 10), default=0) for n in range(11)]
        assert by_version["11point"][label] == pytest.approx(sum(eleven) / 11)
        levels = [0, *sorted({r for r, _ in curve})]
        steps = [(b - a) * max(p for r, p in curve if r >= b) for a, b in pairwise(levels)]
        assert by_version["MaxIntegral"][label] == pytest.approx(sum(steps))


def test_what_is_found_perfectly_scores_one_and_what_is_not_there_nothing() -> None:
    _, objects = problem(5)
    rows = objects[:, 0][objects[:, 0, :, 0] != -1]
    image = np.repeat(np.arange(3), (objects[:, 0, :, 0] != -1).sum(1))
    found = np.column_stack([image, rows[:, 1], np.linspace(0.5, 1, len(rows)), rows[:, 3:7]])
    for version in VERSIONS:
        perfect = average_precisions([evaluated(found[None, None], objects, ABOUT)], version)
        assert perfect and set(perfect.values()) == {1.0}
        none = average_precisions([evaluated(np.full((1, 1, 2, 7), -1.0), objects, ABOUT)], version)
        assert none.keys() == perfect.keys() and set(none.values()) == {0.0}
    assert average_precisions([], "Integral") == {}


def test_a_layer_gives_its_rows_and_those_that_are_not_there_are_left_out(
    run: Callable[..., dict[str, Any]],
) -> None:
    found, objects = problem(1)
    made = run(
        EVALUATE.format("num_classes: 4 evaluate_difficult_gt: false"), found=found, label=objects
    )
    wanted = slowly(found, objects, {**ABOUT, "difficult": False})
    np.testing.assert_allclose(made["e"], np.array(wanted)[None, None])


@pytest.mark.parametrize(
    ("about", "told"),
    [
        ("", r"net.prototxt:\d+: layer 'e' .*num_classes } is not given"),
        ("num_classes: 4 ap_version: '12point'", "unknown ap_version '12point'.*11point"),
        ("num_classes: 4 overlap_threshold: 0", "overlap_threshold 0 is not above 0"),
    ],
)
def test_mistakes_are_named(
    about: str, told: str, runtime: demitasse.Runtime, written: Callable[..., Path]
) -> None:
    found, objects = problem(1)
    with pytest.raises(demitasse.DemitasseError, match=told):
        runtime.net(written(EVALUATE.format(about), found=found, label=objects))


def test_rows_that_are_none_are_named(
    runtime: demitasse.Runtime, written: Callable[..., Path], run: Callable[..., dict[str, Any]]
) -> None:
    found, objects = problem(1)
    layer = EVALUATE.format("num_classes: 4")
    for shapes, told in (
        ({"found": found[..., :5], "label": objects}, "found .* does not have rows of 7 numbers"),
        (
            {"found": found, "label": objects[..., :5]},
            "label .* does not have 8 numbers for each object",
        ),
    ):
        with pytest.raises(demitasse.DemitasseError, match=told):
            runtime.net(written(layer, **shapes))
    objects[2, 0, 0] = (0, 9, 0, 0, 0, 1, 1, 0)
    with pytest.raises(demitasse.DataError, match=r"layer 'e' .*: row 12 .* image 2 and class 9"):
        run(layer, found=found, label=objects)


MAPS = """layer { name: 'e' type: 'EvalDetection' bottom: 'map' bottom: 'label' bottom: 'map' top: 'e'
eval_detection_param { side: 3 num_class: 2 num_object: 2 nms: 0.45 biases: [1, 1, 3, 2] FIELDS } }"""


def of_map(places: list[tuple[int, int, int, int, float]]) -> np.ndarray:
    """Return a map of 2 anchors and 2 classes on 3 x 3 places that is confident only of the given boxes:
    anchor, row, column, class and logit of an object. The boxes have the anchor's sides and are centred
    in their places."""
    told = np.zeros((1, 2, 7, 3, 3))
    told[:, :, 4] = -20
    for anchor, row, column, label, object_ in places:
        told[0, anchor, 4:, row, column] = (object_, *(20 * np.eye(2)[label]))
    return told.reshape(1, 14, 3, 3)


@pytest.mark.parametrize(
    ("places", "precision"),
    [
        ([(0, 0, 0, 0, 5.0), (1, 2, 1, 1, 5.0)], 1.0),
        ([(0, 0, 0, 0, 5.0)], 0.5),  # the other object is not found
        # The best one there has the wrong class, as has a second one elsewhere: 1/2 for one class.
        ([(0, 0, 0, 1, 6.0), (0, 0, 2, 0, 6.0), (1, 2, 1, 1, 5.0)], 0.25),
        ([(0, 0, 0, 0, 5.0), (0, 1, 1, 0, 6.0), (1, 2, 1, 1, 5.0)], 0.75),  # one more, and surer
    ],
)
def test_what_intels_maps_say_is_scored(
    run: Any, runtime: demitasse.Runtime, written: Any, places: Any, precision: float
) -> None:
    third = 1 / 3
    label = np.zeros((1, 1, 3, 8))
    label[0, 0, 0] = (0, 1, 0, 0, 0, third, third, 0)
    label[0, 0, 1] = (0, 2, 1, 0, (2.5 - 1) / 3, 1, (2.5 + 1) / 3, 1)  # a difficult object counts, too
    made = run(MAPS.replace("FIELDS", ""), map=of_map(places), label=label)["e"]
    rows = made[0, 0]
    np.testing.assert_array_equal(rows[:2, :3], [[-1, 1, 1], [-1, 2, 1]])
    assert len(rows) == 2 + len(places)
    np.testing.assert_allclose(
        sorted(rows[2:, 2]), sorted(1 / (1 + np.exp(-place[4])) for place in places), rtol=1e-6
    )
    read: Any = runtime.read(written(MAPS.replace("FIELDS", ""), map=of_map([]), label=label))
    layer = read.net("test").layers[-1]
    assert runtime.layer_types["EvalDetection"].score(layer, [rows])[""] == pytest.approx(precision)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("score_type: OBJ", "score_type OBJ is not supported .valid: MULTIPLY"),
        ("biases: 3 biases: 3", "has 3 pairs of biases for 2 num_object"),
        ("threshold: 0", "threshold 0 is not above 0 and at most 1"),
    ],
)
def test_a_wrong_field_of_intels_is_told(run: Any, fields: str, message: str) -> None:
    with pytest.raises(demitasse.ModelError, match=message):
        run(MAPS.replace("FIELDS", fields), map=of_map([]), label=np.zeros((1, 1, 3, 8)))


def test_a_solver_says_how_intels_scores_count(
    runtime: demitasse.Runtime, written: Any, tmp_path: Path
) -> None:
    net = written(MAPS.replace("FIELDS", ""), map=of_map([]), label=np.zeros((1, 1, 3, 8)))
    solver = tmp_path / "solver.prototxt"
    solver.write_text(
        f'net: "{net}" test_iter: 1 test_interval: 1 max_iter: 1 base_lr: 1 lr_policy: "fixed" '
        'ap_version: "11point"'
    )
    read: Any = runtime.read(solver)
    layer = read.solver({}).tests[0].layers[-1]
    kind: Any = runtime.layer_types["EvalDetection"]
    rows = np.array([[-1, 1, 2, -1, -1], [0, 1, 0.9, 1, 0]])  # one of two objects is found
    assert kind.score(layer, [rows])[""] == pytest.approx(6 / 11)
