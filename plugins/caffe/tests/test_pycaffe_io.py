"""Images to blobs, arrays to messages, and back; pictures of nets."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import demitasse_caffe.pycaffe as caffe
from demitasse import DataError, ModelError, ShapeError
from demitasse_caffe.pycaffe import layers as L  # noqa: N812 (its name in every script)
from demitasse_caffe.pycaffe.proto import caffe_pb2

RANDOM = np.random.default_rng(0)


# Images.


def test_images_are_rgb_between_0_and_1(tmp_path: Path) -> None:
    cv2 = pytest.importorskip("cv2")
    pixels = RANDOM.integers(0, 256, (5, 7, 3), np.uint8)
    cv2.imwrite(str(tmp_path / "rgb.png"), pixels[:, :, ::-1])
    image = caffe.io.load_image(str(tmp_path / "rgb.png"))
    assert image.dtype == np.float32
    assert np.allclose(image, pixels / 255, atol=1e-7)
    grey = caffe.io.load_image(tmp_path / "rgb.png", color=False)
    assert np.allclose(grey[:, :, 0], (pixels / 255) @ [0.2125, 0.7154, 0.0721], atol=1e-6)
    deep = RANDOM.integers(0, 65536, (4, 3), np.uint16)
    cv2.imwrite(str(tmp_path / "deep.png"), deep)
    assert np.allclose(caffe.io.load_image(tmp_path / "deep.png", False)[:, :, 0], deep / 65535)
    assert caffe.io.load_image(tmp_path / "deep.png").shape == (4, 3, 3)
    clear = RANDOM.integers(0, 256, (4, 3, 4), np.uint8)
    cv2.imwrite(str(tmp_path / "clear.png"), clear)
    assert np.allclose(caffe.io.load_image(tmp_path / "clear.png"), clear[:, :, 2::-1] / 255)


def test_photos_are_those_that_another_reader_sees(shared: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    path = shared / "photos" / "caffe" / "cat.jpg"
    mine = caffe.io.load_image(path)
    theirs = np.asarray(image.open(path).convert("RGB")) / 255
    assert mine.shape == (360, 480, 3)
    assert np.abs(mine - theirs).max() < 4 / 255
    assert np.abs(mine - theirs).mean() < 0.5 / 255


def test_an_open_image_is_read_as_its_file_is(tmp_path: Path) -> None:
    """Scripts that download images read them in this way."""
    cv2 = pytest.importorskip("cv2")
    pixels = RANDOM.integers(0, 256, (5, 7, 3), np.uint8)
    content = cv2.imencode(".png", pixels[:, :, ::-1])[1].tobytes()
    assert np.allclose(caffe.io.load_image(io.BytesIO(content)), pixels / 255, atol=1e-7)
    (tmp_path / "rgb.png").write_bytes(content)
    with (tmp_path / "rgb.png").open("rb") as file:
        assert np.allclose(caffe.io.load_image(file), pixels / 255, atol=1e-7)
    with pytest.raises(DataError, match=r"BytesIO.*: is damaged, or not an image"):
        caffe.io.load_image(io.BytesIO(b"not really"))


def test_what_is_no_image_is_said(tmp_path: Path) -> None:
    (tmp_path / "cat.jpg").write_bytes(b"\xff\xd8 not really")
    with pytest.raises(DataError, match=r"cat.jpg: is damaged, or not an image"):
        caffe.io.load_image(tmp_path / "cat.jpg")
    (tmp_path / "none.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"none.png: is empty"):
        caffe.io.load_image(tmp_path / "none.png")
    with pytest.raises(DataError, match=r"no such image: .*cats.jpg; did you mean"):
        caffe.io.load_image(tmp_path / "cats.jpg")


@pytest.mark.parametrize("channels", [1, 3, 5])
@pytest.mark.parametrize("size", [(9, 4), (3, 12), (6, 8), (1, 1)])
@pytest.mark.parametrize("order", [0, 1, 3])
def test_resizing_agrees_with_splines(size: tuple[int, int], channels: int, order: int) -> None:
    """Pixel areas are aligned for 1 or 3 channels, the centres of the corner pixels for others, as in
    Caffe."""
    ndimage = pytest.importorskip("scipy.ndimage")
    image = RANDOM.normal(size=(6, 8, channels)).astype(np.float32)
    made = caffe.io.resize_image(image, size, order)
    assert (made.shape, made.dtype) == ((*size, channels), np.float32)
    sizes = list(zip(size, (6, 8), strict=True))
    border = "mirror" if channels == 5 else "nearest"  # only a spline's coefficients depend on it
    if channels == 5:
        places = [np.linspace(0, old - 1, n) for n, old in sizes]
    else:
        places = [(np.arange(n) + 0.5) * (old / n) - 0.5 for n, old in sizes]
    if order == 0:  # a position between two pixels belongs to the later one
        places = [np.floor(place + 0.5) for place in places]
    grid = np.meshgrid(*places, indexing="ij")
    for channel in range(channels):
        expected = ndimage.map_coordinates(
            image[:, :, channel].astype(np.float64), grid, order=order, mode=border
        )
        assert np.allclose(made[:, :, channel], expected, atol=1e-5)


def test_an_image_cannot_become_nothing() -> None:
    with pytest.raises(ShapeError, match=r"\(2, 2, 1\) cannot become 0 x 3"):
        caffe.io.resize_image(np.zeros((2, 2, 1)), (0, 3))


@pytest.mark.parametrize(
    ("shape", "wanted", "kept"),
    [
        ((5, 7, 3), (9, 4), (9, 4, 3)),
        ((5, 7, 3), (3, 6, 3), (3, 6, 3)),
        ((5, 7, 3), (3, 6, 6), (3, 6, 6)),
        ((5, 7), (10, 2), (10, 2)),
        ((5, 7), (4, 4, 1), (4, 4, 1)),
    ],
)
def test_arrays_of_any_shape_are_resized(
    shape: tuple[int, ...], wanted: tuple[int, ...], kept: tuple[int, ...]
) -> None:
    """scikit-image says what this is: the splines of SciPy between the areas of pixels."""
    ndimage = pytest.importorskip("scipy.ndimage")
    image = np.random.default_rng(0).random(shape)
    found = caffe.io.resize(image, wanted)
    deep = image.reshape(shape + (1,) * (len(kept) - len(shape)))
    factors = [new / old for new, old in zip(kept, deep.shape, strict=True)]
    expected = ndimage.zoom(deep, factors, order=1, mode="nearest", grid_mode=True)
    assert found.shape == kept
    assert found.dtype == np.float64
    assert np.allclose(found, expected)


def test_whole_numbers_are_resized_to_floats() -> None:
    image = np.array([[0, 255], [51, 102]], np.uint8)
    assert np.allclose(caffe.io.resize(image, (2, 2)), [[0, 1], [0.2, 0.4]])
    assert np.allclose(caffe.io.resize(image, (1, 4), preserve_range=True), [25.5, 63.75, 140.25, 178.5])
    assert np.allclose(caffe.io.resize(image, (4, 1), order=0, preserve_range=True)[::3, 0], [255, 102])
    assert caffe.io.resize(image.astype(np.float32), (3, 3)).dtype == np.float32
    with pytest.raises(ValueError, match=r"shape \(2, 2\) cannot become \(0, 2\)"):
        caffe.io.resize(image, (0, 2))
    with pytest.raises(ShapeError, match="by order 3"):
        caffe.io.resize(image, (2, 2), order=3)


def test_ten_crops_are_the_corners_the_centre_and_their_mirror_images() -> None:
    image = RANDOM.normal(size=(7, 9, 2)).astype(np.float32)
    crops = caffe.io.oversample([image, image + 1], (4, 3))
    assert crops.shape == (20, 4, 3, 2)
    places = [(0, 0), (0, 6), (3, 0), (3, 6), (1, 3)]
    for number, (y, x) in enumerate(places):
        part = image[y : y + 4, x : x + 3]
        assert np.array_equal(crops[number], part)
        assert np.array_equal(crops[5 + number], part[:, ::-1])
        assert np.array_equal(crops[10 + number], part + 1)
    with pytest.raises(ShapeError, match=r"a crop of \(8, 3\) does not fit in an image of \(7, 9\)"):
        caffe.io.oversample([image], (8, 3))


def test_a_transformer_does_and_undoes() -> None:
    transformer = caffe.io.Transformer({"data": (10, 3, 4, 5)})
    mean = RANDOM.normal(size=3)
    transformer.set_transpose("data", (2, 0, 1))
    transformer.set_channel_swap("data", (2, 1, 0))
    transformer.set_raw_scale("data", 255)
    transformer.set_mean("data", mean)
    transformer.set_input_scale("data", 0.1)
    image = RANDOM.uniform(size=(4, 5, 3))
    made = transformer.preprocess("data", image)
    expected = (image.transpose(2, 0, 1)[::-1] * 255 - mean[:, None, None]) * 0.1
    assert (made.dtype, made.shape) == (np.float32, (3, 4, 5))
    assert np.allclose(made, expected, atol=1e-5)
    assert np.allclose(transformer.deprocess("data", made[None]), image, atol=1e-6)
    larger = RANDOM.uniform(size=(8, 10, 3)).astype(np.float32)
    assert np.allclose(
        transformer.preprocess("data", larger),
        transformer.preprocess("data", caffe.io.resize_image(larger, (4, 5))),
    )


def test_a_mean_image_is_resized_to_the_input(shared: Path) -> None:
    transformer = caffe.io.Transformer({"data": (1, 3, 32, 32)})
    blob = caffe_pb2.BlobProto.FromString((shared / "mean" / "cifar10_mean.binaryproto").read_bytes())
    mean = caffe.io.blobproto_to_array(blob)[0]
    assert mean.shape == (3, 32, 32)
    transformer.set_mean("data", mean)
    assert np.array_equal(transformer.mean["data"], mean)
    imagenet = np.load(shared / "mean" / "ilsvrc_2012_mean.npy")
    transformer.set_mean("data", imagenet)
    assert transformer.mean["data"].shape == (3, 32, 32)
    assert transformer.mean["data"].mean() == pytest.approx(imagenet.mean(), rel=0.01)
    transformer.set_mean("data", imagenet.mean(1).mean(1))
    assert transformer.mean["data"].shape == (3, 1, 1)


def test_what_does_not_fit_a_transformer() -> None:
    transformer = caffe.io.Transformer({"data": (10, 3, 4, 5)})
    calls: list[tuple[Any, ...]] = [
        (transformer.set_transpose, (2, 0), r"\(2, 0\) is not an order of the axes"),
        (transformer.set_channel_swap, (0, 1), r"\(0, 1\) is not an order of the 3 channels"),
        (transformer.set_mean, np.zeros(4), r"a mean of shape \(4,\) does not fit"),
    ]
    for call, argument, message in calls:
        with pytest.raises(ShapeError, match=message):
            call("data", argument)
    with pytest.raises(ModelError, match=r"unknown input 'date'; did you mean 'data'"):
        transformer.preprocess("date", np.zeros((4, 5, 3)))


# Messages.


def test_arrays_become_blobs_and_back() -> None:
    array, diff = (RANDOM.normal(size=(2, 3, 4)).astype(np.float32) for _ in range(2))
    blob = caffe.io.array_to_blobproto(array, diff)
    assert np.array_equal(caffe.io.blobproto_to_array(blob), array)
    assert np.array_equal(caffe.io.blobproto_to_array(blob, return_diff=True), diff)
    old = caffe_pb2.BlobProto(num=1, channels=2, height=1, width=2, data=[1, 2, 3, 4])
    assert caffe.io.blobproto_to_array(old).shape == (1, 2, 1, 2)
    old.data.append(5)
    with pytest.raises(ShapeError, match=r"5 numbers do not make its shape \(1, 2, 1, 2\)"):
        caffe.io.blobproto_to_array(old)
    text = caffe.io.arraylist_to_blobprotovecor_str([array, diff])
    found = caffe.io.blobprotovector_str_to_arraylist(text)
    assert all(map(np.array_equal, found, [array, diff]))


@pytest.mark.parametrize(("name", "stored"), [("FLOAT16", "<f2"), ("DOUBLE", "<f8"), ("UINT", "<u4")])
def test_raw_numbers_become_arrays(name: str, stored: str) -> None:
    array = np.arange(6).reshape(2, 3)
    blob = caffe_pb2.BlobProto(raw_data=array.astype(stored).tobytes(), raw_data_type=name)
    blob.shape.dim.extend(array.shape)
    found = caffe.io.blobproto_to_array(blob)
    assert np.array_equal(found, array)
    assert found.dtype == (np.float64 if name == "DOUBLE" else np.float32)
    blob.ClearField("raw_data_type")
    with pytest.raises(ModelError, match=r"a blob: its raw_data has no element type"):
        caffe.io.blobproto_to_array(blob)
    blob.raw_data_type = blob.RawType.Value(name)
    blob.raw_data = blob.raw_data[:-1]
    with pytest.raises(ShapeError, match=r"do not make its shape \(2, 3\)"):
        caffe.io.blobproto_to_array(blob)


def test_arrays_become_data_and_back() -> None:
    pixels = RANDOM.integers(0, 256, (3, 4, 5), np.uint8)
    datum = caffe.io.array_to_datum(pixels, 7)
    assert (datum.label, datum.channels, datum.height, datum.width) == (7, 3, 4, 5)
    assert np.array_equal(caffe.io.datum_to_array(datum), pixels)
    real = RANDOM.normal(size=(1, 2, 3)).astype(np.float32)
    again = caffe_pb2.Datum.FromString(caffe.io.array_to_datum(real).SerializeToString())
    assert np.array_equal(caffe.io.datum_to_array(again), real)
    again.width = 2**30
    with pytest.raises(ShapeError, match="6 numbers do not make its shape"):
        caffe.io.datum_to_array(again)
    with pytest.raises(ShapeError, match=r"\(channels, height, width\); given \(4, 5\)"):
        caffe.io.array_to_datum(pixels[0])


# Pictures.


def test_nets_are_drawn_as_svg(tmp_path: Path) -> None:
    n = caffe.NetSpec()
    n.data = L.Input(shape={"dim": [1, 3]})
    n.score = L.InnerProduct(n.data, num_output=2)
    net = n.to_proto()
    path = tmp_path / "net.svg"
    caffe.draw.draw_net_to_file(net, str(path), "LR")
    assert path.read_text().startswith("<svg")
    assert "score" in path.read_text()
    graph = caffe.draw.get_pydot_graph(net, "TB")
    assert graph.create_svg() == caffe.draw.draw_net(net, "TB")
    graph.write_svg(path)
    assert path.read_bytes() == graph.create("svg")
    with pytest.raises(ModelError, match=r"drawn as svg, not as png; .*Inkscape"):
        caffe.draw.draw_net_to_file(net, tmp_path / "net.png")
    assert not (tmp_path / "net.png").exists()


# Windows.


def test_windows_by_selective_search_are_another_programs() -> None:
    detector = object.__new__(caffe.Detector)
    with pytest.raises(ModelError, match="make the windows yourself"):
        detector.detect_selective_search(["cat.jpg"])


def test_mirrored_flows_move_the_other_way() -> None:
    """As in LRCN's fork, whose data layers and classify_video.py call this."""
    flow = np.random.default_rng(6).random((5, 7, 3)).astype(np.float32)
    kept = flow.copy()
    mirrored = np.stack([1 - flow[:, ::-1, 0], flow[:, ::-1, 1], flow[:, ::-1, 2]], axis=-1)
    assert np.array_equal(caffe.io.flip_image(flow, 1, True), mirrored)
    assert np.array_equal(caffe.io.flip_image(flow, 1, False), flow[:, ::-1])
    assert caffe.io.flip_image(flow, is_flow=True)[0, 0, 0] == 128 - flow[0, 6, 0]
    assert np.array_equal(flow, kept)
    crops = caffe.io.oversample([flow], (4, 3), True)
    assert np.array_equal(crops[5:, :, :, 0], 1 - crops[:5, :, ::-1, 0])
    assert np.array_equal(crops[5:, :, :, 1:], crops[:5, :, ::-1, 1:])
    transformer = caffe.io.Transformer({"data": (1, 3, 5, 7)})
    transformer.set_is_flow("data", True)
    assert transformer.is_flow == {"data": True}
