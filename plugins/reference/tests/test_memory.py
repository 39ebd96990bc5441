"""Views, running totals, and images turned into blobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from demitasse import crop_and_mirror

Apply = Callable[..., Any]
NONE = {"seed": 1, "stream": 1}


def counter(value: int) -> np.ndarray:
    return np.array([value], np.uint64)


def images(count: int = 3, channels: int = 2, height: int = 6, width: int = 5) -> np.ndarray:
    shape = (count, channels, height, width)
    return np.random.default_rng(4).integers(0, 256, shape).astype(np.uint8)


def test_fill_sets_every_element(apply: Apply) -> None:
    assert apply("fill", np.full((2, 3), np.nan), value=2.5).tolist() == [[2.5] * 3] * 2


def test_accumulate_adds_to_the_total(apply: Apply) -> None:
    assert apply("accumulate", np.array([1.0, 2.0]), np.array([0.5, -2.0])).tolist() == [1.5, 0]


def test_pixels_become_scaled_reals(apply: Apply) -> None:
    x = images()
    y = apply("image_transform", x, None, counter(0), counter(0), scale=1 / 256, **NONE)
    assert y.dtype == np.float64
    assert np.array_equal(y, x / 256)


@pytest.mark.parametrize("shape", [(2, 6, 5), (2, 1, 1), (1, 1, 1)])
def test_the_mean_is_taken_away_before_scaling(apply: Apply, shape: tuple[int, ...]) -> None:
    x, mean = images(), np.random.default_rng(1).normal(size=shape).astype(np.float32)
    y = apply("image_transform", x, mean, counter(0), counter(0), scale=0.5, **NONE)
    assert y.dtype == np.float32
    assert np.allclose(y, (x.astype(np.float64) - mean) / 2, rtol=1e-6)


def test_without_chance_the_middle_is_cropped_and_nothing_mirrored(apply: Apply) -> None:
    x, mean = images(width=8), np.random.default_rng(1).normal(size=(2, 6, 8))
    y = apply("image_transform", x, mean, counter(0), counter(0), crop=3, mirror=True, **NONE)
    assert np.array_equal(y, (x - mean)[:, :, 1:4, 2:5])


def test_random_crops_and_mirrors_are_those_of_the_generator(apply: Apply) -> None:
    x, mean = images(20), np.random.default_rng(1).normal(size=(2, 6, 5))
    options = {"crop": 3, "mirror": True, "random": True, "seed": 7, "stream": 3}
    y = apply("image_transform", x, mean, counter(5), counter(60), **options)
    places = crop_and_mirror(7, 3, 5, 60, 20, 6 - 3, 5 - 3)
    assert len({tuple(place) for place in places.tolist()}) > 5
    for image, got, (top, left, mirrored) in zip(x - mean, y, places.tolist(), strict=True):
        for c, i, j in np.ndindex(2, 3, 3):
            column = left + (2 - j if mirrored else j)
            assert got[c, i, j] == image[c, top + i, column]


def test_every_crop_and_both_mirrorings_occur(apply: Apply) -> None:
    x = np.tile(np.arange(12.0).reshape(1, 1, 3, 4), (300, 1, 1, 1))
    options = {"crop": 2, "mirror": True, "random": True, **NONE}
    y = apply("image_transform", x, None, counter(0), counter(0), **options)
    seen = {tuple(image.ravel()) for image in y}
    expected = set()
    for top in range(2):
        for left in range(3):
            part = x[0, 0, top : top + 2, left : left + 2]
            expected |= {tuple(part.ravel()), tuple(part[:, ::-1].ravel())}
    assert seen == expected


def test_mirroring_alone_keeps_the_whole_image(apply: Apply) -> None:
    x = images(30)
    options = {"mirror": True, "random": True, **NONE}
    y = apply("image_transform", x, None, counter(0), counter(0), **options)
    flipped = [np.array_equal(b, a[:, :, ::-1]) for a, b in zip(x, y, strict=True)]
    same = [np.array_equal(b, a) for a, b in zip(x, y, strict=True)]
    assert all(a != b for a, b in zip(flipped, same, strict=True))
    assert 3 < sum(flipped) < 27


@pytest.mark.parametrize("workers", [2, 3, 7])
def test_workers_together_prepare_what_one_worker_prepares(apply: Apply, workers: int) -> None:
    x = images(7)
    options = {"crop": 4, "mirror": True, "random": True, "seed": 2, "stream": 9}
    whole = apply("image_transform", x, None, counter(3), counter(70), **options)
    parts = [
        apply("image_transform", x[s], None, counter(3), counter(70 + int(s[0])), **options)
        for s in np.array_split(np.arange(7), workers)
    ]
    assert np.array_equal(np.concatenate(parts), whole)
