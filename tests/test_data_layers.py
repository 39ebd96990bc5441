"""Layers that read and write data, in nets that run: the batch that arrives against OpenCV and NumPy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np
import pytest
from real_files import DATA

import demitasse
from demitasse import DataError, ModelError
from demitasse_caffe.weights import read_blob
from demitasse_datasets import convert

ROOT = Path(__file__).parents[1]
PHOTOS, CIFAR, HDF5 = DATA / "photos" / "imagenet-sample", DATA / "cifar10", DATA / "hdf5"

needs_data = pytest.mark.skipif(
    not (PHOTOS.is_dir() and CIFAR.is_dir() and HDF5.is_dir()),
    reason=f"no photos, CIFAR-10 and HDF5 files under {DATA}",
)


@pytest.fixture
def runtime() -> Iterator[Any]:
    with demitasse.compose() as made:
        yield made


def net(runtime: Any, folder: Path, text: str, **options: Any) -> Any:
    (folder / "net.prototxt").write_text(text)
    return runtime.net(folder / "net.prototxt", **options)


def photo(height: int, width: int, seed: int = 0) -> np.ndarray:
    rows, columns = np.mgrid[0:height, 0:width]
    parts = [np.sin(rows / (7 + c) + seed) + np.cos(columns / (5 + c)) for c in range(3)]
    return np.uint8(np.clip(60 * np.stack(parts, -1) + 128, 0, 255))


def image_list(folder: Path, count: int = 6, same: bool = False) -> Path:
    """PNG files of several sizes with the labels 10, 11, ..."""
    lines = []
    for n in range(count):
        size = (24, 30) if same else (24 + n, 30 - n)
        cv2.imwrite(str(folder / f"{n}.png"), photo(*size, seed=n))
        lines.append(f"{n}.png {10 + n}\n")
    (folder / "list.txt").write_text("".join(lines))
    return folder / "list.txt"


MEAN = "mean_value: 104 mean_value: 117 mean_value: 123"


# Conversion to LMDB, and Data.


@needs_data
def test_a_batch_of_photos_from_an_lmdb_is_what_opencv_makes_of_the_files(
    runtime: Any, tmp_path: Path
) -> None:
    files = sorted(PHOTOS.glob("*.JPEG"))[:40]
    (tmp_path / "list.txt").write_text("".join(f"{f.name} {n}\n" for n, f in enumerate(files)))
    count = runtime.program(
        "convert_samples", tmp_path / "list.txt", tmp_path / "db", root=f"{PHOTOS}/", encoded=True
    )
    assert count == 40
    made = net(
        runtime,
        tmp_path,
        f"""layer {{ name: "first" type: "Input" top: "x" input_param {{ shape {{ dim: 1 }} }} }}
        layer {{ name: "photos" type: "Data" top: "data" top: "label"
          data_param {{ source: "db" backend: LMDB batch_size: 16 shuffle: true }}
          transform_param {{ {MEAN} crop_size: 128 mirror: true scale: 0.5 force_color: true }} }}""",
        phase="train",
        seed=11,
    )
    for batch in range(3):
        found = made.forward(x=np.zeros(1))
        numbers = [
            int(demitasse.permutation(11, i // 40, 40)[i % 40])
            for i in range(16 * batch, 16 * batch + 16)
        ]
        assert found["label"].tolist() == numbers
        cuts = demitasse.crop_and_mirror(11, 1, 0, 16 * batch, 16, 2**30 - 1, 2**30 - 1)
        mirrored = demitasse.crop_and_mirror(11, 1, batch, 0, 16, 0, 0)[:, 2]
        for i, number in enumerate(numbers):
            image = cv2.imread(str(files[number]), cv2.IMREAD_COLOR)
            top = (int(cuts[i, 0]) * (image.shape[0] - 127)) >> 30
            left = (int(cuts[i, 1]) * (image.shape[1] - 127)) >> 30
            wanted = image[top : top + 128, left : left + 128].astype(np.float64)
            wanted = (wanted - (104, 117, 123)) * 0.5
            wanted = wanted[:, ::-1] if mirrored[i] else wanted
            np.testing.assert_allclose(found["data"][i], wanted.transpose(2, 0, 1), rtol=1e-6)
        assert 0 < mirrored.sum() < 16


def test_images_without_labels_do_where_no_layer_asks_for_labels(runtime: Any, tmp_path: Path) -> None:
    pixels = np.arange(4 * 6 * 5, dtype=np.uint8).reshape(4, 6, 5)
    header = bytes([0, 0, 8, 3, 0, 0, 0, 4, 0, 0, 0, 6, 0, 0, 0, 5])
    (tmp_path / "train-images-idx3-ubyte").write_bytes(header + pixels.tobytes())
    mean = runtime.program("compute_image_mean", tmp_path)
    np.testing.assert_allclose(mean, pixels.mean(axis=0, dtype=np.float64)[None], rtol=1e-6)
    text = """layer { name: "digits" type: "Data" top: "data" %s
      data_param { source: "train-images-idx3-ubyte" batch_size: 4 } }"""
    alone = net(runtime, tmp_path, text % "")
    np.testing.assert_array_equal(alone.forward()["data"][:, 0], pixels)
    with pytest.raises(
        DataError, match=r"'digits'.*its labels are not beside it: no 'train-labels-idx1"
    ):
        net(runtime, tmp_path, text % 'top: "label"')


@needs_data
def test_a_batch_of_cifar_from_an_lmdb_has_its_mean_subtracted_where_the_crop_lies(
    runtime: Any, unpacked_cifar: Callable[[str], Path], tmp_path: Path
) -> None:
    source, count = tmp_path / "test_batch.bin", 2_000
    source.write_bytes(unpacked_cifar("test_batch").read_bytes()[: count * 3073])
    assert runtime.program("convert_samples", source, tmp_path / "db") == count
    mean = runtime.program("compute_image_mean", tmp_path / "db", tmp_path / "mean.binaryproto")
    opened = runtime.open_source(demitasse.DataSpec(str(source)))
    stored = {"data": np.empty((count, 3, 32, 32), np.uint8), "label": np.empty(count, np.uint8)}
    stream = opened.stream(0, count, 1)
    stream.read(stored)
    stream.close()
    np.testing.assert_allclose(mean, stored["data"].mean(axis=0, dtype=np.float64), rtol=1e-6)
    written = read_blob(tmp_path / "mean.binaryproto")
    assert written.shape == (1, 3, 32, 32)
    np.testing.assert_array_equal(written[0], mean)
    text = """layer { name: "cifar" type: "Data" top: "data" top: "label"
      data_param { source: "db" backend: LMDB batch_size: 32 shuffle: true }
      transform_param { mean_file: "mean.binaryproto" crop_size: 28 mirror: true } }"""
    numbers = demitasse.permutation(3, 0, count)[:32]
    for phase in ("train", "test"):
        found = net(runtime, tmp_path, text, phase=phase, seed=3).forward()
        places = demitasse.crop_and_mirror(3, 0, 0, 0, 32, 4, 4)
        mirrored = places[:, 2]
        if phase == "test":
            places = np.full((32, 3), 2)
            mirrored = demitasse.crop_and_mirror(3, 0, 0, 0, 32, 0, 0)[:, 2]
        np.testing.assert_array_equal(found["label"], stored["label"][numbers])
        for i, (top, left, _) in enumerate(places):
            window = np.s_[:, top : top + 28, left : left + 28]
            wanted = stored["data"][numbers[i]][window] - mean[window].astype(np.float64)
            wanted = wanted[:, :, ::-1] if mirrored[i] else wanted
            np.testing.assert_allclose(found["data"][i], wanted, rtol=1e-5, atol=1e-4)


SOLVER = (
    'net: "net.prototxt" base_lr: 0.01 momentum: 0.9 lr_policy: "fixed" max_iter: 500 random_seed: 1'
)
LEARNER = """
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 16 kernel_size: 5 stride: 2 weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "pool" type: "Pooling" bottom: "conv" top: "pool"
  pooling_param { pool: MAX kernel_size: 3 stride: 2 } }
layer { name: "ip" type: "InnerProduct" bottom: "pool" top: "ip"
  inner_product_param { num_output: 10 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""


def losses(folder: Path, text: str, iterations: int, hw: str = "auto") -> list[float]:
    (folder / "net.prototxt").write_text(text + LEARNER)
    (folder / "solver.prototxt").write_text(SOLVER)
    with demitasse.compose(hw=hw) as runtime:
        trainer = runtime.trainer(folder / "solver.prototxt")
        return [trainer.step().loss for _ in range(iterations)]


@needs_data
def test_training_from_lmdbs_of_cifar_and_of_photos_learns(
    runtime: Any, unpacked_cifar: Callable[[str], Path], tmp_path: Path
) -> None:
    source = tmp_path / "data_batch_1.bin"
    source.write_bytes(unpacked_cifar("data_batch_1").read_bytes()[: 2_000 * 3073])
    runtime.program("convert_samples", source, tmp_path / "cifar", encoded="png")
    runtime.program("compute_image_mean", tmp_path / "cifar", tmp_path / "mean.binaryproto")
    cifar = """layer { name: "d" type: "Data" top: "data" top: "label"
      data_param { source: "cifar" backend: LMDB batch_size: 64 shuffle: true }
      transform_param { mean_file: "mean.binaryproto" crop_size: 28 mirror: true scale: 0.02 } }"""
    told = losses(tmp_path, cifar, 60)
    assert np.mean(told[-20:]) < np.mean(told[:5]) - 0.3
    files = sorted(PHOTOS.glob("*.JPEG"))[:30]
    (tmp_path / "list.txt").write_text("".join(f"{f} {n % 10}\n" for n, f in enumerate(files)))
    runtime.program(
        "convert_samples", tmp_path / "list.txt", tmp_path / "photos", height=40, width=40, shuffle=True
    )
    photos = f"""layer {{ name: "d" type: "Data" top: "data" top: "label"
      data_param {{ source: "photos" backend: LMDB batch_size: 16 shuffle: true }}
      transform_param {{ {MEAN} crop_size: 36 mirror: true scale: 0.02 }} }}"""
    told = losses(tmp_path, photos, 40)
    assert np.mean(told[-5:]) < np.mean(told[:5]) - 0.5


def test_workers_that_share_a_batch_draw_what_one_would(runtime: Any, tmp_path: Path) -> None:
    path = image_list(tmp_path)
    path.write_text(path.read_text().replace(" 1", " "))
    runtime.program("convert_samples", path, tmp_path / "db", encoded=True)
    text = """layer { name: "d" type: "Data" top: "image" top: "label"
      data_param { source: "db" backend: LMDB batch_size: 5 shuffle: true }
      transform_param { crop_size: 20 mirror: true scale: 0.01 } }
    layer { name: "g" type: "DummyData" top: "noise" dummy_data_param {
      data_filler { type: "gaussian" std: 1 } shape { dim: 5 dim: 3 dim: 20 dim: 20 } } }
    layer { name: "s" type: "Eltwise" bottom: "image" bottom: "noise" top: "data" }"""
    one = losses(tmp_path, text, 4)
    two = losses(tmp_path, text, 4, hw=str(ROOT / "hwdesc/two-workers.toml"))
    np.testing.assert_allclose(one, two, rtol=1e-5)


def test_converting_resizes_grays_encodes_and_keeps_what_it_need_not_change(
    runtime: Any, tmp_path: Path
) -> None:
    path = image_list(tmp_path)

    def batch(**options: Any) -> np.ndarray:
        runtime.program("convert_samples", path, tmp_path / "db", force=True, **options)
        source = runtime.open_source(demitasse.DataSpec(tmp_path / "db"))
        out = {"data": np.empty((6, *source.fields["data"].shape), np.uint8)}
        stream = source.stream(0, 6, 6)
        stream.read(out)
        source.close()
        return out["data"]

    images = [photo(24 + n, 30 - n, seed=n) for n in range(6)]
    sized = [cv2.resize(image, (12, 10), interpolation=cv2.INTER_LINEAR) for image in images]
    for encoded in (False, True, "png", ".bmp"):
        found = batch(height=10, width=12, encoded=encoded)
        np.testing.assert_array_equal(found, np.stack(sized).transpose(0, 3, 1, 2))
    gray = [cv2.imread(str(tmp_path / f"{n}.png"), cv2.IMREAD_GRAYSCALE) for n in range(6)]
    wanted = [cv2.resize(image, (12, 10), interpolation=cv2.INTER_LINEAR) for image in gray]
    np.testing.assert_array_equal(batch(height=10, width=12, gray=True)[:, 0], wanted)
    with pytest.raises(DataError, match="is there already"):
        runtime.program("convert_samples", path, tmp_path / "db")
    path.write_text("0.png 1\nnone.png 2\n")
    with pytest.raises(DataError, match=r"list\.txt:2: none\.png: cannot be read"):
        runtime.program("convert_samples", path, tmp_path / "other")
    assert not (tmp_path / "other").exists()
    assert not list(tmp_path.glob(".other*"))


def test_a_database_grows_as_it_must(
    runtime: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convert, "FIRST_MAP", 1 << 16)
    values = np.random.default_rng(0).integers(0, 256, (600, 1, 40, 40), np.uint8)
    source = tmp_path / "train-images-idx3-ubyte"
    source.write_bytes(b"\0\0\x08\x03" + np.array([600, 40, 40], ">u4").tobytes() + values.tobytes())
    labels = tmp_path / "train-labels-idx1-ubyte"
    labels.write_bytes(
        b"\0\0\x08\x01" + np.array([600], ">u4").tobytes() + bytes(n % 10 for n in range(600))
    )
    assert runtime.program("convert_samples", source, tmp_path / "db") == 600
    opened = runtime.open_source(demitasse.DataSpec(tmp_path / "db"))
    found = {"data": np.empty((600, 1, 40, 40), np.uint8), "label": np.empty(600, np.int32)}
    stream = opened.stream(0, 600, 600)
    stream.read(found)
    stream.close()
    np.testing.assert_array_equal(found["data"], values)
    np.testing.assert_array_equal(found["label"], np.arange(600) % 10)


def test_a_folder_of_folders_becomes_classes(runtime: Any, tmp_path: Path) -> None:
    for number, name in enumerate(("cat", "dog", "empty")):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for n in range(2 - number):
            cv2.imwrite(str(tmp_path / "pets" / name / f"{n}.png"), photo(8, 8, seed=n))
    assert runtime.program("convert_samples", tmp_path / "pets", tmp_path / "db") == 3
    found = net(
        runtime,
        tmp_path,
        'layer { name: "d" type: "Data" top: "x" top: "y" '
        'data_param { source: "db" batch_size: 3 backend: LMDB } }',
    ).forward()
    assert found["y"].tolist() == [0, 0, 1]


# ImageData.


@pytest.mark.parametrize("color", [True, False])
def test_images_of_a_list_are_resized_as_opencv_does(runtime: Any, tmp_path: Path, color: bool) -> None:
    image_list(tmp_path)
    found = net(
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
    found = net(
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
    found = net(
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
    shuffled = net(runtime, tmp_path, text.replace("OPTIONS", "shuffle: true"), seed=2)
    for epoch in range(3):
        assert (shuffled.forward()["y"] - 10).tolist() == demitasse.permutation(2, epoch, 6).tolist()
    skipped = {
        int(net(runtime, tmp_path, text.replace("OPTIONS", "rand_skip: 4"), seed=seed).forward()["y"][0])
        for seed in range(20)
    }
    assert skipped == {10, 11, 12, 13}


def test_images_of_different_sizes_are_refused_by_name_unless_cropped(
    runtime: Any, tmp_path: Path
) -> None:
    image_list(tmp_path)
    text = """layer { name: "d" type: "ImageData" top: "x" top: "y"
      image_data_param { source: "list.txt" batch_size: 6 } TRANSFORM }"""
    with pytest.raises(DataError, match=r"list\.txt:2: 1\.png: .*\(3, 25, 29\).*\(3, 24, 30\)"):
        net(runtime, tmp_path, text.replace("TRANSFORM", "")).forward()
    found = net(
        runtime, tmp_path, text.replace("TRANSFORM", "transform_param { crop_size: 20 }")
    ).forward()
    for n in range(6):
        top, left = (4 + n) // 2, (10 - n) // 2
        wanted = photo(24 + n, 30 - n, seed=n)[top : top + 20, left : left + 20]
        np.testing.assert_array_equal(found["x"][n], wanted.transpose(2, 0, 1))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('type: "ImageData" image_data_param { batch_size: 1 }', "image_data_param needs a source"),
        ('type: "ImageData" image_data_param { source: "a" new_width: 5 }', "give both, or neither"),
        ('type: "ImageData" image_data_param { source: "a" mirror: true }', "write transform_param"),
        ('type: "HDF5Data" hdf5_data_param { batch_size: 1 }', "needs a source"),
        ('type: "HDF5Data" hdf5_data_param { source: "a" }', "needs a batch_size"),
        (
            'type: "HDF5Data" hdf5_data_param { source: "a" batch_size: 1 } transform_param { }',
            "reads blobs as they are",
        ),
        ('type: "MemoryData" memory_data_param { batch_size: 1 }', r"\(1, 0, 0, 0\)"),
        ('type: "WindowData" window_data_param { source: "a" batch_size: 1 }', "it has none"),
        (
            'type: "WindowData" window_data_param { source: "a" batch_size: 1 context_pad: 4 } '
            "transform_param { crop_size: 8 }",
            "leaves nothing of a crop_size of 8",
        ),
        ('type: "DummyData" dummy_data_param { }', "has 0 shape for 2 tops"),
        ('type: "DummyData" dummy_data_param { num: 1 channels: 1 height: 1 }', "has 0 width"),
        ('type: "DummyData" dummy_data_param { num: 1 shape { dim: 1 } }', "use one kind"),
        ('type: "DummyData" dummy_data_param { shape { dim: 0 } }', "extents are 1 or more"),
        (
            'type: "DummyData" dummy_data_param { shape { dim: 99999 dim: 99999 } }',
            "2,147,483,647 elements",
        ),
    ],
)
def test_a_layer_that_cannot_be_says_why(runtime: Any, tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ModelError, match=rf"net\.prototxt:1: layer 'd' .*{message}"):
        net(runtime, tmp_path, f'layer {{ name: "d" top: "x" top: "y" {text} }}')


def test_a_net_without_sources_is_fed_with_arrays_or_says_what_it_needs(
    runtime: Any, tmp_path: Path
) -> None:
    """Tools that train write nets whose sources they fill in when they begin."""
    text = """layer { name: "data" type: "Data" top: "x" top: "y" data_param { batch_size: 2 }
                      transform_param { scale: 0.5 crop_size: 3 } }
              layer { name: "more" type: "HDF5Data" top: "more" hdf5_data_param { batch_size: 2 } }"""
    needs = (
        r"'data' \(Data\): data_param needs a source; --set layer\.data\.data_param\.source=PATH gives"
    )
    with pytest.raises(ModelError, match=needs):
        net(runtime, tmp_path, text)
    images = np.arange(100, dtype=np.float32).reshape(4, 1, 5, 5)
    arrays = {"data": images, "label": np.arange(4), "more": images[:, 0, 0]}
    found = net(runtime, tmp_path, text, data={"test": arrays}).forward()
    np.testing.assert_array_equal(found["x"], images[:2, :, 1:4, 1:4] / 2)
    np.testing.assert_array_equal(found["more"], images[:2, 0, 0])
    with pytest.raises(DataError, match="unknown field of the samples 'label'"):
        net(runtime, tmp_path, text, data={"test": {"data": images}})


# HDF5.


@needs_data
def test_real_hdf5_files_are_read_by_the_names_of_the_tops(runtime: Any, tmp_path: Path) -> None:
    names = ("sample_data.h5", "sample_data_2_gzip.h5")
    (tmp_path / "list.txt").write_text("".join(f"{HDF5 / name}\n" for name in names))
    made = net(
        runtime,
        tmp_path,
        """layer { name: "d" type: "HDF5Data" top: "label2" top: "data" top: "label"
           hdf5_data_param { source: "list.txt" batch_size: 7 } }""",
    )
    stored: dict[str, list[np.ndarray]] = {"data": [], "label": [], "label2": []}
    for name in names:
        with h5py.File(HDF5 / name) as file:
            for key, arrays in stored.items():
                arrays.append(file[key][...])
    whole = {key: np.concatenate(arrays) for key, arrays in stored.items()}
    size = len(whole["data"])
    for batch in range(5):
        numbers = np.arange(7 * batch, 7 * batch + 7) % size
        found = made.forward()
        for key, array in whole.items():
            np.testing.assert_allclose(found[key], array[numbers], rtol=1e-6)


def test_hdf5_output_writes_the_blobs_of_the_last_forward(runtime: Any, tmp_path: Path) -> None:
    path = tmp_path / "out.h5"
    made = net(
        runtime,
        tmp_path,
        f"""layer {{ name: "in" type: "Input" top: "x" top: "y"
          input_param {{ shape {{ dim: 3 dim: 2 }} shape {{ dim: 3 }} }} }}
        layer {{ name: "relu" type: "ReLU" bottom: "x" top: "r" }}
        layer {{ name: "out" type: "HDF5Output" bottom: "r" bottom: "y"
          hdf5_output_param {{ file_name: "{path}" }} }}""",
    )
    for sign in (1, -1):
        x = sign * np.arange(-2.0, 4.0).reshape(3, 2)
        made.forward(x=x, y=sign * np.arange(3))
        with h5py.File(path) as file:
            np.testing.assert_array_equal(file["data"], np.maximum(x, 0))
            np.testing.assert_array_equal(file["label"], sign * np.arange(3))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["net.prototxt", "out.h5"]
    path.write_text("notes")
    with pytest.raises(DataError, match=r"out\.h5: is there and is no HDF5 file"):
        made.forward(x=x, y=np.arange(3))
    assert path.read_text() == "notes"


# What the caller gives, and what fillers make.

MEMORY = """layer { name: "m" type: "MemoryData" top: "x" top: "y"
  memory_data_param { batch_size: 2 channels: 3 height: 4 width: 5 }
  transform_param { mean_value: 1 scale: 2 } }"""


def test_memory_data_takes_arrays_as_inputs_or_as_samples(runtime: Any, tmp_path: Path) -> None:
    x = np.arange(120).reshape(2, 3, 4, 5)
    found = net(runtime, tmp_path, MEMORY).forward(x=x, y=[1, 0])
    np.testing.assert_array_equal(found["x"], x)
    samples = {"data": np.repeat(x, 2, axis=0).astype(np.uint8), "label": np.arange(4)}
    made = net(runtime, tmp_path, MEMORY, data={"test": samples})
    for batch in range(3):
        found = made.forward()
        np.testing.assert_array_equal(found["x"][0], 2 * (x[batch % 2] - 1.0))
        assert found["y"].tolist() == [2 * batch % 4, 2 * batch % 4 + 1]
    samples["data"] = samples["data"][:, :2]
    with pytest.raises(ModelError, match=r"\(2, 4, 5\) are given, declared are \(3, 4, 5\)"):
        net(runtime, tmp_path, MEMORY, data={"test": samples})
    samples["data"] = samples["data"][:3]
    with pytest.raises(DataError, match="'data' has 3 samples, field 'label' has 4"):
        net(runtime, tmp_path, MEMORY, data={"test": samples})


DUMMY = """layer { name: "d" type: "DummyData" top: "a" top: "b" top: "c" dummy_data_param {
  data_filler { type: "constant" value: 3 } data_filler { type: "gaussian" mean: 5 std: 2 }
  data_filler { type: "uniform" min: 1 max: 2 }
  shape { dim: 4 dim: 2 } shape { dim: 50 dim: 40 } shape { dim: 4 dim: 100 } } }"""


@pytest.mark.parametrize("phase", ["train", "test"])
def test_dummy_data_is_filled_once_with_constants_and_anew_with_random_numbers(
    runtime: Any, tmp_path: Path, phase: str
) -> None:
    one, other = (net(runtime, tmp_path, DUMMY, phase=phase, seed=4) for _ in range(2))
    first, second = one.forward(), one.forward()
    assert (first["a"] == 3).all() and (second["a"] == 3).all()
    assert first["b"].mean() == pytest.approx(5, abs=0.2) and first["b"].std() == pytest.approx(
        2, abs=0.1
    )
    assert 1 <= first["c"].min() < 1.1 and 1.9 < first["c"].max() < 2
    for name in ("b", "c"):
        assert (first[name] != second[name]).all()
        assert abs(np.corrcoef(first[name].ravel(), second[name].ravel())[0, 1]) < 0.15
        np.testing.assert_array_equal(other.forward()[name] if name == "b" else first["c"], first[name])
    assert first["b"].shape == (50, 40)


def test_dummy_data_takes_the_four_numbers_of_old(runtime: Any, tmp_path: Path) -> None:
    found = net(
        runtime,
        tmp_path,
        """layer { name: "d" type: "DummyData" top: "a" top: "b" dummy_data_param {
             num: 2 channels: 3 channels: 1 height: 4 width: 5 } }""",
    ).forward()
    assert (found["a"].shape, found["b"].shape) == ((2, 3, 4, 5), (2, 1, 4, 5))
    assert not found["a"].any()


@pytest.mark.parametrize("phase", ["train", "test"])
def test_classes_that_dummy_data_fills_are_cut_off(runtime: Any, tmp_path: Path, phase: str) -> None:
    def losses(fillers: str) -> dict[str, Any]:
        text = f"""layer {{ name: "d" type: "DummyData" top: "x" top: "label" top: "target"
             dummy_data_param {{ shape {{ dim: 4 dim: 3 }} shape {{ dim: 4 }} shape {{ dim: 4 dim: 3 }}
             {fillers} }} }}
           layer {{ name: "l" type: "SoftmaxWithLoss" bottom: "x" bottom: "label" top: "loss" }}
           layer {{ name: "a" type: "Accuracy" bottom: "x" bottom: "label" top: "share" }}
           layer {{ name: "e" type: "EuclideanLoss" bottom: "x" bottom: "target" top: "distance" }}"""
        found: dict[str, Any] = net(runtime, tmp_path, text, phase=phase, seed=4).forward()
        return found

    def three(label: float) -> str:
        fills = f'data_filler {{ type: "gaussian" }} data_filler {{ value: {label} }}'
        return fills + " data_filler { value: 0.5 }"

    cut, whole = losses(three(1.75)), losses(three(1))
    assert cut["loss"] == whole["loss"] != losses(three(2))["loss"]
    alike = losses('data_filler { type: "constant" value: 0.01 }')
    assert alike["loss"] == pytest.approx(np.log(3))
    assert alike["distance"] == 0  # what is no class is left as it is
    with pytest.raises(DataError, match="layer 'l': label 3 of sample 0"):
        losses(three(3.5))
