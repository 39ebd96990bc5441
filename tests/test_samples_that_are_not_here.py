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
        assert "where the data are not here, give their shape (--samples 3x224x224)" in told
    assert main(["explain", "solver.prototxt", "--samples", "3xx4"]) == 2
    assert "'3xx4' is no shape; write random:3x227x227 (images" in capsys.readouterr().err
    assert main(["explain", "solver.prototxt", "--samples", "random:3x227x227"]) == 0
    assert main(["time", "solver.prototxt", "--samples", "3x4x4"]) == 2
    assert "a crop of 8 does not fit images of (3, 4, 4)" in capsys.readouterr().err


@pytest.mark.usefixtures("published")
def test_samples_that_are_given_do_not_excuse_a_mean_that_is_not_here() -> None:
    given = {"data": np.zeros((4, 3, 12, 12), np.uint8), "label": np.zeros(4)}
    with (
        demitasse.compose() as runtime,
        pytest.raises(ModelError, match=r"mean_file 'data/ilsvrc12/imagenet_mean.*is not there"),
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
