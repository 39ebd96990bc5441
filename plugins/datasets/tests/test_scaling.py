"""Images resized at random before they are cropped, compared with OpenCV and two forks of Caffe."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from demitasse import DataError
from demitasse_datasets.crops import Crop
from demitasse_datasets.scaling import PartOfArea, ShorterSide, Stretched, scaling

cv2 = pytest.importorskip("cv2", reason="OpenCV 4 is not installed (opencv-python-headless<5)")


def image(height: int, width: int) -> np.ndarray:
    down, across = np.mgrid[0:height, 0:width]
    return np.stack([down * 3, across * 2, down + across], -1).astype(np.uint8)


@pytest.mark.parametrize(("height", "width", "made"), [(40, 50, (24, 30)), (50, 40, (30, 24))])
def test_the_shorter_side_is_as_long_as_asked(height: int, width: int, made: tuple[int, int]) -> None:
    pixels = image(height, width)
    found = ShorterSide(24, 24, ("CUBIC",))(pixels, 20, np.array([0.9, 0.0]))
    expected = cv2.resize(pixels, made[::-1], interpolation=cv2.INTER_CUBIC)
    np.testing.assert_array_equal(found, expected)


def test_the_shorter_side_is_drawn_between_its_bounds() -> None:
    sides = {
        min(ShorterSide(24, 26)(image(40, 50), 20, np.array([draw, 0.5])).shape[:2])
        for draw in np.linspace(0, 1, 50, endpoint=False)
    }
    assert sides == {24, 25, 26}
    free = {
        min(ShorterSide()(image(10, 13), 5, np.array([draw, 0.5])).shape[:2])
        for draw in np.linspace(0, 1, 60, endpoint=False)
    }
    assert free == {10, 11, 12, 13}


@settings(max_examples=examples(60))
@given(
    st.integers(8, 60),
    st.integers(8, 60),
    st.floats(0.05, 1.0),
    st.floats(0.5, 1.0),
    st.integers(0, 2**31),
)
def test_a_part_has_the_area_and_the_sides_that_are_allowed(
    height: int, width: int, least: float, change: float, seed: int
) -> None:
    part = PartOfArea(least, 1.0, change, 10)
    cut: list[tuple[int, int]] = []

    class Recorded(np.ndarray):
        def __getitem__(self, where: Any) -> Any:
            if isinstance(where, tuple) and isinstance(where[0], slice):
                found = super().__getitem__(where)
                cut.append(found.shape[:2])
                return np.asarray(found)
            return super().__getitem__(where)

    pixels = image(height, width).view(Recorded)
    made = part(pixels, 6, np.random.default_rng(seed).random(part.takes))
    if cut:
        (rows, columns) = cut[-1]
        assert made.shape == (6, 6, 3) and rows <= height and columns <= width
        area, around = height * width, rows + columns + 1  # each side is truncated to whole pixels
        assert least * area - around <= rows * columns <= area
        assert change**2 - 0.5 <= rows / columns <= 1 / change**2 + 3
    else:
        assert min(made.shape[:2]) == 6


def test_what_fits_nowhere_is_resized_as_a_whole() -> None:
    part = PartOfArea(1.0, 1.0, 1.0, 3)
    pixels = image(12, 60)  # no square with such an area fits
    found = part(pixels, 6, np.full(part.takes, 0.5))
    np.testing.assert_array_equal(found, cv2.resize(pixels, (30, 6), interpolation=cv2.INTER_LINEAR))


def test_a_crop_scales_by_the_samples_number() -> None:
    crop = Crop(6, True, 7, 2, PartOfArea(0.1, 0.6, 0.75, 10, ("CUBIC", "LINEAR")))
    assert crop.shape((3, 4, 5)) == (3, 6, 6)
    planes = image(30, 40).transpose(2, 0, 1)
    draws = crop.draws(0, 4)
    made = [crop.cut(planes, draws[n], n) for n in range(4)]
    assert all(each.shape == (3, 6, 6) for each in made)
    np.testing.assert_array_equal(crop.cut(planes, crop.draws(2, 1)[0], 2), made[2])
    assert not np.array_equal(made[0], made[1])


def test_an_image_that_is_scaled_too_small_is_refused() -> None:
    crop = Crop(20, False, scaling=ShorterSide(10, 10))
    with pytest.raises(DataError, match="too small for a crop of 20"):
        crop.cut(image(40, 50).transpose(2, 0, 1), crop.draws(0, 1)[0], 0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"least": 1, "most": 1 << 20}, "at most 32,768 pixels"),
        ({"interpolations": ("BICUBIC",)}, r"interpolations \['BICUBIC'\] \(valid: LINEAR, AREA"),
        ({"change": 0.5, "lest": 1}, "lest"),
    ],
)
def test_values_that_cannot_be_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        scaling(values)


@pytest.mark.parametrize(
    ("how", "drawn", "made", "way"),
    [
        # 40 x 60: the shorter side 20, and in proportion.
        ({"least": 20, "most": 20}, [0.5] * 5, (20, 30), "NEAREST"),
        ({"least": 20, "most": 23}, [0.99, 0, 0, 0, 0], (23, 35), "NEAREST"),
        # The longer side is 1.25 times the shorter one.
        ({"ratio": (1.0, 1.5)}, [0, 0.5, 0, 0, 0], (40, 50), "NEAREST"),
        ({"tall": (0.5, 1.0), "wide": (0.5, 0.5)}, [0, 0, 0, 0.5, 0], (30, 30), "NEAREST"),
        # No longer than it was, unless allowed; no shorter than the crop.
        ({"least": 80, "most": 80}, [0.0] * 5, (40, 60), None),
        ({"least": 80, "most": 80, "enlarges": True}, [0.0] * 5, (80, 120), "CUBIC"),
        ({"least": 4, "most": 4}, [0.0] * 5, (10, 10), "NEAREST"),
    ],
)
def test_sides_are_stretched_as_nvidias_fork_does(
    how: dict[str, Any], drawn: list[float], made: tuple[int, int], way: str | None
) -> None:
    pixels = image(40, 60)
    found = Stretched(**how)(pixels, 10, np.array(drawn))
    expected = pixels
    if way is not None:
        flag = getattr(cv2, f"INTER_{way}")
        expected = cv2.resize(pixels, made[::-1], interpolation=flag)
    assert found.shape[:2] == made
    np.testing.assert_array_equal(found, expected)


def test_of_a_square_either_side_gets_longer() -> None:
    shapes = {
        Stretched(ratio=(1.5, 1.5), enlarges=True)(image(20, 20), 5, np.array([0, 0, coin, 0, 0])).shape
        for coin in (0.2, 0.8)
    }
    assert shapes == {(20, 30, 3), (30, 20, 3)}


def test_plain_values_tell_a_stretch_from_the_others() -> None:
    asked = {"least": 3, "most": 4, "enlarges": False, "tall": (0.9, 1.1)}
    assert scaling(asked) == Stretched(3, 4, tall=(0.9, 1.1))
    with pytest.raises(ValueError, match="at most 32,768 pixels"):
        scaling({"most": 40_000, "enlarges": True})
