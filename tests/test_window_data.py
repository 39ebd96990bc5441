"""Caffe's WindowData: which windows a batch has, and what is made of each, by definition."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from sample_files import photo

import demitasse
from demitasse import DataError
from demitasse_caffe.mean import write_blob

MEAN = "mean_value: 104 mean_value: 117 mean_value: 123"


@pytest.fixture
def runtime() -> Iterator[Any]:
    with demitasse.compose() as made:
        yield made


def net(runtime: Any, folder: Path, text: str, **options: Any) -> Any:
    (folder / "net.prototxt").write_text(text)
    return runtime.net(folder / "net.prototxt", **options)


def window_file(folder: Path) -> Path:
    """Two images; windows inside, at the edges, and one of neither kind."""
    cv2.imwrite(str(folder / "a.png"), photo(60, 80, seed=1))
    cv2.imwrite(str(folder / "b.png"), photo(50, 40, seed=2))
    path = folder / "windows.txt"
    path.write_text(
        "# 0\na.png\n3\n60\n80\n4\n7 0.9 20 10 59 39\n3 0.8 0 0 29 49\n"
        "0 0.1 50 30 79 59\n2 0.4 1 1 9 9\n"
        "# 1\nb.png\n3\n50\n40\n2\n5 1 10 5 30 44\n0 0 3 4 12 44\n"
    )
    return path


FOREGROUND = {(7, "a", 20, 10, 59, 39), (3, "a", 0, 0, 29, 49), (5, "b", 10, 5, 30, 44)}
BACKGROUND = {(0, "a", 50, 30, 79, 59), (0, "b", 3, 4, 12, 44)}


def warped(image: np.ndarray, box: tuple[int, ...], crop: int, pad: int, square: bool) -> np.ndarray:
    """The sample of a window, (crop, crop, 3) float64 with NaN beyond the image, by its definition."""
    x1, y1, x2, y2 = box
    if not pad and not square:
        return np.float64(cv2.resize(image[y1 : y2 + 1, x1 : x2 + 1], (crop, crop)))
    middle = np.array([x1 + x2 + 1, y1 + y2 + 1]) / 2
    half = np.array([x2 - x1 + 1, y2 - y1 + 1]) / 2
    half = np.full(2, half.max()) if square else half
    reach = half * crop / (crop - 2 * pad)
    low = np.floor(middle - reach + 0.5).astype(int)
    high = np.floor(middle + reach + 0.5).astype(int)
    scale = crop / (high - low + 1)
    inside = np.maximum(low, 0), np.minimum(high, np.array(image.shape[1::-1]) - 1)
    start = np.floor((inside[0] - low) * scale + 0.5).astype(int)
    extent = np.floor((inside[1] - inside[0] + 1) * scale + 0.5).astype(int)
    extent = np.minimum(extent, crop - start)
    part = image[inside[0][1] : inside[1][1] + 1, inside[0][0] : inside[1][0] + 1]
    sample = np.full((crop, crop, 3), np.nan)
    sample[start[1] : start[1] + extent[1], start[0] : start[0] + extent[0]] = cv2.resize(
        part, tuple(map(int, extent))
    )
    return sample


@pytest.mark.parametrize(
    ("pad", "mode", "cached"),
    [(0, "warp", False), (4, "warp", True), (0, "square", False), (3, "square", True)],
)
def test_windows_are_drawn_by_kind_and_warped_by_definition(
    runtime: Any, tmp_path: Path, pad: int, mode: str, cached: bool
) -> None:
    window_file(tmp_path)
    text = f"""layer {{ name: "w" type: "WindowData" top: "x" top: "y"
      window_data_param {{ source: "windows.txt" root_folder: "{tmp_path}/" batch_size: 8
        fg_threshold: 0.5 bg_threshold: 0.3 fg_fraction: 0.4 context_pad: {pad} crop_mode: "{mode}"
        cache_images: {str(cached).lower()} }}
      transform_param {{ crop_size: 24 {MEAN} }} }}"""
    made = net(runtime, tmp_path, text, seed=6)
    images = {"a": photo(60, 80, seed=1), "b": photo(50, 40, seed=2)}
    seen = set()
    for _ in range(8):
        found = made.forward()
        for i in range(8):
            windows = FOREGROUND if i >= 5 else BACKGROUND
            wanted = {
                w: warped(images[w[1]], w[2:], 24, pad, mode == "square") - (104, 117, 123)
                for w in windows
            }
            sample = found["x"][i].transpose(1, 2, 0)
            same = [
                w
                for w, v in wanted.items()
                if np.allclose(sample, np.nan_to_num(v), rtol=1e-6, atol=1e-5)
            ]
            assert len(same) == 1, "no window's sample, or of two"
            assert found["y"][i] == same[0][0]
            seen.add(same[0])
    assert seen == FOREGROUND | BACKGROUND


def test_windows_are_mirrored_at_random_and_come_again_with_the_same_seed(
    runtime: Any, tmp_path: Path
) -> None:
    window_file(tmp_path)
    text = """layer { name: "w" type: "WindowData" top: "x" top: "y"
      window_data_param { source: "windows.txt" batch_size: 40 fg_fraction: 0.5 MODE }
      transform_param { crop_size: 16 scale: 0.5 MIRROR } }"""
    for mode in ("", "context_pad: 2"):
        plain, mirrored, again = (
            net(runtime, tmp_path, text.replace("MODE", mode).replace("MIRROR", word), seed=1).forward()[
                "x"
            ]
            for word in ("", "mirror: true", "mirror: true")
        )
        np.testing.assert_array_equal(mirrored, again)
        flipped = [(m != p).any() for m, p in zip(mirrored, plain, strict=True)]
        for m, p, turned in zip(mirrored, plain, flipped, strict=True):
            if turned and not mode:
                np.testing.assert_array_equal(m, p[:, :, ::-1])
        assert 8 < sum(flipped) < 32


def test_a_mean_image_is_subtracted_in_the_middle(runtime: Any, tmp_path: Path) -> None:
    window_file(tmp_path)
    mean = np.random.default_rng(0).uniform(90, 130, (3, 20, 20)).astype(np.float32)
    write_blob(tmp_path / "mean.binaryproto", mean)
    text = """layer { name: "w" type: "WindowData" top: "x" top: "y"
      window_data_param { source: "windows.txt" batch_size: 6 context_pad: 3 }
      transform_param { crop_size: 16 WORD } }"""
    raw = net(runtime, tmp_path, text.replace("WORD", "")).forward()["x"]
    less = net(runtime, tmp_path, text.replace("WORD", 'mean_file: "mean.binaryproto"')).forward()["x"]
    inside = np.broadcast_to((raw != 0).any(axis=1, keepdims=True), raw.shape)
    wanted = np.where(inside, raw - mean[:, 2:18, 2:18], 0)
    np.testing.assert_allclose(less, wanted, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.replace("# 1", "1"), r"windows\.txt:11: '1' instead of the #"),
        (lambda t: t[:-20], r"windows\.txt:17: is cut off; expected a"),
        (lambda t: t.replace("0.9", "near"), r"windows\.txt:7: 'near'; expected a number"),
        (lambda t: t.replace("5 1 10", "0 1 10"), "a foreground window of 'b.png' has class 0"),
        (lambda t: t.replace("\n3\n60", "\n1\n60"), "'a.png' has 1 channels"),
        (lambda t: "", "is empty"),
        (
            lambda t: t.replace("0 0.1", "1 1").replace("0 0 3", "1 1 3"),
            "no window with an overlap below",
        ),
    ],
)
def test_a_window_file_that_cannot_be_used_is_refused(
    runtime: Any, tmp_path: Path, change: Any, message: str
) -> None:
    path = window_file(tmp_path)
    path.write_text(change(path.read_text()))
    text = """layer { name: "w" type: "WindowData" top: "x" top: "y"
      window_data_param { source: "windows.txt" batch_size: 4 bg_threshold: 0.3 }
      transform_param { crop_size: 16 } }"""
    with pytest.raises(DataError, match=rf"net\.prototxt:1: .*{message}"):
        net(runtime, tmp_path, text)


def test_a_window_outside_its_image_is_named(runtime: Any, tmp_path: Path) -> None:
    path = window_file(tmp_path)
    path.write_text(
        path.read_text().replace("10 5 30 44", "10 5 300 44").replace("0.9", "0").replace("0.8", "0")
    )
    text = """layer { name: "w" type: "WindowData" top: "x" top: "y"
      window_data_param { source: "windows.txt" batch_size: 4 fg_fraction: 1 }
      transform_param { crop_size: 16 } }"""
    with pytest.raises(
        DataError, match=r"image 'b\.png', window \(10, 5, 300, 44\): is outside .* 40 x 50"
    ):
        net(runtime, tmp_path, text).forward()
