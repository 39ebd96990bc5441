"""RegionLoss compared with a slow implementation of Darknet's rules, number by number; its slopes;
mistakes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from yolo_formulas import annotated, iou, logistic, objects_of, problem

import demitasse
from demitasse_detection.operations import OPERATIONS
from demitasse_detection.yolo_loss import region_loss

PROPERTY = settings(max_examples=examples(40), suppress_health_check=list(HealthCheck))
DEFAULTS = next(word for word in OPERATIONS if word.name == "region_loss").attributes
BIASES = ((1.0, 1.5), (3.0, 2.0), (0.5, 4.0))


def slow(maps: np.ndarray, truth: np.ndarray, about: dict[str, Any]) -> tuple[float, np.ndarray]:
    """Compute the objective and its deltas: at first every place is empty, then each object takes its
    place."""
    images, _, rows, columns = maps.shape
    classes, each = about["classes"], 5 + about["classes"]
    deltas, loss = np.zeros_like(maps), 0.0
    for image in range(images):
        objects, terms = objects_of(truth[image]), {}

        def box(n: int, j: int, i: int, image: int = image) -> tuple[float, ...]:
            x, y, w, h = maps[image, n * each : n * each + 4, j, i]
            wide, tall = math.exp(w) * BIASES[n][0], math.exp(h) * BIASES[n][1]
            return (i + logistic(x)) / columns, (j + logistic(y)) / rows, wide / columns, tall / rows

        for n, j, i in np.ndindex(len(BIASES), rows, columns):
            o, at = logistic(maps[image, n * each + 4, j, i]), (image, n * each + 4, j, i)
            if max((iou(box(n, j, i), tuple(t[1:])) for t in objects), default=0) <= about["overlap"]:
                terms[n, j, i] = about["absent"] * o * o / 2
                deltas[at] = about["absent"] * o * o * (1 - o)
        for label, x, y, w, h in objects:
            i, j = int(x * columns), int(y * rows)
            shapes = [(b[0] / columns, b[1] / rows) for b in BIASES]
            if not about["by_anchors"]:
                shapes = [box(n, j, i)[2:] for n in range(len(BIASES))]
            n = max(range(len(BIASES)), key=lambda k: iou((0, 0, *shapes[k]), (0, 0, w, h)))
            mine = maps[image, n * each : (n + 1) * each, j, i]
            x_off, y_off = logistic(mine[0]) - (x * columns - i), logistic(mine[1]) - (y * rows - j)
            w_off = mine[2] - math.log(w * columns / BIASES[n][0])
            h_off = mine[3] - math.log(h * rows / BIASES[n][1])
            o = logistic(mine[4])
            o_off = o - (iou(box(n, j, i), (x, y, w, h)) if about["rescored"] else 1)
            p = np.exp(mine[5:]) / np.exp(mine[5:]).sum()
            terms[n, j, i] = (
                about["placed"] * (x_off**2 + y_off**2 + w_off**2 + h_off**2) / 2
                + about["present"] * o_off**2 / 2
                - about["classed"] * math.log(p[int(label)])
            )
            bend = [logistic(v) * (1 - logistic(v)) for v in mine[:2]]
            delta = deltas[image, n * each : (n + 1) * each, j, i]
            delta[:4] = about["placed"] * np.array([x_off * bend[0], y_off * bend[1], w_off, h_off])
            delta[4] = about["present"] * o_off * o * (1 - o)
            delta[5:] = about["classed"] * (p - np.eye(classes)[int(label)])
        loss += sum(terms.values())
    return loss / images, deltas / images


ABOUT = st.fixed_dictionaries(
    {
        "overlap": st.sampled_from([0.2, 0.5, 0.9]),
        "placed": st.sampled_from([1.0, 5.0]),
        "present": st.sampled_from([1.0, 5.0]),
        "absent": st.sampled_from([0.0, 0.5]),
        "classed": st.sampled_from([1.0, 2.0]),
        "rescored": st.booleans(),
        "by_anchors": st.booleans(),
    }
)


@given(ABOUT, st.integers(0, 99), st.integers(1, 3), st.integers(1, 4), st.integers(0, 5))
@PROPERTY
def test_the_loss_and_its_slopes_are_darknets(
    about: dict[str, Any], seed: int, images: int, classes: int, found: int
) -> None:
    about = {**DEFAULTS, **about, "classes": classes, "anchors": BIASES, "source": ""}
    maps, truth = problem(seed, images, len(BIASES), classes, found, 3, 4)
    loss, slopes = region_loss(maps, truth, about)
    wanted, deltas = slow(maps, truth, about)
    assert loss == pytest.approx(wanted, rel=1e-9, abs=1e-12)
    np.testing.assert_allclose(slopes, deltas, rtol=1e-9, atol=1e-12)
    if about["rescored"]:
        return  # there the overlap is used as a constant, although it depends on the map
    for at in np.random.default_rng(seed).permutation(maps.size)[:6]:
        sides = []
        for change in (1e-6, -1e-6):
            moved = maps.copy()
            moved.flat[at] += change
            sides.append(region_loss(moved, truth, about)[0])
        assert slopes.flat[at] == pytest.approx((sides[0] - sides[1]) / 2e-6, rel=1e-4, abs=1e-7)


def test_objects_of_annotated_data_are_those_of_darknet() -> None:
    about = {**DEFAULTS, "classes": 4, "anchors": BIASES, "source": ""}
    maps, truth = problem(5, 2, 3, 4, 6, 5, 5)
    assert region_loss(maps, annotated(truth), about)[0] == pytest.approx(
        region_loss(maps, truth, about)[0]
    )


def test_numbers_beyond_all_bounds_are_finite() -> None:
    about = {**DEFAULTS, "classes": 2, "anchors": BIASES, "source": ""}
    maps = np.full((1, 21, 2, 2), 800.0)
    loss, slopes = region_loss(maps, np.array([[1, 0.3, 0.3, 0.5, 0.5]]), about)
    assert np.isfinite(loss)
    assert np.isfinite(slopes).all()


LOSS = (
    "layer {{ name: 'l' type: 'RegionLoss' bottom: 'map' bottom: 'label' top: 'l' "
    "region_loss_param {{ num: 3 {} }} }}"
)
OF_BIASES = " ".join(f"biases: {side}" for pair in BIASES for side in pair)


@pytest.mark.parametrize(
    ("fields", "about"),
    [
        ("", {"placed": 5, "present": 1, "absent": 0.5, "overlap": 0.2}),
        (
            "coord_scale: 1 object_scale: 5 noobject_scale: 1 class_scale: 2 thresh: 0.6 side: 13",
            {"classed": 2},
        ),
        (
            "rescore: 0 bias_match: 0 absolute: 1 random: 0 jitter: 0.2",
            {"rescored": False, "by_anchors": False, "placed": 5, "present": 1, "absent": 0.5}
            | {"overlap": 0.2},
        ),
    ],
)
def test_a_layers_fields_are_those_of_the_loss(run: Any, fields: str, about: dict[str, Any]) -> None:
    maps, truth = problem(3, 2, 3, 2, 4, 3, 4)
    whole = {**DEFAULTS, "classes": 2, "anchors": BIASES, "source": "", **about}
    made = run(LOSS.format(f"num_class: 2 {OF_BIASES} {fields}"), map=maps, label=truth)["l"]
    assert float(made) == pytest.approx(slow(maps, truth, whole)[0], rel=1e-9)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (f"num_class: 0 {OF_BIASES}", "num_class is 0; it must be 1 or more, without the background"),
        ("num_class: 2", r"biases \[\] are not positive numbers"),
        ("num_class: 2 biases: 1 biases: 2", "has 1 pairs of biases for 3 num"),
        (
            f"num_class: 2 {OF_BIASES} softmax_tree: 'tree.txt'",
            "softmax_tree 'tree.txt': hierarchies of classes",
        ),
        (f"num_class: 2 {OF_BIASES} coords: 5", "coords 5 and softmax 1 are not supported"),
        (f"num_class: 2 {OF_BIASES} object_scale: -1", "object_scale -1 is not 0 or more"),
        (f"num_class: 3 {OF_BIASES}", r"maps \(2, 21, 3, 4\) are not images x 24 x rows x columns: 5"),
    ],
)
def test_a_wrong_field_is_told_with_its_layer(run: Any, fields: str, message: str) -> None:
    maps, truth = problem(3, 2, 3, 2, 4, 3, 4)
    with pytest.raises(demitasse.ModelError, match=message) as caught:
        run(LOSS.format(fields), map=maps, label=truth)
    assert "net.prototxt:3" in str(caught.value)


def test_labels_that_are_no_rows_are_told(run: Any) -> None:
    maps, _ = problem(3, 2, 3, 2, 4, 3, 4)
    with pytest.raises(demitasse.ModelError, match=r"label \(2, 7\) has neither rows of 8 numbers"):
        run(LOSS.format(f"num_class: 2 {OF_BIASES}"), map=maps, label=np.zeros((2, 7)))


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ((2, 0.5, 0.5, 0.1, 0.1), "object 0 of image 1 has class 2, centre and sides 0.5 0.5"),
        ((0, 0.5, 0.5, 0.1, -0.1), "object 0 of image 1 has class 0"),
    ],
)
def test_an_object_that_is_none_is_an_error(run: Any, row: tuple[float, ...], told: str) -> None:
    maps, _ = problem(3, 2, 3, 2, 4, 3, 4)
    label = np.zeros((2, 10))
    label[1, :5] = row
    message = rf"net.prototxt:3: layer 'l' \(RegionLoss\): {told}.* \(valid: classes from 0 to 1, sides"
    with pytest.raises(demitasse.DataError, match=message):
        run(LOSS.format(f"num_class: 2 {OF_BIASES}"), map=maps, label=label)
