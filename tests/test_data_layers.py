"""Data layers over databases: the batch against OpenCV and NumPy, and nets that learn from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from real_files import DATA
from sample_files import image_list
from small_nets import net_of

import demitasse
from demitasse import DataError, ModelError
from demitasse_caffe.weights import read_blob

ROOT = Path(__file__).parents[1]
PHOTOS, CIFAR = DATA / "photos" / "imagenet-sample", DATA / "cifar10"

needs_data = pytest.mark.skipif(
    not (PHOTOS.is_dir() and CIFAR.is_dir()), reason=f"no photos and CIFAR-10 under {DATA}"
)


@pytest.fixture
def runtime() -> Iterator[Any]:
    with demitasse.compose() as made:
        yield made


MEAN = "mean_value: 104 mean_value: 117 mean_value: 123"


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
    made = net_of(
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
    alone = net_of(runtime, tmp_path, text % "")
    np.testing.assert_array_equal(alone.forward()["data"][:, 0], pixels)
    with pytest.raises(
        DataError, match=r"'digits'.*its labels are not beside it: no 'train-labels-idx1"
    ):
        net_of(runtime, tmp_path, text % 'top: "label"')


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
        found = net_of(runtime, tmp_path, text, phase=phase, seed=3).forward()
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
        ('type: "WindowData" window_data_param { source: "a" batch_size: 1 }', "which is not given"),
        (
            'type: "WindowData" window_data_param { source: "a" batch_size: 1 context_pad: 4 } '
            "transform_param { crop_size: 8 }",
            "leaves nothing of a crop_size of 8",
        ),
        ('type: "DummyData" dummy_data_param { }', "has 0 shape for 2 tops"),
        ('type: "DummyData" dummy_data_param { num: 1 channels: 1 height: 1 }', "has 0 width"),
        ('type: "DummyData" dummy_data_param { num: 1 shape { dim: 1 } }', "use one of the two"),
        ('type: "DummyData" dummy_data_param { shape { dim: 0 } }', "extents must be 1 or more"),
        (
            'type: "DummyData" dummy_data_param { shape { dim: 99999 dim: 99999 } }',
            "2,147,483,647 elements",
        ),
    ],
)
def test_a_layer_that_cannot_be_says_why(runtime: Any, tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ModelError, match=rf"net\.prototxt:1: layer 'd' .*{message}"):
        net_of(runtime, tmp_path, f'layer {{ name: "d" top: "x" top: "y" {text} }}')


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
        net_of(runtime, tmp_path, text)
    images = np.arange(100, dtype=np.float32).reshape(4, 1, 5, 5)
    arrays = {"data": images, "label": np.arange(4), "more": images[:, 0, 0]}
    found = net_of(runtime, tmp_path, text, data={"test": arrays}).forward()
    np.testing.assert_array_equal(found["x"], images[:2, :, 1:4, 1:4] / 2)
    np.testing.assert_array_equal(found["more"], images[:2, 0, 0])
    with pytest.raises(DataError, match="unknown field of the samples 'label'"):
        net_of(runtime, tmp_path, text, data={"test": {"data": images}})
