"""Nets whose samples are elsewhere: shapes stand in for them, or another source is named."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import numpy as np
import pytest

import demitasse
from demitasse import DataSpec, ModelError
from demitasse_cli.main import main

PUBLISHED = """
layer {
  name: "data" type: "Data" top: "data" top: "label" include { phase: %s }
  transform_param { mirror: true crop_size: 8 mean_file: "data/ilsvrc12/imagenet_mean.binaryproto" }
  data_param { source: "/elsewhere/ilsvrc12_lmdb" batch_size: 4 backend: LMDB }
}
"""
LAYERS = """
layer {
  name: "score" type: "InnerProduct" bottom: "data" top: "score"
  inner_product_param { num_output: 10 weight_filler { type: "xavier" } }
}
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "score" bottom: "label" top: "loss" }
"""


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A net and its solver, as their authors have put them up: without the samples and their mean."""
    monkeypatch.chdir(tmp_path)
    Path("train_val.prototxt").write_text(PUBLISHED % "TRAIN" + PUBLISHED % "TEST" + LAYERS)
    Path("solver.prototxt").write_text(
        'net: "train_val.prototxt" base_lr: 0.01 lr_policy: "fixed" test_iter: 2 test_interval: 9'
    )


@pytest.mark.usefixtures("published")
@pytest.mark.parametrize("model", ["solver.prototxt", "train_val.prototxt"])
@pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
def test_they_are_timed_and_explained_by_the_shape_of_a_sample(
    model: str, phase: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for command, *more in (("time", "--iterations", "2"), ("explain",)):
        given = [command, model, "--phase", phase, "--plugins", "+reference", *more, "--json", "-"]
        assert main([*given, "--samples", "3x12x10"]) == 0
        record = json.loads(capsys.readouterr().out)
        if command == "explain":
            outputs = {each["layer"]: each["outputs"] for each in record["plan"]["entries"]}
            assert outputs["data"][0]["shape"] == [4, 3, 8, 8]
        else:
            phases = {row["phase"] for row in record["layers"]}
            assert phases == {"forward", *["backward"] * (phase == "TRAIN")}


@pytest.mark.usefixtures("published")
def test_without_a_shape_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("time", "explain"):
        assert main([command, "solver.prototxt"]) == 2
        told = capsys.readouterr().err
        assert "train_val.prototxt:2: layer 'data' (Data): no such file or folder: '/elsewhere/" in told
        assert "if the data are not here, give their shape (--samples 3x224x224)" in told
    assert main(["explain", "solver.prototxt", "--samples", "3xx4"]) == 2
    assert "'3xx4' is not a shape; write random:3x227x227 (images" in capsys.readouterr().err
    assert main(["explain", "solver.prototxt", "--samples", "random:3x227x227"]) == 0
    assert main(["time", "solver.prototxt", "--samples", "3x4x4"]) == 2
    assert "a crop of 8 does not fit images of (3, 4, 4)" in capsys.readouterr().err


@pytest.mark.usefixtures("published")
def test_samples_that_are_given_do_not_excuse_a_mean_that_is_not_here() -> None:
    given = {"data": np.zeros((4, 3, 12, 12), np.uint8), "label": np.zeros(4)}
    with (
        demitasse.compose() as runtime,
        pytest.raises(ModelError, match=r"mean_file 'data/ilsvrc12/imagenet_mean.*was not found"),
    ):
        runtime.trainer("solver.prototxt", data={"train": given, "test": given})


@pytest.mark.usefixtures("published")
def test_another_source_is_read_in_place_of_the_nets_own() -> None:
    """To the bit as arrays of the same samples are, in the same order."""
    net = 'layer { name: "data" type: "Data" top: "data" top: "label" data_param { %s } }'
    Path("net.prototxt").write_text(net % 'source: "/elsewhere" batch_size: 32' + LAYERS)
    Path("digits.prototxt").write_text('net: "net.prototxt" base_lr: 0.01 lr_policy: "fixed"')
    spec, losses = DataSpec("digits:train", shuffle=True, seed=3), []
    with demitasse.compose() as runtime:
        source = runtime.open_source(spec)
        arrays = {name: np.empty((96, *f.shape), f.dtype) for name, f in source.fields.items()}
        with contextlib.closing(source.stream(0, 96, 96)) as stream:
            stream.read(arrays)
        source.close()
        for data in ({"train": spec}, {"train": arrays}):
            with runtime.trainer("digits.prototxt", data=data) as trainer:
                losses.append([trainer.step().loss for _ in range(3)])
        with pytest.raises(ModelError, match=r"or to a DataSpec; given str for 'train'"):
            runtime.trainer("digits.prototxt", data={"train": "digits:train"})
    assert losses[0] == losses[1]


BOXES = """
layer {{ name: "data" type: "AnnotatedData" top: "data" top: "label" include {{ phase: {phase} }}
  transform_param {{ resize_param {{ resize_mode: WARP height: 32 width: 32 }} }}
  data_param {{ source: "/elsewhere/VOC_lmdb" batch_size: 4 }}
  annotated_data_param {{ max_objects: 9 }} }}
"""
SSD = """
layer { name: "loc" type: "Convolution" bottom: "data" top: "loc" convolution_param { num_output: 4
  kernel_size: 8 stride: 8 weight_filler { type: "xavier" } } }
layer { name: "loc_p" type: "Permute" bottom: "loc" top: "loc_p"
  permute_param { order: 0 order: 2 order: 3 order: 1 } }
layer { name: "loc_f" type: "Flatten" bottom: "loc_p" top: "loc_f" }
layer { name: "conf" type: "Convolution" bottom: "data" top: "conf" convolution_param { num_output: 2
  kernel_size: 8 stride: 8 weight_filler { type: "xavier" } } }
layer { name: "conf_p" type: "Permute" bottom: "conf" top: "conf_p"
  permute_param { order: 0 order: 2 order: 3 order: 1 } }
layer { name: "conf_f" type: "Flatten" bottom: "conf_p" top: "conf_f" }
layer { name: "prior" type: "PriorBox" bottom: "loc" bottom: "data" top: "prior"
  prior_box_param { min_size: 12 } }
layer { name: "loss" type: "MultiBoxLoss" bottom: "loc_f" bottom: "conf_f" bottom: "prior"
  bottom: "label" top: "loss" multibox_loss_param { num_classes: 2 } include { phase: TRAIN } }
layer { name: "conf_r" type: "Reshape" bottom: "conf_f" top: "conf_r"
  reshape_param { shape { dim: 0 dim: -1 dim: 2 } } include { phase: TEST } }
layer { name: "conf_s" type: "Softmax" bottom: "conf_r" top: "conf_s" softmax_param { axis: 2 }
  include { phase: TEST } }
layer { name: "likely" type: "Flatten" bottom: "conf_s" top: "likely" include { phase: TEST } }
layer { name: "found" type: "DetectionOutput" bottom: "loc_f" bottom: "likely" bottom: "prior"
  top: "found" detection_output_param { num_classes: 2 keep_top_k: 5 } include { phase: TEST } }
layer { name: "eval" type: "DetectionEvaluate" bottom: "found" bottom: "label" top: "eval"
  detection_evaluate_param { num_classes: 2 } include { phase: TEST } }
"""
PIXELS = """
layer { name: "data" type: "%s" top: "data" top: "label" %s }
layer { name: "score" type: "Convolution" bottom: "data" top: "score" convolution_param {
  num_output: 2 kernel_size: 1 weight_filler { type: "xavier" } } }
layer { name: "pool" type: "Pooling" bottom: "score" top: "pool" pooling_param { %s } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "pool" bottom: "label" top: "loss" }
"""


@pytest.mark.parametrize("command", ["explain", "time", "simulate"])
def test_labels_that_stand_in_are_of_the_form_that_the_layer_has(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A shape of images is enough: labels are boxes that a loss takes, or a class for each pixel."""
    lists = 'source: "/elsewhere/list.txt" batch_size: 3'
    nets = {
        "boxes": (BOXES.format(phase="TRAIN") + BOXES.format(phase="TEST") + SSD, [4, 1, 9, 8]),
        "dense": (
            PIXELS
            % (
                "DenseImageData",
                f"dense_image_data_param {{ {lists} label_divide_factor: 2 }}",
                "kernel_size: 2 stride: 2",
            ),
            [3, 1, 16, 16],
        ),
        "segments": (
            PIXELS % ("ImageSegData", f"image_data_param {{ {lists} }}", "kernel_size: 1"),
            [3, 1, 32, 32],
        ),
    }
    for name, (net, label) in nets.items():
        if command == "simulate" and name != "boxes":  # only annotated samples are declared
            continue
        (tmp_path / f"{name}.prototxt").write_text(net)
        solver = tmp_path / f"{name}_solver.prototxt"
        test = "test_iter: 1 test_interval: 5" if name == "boxes" else ""
        solver.write_text(f'net: "{name}.prototxt" base_lr: 0.01 lr_policy: "fixed" max_iter: 1 {test}')
        given = [command, str(solver), "--samples", "3x32x32", "--json", "-", "--plugins", "-tuning"]
        assert main(given + ["--iterations", "1"] * (command == "time")) == 0, name
        record = json.loads(capsys.readouterr().out)
        if command == "time":
            assert any(row["layer"] == "loss" for row in record["layers"])
        elif command == "explain":
            with demitasse.compose(plugins=["-tuning"]) as runtime:
                spec = DataSpec("random:3x32x32", "random")
                given = dict.fromkeys(["train", "test"] if test else ["train"], spec)
                with runtime.trainer(solver, data=given) as trainer:
                    assert np.isfinite(trainer.step().loss)
                    assert list(trainer.net.blobs["label"].shape) == label
                    assert not test or 0 <= trainer.test()["eval"] <= 1
