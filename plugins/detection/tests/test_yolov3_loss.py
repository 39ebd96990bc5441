"""Yolov3 compared with a slow implementation of its fork's rules, number by number; its slopes;
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
from demitasse_detection.yolov3_loss import yolov3_loss

PROPERTY = settings(max_examples=examples(60), suppress_health_check=list(HealthCheck))
DEFAULTS = next(word for word in OPERATIONS if word.name == "yolov3_loss").attributes
SIDES = ((0.1, 0.15), (0.3, 0.2), (0.12, 0.6), (0.35, 0.25), (0.5, 0.8), (0.9, 0.7))
"""The sides of the anchors of all maps."""


def distance(p: float, t: float, squared: bool) -> tuple[float, float]:
    """Return the distance of a logistic function's value from a target, and its slope in the function's
    argument: half the square of the difference, or the cross entropy minus its value at the target."""
    if squared:
        return (p - t) ** 2 / 2, (p - t) * p * (1 - p)
    terms = [(t, p), (1 - t, 1 - p)]
    return sum(share * (math.log(share) - math.log(q)) for share, q in terms if share > 0), p - t


def slow(maps: np.ndarray, truth: np.ndarray, about: dict[str, Any]) -> tuple[float, np.ndarray]:
    """Compute the loss and its slopes in the fork's order: at first every place is empty, then each
    object in turn overwrites what is at its place, except for the classes, to which it adds its own."""
    images, _, rows, columns = maps.shape
    classes, mask, squared = about["classes"], about["mask"], about["squared"]
    each = 5 + classes
    slopes, loss = np.zeros_like(maps), 0.0
    for image in range(images):
        objects, terms, shown = objects_of(truth[image]), {}, {}

        def box(m: int, j: int, i: int, image: int = image) -> tuple[float, ...]:
            x, y, w, h = maps[image, m * each : m * each + 4, j, i]
            wide, tall = SIDES[mask[m]]
            across, down = (i + logistic(x)) / columns, (j + logistic(y)) / rows
            return across, down, math.exp(w) * wide, math.exp(h) * tall

        for m, j, i in np.ndindex(len(mask), rows, columns):
            at = (image, m * each + 4, j, i)
            best = max((iou(box(m, j, i), tuple(t[1:])) for t in objects), default=0)
            if best <= about["overlap"]:
                terms[m, j, i], slopes[at] = distance(logistic(maps[at]), 0, squared)
        for label, x, y, w, h in objects:
            i, j = min(int(x * columns), columns - 1), min(int(y * rows), rows - 1)
            alike = [iou((0, 0, *sides), (0, 0, w, h)) for sides in SIDES]
            best = max(range(len(SIDES)), key=alike.__getitem__)
            for m, n in enumerate(mask):
                if n != best and alike[n] <= about["alike"]:
                    continue
                mine = maps[image, m * each : (m + 1) * each, j, i]
                slope = slopes[image, m * each : (m + 1) * each, j, i]
                placed, total = about["placed"] * (2 - w * h), 0.0
                for k, wanted in ((0, x * columns - i), (1, y * rows - j)):
                    part, slope[k] = distance(logistic(mine[k]), wanted, squared)
                    total, slope[k] = total + placed * part, placed * slope[k]
                for k, side, anchor in ((2, w, SIDES[n][0]), (3, h, SIDES[n][1])):
                    slope[k] = placed * (mine[k] - math.log(side / anchor))
                    total += placed * (mine[k] - math.log(side / anchor)) ** 2 / 2
                part, slope[4] = distance(logistic(mine[4]), 1, squared)
                total, slope[4] = total + about["present"] * part, about["present"] * slope[4]
                shown.setdefault((m, j, i), set()).add(int(label))
                for k in range(classes):
                    wanted = (1 - about["smoothed"]) * (k in shown[m, j, i]) + about["smoothed"] / 2
                    part, slope[5 + k] = distance(logistic(mine[5 + k]), wanted, squared)
                    total += about["classed"] * part
                    slope[5 + k] *= about["classed"]
                terms[m, j, i] = total
        loss += sum(terms.values())
    return loss / images, slopes / images


def with_defaults(**about: Any) -> dict[str, Any]:
    return {**DEFAULTS, "classes": 2, "anchors": SIDES, "mask": (3, 4, 5), "source": "", **about}


ABOUT = st.fixed_dictionaries(
    {
        "mask": st.sampled_from([(0, 1, 2), (3, 4, 5), (1, 2), (4, 0, 3), (5,)]),
        "overlap": st.sampled_from([0.2, 0.5, 0.9]),
        "alike": st.sampled_from([0.2, 0.5, 1.0]),
        "placed": st.sampled_from([1.0, 5.0]),
        "present": st.sampled_from([1.0, 5.0]),
        "classed": st.sampled_from([0.0, 1.0, 2.0]),
        "smoothed": st.sampled_from([0.0, 0.1, 1.0]),
        "squared": st.booleans(),
    }
)


@given(ABOUT, st.integers(0, 99), st.integers(1, 3), st.integers(1, 4), st.integers(0, 9))
@PROPERTY
def test_the_loss_and_its_slopes_are_the_forks(
    about: dict[str, Any], seed: int, images: int, classes: int, found: int
) -> None:
    about = with_defaults(**about, classes=classes)
    maps, truth = problem(seed, images, len(about["mask"]), classes, found, 3, 4)
    loss, slopes = yolov3_loss(maps, truth, about)
    wanted, deltas = slow(maps, truth, about)
    assert loss == pytest.approx(wanted, rel=1e-9, abs=1e-12)
    np.testing.assert_allclose(slopes, deltas, rtol=1e-9, atol=1e-12)
    for at in np.random.default_rng(seed).permutation(maps.size)[:6]:
        sides = []
        for change in (1e-6, -1e-6):
            moved = maps.copy()
            moved.flat[at] += change
            sides.append(yolov3_loss(moved, truth, about)[0])
        assert slopes.flat[at] == pytest.approx((sides[0] - sides[1]) / 2e-6, rel=1e-4, abs=1e-7)


def parts(slopes: np.ndarray, classes: int = 2) -> np.ndarray:
    """Return the slopes of the first image, by anchor, row, column and number."""
    count, rows, columns = slopes.shape[1] // (5 + classes), *slopes.shape[2:]
    return np.moveaxis(slopes[0].reshape(count, 5 + classes, rows, columns), 1, -1)


def test_an_image_of_nothing_pulls_at_objects_alone() -> None:
    maps = problem(1, 1, 3, 2, 0, 3, 4)[0]
    loss, slopes = yolov3_loss(maps, np.zeros((1, 10)), with_defaults())
    sure = 1 / (1 + np.exp(-parts(maps)[..., 4]))
    assert loss == pytest.approx(-np.log(1 - sure).sum())
    np.testing.assert_allclose(parts(slopes)[..., 4], sure)
    assert not np.delete(parts(slopes), 4, -1).any()


def test_two_objects_at_a_place_have_the_last_ones_box_and_the_classes_of_both() -> None:
    boxes = ((0.3, 0.4, 0.5, 0.8), (0.35, 0.45, 0.52, 0.78))
    truth = np.array([[1, *boxes[0], 0, *boxes[1]]])
    maps = np.zeros((1, 21, 3, 4))
    slopes = yolov3_loss(maps, truth, with_defaults(smoothed=0.0, alike=1.0, overlap=1.0))[1]
    place = parts(slopes)[1, 1, 1]
    weight = 2 - 0.52 * 0.78
    at = [0.5 - (0.35 * 4 - 1), 0.5 - (0.45 * 3 - 1), -math.log(0.52 / 0.5), -math.log(0.78 / 0.8)]
    np.testing.assert_allclose(place, [*(weight * np.array(at)), -0.5, -0.5, -0.5])
    assert np.count_nonzero(parts(slopes)[..., 0]) == 1


def test_an_object_that_suits_another_maps_anchor_is_not_this_ones() -> None:
    truth = np.array([[0, 0.5, 0.5, *SIDES[1]]])
    maps = problem(2, 1, 3, 2, 0, 3, 4)[0]
    about = with_defaults(overlap=1.0, alike=0.9)
    empty = yolov3_loss(maps, np.zeros((1, 5)), about)
    np.testing.assert_array_equal(yolov3_loss(maps, truth, about)[1], empty[1])
    # 0.3 x 0.2 and 0.35 x 0.25 overlap by 0.69 of their union: both may predict the box.
    slopes = parts(yolov3_loss(maps, truth, {**about, "alike": 0.6})[1])
    assert np.argwhere(slopes[..., 5]).tolist() == [[0, 1, 2]]
    own = parts(yolov3_loss(maps, truth, {**about, "mask": (0, 1, 2)})[1])
    assert np.argwhere(own[..., 5]).tolist() == [[1, 1, 2]]


@pytest.mark.parametrize(
    ("x", "y", "place", "within"),
    [(1.0, 1.0, (2, 3), (1, 1)), (0.0, 0.0, (0, 0), (0, 0)), (0.5, 1 / 3, (1, 2), (0, 0))],
)
def test_a_centre_on_a_border_has_a_place(
    x: float, y: float, place: tuple[int, int], within: tuple[float, float]
) -> None:
    truth = np.array([[0, x, y, *SIDES[4]]])
    loss, slopes = yolov3_loss(np.zeros((1, 21, 3, 4)), truth, with_defaults(alike=1.0))
    told = parts(slopes)[1, *place]
    weight = 2 - SIDES[4][0] * SIDES[4][1]
    np.testing.assert_allclose(told[:2], weight * (0.5 - np.array(within)), atol=1e-12)
    assert np.isfinite(loss) and told[4] == -0.5


def test_objects_of_annotated_data_are_those_of_darknet() -> None:
    maps, truth = problem(5, 2, 3, 4, 6, 5, 5)
    about = with_defaults(classes=4)
    wanted = yolov3_loss(maps, truth, about)
    made = yolov3_loss(maps, annotated(truth), about)
    assert made[0] == pytest.approx(wanted[0])
    np.testing.assert_allclose(made[1], wanted[1], atol=1e-12)


@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("size", [-1e30, -800.0, 800.0, 1e30])
def test_numbers_beyond_all_bounds_are_finite(size: float, squared: bool) -> None:
    maps = np.full((1, 21, 2, 2), size)
    truth = np.array([[1, 0.3, 0.3, 0.5, 0.5]])
    loss, slopes = yolov3_loss(maps, truth, with_defaults(squared=squared))
    assert np.isfinite(loss)
    assert np.isfinite(slopes).all()


LOSS = (
    "layer {{ name: 'l' type: 'Yolov3' bottom: 'map' bottom: 'label' top: 'l' yolov3_param {{ {} }} }}"
)
PIXELS = tuple((16 * 4 * wide, 16 * 3 * tall) for wide, tall in SIDES)
OF_BIASES = " ".join(f"biases: {side}" for pair in PIXELS for side in pair)
MASK = "mask: 3 mask: 4 mask: 5"


def whole(more: str = "", **fields: Any) -> str:
    """Return a layer with all required fields, some of them replaced."""
    told = {"num": 3, "num_class": 2, "anchors_scale": 16, "": f"{MASK} {OF_BIASES}", **fields}
    return LOSS.format(" ".join(f"{n}: {v}" if n else str(v) for n, v in told.items()) + f" {more}")


@pytest.mark.parametrize(
    ("fields", "about"),
    [
        ("", {"placed": 5.0, "overlap": 0.2}),
        (
            "coord_scale: 1 object_scale: 5 noobject_scale: 1 class_scale: 2 thresh: 0.6 side: 13 "
            "iou_loss: MSE use_focal_loss: false iou_normalizer: 0.5 max_delta: 1 accumulate: false",
            {"classed": 2.0, "overlap": 0.6},
        ),
        (
            "use_logic_gradient: true object_scale: 3 label_smooth_eps: 0 iou_thresh: 0.3",
            {"placed": 5.0, "overlap": 0.2, "squared": True, "present": 3.0, "smoothed": 0.0}
            | {"alike": 0.3},
        ),
    ],
)
def test_a_layers_fields_are_those_of_the_loss(run: Any, fields: str, about: dict[str, Any]) -> None:
    maps, truth = problem(3, 2, 3, 2, 4, 3, 4)
    made = run(whole(fields), map=maps, label=truth)["l"]
    assert float(made) == pytest.approx(slow(maps, truth, with_defaults(**about))[0], rel=1e-6)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (
            whole("iou_loss: GIOU"),
            "iou_loss GIOU: the overlap of boxes is not supported as a loss .valid: MSE",
        ),
        (whole("iou_loss: IOU"), "iou_loss IOU: the overlap"),
        (whole("use_focal_loss: true"), "use_focal_loss true is not supported; leave it out"),
        (whole(num_class=0), "num_class is 0; it must be 1 or more, without the background"),
        (whole(num=2), r"mask \[3, 4, 5\] must be 2 \(num\) different numbers of pairs of biases"),
        (whole("mask: 3", num=4), r"mask \[3, 4, 5, 3\] must be 4 \(num\) different numbers"),
        (whole("mask: 6", num=4), "mask 6 is not one of 6 pairs of biases, counted from 0"),
        (LOSS.format("num_class: 2"), r"biases \[\] are not positive numbers"),
        (
            whole(anchors_scale=0),
            "anchors_scale is 0; it must be 1 or more, pixels of the image for each",
        ),
        (whole("coord_scale: -1"), "coord_scale -1 is not 0 or more"),
        (whole("iou_thresh: -0.5"), "iou_thresh -0.5 is not 0 or more"),
        (whole("label_smooth_eps: 1.5"), "label_smooth_eps 1.5 is not from 0 to 1"),
        (whole(num_class=3), r"maps \(2, 21, 3, 4\) are not images x 24 x rows x columns: 5"),
    ],
)
def test_a_wrong_field_is_told_with_its_layer(run: Any, layer: str, message: str) -> None:
    maps, truth = problem(3, 2, 3, 2, 4, 3, 4)
    with pytest.raises(demitasse.ModelError, match=message) as caught:
        run(layer, map=maps, label=truth)
    assert "net.prototxt:3: layer 'l' (Yolov3)" in str(caught.value)


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ((2, 0.5, 0.5, 0.1, 0.1), "object 0 of image 1 has class 2, centre and sides 0.5 0.5"),
        ((0.5, 0.5, 0.5, 0.1, 0.1), "object 0 of image 1 has class 0.5"),
        ((0, 0.5, 0.5, 0.1, -0.1), "object 0 of image 1 has class 0"),
        ((0, 208, 104, 50, 80), "object 0 of image 1 has class 0, centre and sides 208 104"),
    ],
)
def test_an_object_that_is_none_is_its_samples_error(
    run: Any, row: tuple[float, ...], told: str
) -> None:
    maps, _ = problem(3, 2, 3, 2, 4, 3, 4)
    label = np.zeros((2, 10))
    label[1, :5] = row
    message = rf"net.prototxt:3: layer 'l' \(Yolov3\): {told}.* \(valid: classes from 0 to 1, sides"
    with pytest.raises(demitasse.SampleError, match=message) as caught:
        run(whole(), map=maps, label=label)
    assert caught.value.sample == 1


def test_so_is_one_of_annotated_data(run: Any) -> None:
    maps, _ = problem(3, 2, 3, 2, 4, 3, 4)
    label = np.full((2, 1, 3, 8), -1.0)
    label[1, 0, 0] = (0, 3, 0, 0.1, 0.1, 0.4, 0.4, 0)
    with pytest.raises(demitasse.SampleError, match="has image 1 and class 3") as caught:
        run(whole(), map=maps, label=label)
    assert caught.value.sample == 1
