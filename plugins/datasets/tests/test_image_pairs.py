"""Pairs of an image and the classes of its pixels are read, cut and mirrored in the same way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demitasse import DataError

cv2 = pytest.importorskip("cv2", reason="OpenCV 4 is not installed (opencv-python-headless<5)")

Read = Callable[..., tuple[np.ndarray, np.ndarray]]


def places(rows: int, columns: int, number: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return an image whose pixels encode row, column and its number, and classes: each row's number."""
    down, across = np.mgrid[0:rows, 0:columns]
    pixels = np.stack([down, across, np.full_like(down, number)], -1)
    return pixels.astype(np.uint8), down.astype(np.uint8)


@pytest.fixture
def listed(tmp_path: Path) -> Callable[..., Path]:
    def listed(*pairs: tuple[np.ndarray, np.ndarray]) -> Path:
        lines = []
        for number, pair in enumerate(pairs):
            for name, array in zip("ic", pair, strict=True):
                cv2.imwrite(str(tmp_path / f"{name}{number}.png"), array)
            lines.append(f"i{number}.png c{number}.png\n")
        (tmp_path / "list.txt").write_text("".join(lines))
        return tmp_path / "list.txt"

    return listed


@pytest.fixture
def read(opened: Callable[..., Any], some: Callable[..., Any]) -> Read:
    """Return the first samples of a list, read with some options."""

    def read(path: Path, count: int = 2, first: int = 0, **options: Any) -> Any:
        source = opened(str(path), "image_pairs", seed=5, options={"stream": 3, **options})
        out = some(source, first, count)
        return out["data"], out["label"]

    return read


def test_images_and_classes_are_what_their_files_have(listed: Any, read: Read) -> None:
    pairs = [places(6, 9, number) for number in range(2)]
    data, label = read(listed(*pairs))
    assert data.shape == (2, 3, 6, 9) and label.shape == (2, 1, 6, 9)
    for number, (pixels, classes) in enumerate(pairs):
        np.testing.assert_array_equal(data[number], pixels.transpose(2, 0, 1))
        np.testing.assert_array_equal(label[number, 0], classes)


def test_classes_are_never_mixed_where_images_are_resized(listed: Any, read: Read) -> None:
    classes = np.zeros((8, 12), np.uint8)
    classes[:, 6:] = 200
    pixels = np.repeat(classes[..., None], 3, -1)
    data, label = read(listed((pixels, classes)), 1, height=5, width=7)
    expected = cv2.resize(pixels, (7, 5), interpolation=cv2.INTER_LINEAR)
    np.testing.assert_array_equal(data[0], expected.transpose(2, 0, 1))
    nearest = cv2.resize(classes, (7, 5), interpolation=cv2.INTER_NEAREST)
    np.testing.assert_array_equal(label[0, 0], nearest)
    assert {*label.ravel().tolist()} == {0, 200}


@pytest.mark.parametrize("resized", [{}, {"height": 8, "width": 12}])
def test_a_class_may_stand_for_a_square_of_pixels(
    resized: dict[str, int], listed: Any, read: Read
) -> None:
    pixels, classes = places(8, 12)
    data, label = read(listed((pixels, classes)), 1, divide=4, **resized)
    assert data.shape == (1, 3, 8, 12) and label.shape == (1, 1, 2, 3)
    np.testing.assert_array_equal(label[0, 0], classes[::4, ::4])


def test_both_are_cut_and_mirrored_alike_whoever_reads_them(listed: Any, read: Read) -> None:
    path = listed(*[places(20, 30, number) for number in range(8)])
    how = {"crop_height": 7, "crop_width": 11, "mirror": True}
    data, label = read(path, 8, **how)
    assert data.shape == (8, 3, 7, 11)
    np.testing.assert_array_equal(data[:, 0], label[:, 0])  # classes are row numbers
    steps = np.diff(data[:, 1].astype(int), axis=-1)
    assert {*steps.ravel().tolist()} == {-1, 1} and len({*data[:, 0, 0, 0].tolist()}) > 2
    halves = [read(path, 4, first, **how) for first in (0, 4)]
    np.testing.assert_array_equal(np.concatenate([each for each, _ in halves]), data)


def test_images_are_resized_filled_up_and_cut_as_deeplab_does(listed: Any, read: Read) -> None:
    pixels, _ = places(20, 30)
    classes = (np.arange(20)[:, None] // 8 + np.zeros((20, 30))).astype(np.uint8)
    path = listed((pixels, classes))
    how = {"crop_height": 24, "crop_width": 26, "random": False, "filled": 255, "mean": [1, 2.5, 3]}
    data, label = read(path, 1, scales=(0.5,), **how)
    small = cv2.resize(pixels, (15, 10), interpolation=cv2.INTER_LINEAR)
    expected = np.zeros((24, 26, 3))
    expected[:10, :15] = small - np.array([1, 2.5, 3])
    np.testing.assert_allclose(data[0], expected.transpose(2, 0, 1), rtol=1e-6)
    marks = np.full((24, 26), 255)
    marks[:10, :15] = cv2.resize(classes, (15, 10), interpolation=cv2.INTER_NEAREST)
    np.testing.assert_array_equal(label[0, 0], marks)
    middle, _ = read(path, 1, scales=(2,), **how)
    large = cv2.resize(pixels, (60, 40), interpolation=cv2.INTER_LINEAR)[8:32, 17:43]
    np.testing.assert_allclose(middle[0], (large - np.array([1, 2.5, 3])).transpose(2, 0, 1), rtol=1e-6)


def test_a_scale_is_drawn_for_each_sample_whoever_reads_it(listed: Any, read: Read) -> None:
    path = listed(*[places(12, 16, number) for number in range(12)])
    how = {"crop_height": 12, "crop_width": 16, "filled": 99, "scales": (0.5, 0.75, 1.0)}
    data, label = read(path, 12, **how)
    sizes = {(int((each != 99).any(1).sum()), int((each != 99).any(0).sum())) for each in label[:, 0]}
    assert sizes == {(6, 8), (9, 12), (12, 16)}
    one = [read(path, 1, first, **how)[0][0] for first in range(12)]
    np.testing.assert_array_equal(one, data)


def test_a_class_may_be_of_a_whole_image_or_unknown(listed: Any, read: Read, opened: Any) -> None:
    path = listed(places(6, 9), places(6, 9, 1))
    path.write_text("i0.png 7\ni1.png 200\n")
    _, label = read(path, 2, classes="image", divide=2)
    assert label.shape == (2, 1, 3, 4) and [np.unique(each).tolist() for each in label] == [[7], [200]]
    path.write_text("i0.png\ni1.png\n")
    _, label = read(path, 2, classes="none", filled=255)
    assert np.unique(label).tolist() == [255]
    source = opened(str(path), "image_pairs", options={"classes": "none"})
    assert source.fields["data_dim"].shape == (1, 1, 2)
    out = {"data_dim": np.zeros((2, 1, 1, 2), np.float32)}
    stream = source.stream(0, 2, 2)
    stream.read(out)
    stream.close()
    assert out["data_dim"].tolist() == [[[[6, 9]]]] * 2


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("i0.png", {}, r"list\.txt:1: 'i0\.png' is not two paths"),
        ("i0.png c0.png 3", {}, r"list\.txt:1: .* is not two paths"),
        ("", {}, "lists no images"),
        ("i0.png c9.png", {}, r"list\.txt:1: i0\.png: its classes, c9\.png: cannot be read: No such"),
        ("i0.png small.png", {}, "has 9 x 6 pixels, but its classes have 3 x 2; resize both"),
        (
            "i0.png c0.png",
            {"crop_height": 9, "crop_width": 3},
            "9 x 6 pixels, too small for a part of 3 x 9",
        ),
        ("i0.png c0.png", {"crop_height": 2}, "crop_height 2 and crop_width 0: give both"),
        ("i0.png c0.png", {"divide": 0}, "divided by 0 .valid: 1 or more"),
        ("i0.png c0.png", {"divide": 50}, r"nothing is left of \(6, 9\) pixels divided by 50"),
        ("i0.png c0.png", {"mean": [1, 2]}, "has 3 channels, but 2 means are given"),
        ("i0.png c0.png", {"scales": (1, 0)}, r"resized \(1.0, 0.0\) times .valid: numbers above 0"),
        ("i0.png c0.png", {"filled": 256}, "filled up with class 256 .valid: 0 to 255"),
        (
            "i0.png c0.png",
            {"classes": "pixel"},
            "unknown kind of classes 'pixel'; did you mean 'pixels'",
        ),
        ("i0.png c0.png", {"classes": "image"}, r":1: .* is not a path and a class from 0 to 255"),
        ("i0.png 256", {"classes": "image"}, r":1: .* is not a path and a class from 0 to 255"),
        ("i0.png c0.png", {"divde": 2}, "unknown option .* 'divde'; did you mean 'divide'"),
    ],
)
def test_what_is_wrong_with_a_list_is_told(
    text: str, options: dict[str, Any], message: str, listed: Any, read: Read, tmp_path: Path
) -> None:
    path = listed(places(6, 9))
    cv2.imwrite(str(tmp_path / "small.png"), np.zeros((2, 3), np.uint8))
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        read(path, 1, **options)
