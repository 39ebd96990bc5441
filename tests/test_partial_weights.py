"""Weights of another net: what is loaded by name, what is not, and that both are told."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import demitasse
from demitasse import ShapeError
from demitasse_cli.main import main

PLUGINS = ["caffe", "training", "datasets", "reference", "snapshots"]
NET = """
name: "digits"
layer {{ name: "data" type: "Data" top: "data" top: "label"
         data_param {{ source: "digits:train" batch_size: 8 }} }}
layer {{ name: "first" type: "InnerProduct" bottom: "data" top: "first"
         inner_product_param {{ num_output: 5 weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "{last}" type: "InnerProduct" bottom: "first" top: "scores"
         inner_product_param {{ num_output: {outputs} weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "scores" bottom: "label" }}
"""


def net(folder: Path, last: str, outputs: int) -> Path:
    path = folder / f"{last}{outputs}.prototxt"
    path.write_text(NET.format(last=last, outputs=outputs))
    return path


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    with demitasse.compose(plugins=PLUGINS) as runtime:
        made = runtime.net(net(tmp_path, "last", 10), phase="train", seed=5)
        arrays = {name: [a.copy() for a in each] for name, each in made.params.items()}
        return Path(runtime.write(tmp_path / "w.caffemodel", demitasse.Weights(arrays)))


def test_layers_of_other_names_keep_their_own_and_are_told(tmp_path: Path, weights: Path) -> None:
    with demitasse.compose(plugins=PLUGINS) as runtime:
        theirs = runtime.read(weights).weights().parameters
        found = runtime.net(net(tmp_path, "newlast", 12), phase="train", weights=weights)
        assert np.array_equal(found.params["first"][0], theirs["first"][0])
        loaded = found.loaded[str(weights)]
        assert (loaded.loaded, loaded.missing, loaded.unused) == (("first",), ("newlast",), ("last",))
        assert str(loaded) == "1 layers; not in the file: newlast; not in the net: last"


def test_layers_that_no_weights_have_are_warned_of_in_a_net_that_serves(
    tmp_path: Path, weights: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with demitasse.compose(plugins=PLUGINS) as runtime:
        path = net(tmp_path, "newlast", 12)
        told = (
            f"{path}: not in {weights}: newlast, whose parameters keep their initial values; "
            f"in the file but not in the net: last"
        )
        with caplog.at_level("INFO", "demitasse"):
            lacking = runtime.net(path, weights=weights)
            assert caplog.record_tuples == [("demitasse.training", logging.WARNING, told)]
            caplog.clear()
            other = demitasse.Weights({"newlast": list(lacking.params["newlast"])})
            runtime.net(path, weights=[weights, other])
            runtime.net(net(tmp_path, "last", 10), weights=weights)
            runtime.net(path)
            assert not caplog.records
            solver = tmp_path / "solver.prototxt"
            solver.write_text(f'net: "{path}" base_lr: 0.01 lr_policy: "fixed"')
            runtime.trainer(solver, weights=weights)
        assert caplog.record_tuples == [("demitasse.training", logging.INFO, told)]


def test_other_shapes_are_loaded_around_only_when_that_is_asked_for(
    tmp_path: Path, weights: Path
) -> None:
    with demitasse.compose(plugins=PLUGINS) as runtime:
        path = net(tmp_path, "last", 12)
        with pytest.raises(ShapeError, match=r"layer 'last'.*\(10, 5\).*\(12, 5\)"):
            runtime.net(path, phase="train", weights=weights)
        found = runtime.net(path, phase="train", weights=weights, partial=True)
        assert found.loaded[str(weights)].unfit == ("last",)
        assert found.params["last"][0].shape == (12, 5)
        theirs = runtime.read(weights).weights().parameters
        assert np.array_equal(found.params["first"][0], theirs["first"][0])


def test_the_command_says_what_was_loaded(tmp_path: Path, weights: Path) -> None:
    path = net(tmp_path, "last", 12)
    solver = tmp_path / "solver.prototxt"
    solver.write_text(
        f'net: "{path}" base_lr: 0.01 lr_policy: "fixed" max_iter: 2 snapshot_after_train: false'
    )
    command = [sys.executable, "-m", "demitasse_cli", "train", str(solver), "--weights", str(weights)]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1)
    assert "layer 'last'" in refused.stderr
    done = subprocess.run([*command, "--partial"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"weights {weights}: 1 layers; of other shapes in the file: last" in done.stdout


def test_what_a_reader_of_weights_has_left_out_is_told_with_them(
    tmp_path: Path, weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A caffemodel with a field of a fork's (number 203) in a layer behind the others."""
    weights.write_bytes(weights.read_bytes() + b"\xa2\x06\x06\x0a\x01z\xda\x0c\x00")
    told = f"{weights}: fields that Caffe does not have are left out: LayerParameter 1 (number 203)"
    with demitasse.compose(plugins=PLUGINS) as runtime:
        found = runtime.net(net(tmp_path, "last", 10), phase="train", weights=weights)
        assert found.loaded[str(weights)].notes == (told,)
        solver = tmp_path / "solver.prototxt"
        solver.write_text(f'net: "{net(tmp_path, "last", 10)}" base_lr: 0.01 lr_policy: "fixed"')
        trainer = runtime.trainer(solver, weights=weights)
        assert trainer.loaded[str(weights)].notes == (told,)
    model = str(net(tmp_path, "last", 10))
    assert main(["test", model, "--weights", str(weights), "--iterations", "1"]) == 0
    assert capsys.readouterr().err == f"demitasse: {told}\n"
    assert main(["convert", str(weights), str(tmp_path / "w.demitasse")]) == 0
    assert capsys.readouterr().out.count(told) == 1
