"""ImageData layers: the images of a list as OpenCV reads and resizes them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from sample_files import image_list, photo
from small_nets import net_of

import demitasse
from demitasse import DataError


@pytest.fixture
def runtime() -> Iterator[Any]:
    with demitasse.compose() as made:
        yield made


@pytest.mark.parametrize("color", [True, False])
def test_images_of_a_list_are_resized_as_opencv_does(runtime: Any, tmp_path: Path, color: bool) -> None:
    image_list(tmp_path)
    found = net_of(
        runtime,
        tmp_path,
        f"""layer {{ name: "d" type: "ImageData" top: "x" top: "y" image_data_param {{ source: "list.txt"
          batch_size: 6 new_height: 18 new_width: 22 is_color: {str(color).lower()} }}
          transform_param {{ mean_value: 100 scale: 0.25 }} }}""",
    ).forward()
    assert found["y"].tolist() == [10, 11, 12, 13, 14, 15]
    for n in range(6):
        flag = cv2.IMREAD_COLOR if color else cv2.IMREAD_GRAYSCALE
        image = cv2.imread(str(tmp_path / f"{n}.png"), flag)
        image = cv2.resize(image, (22, 18), interpolation=cv2.INTER_LINEAR).reshape(18, 22, -1)
        wanted = (image.astype(np.float64).transpose(2, 0, 1) - 100) * 0.25
        np.testing.assert_allclose(found["x"][n], wanted, rtol=1e-6)


def test_images_alone_need_no_labels(
    runtime: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # FlowNet's nets have an ImageData with one top for the first images of its pairs, and one for the
    # second ones, and their lists are of paths.
    cv2.imwrite(str(tmp_path / "one.ppm"), photo(8, 9, seed=1))
    (tmp_path / "list.txt").write_text("one.ppm\none.ppm\n")
    found = net_of(
        runtime,
        tmp_path,
        """layer { name: "d" type: "ImageData" top: "x"
          image_data_param { source: "list.txt" batch_size: 2 } }""",
    ).forward()
    assert [*found] == ["x"] and not caplog.messages
    np.testing.assert_array_equal(found["x"][1], photo(8, 9, seed=1).transpose(2, 0, 1))


@pytest.mark.parametrize("shape", [(3,), (3, 8, 9), (1, 3, 8, 9)])
def test_a_mean_may_be_a_numpy_file(runtime: Any, tmp_path: Path, shape: tuple[int, ...]) -> None:
    cv2.imwrite(str(tmp_path / "one.png"), photo(8, 9, seed=1))
    (tmp_path / "list.txt").write_text("one.png 1\n")
    mean = np.random.default_rng(3).uniform(90, 130, shape)
    np.save(tmp_path / "mean.npy", mean)
    found = net_of(
        runtime,
        tmp_path,
        """layer { name: "d" type: "ImageData" top: "x" transform_param { mean_file: "mean.npy" }
          image_data_param { source: "list.txt" batch_size: 1 } }""",
    ).forward()
    less = mean.reshape(3, 1, 1) if mean.ndim == 1 else mean.reshape(3, 8, 9)
    np.testing.assert_allclose(found["x"][0], photo(8, 9, seed=1).transpose(2, 0, 1) - less, rtol=1e-5)


def test_images_of_a_list_are_shuffled_each_epoch_and_some_skipped(runtime: Any, tmp_path: Path) -> None:
    image_list(tmp_path)
    text = """layer { name: "d" type: "ImageData" top: "x" top: "y" image_data_param {
      source: "list.txt" batch_size: 6 new_height: 4 new_width: 4 OPTIONS } }"""
    shuffled = net_of(runtime, tmp_path, text.replace("OPTIONS", "shuffle: true"), seed=2)
    for epoch in range(3):
        assert (shuffled.forward()["y"] - 10).tolist() == demitasse.permutation(2, epoch, 6).tolist()
    skipping = text.replace("OPTIONS", "rand_skip: 4")
    skipped = {
        int(net_of(runtime, tmp_path, skipping, seed=seed).forward()["y"][0]) for seed in range(20)
    }
    assert skipped == {10, 11, 12, 13}


def test_images_of_different_sizes_are_refused_by_name_unless_cropped(
    runtime: Any, tmp_path: Path
) -> None:
    image_list(tmp_path)
    text = """layer { name: "d" type: "ImageData" top: "x" top: "y"
      image_data_param { source: "list.txt" batch_size: 6 } TRANSFORM }"""
    with pytest.raises(DataError, match=r"list\.txt:2: 1\.png: .*\(3, 25, 29\).*\(3, 24, 30\)"):
        net_of(runtime, tmp_path, text.replace("TRANSFORM", "")).forward()
    found = net_of(
        runtime, tmp_path, text.replace("TRANSFORM", "transform_param { crop_size: 20 }")
    ).forward()
    for n in range(6):
        top, left = (4 + n) // 2, (10 - n) // 2
        wanted = photo(24 + n, 30 - n, seed=n)[top : top + 20, left : left + 20]
        np.testing.assert_array_equal(found["x"][n], wanted.transpose(2, 0, 1))
