"""PriorBox's boxes compared with a slow implementation of the paper; mistakes."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import demitasse

PROPERTY = settings(max_examples=examples(25), suppress_health_check=list(HealthCheck))
LAYER = (
    "layer {{ name: 'p' type: 'PriorBox' bottom: 'x' bottom: 'data' top: 'p' prior_box_param {{ {} }} }}"
)


def thirds(low: int, high: int) -> st.SearchStrategy[float]:
    """Return a strategy for numbers that 32-bit floats represent exactly."""
    return st.integers(low * 4, high * 4).map(lambda n: n / 4)


@st.composite
def fields(draw: Any) -> dict[str, Any]:
    least = draw(st.lists(thirds(1, 20), min_size=1, max_size=2))
    about = {
        "min_size": least,
        "max_size": [size + 2.5 for size in least] if draw(st.booleans()) else [],
        "aspect_ratio": draw(st.lists(st.sampled_from([0.5, 1.0, 2.0, 3.0, 4.0]), max_size=3)),
        "variance": draw(st.sampled_from([[], [0.25], [0.125, 0.25, 0.5, 2.0]])),
    }
    dense = draw(st.lists(st.tuples(thirds(1, 20), st.sampled_from([1, 2, 4])), max_size=2))
    if dense:
        about["fixed_size"], about["density"] = map(list, zip(*dense, strict=True))
        if not about["aspect_ratio"] and draw(st.booleans()):
            about["fixed_ratio"] = [1.0, 0.25]
        if draw(st.booleans()):
            del about["min_size"], about["max_size"]
    about |= draw(st.sampled_from([{}, {"denser_prior_boxes": True}]))
    for name in ("flip", "clip"):
        if draw(st.booleans()):
            about[name] = draw(st.booleans())
    about |= draw(st.sampled_from([{}, {"img_size": 30}, {"img_h": 40, "img_w": 50}]))
    about |= draw(st.sampled_from([{}, {"step": 3.5}, {"step_h": 4.0, "step_w": 5.5}]))
    return about | draw(st.sampled_from([{}, {"offset": 0.25}]))


def text(about: dict[str, Any]) -> str:
    items = ((k, each) for k, v in about.items() for each in (v if isinstance(v, list) else [v]))
    return " ".join(f"{name}: {str(value).lower()}" for name, value in items)


def slow(about: dict[str, Any], places: tuple[int, int], image: tuple[int, int]) -> np.ndarray:
    """Compute one box after the other, as the paper describes them: centre, scale, ratio."""
    height = about.get("img_h", about.get("img_size", image[0]))
    width = about.get("img_w", about.get("img_size", image[1]))
    down = about.get("step_h", about.get("step", height / places[0]))
    along = about.get("step_w", about.get("step", width / places[1]))
    offset, ratios = about.get("offset", 0.5), [1.0]
    for ratio in about["aspect_ratio"]:
        if ratio not in ratios:
            ratios.append(ratio)
            if about.get("flip", True):
                ratios.append(1 / ratio)
    rows, spread = [], []

    def add(x: float, y: float, w: float, h: float, inside: bool = False) -> None:
        box = [(x - w / 2) / width, (y - h / 2) / height, (x + w / 2) / width, (y + h / 2) / height]
        rows.extend([min(max(value, 0), 1) for value in box] if inside else box)
        spread.extend((about["variance"] or [0.1]) * (4 if len(about["variance"]) < 4 else 1))

    for i in range(places[0]):
        for j in range(places[1]):
            x, y = (j + offset) * along, (i + offset) * down
            for size, density in zip(about.get("fixed_size", []), about.get("density", []), strict=True):
                apart = int(size // density)
                forms = [(size * r**0.5, size / r**0.5) for r in about.get("fixed_ratio", ratios[1:])]
                if "fixed_ratio" not in about:
                    forms = [(int(size), int(size)), *forms]
                for w, h in forms:
                    for down_by, along_by in itertools.product(range(density), repeat=2):
                        left, upper = x - int(size) // 2, y - int(size) // 2
                        at = left + apart / 2 + along_by * apart, upper + apart / 2 + down_by * apart
                        add(*at, w, h, inside=True)
            for number, least in enumerate(about.get("min_size", [])):
                size = int(least)  # as in its fork
                forms = [(size, size)]
                if about["max_size"]:
                    forms += [(math.sqrt(size * int(about["max_size"][number])),) * 2]
                forms += [(size * r**0.5, size / r**0.5) for r in ratios[1:]]
                for w, h in forms:
                    add(x, y, w, h)
                    if "denser_prior_boxes" in about:
                        add(x, (i + 1) * down, w, h)
    if about.get("clip", False):
        rows = [min(max(value, 0), 1) for value in rows]
    return np.array([[rows, spread]])


@given(fields(), st.integers(1, 3), st.integers(1, 3))
@PROPERTY
def test_the_boxes_are_those_of_the_paper(
    run: Any, about: dict[str, Any], rows: int, columns: int
) -> None:
    x, image = np.zeros((2, 5, rows, columns)), np.zeros((2, 3, 24, 36))
    made = run(LAYER.format(text(about)), x=x, data=image)["p"]
    expected = slow(about, (rows, columns), (24, 36))
    assert made.shape == expected.shape
    np.testing.assert_allclose(made, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("", r"prior_box_param { min_size } is not given"),
        ("min_size: 4 max_size: 3", "min_size 4 and max_size 3 must rise from 0"),
        ("min_size: 4 max_size: 5 max_size: 6", "has 2 max_size for 1 min_size"),
        ("min_size: 4 aspect_ratio: -2", "aspect_ratio -2 is not a positive number"),
        ("min_size: 4 variance: 1 variance: 2", r"variance \[1.0, 2.0\] is not one positive number or"),
        (
            "min_size: 4 img_size: 8 img_h: 8",
            "give img_size, or img_h and img_w; given: img_size, img_h",
        ),
        ("min_size: 4 step_h: 8", "give step, or step_h and step_w; given: step_h"),
        ("min_size: 4 step: 0", "step 0 is not above 0"),
        ("min_size: 0.5", "min_size 0.5 is not 1 or more"),
        ("fixed_size: 32 fixed_size: 16 density: 2", "has 1 density for 2 fixed_size"),
        ("fixed_size: 32 density: 0.5", "density 0.5 is not 1 or more"),
        ("min_size: 4 max_size: inf", "max_size inf is not 1 or more"),
        ("fixed_size: 32 density: 2 fixed_ratio: -1", "fixed_ratio -1 is not a positive number"),
        (
            "fixed_size: 9 density: 2 fixed_ratio: 1 aspect_ratio: 2",
            "fixed_ratio and aspect_ratio cannot",
        ),
        ("min_size: 4 offsett: 0", "unknown field 'offsett'; did you mean 'offset'"),
    ],
)
def test_a_wrong_field_is_told_with_its_layer(run: Any, fields: str, message: str) -> None:
    with pytest.raises(demitasse.ModelError, match=message) as caught:
        run(LAYER.format(fields), x=np.zeros((1, 2, 3, 3)), data=np.zeros((1, 3, 8, 8)))
    assert "net.prototxt:3" in str(caught.value)


def test_bottoms_that_are_no_images_are_told(run: Any) -> None:
    with pytest.raises(demitasse.ModelError, match=r"layer 'p' .*'?x \(1x2.* are not images"):
        run(LAYER.format("min_size: 4"), x=np.zeros((1, 2)), data=np.zeros((1, 3, 8, 8)))
    with pytest.raises(demitasse.ModelError, match=r"has 1 bottom \(x\), not 2"):
        run(LAYER.format("min_size: 4").replace("bottom: 'data'", ""), x=np.zeros((1, 2, 3, 3)))


CLUSTERED = LAYER.replace("'PriorBox'", "'PriorBoxClustered'")


@pytest.mark.parametrize(("more", "step"), [("step: 4", (4, 4)), ("", (24 / 2, 36 / 3))])
@pytest.mark.parametrize("clip", [False, True])
def test_boxes_of_clusters_have_the_sides_that_are_given(
    run: Any, more: str, step: tuple[float, float], clip: bool
) -> None:
    sides = [(30.0, 67.5), (8.25, 4.0)]
    told = " ".join(f"height: {tall} width: {wide}" for wide, tall in sides)
    about = f"{told} clip: {str(clip).lower()} {more} offset: 0.5 variance: 0.5"
    x, image = np.zeros((1, 5, 2, 3)), np.zeros((1, 3, 24, 36))
    made = run(CLUSTERED.format(about), x=x, data=image)["p"]
    boxes = []
    for i, j in itertools.product(range(2), range(3)):
        y, at = (i + 0.5) * step[0], (j + 0.5) * step[1]
        for wide, tall in sides:
            boxes += [
                (at - wide / 2) / 36,
                (y - tall / 2) / 24,
                (at + wide / 2) / 36,
                (y + tall / 2) / 24,
            ]
    wanted = np.clip(boxes, 0, 1) if clip else np.array(boxes)
    np.testing.assert_allclose(made[0, 0], wanted, rtol=1e-6, atol=1e-9)
    np.testing.assert_array_equal(made[0, 1], 0.5)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (
            CLUSTERED.format("width: 3 width: 4 height: 5"),
            "has 2 width and 1 height; give as many of both",
        ),
        (CLUSTERED.format("min_size: 4"), "has 0 width and 0 height"),
        (CLUSTERED.format("width: 3 height: 5 min_size: 4"), r"{ min_size } belongs to PriorBox"),
        (CLUSTERED.format("width: 3 height: 0"), "width and height must be numbers above 0"),
        (LAYER.format("width: 3 height: 5"), "belong to the type PriorBoxClustered"),
    ],
)
def test_sides_are_given_in_pairs_to_the_type_that_has_them(run: Any, layer: str, message: str) -> None:
    with pytest.raises(demitasse.ModelError, match=message):
        run(layer, x=np.zeros((1, 2, 3, 3)), data=np.zeros((1, 3, 8, 8)))
