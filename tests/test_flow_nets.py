"""Nets that find optical flow, as FlowNet's fork and PWC-Net have them: what a step moves parameters by
is the slope of the loss, for any number of workers; deploy nets, templates, weights and files of
flows."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from slopes import parameter, slope, step, train
from small_nets import WORKERS

import demitasse
from demitasse import Weights
from demitasse_caffe.schema import wire_classes
from demitasse_caffe.weights import fill_blob, write_caffemodel

PLUGINS = ["caffe", "onnx", "datasets", "optical_flow", "training", "snapshots", "reference"]
DICE = np.random.default_rng(3)
TRUTH = DICE.normal(size=(2, 2, 4, 5))
TRUTH[0, :, 1, 2], TRUTH[1, 0, 3, 3], TRUTH[1, :, :, 0] = math.nan, math.nan, math.nan
IMAGE, OTHER, FLOW = (2, 3, 4, 5), (2, 3, 4, 5), (2, 2, 4, 5)


def layer(kind: str, *bottoms: str, top: str = "y", more: str = "") -> str:
    reads = " ".join(f'bottom: "{name}"' for name in bottoms)
    return f'layer {{ name: "{top}" type: "{kind}" {reads} top: "{top}" {more} }}\n'


LOSS = layer("EuclideanLoss", "y", "y2", top="loss")
SQUARED = layer("Power", "y", top="y2", more="power_param { scale: 0 shift: 0.3 }") + LOSS
KNOWN = "l2_per_location: true normalize_by_num_entries: true epsilon: 0.01"

NETS: dict[str, tuple[dict[str, tuple[int, ...]], str]] = {
    "Correlation": (
        {"a": IMAGE, "b": OTHER},
        layer(
            "Correlation",
            *("a", "b"),
            more="correlation_param { pad: 2 kernel_size: 1 max_displacement: 2 stride_2: 2 }",
        )
        + SQUARED,
    ),
    "Correlation of patches": (
        {"a": IMAGE, "b": OTHER},
        layer(
            "Correlation",
            *("a", "b"),
            more="correlation_param { pad: 2 kernel_size: 3 max_displacement: 1 stride_1: 2 }",
        )
        + SQUARED,
    ),
    "Correlation1D": (
        {"a": IMAGE, "b": OTHER},
        layer(
            "Correlation1D",
            *("a", "b"),
            more="correlation_param { pad: 3 kernel_size: 1 max_displacement: 3 single_direction: -1 }",
        )
        + SQUARED,
    ),
    "FlowWarp": ({"a": IMAGE, "b": FLOW}, layer("FlowWarp", "a", "b") + SQUARED),
    "Warp": ({"a": IMAGE, "b": FLOW}, layer("Warp", "a", "b") + SQUARED),
    "ChannelNorm": ({"a": IMAGE}, layer("ChannelNorm", "a") + SQUARED),
    "NegReLU": ({"a": IMAGE}, layer("NegReLU", "a") + SQUARED),
    "Resample": (
        {"a": IMAGE},
        layer("Resample", "a", more="resample_param { height: 3 width: 8 type: CUBIC }") + SQUARED,
    ),
    "Accum": ({"a": IMAGE, "b": (2, 1, 7, 6)}, layer("Accum", "a", "b") + SQUARED),
    "L1Loss": (
        {"a": FLOW},
        layer("L1Loss", "a", "label", top="loss", more=f"l1_loss_param {{ {KNOWN} }}"),
    ),
    "L1Loss by numbers": (
        {"a": FLOW},
        layer("L1Loss", "a", "label", top="loss", more="l1_loss_param { plateau: 0.2 }"),
    ),
    "LpqLoss": (
        {"a": FLOW},
        layer("LpqLoss", "a", "label", top="loss", more="lpq_loss_param { p: 1 q: 0.4 }"),
    ),
}


@pytest.mark.parametrize("name", NETS)
def test_the_gradient_is_the_slope_of_the_loss(tmp_path: Path, name: str) -> None:
    shapes, text = NETS[name]
    values = {blob: DICE.normal(size=shape) for blob, shape in shapes.items()}
    layers = "".join(parameter(blob, value) for blob, value in values.items())
    with demitasse.compose(plugins=PLUGINS) as runtime:
        trainer = train(runtime, tmp_path, layers + text, TRUTH)
        _, gradients = step(trainer, values)
        for blob, value in values.items():

            def loss(moved: np.ndarray, blob: str = blob) -> float:
                return step(trainer, {**values, blob: moved})[0]

            wanted = slope(loss, value)
            np.testing.assert_allclose(gradients[blob], wanted, rtol=2e-5, atol=1e-7)
            assert np.abs(wanted).max() > 1e-3


CORRELATED = """
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
        convolution_param { num_output: 6 kernel_size: 3 pad: 1 weight_filler { type: "msra" } } }
layer { name: "halves" type: "Slice" bottom: "conv" top: "a" top: "b" slice_param { slice_point: 3 } }
layer { name: "corr" type: "Correlation" bottom: "a" bottom: "b" top: "corr"
        correlation_param { pad: 2 kernel_size: 1 max_displacement: 2 stride_1: 1 stride_2: 1 } }
layer { name: "leak" type: "ReLU" bottom: "corr" top: "corr" relu_param { negative_slope: 0.1 } }
layer { name: "flow" type: "Convolution" bottom: "corr" top: "flow"
        convolution_param { num_output: 2 kernel_size: 3 pad: 1 weight_filler { type: "msra" } } }
layer { name: "warped" type: "Warp" bottom: "b" bottom: "flow" top: "warped" }
layer { name: "all" type: "Concat" bottom: "warped" bottom: "flow" top: "all" }
layer { name: "flow2" type: "Convolution" bottom: "all" top: "flow2"
        convolution_param { num_output: 2 kernel_size: 3 pad: 1 weight_filler { type: "msra" } } }
layer { name: "small" type: "Downsample" bottom: "label" top: "small"
        downsample_param { top_height: 8 top_width: 10 } }
layer { name: "loss" type: "L1Loss" bottom: "flow2" bottom: "small" top: "loss" loss_weight: 0.5
        l1_loss_param { l2_per_location: true normalize_by_num_entries: true } }
layer { name: "loss2" type: "LpqLoss" bottom: "flow" bottom: "small" top: "loss2" loss_weight: 0.1
        lpq_loss_param { p: 1 q: 0.4 } }
"""


def trained(folder: Path, precision: str, workers: int, plugins: list[str]) -> tuple[Any, Any]:
    """The losses of three steps of a net, and its parameters behind them."""
    (folder / "net.prototxt").write_text(
        'layer { name: "data" type: "Data" top: "data" top: "label" '
        'data_param { source: "given" batch_size: 3 } }' + CORRELATED
    )
    (folder / "solver.prototxt").write_text(
        'net: "net.prototxt" base_lr: 0.01 lr_policy: "fixed" max_iter: 9 random_seed: 5'
    )
    (folder / "machine.toml").write_text(WORKERS.format(count=workers))
    dice = np.random.default_rng(2)
    truth = dice.normal(size=(6, 2, 15, 19))
    truth[:, :, 3:7, 2:9], truth[0] = math.nan, math.nan
    samples = {"data": dice.normal(size=(6, 6, 8, 10)), "label": truth}
    hw = "auto" if workers == 1 else folder / "machine.toml"
    with demitasse.compose(hw=hw, plugins=plugins) as runtime:
        trainer = runtime.trainer(
            folder / "solver.prototxt", precision=precision, data={"train": samples}
        )
        losses = [trainer.step().loss for _ in range(3)]
        return losses, {name: [p.copy() for p in each] for name, each in trainer.net.params.items()}


@pytest.mark.parametrize("workers", [2, 3])
def test_several_workers_train_as_one_does(tmp_path: Path, workers: int) -> None:
    """One of them has a sample of which nothing is known."""
    losses, one = trained(tmp_path, "f64", 1, PLUGINS)
    others, several = trained(tmp_path, "f64", workers, PLUGINS)
    np.testing.assert_allclose(others, losses, rtol=1e-10)
    assert losses[2] != losses[0] and all(map(math.isfinite, losses))
    for name, arrays in one.items():
        for mine, other in zip(arrays, several[name], strict=True):
            np.testing.assert_allclose(other, mine, rtol=1e-9, atol=1e-12)


def test_single_precision_bf16_and_the_cpus_kernels_are_near(tmp_path: Path) -> None:
    exact, _ = trained(tmp_path, "f64", 1, PLUGINS)
    quick = [*PLUGINS, "cpu"]
    np.testing.assert_allclose(trained(tmp_path, "f64", 1, quick)[0], exact, rtol=1e-10)
    np.testing.assert_allclose(trained(tmp_path, "f32", 1, quick)[0], exact, rtol=1e-4)
    np.testing.assert_allclose(trained(tmp_path, "bf16", 1, quick)[0], exact, rtol=0.05)


DEPLOY = """
input: "img0"
input: "img1"
input_shape { dim: 1 dim: 3 dim: $TARGET_HEIGHT$ dim: $TARGET_WIDTH$ }
input_shape { dim: 1 dim: 3 dim: $TARGET_HEIGHT$ dim: $TARGET_WIDTH$ }
layer { name: "scaled" type: "Eltwise" bottom: "img0" top: "img0s"
        eltwise_param { operation: SUM coeff: 0.00392156862745098 } }
layer { name: "aug" type: "DataAugmentation" bottom: "img0s" top: "img0_nomean"
        augmentation_param { augment_during_test: true recompute_mean: 1000 mean_per_pixel: false } }
layer { name: "resized" type: "Resample" bottom: "img0_nomean" top: "resized"
        resample_param { width: $ADAPTED_WIDTH$ height: $ADAPTED_HEIGHT$ type: LINEAR antialias: true } }
layer { name: "other" type: "Resample" bottom: "img1" top: "other"
        resample_param { width: $ADAPTED_WIDTH$ height: $ADAPTED_HEIGHT$ type: LINEAR antialias: true } }
layer { name: "conv1" type: "Convolution" bottom: "resized" bottom: "other" top: "conva" top: "convb"
        param { lr_mult: 0 } param { lr_mult: 0 }
        convolution_param { num_output: 4 pad: 3 kernel_size: 7 stride: 2 weight_filler { type: "msra" }
        engine: CUDNN } }
layer { name: "corr" type: "Correlation" bottom: "conva" bottom: "convb" top: "corr"
        correlation_param { pad: 2 kernel_size: 1 max_displacement: 2 stride_1: 1 stride_2: 2 } }
layer { name: "flow" type: "Convolution" bottom: "corr" top: "flow"
        convolution_param { num_output: 2 kernel_size: 3 pad: 1 weight_filler { type: "msra" } } }
layer { name: "large" type: "Accum" bottom: "flow" bottom: "resized" top: "large"
        accum_param { have_reference: true } }
layer { name: "warped" type: "FlowWarp" bottom: "other" bottom: "large" top: "warped" }
layer { name: "difference" type: "Eltwise" bottom: "resized" bottom: "warped" top: "difference"
        eltwise_param { operation: SUM coeff: 1.0 coeff: -1.0 } }
layer { name: "norm" type: "ChannelNorm" bottom: "difference" top: "norm" }
layer { name: "back" type: "Resample" bottom: "large" top: "back"
        resample_param { width: $TARGET_WIDTH$ height: $TARGET_HEIGHT$ type: LINEAR antialias: true } }
layer { name: "final" type: "Convolution" bottom: "back" top: "final"
        convolution_param { num_output: 2 kernel_size: 1
        weight_filler { type: "diagonal" diag_val: $SCALE_WIDTH$ diag_val: $SCALE_HEIGHT$ } } }
"""
"""A net in the manner of FlowNet 2's deploy templates."""

FILLED = {
    "TARGET_WIDTH": 30,
    "TARGET_HEIGHT": 20,
    "ADAPTED_WIDTH": 32,
    "ADAPTED_HEIGHT": 32,
    "SCALE_WIDTH": 0.9375,
    "SCALE_HEIGHT": 0.625,
}


def deployed(folder: Path) -> Path:
    text = DEPLOY
    for name, value in FILLED.items():
        text = text.replace(f"${name}$", str(value))
    (folder / "deploy.prototxt").write_text(text)
    return folder / "deploy.prototxt"


def test_a_deploy_net_runs_from_its_own_file(tmp_path: Path) -> None:
    images = DICE.uniform(0, 255, (2, 1, 3, 20, 30))
    made = {}
    for plugins in (PLUGINS, [*PLUGINS, "cpu"]):
        with demitasse.compose(plugins=plugins) as runtime:
            net = runtime.net(deployed(tmp_path))
            made[len(plugins)] = net.forward(img0=images[0], img1=images[1])
            back, final = net.params["final"][0], made[len(plugins)]["final"]
    assert back[:, :, 0, 0].tolist() == [[0.9375, 0], [0, 0.625]]
    assert final.shape == (1, 2, 20, 30) and np.abs(final).max() > 0
    for name, array in made[len(PLUGINS)].items():
        np.testing.assert_allclose(made[len(PLUGINS) + 1][name], array, rtol=1e-3, atol=1e-3)


def test_a_template_that_nobody_filled_in_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "net.prototxt"
    path.write_text(DEPLOY)
    message = (
        r"net\.prototxt:4:\d+: dim: .*'\$TARGET_HEIGHT\$' is a placeholder of a template; have its tool "
        r"fill it in"
    )
    with (
        demitasse.compose(plugins=PLUGINS) as runtime,
        pytest.raises(demitasse.ModelError, match=message),
    ):
        runtime.net(path)


def test_the_mean_of_trained_weights_is_taken_from_images(tmp_path: Path) -> None:
    """Of FlowNet's fork, whose second blob is the mean of each pixel, of images as in training."""
    net = wire_classes()["NetParameter"]()
    found = net.layer.add(name="aug", type="DataAugmentation")
    mean = np.array([0.1, 0.2, 0.3], np.float32).reshape(1, 3, 1, 1)
    for blob in (np.full((1, 1, 1, 1), 2000, np.float32), np.ones((1, 3, 9, 7), np.float32), mean):
        fill_blob(found.blobs.add(), blob)
    (tmp_path / "flow.caffemodel").write_bytes(net.SerializeToString())
    (tmp_path / "net.prototxt").write_text(
        'layer { name: "in" type: "Input" top: "x" input_param { shape { dim: [2, 3, 4, 5] } } }\n'
        + layer(
            "DataAugmentation",
            "x",
            top="aug",
            more="augmentation_param { recompute_mean: 1000 mean_per_pixel: false }",
        )
    )
    x = DICE.normal(size=(2, 3, 4, 5))
    with demitasse.compose(plugins=PLUGINS) as runtime:
        read = runtime.net(tmp_path / "net.prototxt", weights=tmp_path / "flow.caffemodel")
        np.testing.assert_allclose(read.forward(x=x)["aug"], x - mean, atol=1e-6)
        kept = Weights(parameters={"aug": [each.copy() for each in read.params["aug"]]})
        write_caffemodel(tmp_path / "again.caffemodel", kept)
        again = runtime.net(tmp_path / "net.prototxt", weights=tmp_path / "again.caffemodel")
        np.testing.assert_allclose(again.forward(x=x)["aug"], x - mean, atol=1e-6)


def flow_of(path: Path) -> np.ndarray:
    """A .flo file as its description says, read anew."""
    data = path.read_bytes()
    tag, width, height = struct.unpack("<fii", data[:12])
    assert tag == 202021.25
    return np.moveaxis(np.frombuffer(data[12:], "<f4").reshape(height, width, 2), 2, 0)


def test_flows_are_written_where_the_net_says(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    source = 'layer { name: "in" type: "Input" top: "x" input_param { shape { dim: [%d, 2, 3, 5] } } }\n'
    writer = 'layer { name: "w" type: "FLOWriter" bottom: "x" writer_param { %s } }'
    with demitasse.compose(plugins=PLUGINS) as runtime:
        for count, fields, names in (
            (1, 'folder: "out" prefix: "p-" suffix: "-s"', ["out/p-0000000-s.flo"]),
            (2, 'folder: "out/two"', ["out/two/0000000(000).flo", "out/two/0000000(001).flo"]),
            (1, 'file: "one.flo"', ["one.flo"]),
        ):
            (tmp_path / "net.prototxt").write_text(source % count + writer % fields)
            x = DICE.normal(size=(count, 2, 3, 5)).astype(np.float32)
            runtime.net("net.prototxt").forward(x=x)
            for name, flow in zip(names, x, strict=True):
                np.testing.assert_array_equal(flow_of(tmp_path / name), flow)
        (tmp_path / "one.flo").write_text("a diary")
        with pytest.raises(demitasse.DataError, match=r"one\.flo: exists and is not a \.flo file"):
            runtime.net("net.prototxt").forward(x=x)
        (tmp_path / "net.prototxt").write_text(source.replace("2, 3", "3, 3") % 1 + writer % "")
        with pytest.raises(demitasse.ModelError, match="flows, across and down"):
            runtime.net("net.prototxt")
