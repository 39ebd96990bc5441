"""Layers of places as TensorFlow has them, by Synopsys's fork: beside OpenCV's resizing, NumPy's moves
of axes, and the examples of TensorFlow's documentation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_nets import net_below

import demitasse
from demitasse import ModelError

PLUGINS = ["caffe", "onnx", "datasets", "training", "snapshots", "reference"]
IMAGES = np.random.default_rng(2).normal(size=(2, 3, 5, 7)).astype(np.float32)


@pytest.fixture(scope="module")
def runtime() -> Any:
    with demitasse.compose(plugins=PLUGINS) as made:
        yield made


def made(runtime: Any, folder: Path, kind: str, about: str, x: np.ndarray) -> np.ndarray:
    """What a layer makes of an array."""
    text = f'layer {{ name: "it" type: "{kind}" bottom: "x" top: "y" {about} }}'
    with net_below(runtime, folder, text, x=x.shape) as net:
        result: np.ndarray = net.forward(x=x)["y"].copy()
    return result


def both(runtime: Any, folder: Path, kind: str, field: str, about: str, x: np.ndarray) -> np.ndarray:
    """The result of images with channels second; with channels last it must be the same."""
    second = made(runtime, folder, kind, f"{field} {{ {about} data_format: 'NCHW' }}", x)
    last = made(runtime, folder, kind, f"{field} {{ {about} }}", x.transpose(0, 2, 3, 1))
    np.testing.assert_array_equal(second, last.transpose(0, 3, 1, 2))
    return second


def by_opencv(x: np.ndarray, rows: int, columns: int, way: str) -> np.ndarray:
    cv2 = pytest.importorskip("cv2")
    planes = x.reshape(-1, *x.shape[2:])
    resized = [cv2.resize(p, (columns, rows), interpolation=getattr(cv2, way)) for p in planes]
    return np.stack(resized).reshape(*x.shape[:2], rows, columns)


@pytest.mark.parametrize("size", [(10, 14), (4, 3), (13, 9), (1, 1), (5, 7)])
def test_resizing_by_middles_is_opencvs(runtime: Any, tmp_path: Path, size: tuple[int, int]) -> None:
    rows, columns = size
    about = f"output_height: {rows} output_width: {columns} half_pixel_centers: true"
    straight = both(runtime, tmp_path, "ResizeBilinear", "resize_bilinear_param", about, IMAGES)
    np.testing.assert_allclose(straight, by_opencv(IMAGES, *size, "INTER_LINEAR"), rtol=1e-5, atol=2e-6)
    field = "resize_nearest_neighbor_param"
    nearest = both(runtime, tmp_path, "ResizeNearestNeighbor", field, about, IMAGES)
    np.testing.assert_array_equal(nearest, by_opencv(IMAGES, *size, "INTER_NEAREST_EXACT"))


@pytest.mark.parametrize(("rows", "columns"), [(10, 14), (4, 3), (13, 9), (1, 1)])
def test_corners_stay_corners_where_they_are_aligned(
    runtime: Any, tmp_path: Path, rows: int, columns: int
) -> None:
    about = f"output_height: {rows} output_width: {columns} align_corners: true"
    straight = both(runtime, tmp_path, "ResizeBilinear", "resize_bilinear_param", about, IMAGES)
    at = [np.linspace(0, n - 1, m) if m > 1 else np.zeros(1) for n, m in ((5, rows), (7, columns))]
    tall = np.apply_along_axis(lambda line: np.interp(at[0], range(5), line), 2, IMAGES)
    wanted = np.apply_along_axis(lambda line: np.interp(at[1], range(7), line), 3, tall)
    np.testing.assert_allclose(straight, wanted, rtol=1e-5, atol=2e-6)
    field = "resize_nearest_neighbor_param"
    nearest = both(runtime, tmp_path, "ResizeNearestNeighbor", field, about, IMAGES)
    places = [np.floor(each + 0.5).astype(int) for each in at]
    np.testing.assert_array_equal(nearest, IMAGES[:, :, places[0]][:, :, :, places[1]])


def test_without_either_places_begin_at_the_first_corner(runtime: Any, tmp_path: Path) -> None:
    about = "scale_height: 2 output_width: 3"
    straight = both(runtime, tmp_path, "ResizeBilinear", "resize_bilinear_param", about, IMAGES)
    at = np.arange(10) / 2, np.arange(3) * 7 / 3
    tall = np.apply_along_axis(lambda line: np.interp(at[0], range(5), line), 2, IMAGES)
    wanted = np.apply_along_axis(lambda line: np.interp(at[1], range(7), line), 3, tall)
    np.testing.assert_allclose(straight, wanted, rtol=1e-5, atol=2e-6)
    field = "resize_nearest_neighbor_param"
    nearest = both(runtime, tmp_path, "ResizeNearestNeighbor", field, about, IMAGES)
    np.testing.assert_array_equal(nearest, IMAGES[:, :, np.arange(10) // 2][:, :, :, [0, 2, 4]])


def test_ways_that_onnx_has_are_there(runtime: Any, tmp_path: Path) -> None:
    one = "output_height: 1 output_width: 14"
    about = f"{one} pytorch_half_pixel: true"
    straight = both(runtime, tmp_path, "ResizeBilinear", "resize_bilinear_param", about, IMAGES)
    wanted = by_opencv(IMAGES[:, :, :1], 1, 14, "INTER_LINEAR")  # a single row is the first
    np.testing.assert_allclose(straight, wanted, rtol=1e-5, atol=2e-6)
    field = "resize_nearest_neighbor_param"
    nearest = both(
        runtime, tmp_path, "ResizeNearestNeighbor", field, f"{one} half_pixel_onnx: true", IMAGES
    )
    columns = np.clip(np.floor((np.arange(14) + 0.5) / 2 - 0.5), 0, 6).astype(int)
    np.testing.assert_array_equal(nearest, IMAGES[:, :, 2:3][:, :, :, columns])


def test_yolos_maps_are_repeated(runtime: Any, tmp_path: Path) -> None:
    found = made(runtime, tmp_path, "UpsampleDarknet", "upsample_darknet_param { stride: 3 }", IMAGES)
    np.testing.assert_array_equal(found, IMAGES.repeat(3, 2).repeat(3, 3))


@pytest.mark.parametrize("value", [0.0, -1.5])
@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (2, 4), (2, 3, 2, 2, 2)])
def test_padding_is_numpys(runtime: Any, tmp_path: Path, value: float, shape: Sequence[int]) -> None:
    x = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    sides = [(0, 0), *((axis % 3, (axis + 1) % 2) for axis in range(1, len(shape)))]
    text = ", ".join(str(each) for pair in sides for each in pair)
    about = f"pad_param {{ paddings: [{text}] constant_values: {value} }}"
    found = made(runtime, tmp_path, "Pad", about, x)
    np.testing.assert_array_equal(found, np.pad(x, sides, constant_values=value))


def test_channels_become_places_as_tensorflow_documents_it(runtime: Any, tmp_path: Path) -> None:
    # tf.nn.depth_to_space: places of 4 channels 1, 2, 3, 4 and so on, in blocks of 2.
    x = np.array([[[[1, 2, 3, 4], [5, 6, 7, 8]], [[9, 10, 11, 12], [13, 14, 15, 16]]]], np.float32)
    wanted = [[1, 2, 5, 6], [3, 4, 7, 8], [9, 10, 13, 14], [11, 12, 15, 16]]
    found = both(
        *(runtime, tmp_path, "DepthToSpace", "depth_to_space_param", "block_size: 2"),
        x.transpose(0, 3, 1, 2),
    )
    assert found[0, 0].tolist() == wanted
    back = both(runtime, tmp_path, "SpaceToDepth", "space_to_depth_param", "block_size: 2", found)
    np.testing.assert_array_equal(back, x.transpose(0, 3, 1, 2))


def test_the_order_of_channels_and_places_is_as_asked(runtime: Any, tmp_path: Path) -> None:
    x = np.random.default_rng(4).normal(size=(2, 12, 3, 5)).astype(np.float32)
    for order in ("DCR", "CRD"):
        about = f"depth_to_space_param {{ block_size: 2 data_format: '{order}' }}"
        found = made(runtime, tmp_path, "DepthToSpace", about, x)
        assert found.shape == (2, 3, 6, 10)
        for down in range(2):
            for along in range(2):
                channels = np.arange(3) + 3 * (2 * down + along)
                if order == "CRD":
                    channels = 4 * np.arange(3) + 2 * down + along
                np.testing.assert_array_equal(found[:, :, down::2, along::2], x[:, channels])


def test_places_become_samples_as_tensorflow_documents_it(runtime: Any, tmp_path: Path) -> None:
    # tf.space_to_batch_nd, its examples (3) and (4); back by tf.batch_to_space_nd.
    x = np.arange(1, 17, dtype=np.float32).reshape(1, 4, 4, 1)
    block = "block_shape: [2, 2]"
    taken = made(
        *(runtime, tmp_path, "SpaceToBatchND"),
        f"space_to_batch_nd_param {{ {block} paddings: [0, 0, 0, 0] }}",
        x,
    )
    assert taken[..., 0].tolist() == [
        *([[1, 3], [9, 11]], [[2, 4], [10, 12]], [[5, 7], [13, 15]], [[6, 8], [14, 16]])
    ]
    back = made(
        *(runtime, tmp_path, "BatchToSpaceND"),
        f"batch_to_space_nd_param {{ {block} crops: [0, 0, 0, 0] }}",
        taken,
    )
    np.testing.assert_array_equal(back, x)
    two = x.reshape(2, 2, 4, 1)
    padded = made(
        *(runtime, tmp_path, "SpaceToBatchND"),
        f"space_to_batch_nd_param {{ {block} paddings: [0, 0, 2, 0] }}",
        two,
    )
    assert padded[..., 0].tolist() == [
        *([[0, 1, 3]], [[0, 9, 11]], [[0, 2, 4]], [[0, 10, 12]]),
        *([[0, 5, 7]], [[0, 13, 15]], [[0, 6, 8]], [[0, 14, 16]]),
    ]
    cropped = made(
        *(runtime, tmp_path, "BatchToSpaceND"),
        f"batch_to_space_nd_param {{ {block} crops: [0, 0, 2, 0] }}",
        padded,
    )
    np.testing.assert_array_equal(cropped, two)


@pytest.mark.parametrize(
    ("kind", "about", "told"),
    [
        ("ResizeBilinear", "resize_bilinear_param { data_format: 'NCWH' }", "did you mean 'NCHW'"),
        (
            "ResizeBilinear",
            "resize_bilinear_param { scale_width: 0 }",
            "scale_width 0.0 must be above 0",
        ),
        ("ResizeBilinear", "resize_bilinear_param { output_width: 0 }", "would make an image of 3 x 0"),
        (
            "ResizeNearestNeighbor",
            "resize_nearest_neighbor_param { align_corners: true half_pixel_centers: true }",
            "align_corners and half_pixel_centers cannot be combined",
        ),
        ("UpsampleDarknet", "upsample_darknet_param { stride: 0 }", "a stride of 1 or more"),
        ("UpsampleDarknet", "upsample_darknet_param { stride: 100000 }", "top 'y'"),
        ("Pad", "pad_param { paddings: [1, 2] }", "2 paddings; two are needed for each of the axes"),
        (
            "Pad",
            "pad_param { paddings: [1, 0, 0, 0, 0, 0, 0, 0] constant_values: 1 }",
            "padded only with 0",
        ),
        ("DepthToSpace", "depth_to_space_param { block_size: 3 }", "7 channels do not make 3 x 3"),
        ("DepthToSpace", "depth_to_space_param { block_size: 0 }", "a block_size of 1 or more"),
        (
            "SpaceToDepth",
            "space_to_depth_param { block_size: 2 }",
            "3 x 5 places do not divide into blocks",
        ),
        ("SpaceToBatchND", "space_to_batch_nd_param { }", "block_shape () is not 1 or more"),
        (
            "SpaceToBatchND",
            "space_to_batch_nd_param { block_shape: 2 paddings: [0, 0] }",
            "axis 1 has 3 padded places, not a multiple of 2",
        ),
        (
            "BatchToSpaceND",
            "batch_to_space_nd_param { block_shape: 3 crops: [0, 0] }",
            "2 samples are not a multiple of blocks of (3,)",
        ),
        (
            "BatchToSpaceND",
            "batch_to_space_nd_param { block_shape: 2 crops: [3, 3] }",
            "leave nothing of (6,)",
        ),
    ],
)
def test_what_cannot_be_is_told_with_the_layer(
    runtime: Any, tmp_path: Path, kind: str, about: str, told: str
) -> None:
    with pytest.raises(ModelError, match=rf"net\.prototxt:\d+: layer 'it' \({kind}\)") as caught:
        made(runtime, tmp_path, kind, about, IMAGES)
    assert told in str(caught.value)
