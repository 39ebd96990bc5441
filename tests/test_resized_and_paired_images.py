"""Images that are resized at random before they are cut, as Intel's and NVIDIA's forks have them, and
images with classes of their pixels, as SegNet's has: the batch that arrives in a net, against OpenCV."""

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
from demitasse import DataError, ModelError
from demitasse_datasets import convert


@pytest.fixture
def runtime() -> Iterator[Any]:
    with demitasse.compose() as made:
        yield made


RESIZED = "random_resize_param { min_size: 24 max_size: 24 resize_param { interp_mode: CUBIC } }"


@pytest.mark.parametrize("converted", [False, True])
def test_images_are_resized_at_random_before_they_are_cut(
    runtime: Any, tmp_path: Path, converted: bool
) -> None:
    """As Intel's fork tests its nets for ImageNet: the shorter side of 24 pixels, the middle of 20."""
    source = image_list(tmp_path)
    if converted:
        convert.convert_samples(runtime, source, tmp_path / "db", encoded="png")
    data = 'image_data_param { source: "list.txt" batch_size: 6 }'
    layer = 'type: "ImageData" ' + data
    if converted:
        layer = 'type: "Data" data_param { source: "db" batch_size: 6 backend: LMDB }'
    text = f"""layer {{ name: "d" top: "x" top: "y" {layer}
      transform_param {{ crop_size: 20 {RESIZED} scale: 0.5 }} }}"""
    found = net_of(runtime, tmp_path, text).forward()
    for n in range(6):
        height, width = 24 + n, 30 - n
        size = (int(width / height * 24), 24) if height < width else (24, int(height / width * 24))
        image = cv2.resize(photo(height, width, seed=n), size, interpolation=cv2.INTER_CUBIC)
        top, left = (image.shape[0] - 20) // 2, (image.shape[1] - 20) // 2
        wanted = image[top : top + 20, left : left + 20].transpose(2, 0, 1) * 0.5
        np.testing.assert_allclose(found["x"][n], wanted)


def test_images_are_stretched_as_nvidias_fork_does(runtime: Any, tmp_path: Path) -> None:
    """The shorter side of 22 pixels, made half as wide again, a crop from the middle."""
    image_list(tmp_path)
    text = """layer { name: "d" type: "ImageData" top: "x" top: "y"
      image_data_param { source: "list.txt" batch_size: 6 } transform_param { crop_size: 20
        img_rand_resize_lower: 22 img_rand_resize_upper: 22 allow_upscale: true
        horizontal_stretch_lower: 1.5 horizontal_stretch_upper: 1.5
        interpolation_algo_down: INTER_AREA interpolation_algo_up: INTER_LINEAR } }"""
    found = net_of(runtime, tmp_path, text).forward()
    for n in range(6):
        height, width = 24 + n, 30 - n
        scale = 22 / min(height, width)
        rows, columns = int(height * scale + 0.5), int(width * scale * 1.5 + 0.5)
        way = cv2.INTER_AREA if columns <= width else cv2.INTER_LINEAR
        image = cv2.resize(photo(height, width, seed=n), (columns, rows), interpolation=way)
        top, left = (rows - 20) // 2, (columns - 20) // 2
        wanted = image[top : top + 20, left : left + 20].transpose(2, 0, 1)
        np.testing.assert_allclose(found["x"][n], wanted)


@pytest.mark.parametrize("mode", ["WARP", "FIT_SMALL_SIZE", "FIT_LARGE_SIZE_AND_PAD"])
@pytest.mark.parametrize("crop", [0, 15])
def test_images_are_resized_to_one_size_as_ssds_fork_does(
    runtime: Any, tmp_path: Path, mode: str, crop: int
) -> None:
    """16 rows and 20 columns, or so much that these fit into it, or that it fits into these."""
    image_list(tmp_path)
    text = f"""layer {{ name: "d" type: "ImageData" top: "x" top: "y"
      image_data_param {{ source: "list.txt" batch_size: 6 }} transform_param {{ crop_size: {crop}
        resize_param {{ resize_mode: {mode} height: 16 width: 20 interp_mode: AREA pad_value: 7
          prob: 1 center_object: false max_angle: 0 }} }} }}"""
    if mode == "FIT_SMALL_SIZE" and not crop:
        with pytest.raises(ModelError, match="leaves images of several sizes; it needs a crop_size"):
            net_of(runtime, tmp_path, text)
        return
    found = net_of(runtime, tmp_path, text).forward()["x"]
    for n in range(6):
        height, width = 24 + n, 30 - n
        factors = 16 / height, 20 / width
        factor = max(factors) if mode == "FIT_SMALL_SIZE" else min(factors)
        rows, columns = int(height * factor + 1e-9), int(width * factor + 1e-9)
        if mode == "WARP":
            rows, columns = 16, 20
        image = cv2.resize(photo(height, width, seed=n), (columns, rows), interpolation=cv2.INTER_AREA)
        if mode == "FIT_LARGE_SIZE_AND_PAD":
            whole = np.full((16, 20, 3), 7, np.uint8)
            top, left = (16 - rows) // 2, (20 - columns) // 2
            whole[top : top + rows, left : left + columns] = image
            image = whole
        if crop:
            top, left = (image.shape[0] - crop) // 2, (image.shape[1] - crop) // 2
            image = image[top : top + crop, left : left + crop]
        np.testing.assert_array_equal(found[n], image.transpose(2, 0, 1))


def test_parts_of_images_are_the_same_for_any_workers(runtime: Any, tmp_path: Path) -> None:
    image_list(tmp_path)
    text = """layer { name: "d" type: "ImageData" top: "x" top: "y"
      image_data_param { source: "list.txt" batch_size: SIZE }
      transform_param { crop_size: 12 random_aspect_ratio_param {
        min_area_ratio: 0.3 max_area_ratio: 0.9 aspect_ratio_change: 0.75 } } }"""
    whole = net_of(runtime, tmp_path, text.replace("SIZE", "6"), phase="train", seed=3).forward()["x"]
    one = net_of(runtime, tmp_path, text.replace("SIZE", "1"), phase="train", seed=3)
    for n in range(6):
        np.testing.assert_array_equal(one.forward()["x"][0], whole[n])
    assert len({image.tobytes() for image in whole}) == 6


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (RESIZED, "random_resize_param } leaves images of several sizes; it needs a crop_size"),
        (f"crop_size: 30 {RESIZED}", r"min_size: 24 } is below crop_size 30"),
        (
            f"crop_size: 20 {RESIZED} random_aspect_ratio_param {{ }}",
            "random_resize_param and random_aspect_ratio_param } cannot be combined",
        ),
        (
            f'crop_size: 20 {RESIZED} mean_file: "m"',
            "changes where pixels lie; give mean_value, not mean_file",
        ),
        (
            "crop_size: 20 random_resize_param { min_size: 50 max_size: 40 }",
            "min_size: 50 max_size: 40 } are not in order",
        ),
        (
            "crop_size: 20 random_aspect_ratio_param { aspect_ratio_change: 1.5 }",
            "areas must be above 0 and in order, the change above 0 and at most 1",
        ),
        (
            "crop_size: 20 random_aspect_ratio_param { max_attempt: 1001 }",
            "max_attempt: 1001 }: at most 1000",
        ),
        (
            "crop_size: 20 random_resize_param { resize_param { resize_mode: FIT_SMALL_SIZE } }",
            "only interp_mode of its resize_param has an effect",
        ),
        (
            "resize_param { height: 5 }",
            r"resize_param { height: 5 width: 0 } is not the size of an image",
        ),
        (
            "resize_param { height: 5 width: 5 } resize_param { height: 6 width: 6 }",
            "resize_param } is given 2 times; images have one size here",
        ),
        (
            f"crop_size: 20 {RESIZED} resize_param {{ height: 5 width: 5 }}",
            "resize_param and random_resize_param } cannot be combined",
        ),
        ('resize_param { height: 5 width: 5 } mean_file: "m"', "give mean_value, not mean_file"),
        ("img_rand_resize_lower: 5 img_rand_resize_upper: 6", "several sizes; it needs a crop_size"),
        (
            "crop_size: 3 img_rand_resize_lower: 5",
            "img_rand_resize_lower: 5 img_rand_resize_upper: 0 } are not in order",
        ),
        ("crop_size: 3 img_rand_resize_upper: 5", "img_rand_resize_upper: give both, or neither"),
        (
            "crop_size: 3 vertical_stretch_lower: 1.2",
            "vertical_stretch_lower: 1.2 vertical_stretch_upper: 1 } are not in order",
        ),
        (
            f"crop_size: 20 {RESIZED} img_rand_resize_lower: 30 img_rand_resize_upper: 30",
            "random_resize_param and img_rand_resize_lower and .* cannot be combined",
        ),
        (
            f"crop_size: 20 {RESIZED} crop_h: 3",
            "crop_h } belongs to SSD's fork; here only AnnotatedData layers have it",
        ),
    ],
)
def test_a_random_size_that_cannot_be_is_told(
    runtime: Any, tmp_path: Path, fields: str, message: str
) -> None:
    image_list(tmp_path)
    text = f"""layer {{ name: "d" type: "ImageData" top: "x" top: "y"
      image_data_param {{ source: "list.txt" }} transform_param {{ {fields} }} }}"""
    with pytest.raises(ModelError, match=message):
        net_of(runtime, tmp_path, text)


def test_only_images_in_files_are_resized_at_random(runtime: Any, tmp_path: Path) -> None:
    text = f"""layer {{ name: "d" type: "Data" top: "x" top: "y"
      transform_param {{ crop_size: 4 {RESIZED} }}
      data_param {{ source: "digits:train" batch_size: 2 }} }}"""
    with pytest.raises(DataError, match="digits:train: only images of databases and image lists"):
        net_of(runtime, tmp_path, text)
    layer = 'layer { name: "d" type: "MemoryData" top: "x" top: "y" memory_data_param { batch_size: 1 '
    text = f"{layer} channels: 1 height: 8 width: 8 }} transform_param {{ crop_size: 4 {RESIZED} }} }}"
    with pytest.raises(
        ModelError, match="belongs to Intel's fork; here only Data and ImageData layers have it"
    ):
        arrays = {"data": np.zeros((2, 1, 8, 8)), "label": np.zeros(2)}
        net_of(runtime, tmp_path, text, data={"test": arrays})


# DenseImageData.


def test_images_and_classes_of_their_pixels_arrive_alike(runtime: Any, tmp_path: Path) -> None:
    for n in range(3):
        cv2.imwrite(str(tmp_path / f"{n}.png"), photo(12, 16, seed=n))
        cv2.imwrite(str(tmp_path / f"c{n}.png"), photo(12, 16, seed=n)[:, :, 1] // 64)
    (tmp_path / "list.txt").write_text("".join(f"{n}.png c{n}.png\n" for n in range(3)))
    text = """layer { name: "d" type: "DenseImageData" top: "x" top: "y"
      transform_param { mean_value: 10 mean_value: 20 mean_value: 30 scale: 0.5 }
      dense_image_data_param { source: "list.txt" batch_size: 3 mirror: true
        crop_height: 8 crop_width: 10 } }"""
    found = net_of(runtime, tmp_path, text).forward()
    assert found["x"].shape == (3, 3, 8, 10) and found["y"].shape == (3, 1, 8, 10)
    pixels = found["x"] * 2 + np.array([10, 20, 30]).reshape(3, 1, 1)
    np.testing.assert_array_equal(found["y"][:, 0], np.round(pixels[:, 1]) // 64)
    with pytest.raises(ModelError, match="apply to the image only; write dense_image_data_param"):
        net_of(runtime, tmp_path, text.replace("scale: 0.5", "mirror: true"))
