"""Changes of images with boxes: a box stays where its object is, parts fulfil their conditions, colours
are OpenCV's, and a sample depends only on its number."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from annotated_files import annotated_database
from hypothesis import assume, given
from hypothesis import strategies as st

from demitasse import DataError
from demitasse_datasets.annotated.asked import augmentation
from demitasse_datasets.annotated.colours import Distorted, Distortion
from demitasse_datasets.annotated.draws import Draws
from demitasse_datasets.annotated.sampling import Jitter, Sampler, Sampling

sizes = st.tuples(st.integers(24, 90), st.integers(24, 90))
RESIZINGS = (
    None,
    {"height": 40, "width": 64},
    {"height": 64, "width": 40, "mode": "FIT_LARGE_SIZE_AND_PAD", "interpolations": ("AREA", "NEAREST")},
    {"height": 30, "width": 30, "mode": "FIT_LARGE_SIZE_AND_PAD"},
    {"height": 24, "width": 20, "mode": "FIT_SMALL_SIZE", "interpolations": ("NEAREST",)},
)
PARTS = {
    "scale": (0.5, 1.0),
    "ratio": (0.5, 2.0),
    "object_coverage": (0.6, None),
    "most": 1,
    "trials": 30,
}
JITTER = {"most": 0.5}
ANYWHERE = {"scale": (0.2, 1.0), "ratio": (0.5, 2.0), "most": 1, "trials": 1}


@given(
    sizes,
    st.integers(0, 10**6),
    st.sampled_from(RESIZINGS),
    st.booleans(),
    st.sampled_from(([], [PARTS], [ANYWHERE], JITTER)),
    st.booleans(),
)
def test_a_box_stays_where_its_object_is(
    size: tuple[int, int], number: int, resizing: Any, expanded: bool, cut: Any, cropped: bool
) -> None:
    """A white rectangle on black, surrounded by black: its pixels are within one pixel of its box."""
    height, width = size
    dice = np.random.default_rng(number)
    top, left = int(dice.integers(0, height - 12)), int(dice.integers(0, width - 12))
    bottom, right = int(dice.integers(top + 10, height)), int(dice.integers(left + 10, width))
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[top:bottom, left:right] = 255
    box = [left / width, top / height, right / width, bottom / height]
    asked: dict[str, Any] = {"mirror": True, "resizing": resizing, "random": True}
    if expanded:
        asked["expansion"] = 0.7, 3.0
    asked["jitter" if cut is JITTER else "sampling"] = cut
    if cropped or (resizing or {}).get("mode") == "FIT_SMALL_SIZE":
        asked["crop"] = 16, 20
    rows = np.array([[5, 3, *box, 1]])
    try:
        made, seen = augmentation(asked, 1, 2)(pixels, rows, number)
    except DataError as error:
        assert "too small for a crop of 20 x 16" in str(error) and (resizing is None or cut)
        return
    if "crop" in asked:
        assert made.shape == (16, 20, 3)
    elif resizing:
        assert made.shape == (resizing["height"], resizing["width"], 3)
    bright = np.argwhere(made[:, :, 0] > 127)
    if not len(seen):
        assert len(bright) == 0 or min(np.ptp(bright, axis=0)) <= 1, (
            "it is seen, and told that it is not"
        )
        return
    assert seen.shape == (1, 7) and seen[0, [0, 1, 6]].tolist() == [5, 3, 1]
    extents = np.array([made.shape[1], made.shape[0]] * 2)
    x1, y1, x2, y2 = seen[0, 2:6] * extents
    assume(x2 - x1 > 3 and y2 - y1 > 3)  # smoothing may remove a few of its pixels
    found = bright[:, ::-1]
    np.testing.assert_allclose([*found.min(0), *(found.max(0) + 1)], [x1, y1, x2, y2], atol=1.6)


@given(st.integers(0, 10**6))
def test_an_image_set_in_a_larger_one_is_filled_with_the_mean(number: int) -> None:
    pixels = np.full((20, 30, 3), 200, np.uint8)
    asked = {"expansion": (1.0, 4.0), "fill": (10.0, 127.6, 300.0)}
    made, seen = augmentation(asked, 0, 0)(pixels, np.array([[1, 0, 0, 0, 1, 1, 0]]), number)
    height, width = made.shape[:2]
    assert 20 <= height < 80 and 30 <= width < 120 and abs(width / height - 1.5) < 0.08
    x1, y1, x2, y2 = np.rint(seen[0, 2:6] * ([width, height] * 2)).astype(int)
    assert (x2 - x1, y2 - y1) == (30, 20)
    inside = np.zeros((height, width), bool)
    inside[y1:y2, x1:x2] = True
    assert (made[inside] == 200).all() and (made[~inside] == (10, 128, 255)).all()


bounds = st.tuples(
    st.one_of(st.none(), st.floats(0, 0.6)), st.one_of(st.none(), st.floats(0.4, 1))
).filter(lambda pair: None in pair or pair[0] <= pair[1])


@given(st.integers(0, 10**6), bounds, bounds, bounds, st.integers(1, 4))
def test_parts_are_those_that_an_object_meets(
    number: int, overlap: Any, sample: Any, whole: Any, most: int
) -> None:
    """Compared with a slow, literal implementation of each condition."""
    dice = np.random.default_rng(number)
    corners = np.sort(dice.uniform(0, 1, (3, 2, 2)), 1)
    boxes = np.concatenate([corners[:, 0], corners[:, 1]], -1)
    given: dict[str, Any] = {"scale": (0.3, 0.9), "ratio": (0.4, 2.5), "trials": 40}
    loose = Sampling([Sampler(**given)]).found(boxes, Draws(0, 0, number, 200))
    assert loose.shape == (40, 4) and loose.min() >= 0 and loose.max() <= 1
    sides = loose[:, 2:] - loose[:, :2]
    scales = np.sqrt(sides.prod(1))
    assert (scales > 0.299).all() and (scales < 0.901).all()
    ratios = sides[:, 0] / sides[:, 1]
    low, high = np.maximum(0.4, scales**2), np.minimum(2.5, scales**-2)
    assert ((ratios > low * 0.999) & (ratios < high * 1.001)).all()

    def meets(part: np.ndarray, box: np.ndarray) -> bool:
        common = max(0.0, min(part[2], box[2]) - max(part[0], box[0]))
        common *= max(0.0, min(part[3], box[3]) - max(part[1], box[1]))
        areas = [(each[2] - each[0]) * (each[3] - each[1]) for each in (part, box)]
        shares = common / (sum(areas) - common), common / areas[0], common / areas[1]
        return all(
            (low is None or share >= low) and (high is None or share <= high)
            for share, (low, high) in zip(shares, (overlap, sample, whole), strict=True)
        )

    wanted = [part for part in loose if any(meets(part, box) for box in boxes)]
    asked = {"overlap": overlap, "sample_coverage": sample, "object_coverage": whole}
    found = Sampling([Sampler(**given, **asked, most=most)]).found(boxes, Draws(0, 0, number, 200))
    np.testing.assert_allclose(found, np.array(wanted[:most]).reshape(-1, 4))


def test_jitter_cuts_a_fifth_of_images_by_nothing_and_a_fifth_by_half_as_much() -> None:
    parts = {
        alike: np.array(
            [
                Sampling([], Jitter(0.4, alike)).part(boxes, Draws(1, 2, number, 5))
                for number in range(4000)
            ]
        )
        for alike, boxes in ((False, np.zeros((0, 4))), (True, np.ones((2, 4))))
    }
    for alike, each in parts.items():
        assert each.min() >= 0 and each.max() <= 1
        sides = each[:, 2:] - each[:, :2]
        assert sides.min() == pytest.approx(0.6, abs=0.01)
        assert (sides == 1).all(1).mean() == pytest.approx(0.2, abs=0.02)
        # Of parts that are cut by up to 0.4, half are above 0.8; of those cut by up to 0.2, all are.
        assert (sides[:, 0] >= 0.8).mean() == pytest.approx(0.2 + 0.2 + 0.6 / 2, abs=0.03)
        assert (sides[:, 0] == pytest.approx(sides[:, 1])) == alike
        # Positions are uniform: left over (left and right) is spread evenly.
        room = 1 - sides[:, 0]
        left = each[room > 0.05, 0] / room[room > 0.05]
        assert np.quantile(left, [0.1, 0.5, 0.9]) == pytest.approx([0.1, 0.5, 0.9], abs=0.03)


def test_a_jitter_gives_way_to_samplers() -> None:
    sampling = Sampling([Sampler(scale=(0.3, 0.4))], Jitter(0.1))
    part = sampling.part(np.array([[0.0, 0, 1, 1]]), Draws(0, 0, 0, sampling.draws))
    assert part is not None and (part[2] - part[0]) * (part[3] - part[1]) < 0.2


def test_whose_centre_is_not_in_the_part_or_too_little_of_it_is_gone() -> None:
    boxes = [[0.0, 0, 0.5, 1], [0.1, 0, 0.7, 1], [0.45, 0, 0.55, 1], [0.8, 0, 1, 1]]
    rows = np.array([[label, 0, *box, 0] for label, box in enumerate(boxes, 1)])
    pixels = np.zeros((10, 20, 3), np.uint8)
    for emit, wanted in ((None, [1, 2, 3]), ("CENTER", [1, 2, 3]), (0.7, [2, 3]), (0.4, [1, 2, 3])):
        asked = {"crop": (10, 10), "emit": emit}  # from 0.25 to 0.75 of the width
        _, seen = augmentation(asked, 0, 0)(pixels, rows, 0)
        assert seen[:, 0].tolist() == wanted, emit
    centre = np.array([[1, 0, 0.0, 0, 0.48, 1, 0], [2, 0, 0.0, 0, 0.52, 1, 0]])
    _, seen = augmentation({"crop": (10, 10), "emit": "CENTER"}, 0, 0)(pixels, centre, 0)
    np.testing.assert_allclose(seen, [[2, 0, 0, 0, 0.54, 1, 0]])


def test_light_is_added_and_multiplied_and_colours_change_as_opencv_has_them() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (40, 50, 3)).astype(np.uint8)
    as_numbers = pixels.astype(np.float64)
    brighter = Distorted(brightness=20.6)(pixels)
    np.testing.assert_array_equal(brighter, np.rint(as_numbers + 20.6).clip(0, 255))
    harder = Distorted(contrast=1.37)(pixels)
    np.testing.assert_array_equal(harder, np.rint(as_numbers * 1.37).clip(0, 255))
    parts = cv2.cvtColor(pixels, cv2.COLOR_BGR2HSV).astype(np.float64)
    parts[:, :, 0] += 11.2
    parts[:, :, 1] *= 0.6
    wanted = cv2.cvtColor(np.rint(parts).clip(0, 255).astype(np.uint8), cv2.COLOR_HSV2BGR)
    for first in (True, False):
        made = Distorted(saturation=0.6, hue=11.2, contrast_first=first)(pixels)
        np.testing.assert_array_equal(made, wanted)
    both = Distorted(contrast=0.5, saturation=0.6, hue=11.2, contrast_first=False)(pixels)
    np.testing.assert_array_equal(both, np.rint(wanted * 0.5))
    mixed = Distorted(order=np.array([2, 0, 1]))(pixels)
    np.testing.assert_array_equal(mixed, pixels[:, :, [2, 0, 1]])
    gray = Distorted(brightness=-9, saturation=0.5, hue=4, contrast=2)(pixels[:, :, :1])
    np.testing.assert_array_equal(gray, ((as_numbers[:, :, :1] - 9).clip(0) * 2).clip(0, 255))


def test_colours_change_as_often_as_is_asked() -> None:
    about = Distortion(0.5, 32, 0.25, (0.5, 1.5), 1.0, (0.5, 1.5), 0.0, 18, 0.1)
    drawn = [about.drawn(Draws(7, 1, number)) for number in range(2000)]
    counts = [
        sum(each.brightness != 0 for each in drawn),
        sum(each.contrast != 1 for each in drawn),
        sum(each.saturation != 1 for each in drawn),
        sum(each.hue != 0 for each in drawn),
        sum(each.order is not None for each in drawn),
        sum(each.contrast_first for each in drawn),
    ]
    np.testing.assert_allclose(np.array(counts) / 2000, [0.5, 0.25, 1, 0, 0.1, 0.5], atol=0.05)
    assert max(abs(each.brightness) for each in drawn) > 31
    assert all(0.5 <= each.saturation <= 1.5 for each in drawn)


ASKED: dict[str, Any] = {
    "sampling": [{}, {"scale": (0.3, 1.0), "ratio": (0.5, 2.0), "overlap": (0.3, None), "most": 1}],
    "distortion": {"brightness_probability": 0.5, "brightness": 32},
    "expansion": (0.5, 3.0),
    "resizing": {"height": 24, "width": 24, "interpolations": ("LINEAR", "CUBIC", "LANCZOS4")},
    "emit": "CENTER",
    "mirror": True,
}


def noisy(folder: Path, count: int = 9) -> Path:
    """Images of noise in several sizes, each with as many objects as its number."""
    dice = np.random.default_rng(0)
    samples = []
    for number in range(count):
        pixels = dice.integers(0, 256, (30 + number, 50 - number, 3)).astype(np.uint8)
        corners = np.sort(dice.uniform(0, 1, (number, 2, 2)), 1).reshape(-1, 4)
        samples.append((pixels, [(1 + n % 3, n, *box, n % 2) for n, box in enumerate(corners)]))
    return annotated_database(folder, samples)


def test_a_sample_depends_on_its_number_alone(tmp_path: Path, opened: Callable[..., Any]) -> None:
    """Two workers read what one does, a stream that begins later reads what one from 0 has there, and an
    epoch shows other parts than the one before."""
    options = {"augmentation": ASKED, "objects": 10, "stream": 4}
    source = opened(str(noisy(tmp_path / "db")), "annotated", options=options, seed=3)
    assert source.size == 9
    assert {name: (f.shape, f.dtype) for name, f in source.fields.items()} == {
        "data": ((3, 24, 24), "uint8"),
        "label": ((1, 10, 8), "float32"),
    }

    def read(first: int, count: int, step: int, times: int) -> dict[str, np.ndarray]:
        stream = source.stream(first, count, step)
        parts = []
        for _ in range(times):
            out = {n: np.empty((count, *f.shape), f.dtype) for n, f in source.fields.items()}
            stream.read(out)
            parts.append(out)
        stream.close()
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    whole, left, right = read(0, 6, 6, 4), read(0, 3, 6, 4), read(3, 3, 6, 4)
    later = read(7, 5, 5, 2)
    for name, values in whole.items():
        by_sixes = values.reshape(4, 2, 3, *values.shape[1:])
        np.testing.assert_array_equal(by_sixes[:, 0].reshape(left[name].shape), left[name])
        np.testing.assert_array_equal(by_sixes[:, 1].reshape(right[name].shape), right[name])
        np.testing.assert_array_equal(values[7:17], later[name])
    assert not np.array_equal(whole["data"][:9], whole["data"][9:18])
    rows = whole["label"][:, 0]
    there = rows[:, :, 0] != -1
    assert ((rows == -1).all(2) == ~there).all() and (np.diff(there.astype(int), axis=1) <= 0).all()
    counts = there.sum(1)
    assert (counts <= np.arange(24) % 9).all() and counts.max() > 3
    corners = rows[there][:, 3:7]
    assert (corners >= 0).all() and (corners <= 1).all() and (corners[:, 2:] > corners[:, :2]).all()


def test_records_without_boxes_have_a_label_and_raw_ones_their_bytes(
    tmp_path: Path, opened: Callable[..., Any], everything: Callable[[Any], dict[str, np.ndarray]]
) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (2, 6, 5, 3)).astype(np.uint8)
    path = annotated_database(
        tmp_path / "raw", [(each, []) for each in pixels], encoded=False, kind=None
    )
    found = everything(opened(str(path), "annotated"))
    np.testing.assert_array_equal(found["data"], pixels.transpose(0, 3, 1, 2))
    assert found["label"].tolist() == [3, 3]


def test_other_records_are_told_from_those_with_boxes(
    tmp_path: Path, opened: Callable[..., Any]
) -> None:
    with pytest.raises(
        DataError, match=r"key '00000000': it is an AnnotatedDatum, an image with boxes, "
    ):
        opened(str(noisy(tmp_path / "db")), "lmdb")


def test_mistakes_are_named(tmp_path: Path, opened: Callable[..., Any]) -> None:
    path = str(noisy(tmp_path / "db"))

    def fails(match: str, read: bool = False, **options: Any) -> None:
        with pytest.raises(DataError, match=match):
            source = opened(path, "annotated", options=options)
            if read:
                out = {n: np.empty((9, *f.shape), f.dtype) for n, f in source.fields.items()}
                source.stream(0, 9, 9).read(out)

    fails("unknown option of kind annotated 'objets'.*objects", objets=3)
    fails("unknown option of resizing 'hight'.*height", augmentation={"resizing": {"hight": 3}})
    fails("unknown mode of resizing 'WRAP'.*WARP", augmentation={"resizing": resized(mode="WRAP")})
    fails(
        "unknown interpolation 'BILINEAR'",
        augmentation={"resizing": resized(interpolations=["BILINEAR"])},
    )
    fails("height 0 of images .valid: 1 to", augmentation={"resizing": {"height": 0, "width": 8}})
    fails("several sizes; it needs a crop", augmentation={"resizing": resized(mode="FIT_SMALL_SIZE")})
    fails("scale from 0 to 1 is not above 0", augmentation={"sampling": [{"scale": (0, 1)}]})
    fails("tries 0 times", augmentation={"sampling": [{"trials": 0}]})
    fails("jitter of 1 is not above 0 and below 1", augmentation={"jitter": {"most": 1}})
    fails("expanded 0.5 times .valid: 1 or more", augmentation={"expansion": (1.0, 0.5)})
    fails("room for 0 objects", objects=0)
    fails("key '0000000[1-8]': its image has shape .* the first sample's", read=True)
    sized = {"resizing": resized()}
    fails(
        "key '00000003': its image has 3 objects, .* room for 2: give .*max_objects: 3",
        *(True,),
        objects=2,
        augmentation=sized,
    )
    with pytest.raises(DataError, match="is not an LMDB or LevelDB database"):
        opened(str(tmp_path), "annotated")


def test_images_with_and_without_colours_are_told_or_read_alike(
    tmp_path: Path, opened: Callable[..., Any], everything: Callable[..., Any]
) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (9, 8, 3)).astype(np.uint8)
    mixed = [(pixels, []), (pixels[:, :, :1], [])]
    path = str(annotated_database(tmp_path / "mixed", mixed))
    options = {"augmentation": {"resizing": resized(), "fill": (1.0, 2.0, 3.0), "expansion": (1.0, 3.0)}}
    source = opened(path, "annotated", options=options)
    with pytest.raises(
        DataError, match=r"key '00000001': its image has 1 channels, but the first 3; .*colo"
    ):
        everything(source)
    assert everything(opened(path, "annotated", options={**options, "mode": "color"}))["data"].any()
    with pytest.raises(DataError, match="3 means for images of 1 channels; give 1 or 1"):
        opened(path, "annotated", options={**options, "mode": "gray"})


def resized(**more: Any) -> dict[str, Any]:
    return {"height": 8, "width": 8, **more}
