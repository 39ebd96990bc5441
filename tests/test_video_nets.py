"""Nets of videos: C3D's layers beside NumPy, and clips from files of frames to a trained net."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_nets import WORKERS, inputs, net_below

import demitasse
from demitasse import DataError, ModelError, Runtime


@pytest.fixture(scope="module", params=["reference", "cpu"])
def runtime(request: pytest.FixtureRequest) -> Iterator[Runtime]:
    plugins = ["caffe", "datasets", "training", "snapshots", request.param, "reference"]
    with demitasse.compose(plugins=list(dict.fromkeys(plugins))) as made:
        yield made


def pooled(x: np.ndarray, how: str, kernel: Any, stride: Any, pad: Any) -> np.ndarray:
    """Windows over the last axes of x, one after the other, as Caffe's loops over them have it."""
    space = x.shape[2:]
    extents = []
    for n, k, s, p in zip(space, kernel, stride, pad, strict=True):
        count = -(-(n + 2 * p - k) // s) + 1
        if p and (count - 1) * s >= n + p:
            count -= 1
        extents.append(count)
    y = np.empty((*x.shape[:2], *extents))
    for where in itertools.product(*map(range, extents)):
        inside, size = [], 1
        for at, n, k, s, p in zip(where, space, kernel, stride, pad, strict=True):
            start = at * s - p
            stop = min(start + k, n + p)
            size *= stop - start
            inside.append(slice(max(start, 0), min(stop, n)))
        window = x[(slice(None), slice(None), *inside)].reshape(*x.shape[:2], -1)
        y[(slice(None), slice(None), *where)] = window.max(-1) if how == "MAX" else window.sum(-1) / size
    return y


@settings(max_examples=examples(25), suppress_health_check=list(HealthCheck))
@given(
    st.tuples(*[st.integers(1, 7)] * 3),
    st.tuples(*[st.integers(1, 3)] * 3),
    st.sampled_from(["MAX", "AVE"]),
    st.booleans(),
    st.integers(0, 2**31),
)
def test_pooling_of_volumes_is_what_a_loop_over_windows_gives(
    runtime: Runtime,
    tmp_path: Path,
    space: tuple[int, ...],
    kernel: tuple[int, ...],
    how: str,
    padded: bool,
    seed: int,
) -> None:
    dice = np.random.default_rng(seed)
    kernel = tuple(map(min, kernel, space))
    stride = tuple(int(dice.integers(1, k + 1)) for k in kernel)
    pad = tuple(k // 2 if padded else 0 for k in kernel)
    words = "".join(
        f" {name}: {list(values)}"
        for name, values in (("kernel_size", kernel), ("stride", stride), ("pad", pad))
    )
    shapes = "".join(
        f" {name}_shape {{ {' '.join(f'dim: {v}' for v in values)} }}"
        for name, values in (("kernel", kernel), ("stride", stride), ("pad", pad))
    )
    text = f"""
    layer {{ type: "PoolingND" bottom: "x" top: "y" pooling_nd_param {{ pool: {how}{words} }} }}
    layer {{ type: "NdPooling" bottom: "x" top: "z" pooling_param {{ pool: {how}{shapes} }} }}"""
    x = dice.normal(size=(2, 2, *space))
    found = net_below(runtime, tmp_path, text, "f64", x=x.shape).forward(x=x)
    for each in found.values():
        np.testing.assert_allclose(each, pooled(x, how, kernel, stride, pad), rtol=1e-12, atol=1e-12)


def test_a_convolution_of_videos_is_what_a_loop_over_windows_gives(
    runtime: Runtime, tmp_path: Path
) -> None:
    text = """layer { name: "c" type: "Convolution3D" bottom: "x" top: "y" convolution3d_param {
      num_output: 3 kernel_size: 3 kernel_depth: 2 stride: 2 pad: 1 temporal_pad: 1
      weight_filler { type: "gaussian" std: 1 } bias_filler { type: "gaussian" std: 1 } } }
    layer { name: "d" type: "Deconvolution3D" bottom: "y" top: "z" convolution_param {
      num_output: 2 kernel_size: 4 kernel_depth: 3 stride: 2 temporal_stride: 2 pad: 1
      weight_filler { type: "gaussian" std: 1 } bias_term: false } }"""
    x = np.random.default_rng(3).normal(size=(2, 2, 4, 7, 6))
    net = net_below(runtime, tmp_path, text, "f64", x=x.shape)
    w, b = (np.array(each) for each in net.params["c"])
    padded = np.pad(x, [(0, 0), (0, 0), *[(1, 1)] * 3])
    y = np.empty((2, 3, 5, 4, 3))
    for i, j, k in np.ndindex(y.shape[2:]):
        window = padded[:, :, i : i + 2, 2 * j : 2 * j + 3, 2 * k : 2 * k + 3]
        y[:, :, i, j, k] = np.einsum("ncdhw,ocdhw->no", window, w) + b
    blobs = net.forward(x=x)
    (v,) = (np.array(each) for each in net.params["d"])
    spread = np.zeros((2, 2, 11, 10, 8))
    for i, j, k in np.ndindex(y.shape[2:]):
        part = np.einsum("no,ocdhw->ncdhw", y[:, :, i, j, k], v)
        spread[:, :, 2 * i : 2 * i + 3, 2 * j : 2 * j + 4, 2 * k : 2 * k + 4] += part
    np.testing.assert_allclose(blobs["z"], spread[:, :, :, 1:-1, 1:-1], rtol=1e-10, atol=1e-10)


def test_windows_may_be_given_by_shapes(runtime: Runtime, tmp_path: Path) -> None:
    """A convolution as Caffe's own, which takes lists for its axes, and pooling of all of them."""
    text = """layer { name: "c" type: "KIND" bottom: "x" top: "y" convolution_param {
      num_output: 4 group: 2 WINDOWS weight_filler { type: "gaussian" std: 1 } } }
    layer { name: "p" type: "NdPooling" bottom: "y" top: "z"
      pooling_param { pool: AVE global_pooling: true kernel_shape { dim: 1 dim: 1 dim: 1 } } }"""
    lists = "kernel_size: [2, 3, 3] stride: [1, 2, 1] pad: [1, 0, 2]"
    shapes = """kernel_shape { dim: 2 dim: 3 dim: 3 } stride_shape { dim: 1 dim: 2 dim: 1 }
      pad_shape { dim: 1 dim: 0 dim: 2 }"""
    x = np.random.default_rng(3).normal(size=(2, 2, 4, 7, 6))
    made = []
    for kind, windows in (("Convolution", lists), ("NdConvolution", shapes)):
        given = text.replace("KIND", kind).replace("WINDOWS", windows)
        net = net_below(runtime, tmp_path, given, "f64", x=x.shape)
        net.params["c"][0][...] = np.random.default_rng(4).normal(size=net.params["c"][0].shape)
        made.append((net.forward(x=x)["z"], net.params["c"][0].shape, np.array(net.blobs["y"].shape)))
    (z, w, y), (nd_z, nd_w, nd_y) = made
    assert w == nd_w == (4, 1, 2, 3, 3)
    np.testing.assert_array_equal(nd_y, y)
    np.testing.assert_array_equal(nd_z, z)
    assert z.shape == (2, 4, 1, 1, 1)


@pytest.mark.parametrize("how", ["MAX", "AVE"])
@pytest.mark.parametrize("apart", ["\n", " "])
def test_a_pooling_may_repeat_its_numbers(
    runtime: Runtime, tmp_path: Path, how: str, apart: str
) -> None:
    """As forks for volumes have it; one number is of all axes."""
    windows = apart.join(
        ["kernel_size: 1", "kernel_size: 3", "kernel_size: 2", "stride: 1", "stride: 3", "stride: 2"]
    )
    text = f"""layer {{ name: "p" type: "Pooling" bottom: "x" top: "y" pooling_param {{
      pool: {how} {windows} pad: 0 }} }}"""
    x = np.random.default_rng(3).normal(size=(2, 2, 4, 8, 7))
    found = net_below(runtime, tmp_path, text, "f64", x=x.shape).forward(x=x)
    expected = pooled(x, how, (1, 3, 2), (1, 3, 2), (0, 0, 0))
    np.testing.assert_allclose(found["y"], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("kernel_size: 2 kernel_size: 2", "has 2 numbers for 3 spatial axes"),
        ("kernel_size: 2 kernel_size: 2 kernel_size: 2 pad: 1 pad: 1", "pad_shape has 2 numbers"),
        ("stride: 2 stride: 2 stride: 2", "repeat kernel_size as often"),
        (
            "kernel_size: 2 kernel_size: 2 kernel_size: 2 global_pooling: true",
            "cannot be combined with global",
        ),
        ("kernel_h: 2 kernel_h: 2", "kernel_h takes one value, but is given again"),
    ],
)
def test_repeated_numbers_that_do_not_fit(
    runtime: Runtime, tmp_path: Path, words: str, told: str
) -> None:
    text = f"""layer {{ name: "p" type: "Pooling" bottom: "x" top: "y" pooling_param {{ {words} }} }}"""
    with pytest.raises(ModelError, match=f"layer 'p'.*{told}"):
        net_below(runtime, tmp_path, text, "f64", x=(1, 2, 4, 5, 5))


@pytest.mark.parametrize(
    ("kind", "words", "told"),
    [
        ("NdConvolution", "kernel_size: 3", r"needs a kernel_shape \{ dim: ... \}"),
        (
            "NdConvolution",
            "kernel_shape { dim: 2 dim: 2 dim: 2 } pad_shape { dim: 1 }",
            "pad_shape has 1 numbers, but kernel_shape has 3",
        ),
        ("NdConvolution", "kernel_shape { dim: 2 dim: -2 dim: 2 }", "has a number below 0"),
        ("NdConvolution", "kernel_shape { dim: 2 dim: 2 }", "has 2 numbers for 3 spatial axes"),
        (
            "Convolution",
            "kernel_shape { dim: 2 dim: 2 dim: 2 }",
            "kernel_shape is for the layer types NdConvolution and NdPooling; give a kernel_size",
        ),
    ],
)
def test_shapes_of_windows_that_are_none(
    runtime: Runtime, tmp_path: Path, kind: str, words: str, told: str
) -> None:
    text = f"""layer {{ name: "c" type: "{kind}" bottom: "x" top: "y"
      convolution_param {{ num_output: 2 {words} }} }}"""
    with pytest.raises(ModelError, match=rf"layer 'c' \({kind}\): .*{told}"):
        net_below(runtime, tmp_path, text, "f64", x=(1, 2, 4, 5, 5))


NET = """
layer { name: "data" type: "VideoData" top: "data" top: "label"
  video_data_param { source: "list.txt" batch_size: 4 SOURCE }
  transform_param { crop_size: 8 mirror: true mean_value: 100 scale: 0.02 TRANSFORM } }
LAYERS
layer { name: "score" type: "InnerProduct" bottom: "last" top: "score"
  inner_product_param { num_output: 2 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "score" bottom: "label" top: "loss" }
layer { name: "accuracy" type: "Accuracy" bottom: "score" bottom: "label" top: "accuracy"
  include { phase: TEST } }
"""
C3D = """layer { name: "conv" type: "Convolution3D" bottom: "data" top: "conv" convolution3d_param {
  num_output: 6 kernel_size: 3 kernel_depth: 2 weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "pool" type: "Pooling3D" bottom: "conv" top: "last" pooling3d_param {
  pool: MAX kernel_size: 2 stride: 2 kernel_depth: 3 temporal_stride: 1 } }"""
TSN = """layer { name: "apart" type: "Reshape" bottom: "data" top: "apart"
  reshape_param { shape { dim: -1 dim: 6 dim: 8 dim: 8 } } }
layer { name: "conv" type: "Convolution" bottom: "apart" top: "conv" convolution_param {
  num_output: 6 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "fc" type: "InnerProduct" bottom: "conv" top: "fc"
  inner_product_param { num_output: 8 weight_filler { type: "xavier" } } }
layer { name: "parts" type: "Reshape" bottom: "fc" top: "parts"
  reshape_param { shape { dim: -1 dim: 1 dim: 2 dim: 8 } } }
layer { name: "mean" type: "Pooling" bottom: "parts" top: "last"
  pooling_param { pool: AVE kernel_h: 2 kernel_w: 1 } }"""


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of frames in which a bright spot moves down (0) or up (1): one frame tells nothing."""
    cv2 = pytest.importorskip("cv2", reason="OpenCV 4 is not installed (opencv-python-headless<5)")
    folder, dice, lines = tmp_path_factory.mktemp("videos"), np.random.default_rng(0), []
    for number in range(16):
        (folder / f"v{number}").mkdir()
        begin, label = int(dice.integers(0, 5)), number % 2
        for frame in range(1, 13):
            image = np.full((12, 10, 3), 60, np.uint8)
            image[(begin + frame * (1, -1)[label]) % 5 :: 5] = 220
            cv2.imwrite(str(folder / f"v{number}" / f"{frame:06d}.jpg"), image)
            cv2.imwrite(str(folder / f"v{number}" / f"image_{frame:04d}.jpg"), image)
        lines.append(f"v{number} WHERE {label}\n")
    (folder / "list.txt").write_text("".join(lines).replace("WHERE", "12"))
    (folder / "first.txt").write_text("".join(lines).replace("WHERE", "3"))
    return folder


@pytest.mark.parametrize(
    ("source", "transform", "layers", "shape"),
    [
        ("new_length: 4 use_image: true use_temporal_jitter: true", "", C3D, (4, 3, 4, 8, 8)),
        (
            "new_length: 2 num_segments: 2 modality: RGB",
            "fix_crop: true multi_scale: true scale_ratios: [1, 0.9]",
            TSN,
            (4, 12, 8, 8),
        ),
    ],
)
def test_a_net_learns_what_moves_where(
    runtime: Runtime, videos: Path, source: str, transform: str, layers: str, shape: tuple[int, ...]
) -> None:
    text = NET.replace("LAYERS", layers).replace("SOURCE", source).replace("TRANSFORM", transform)
    (videos / "net.prototxt").write_text(text)
    (videos / "solver.prototxt").write_text(
        'net: "net.prototxt" base_lr: 0.02 lr_policy: "fixed" momentum: 0.9 max_iter: 120 '
        "random_seed: 3 test_iter: 4 test_interval: 120 test_initialization: false "
        "snapshot_after_train: false"
    )
    trainer = runtime.trainer(videos / "solver.prototxt")
    assert trainer.net.blobs["data"].shape == shape
    trainer.step(120)
    assert trainer.test()["accuracy"] >= 0.9
    trainer.close()


def test_frames_arrive_as_opencv_reads_them(runtime: Runtime, videos: Path) -> None:
    import cv2

    text = """layer { name: "d" type: "VideoData" top: "data" top: "label"
      video_data_param { source: "first.txt" batch_size: 3 new_length: 2 use_image: true sampling_rate: 4
        new_height: 11 new_width: 9 }
      transform_param { crop_size: 7 mean_value: [1, 2.5, 3] scale: 0.5 } }"""
    (videos / "frames.prototxt").write_text(text)
    made = runtime.net(videos / "frames.prototxt", phase="test").forward()
    assert np.asarray(made["label"]).tolist() == [0, 1, 0]
    for number in range(3):
        for place, frame in enumerate((3, 7)):
            image = cv2.imread(str(videos / f"v{number}" / f"{frame:06d}.jpg"))
            part = cv2.resize(image, (9, 11))[2:9, 1:8].astype(np.float32)
            expected = ((part - [1, 2.5, 3]) * 0.5).transpose(2, 0, 1)
            np.testing.assert_allclose(made["data"][number, :, place], expected, rtol=1e-6)


def test_workers_read_the_clips_that_one_would(videos: Path) -> None:
    text = NET.replace("LAYERS", C3D).replace("TRANSFORM", "")
    text = text.replace("SOURCE", "new_length: 4 use_image: true use_temporal_jitter: true")
    (videos / "net.prototxt").write_text(text)
    (videos / "solver.prototxt").write_text(
        'net: "net.prototxt" base_lr: 0.05 lr_policy: "fixed" max_iter: 5 random_seed: 3'
    )
    losses = []
    for count in (1, 2):
        (videos / "workers.toml").write_text(WORKERS.format(count=count))
        plugins = ["caffe", "training", "datasets", "reference"]
        with demitasse.compose(videos / "workers.toml", plugins) as made:
            trainer = made.trainer(videos / "solver.prototxt", precision="f64")
            losses.append([trainer.step().loss for _ in range(5)])
            trainer.close()
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-10)


def test_a_video_that_is_too_short_is_told_with_its_line(runtime: Runtime, videos: Path) -> None:
    text = NET.replace("LAYERS", C3D).replace("TRANSFORM", "").replace("list.txt", "first.txt")
    for source, message in (
        ("new_length: 13 use_image: true", r"first.txt:1: v0: frame 000013.jpg: cannot be read"),
        (
            "new_length: 4 use_image: true use_temporal_jitter: true",
            r"first.txt:1: v0: it has 3 frames, but a sample spans 4",
        ),
    ):
        (videos / "short.prototxt").write_text(text.replace("SOURCE", source))
        with pytest.raises(DataError, match=message):
            runtime.net(videos / "short.prototxt", phase="train")


# What NVIDIA's and DeconvNet's forks have in Caffe's own layers.


@pytest.mark.parametrize("phase", ["train", "test"])
def test_a_normalisation_with_a_scale_is_one_with_a_scale_layer(
    runtime: Runtime, tmp_path: Path, phase: str
) -> None:
    x = np.random.default_rng(5).normal(2, 3, size=(6, 4, 5, 5))
    one = """layer { name: "n" type: "BatchNorm" bottom: "x" top: "y" batch_norm_param { scale_bias: true
      scale_filler { value: 1.5 } bias_filler { value: 0.25 } eps: 0.01 } }"""
    two = """layer { name: "n" type: "BatchNorm" bottom: "x" top: "n" batch_norm_param { eps: 0.01 } }
    layer { name: "s" type: "Scale" bottom: "n" top: "y" scale_param { bias_term: true
      filler { value: 1.5 } bias_filler { value: 0.25 } } }"""
    made = []
    for text in (one, two):
        (tmp_path / "net.prototxt").write_text(inputs(x=x.shape) + text)
        net = runtime.net(tmp_path / "net.prototxt", precision="f64", phase=phase)
        if phase == "test":
            for value, array in zip((3.0, 4.0, 2.0), net.params["n"][:3], strict=True):
                array[...] = value
        if text is one:
            assert [a.shape for a in net.params["n"]] == [(4,), (4,), (1,), (4,), (4,)]
        made.append(np.array(net.forward(x=x)["y"]))
    np.testing.assert_allclose(made[0], made[1], rtol=1e-12)
    mean, variance = (3 / 2, 4 / 2) if phase == "test" else (x.mean((0, 2, 3)), x.var((0, 2, 3)))
    mean, variance = (np.reshape(each, (-1, 1, 1)) for each in (mean, variance))
    expected = (x - mean) / np.sqrt(variance + 0.01) * 1.5 + 0.25
    np.testing.assert_allclose(made[0], expected, rtol=1e-10)


def test_a_scale_that_is_filled_is_there_though_not_asked_for(runtime: Runtime, tmp_path: Path) -> None:
    text = """layer { name: "n" type: "BatchNorm" bottom: "x" top: "y"
      batch_norm_param { scale_filler { value: 2 } use_global_stats: true eps: 0 } }"""
    net = net_below(runtime, tmp_path, text, "f64", x=(1, 1, 2, 2))
    for array, value in zip(net.params["n"], (1.0, 4.0, 1.0), strict=False):
        array[...] = value
    x = np.arange(4.0).reshape(1, 1, 2, 2)
    np.testing.assert_allclose(net.forward(x=x)["y"], (x - 1) / 2 * 2, rtol=1e-12)


def test_an_exponential_unit_may_have_a_factor(runtime: Runtime, tmp_path: Path) -> None:
    x = np.linspace(-3, 3, 13).reshape(1, 13)
    text = 'layer { type: "ELU" bottom: "x" top: "y" elu_param { alpha: 1.6733 lambda: 1.0507 } }'
    found = net_below(runtime, tmp_path, text, "f64", x=x.shape).forward(x=x)["y"]
    a, factor = float(np.float32(1.6733)), float(np.float32(1.0507))
    expected = factor * np.where(x > 0, x, a * np.expm1(x))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_maxima_go_back_where_they_were(runtime: Runtime, tmp_path: Path) -> None:
    text = """layer { type: "Pooling" bottom: "x" top: "p" top: "at"
      pooling_param { kernel_size: 2 stride: 2 } }
    layer { type: "Unpooling" bottom: "p" bottom: "at" top: "y"
      unpooling_param { unpool: MAX kernel_size: 2 stride: 2 unpool_size: 6 } }"""
    x = np.random.default_rng(1).random((2, 3, 6, 6))
    y = net_below(runtime, tmp_path, text, "f64", x=x.shape).forward(x=x)["y"]
    expected = np.zeros_like(x)
    for n, c, i, j in np.ndindex(2, 3, 3, 3):
        window = x[n, c, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2]
        down, across = np.unravel_index(window.argmax(), (2, 2))
        expected[n, c, 2 * i + down, 2 * j + across] = window.max()
    np.testing.assert_array_equal(y, expected)
