"""A solver's settings for initial weights, for the formats of its snapshots, and for debugging."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import demitasse
from demitasse import CompositionError, Event, SnapshotError

PLUGINS = ["caffe", "training", "datasets", "reference", "snapshots"]
NET = """
name: "two layers"
layer { name: "data" type: "Data" top: "data" top: "label" data_param { source: "given" batch_size: 4 } }
layer { name: "first" type: "InnerProduct" bottom: "data" top: "first"
        inner_product_param { num_output: 5 weight_filler { type: "gaussian" std: 1 } } }
layer { name: "relu" type: "ReLU" bottom: "first" top: "first" }
layer { name: "second" type: "InnerProduct" bottom: "first" top: "second"
        inner_product_param { num_output: 3 weight_filler { type: "gaussian" std: 1 } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "second" bottom: "label" }
"""
SOLVER = 'net: "net.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 4 display: 2 '
DATA = {
    "train": {
        "data": np.random.default_rng(3).normal(size=(4, 6)).astype(np.float32),
        "label": np.arange(4, dtype=np.float32) % 3,
    }
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "net.prototxt").write_text(NET)
    (tmp_path / "solver.prototxt").write_text(SOLVER + f'snapshot_prefix: "{tmp_path}/kept"')
    return tmp_path


def test_weights_that_the_solver_names_are_read_unless_others_are_given(folder: Path) -> None:
    with demitasse.compose(plugins=PLUGINS) as runtime:
        first = runtime.trainer(folder / "solver.prototxt", data=DATA, overrides={"random_seed": 1})
        first.step(1)
        named = first.snapshot(folder / "named")
        second = runtime.trainer(folder / "solver.prototxt", data=DATA, overrides={"random_seed": 2})
        given = second.snapshot(folder / "given")
        solver = replace(first.solver, weights=(str(named),))
        third = runtime.trainer(solver, data=DATA)
        fourth = runtime.trainer(solver, data=DATA, weights=given)
        for layer, arrays in third.net.params.items():
            for ours, theirs in zip(arrays, first.net.params[layer], strict=True):
                assert np.array_equal(ours, theirs)
        for layer, arrays in fourth.net.params.items():
            for ours, theirs in zip(arrays, second.net.params[layer], strict=True):
                assert np.array_equal(ours, theirs)


def test_a_snapshot_is_written_in_every_form_that_the_solver_asks_for(folder: Path) -> None:
    with demitasse.compose(plugins=PLUGINS) as runtime:
        trainer = runtime.trainer(
            folder / "solver.prototxt",
            data=DATA,
            overrides={"snapshot_format": "BINARYPROTO", "snapshot_diff": True},
        )
        told: list[Event] = []
        trainer.listeners.append(told.append)
        trainer.run()
        names = [f"kept_iter_4{s}" for s in (".demitasse", ".caffemodel", ".solverstate")]
        (snapshot,) = [event for event in told if event.kind == "snapshot"]
        assert [path.name for path in snapshot.values["paths"]] == names
        weights = runtime.read(folder / "kept_iter_4.caffemodel").weights()
        for layer, arrays in trainer.net.params.items():
            for ours, theirs in zip(arrays, weights.parameters[layer], strict=True):
                assert np.array_equal(ours, theirs)
        assert any(np.abs(a).max() > 0 for a in weights.gradients["second"])
        resumed = runtime.trainer(
            folder / "solver.prototxt",
            data=DATA,
            resume=folder / "kept_iter_4.solverstate",
            overrides={"max_iter": 6},
        )
        assert resumed.iteration == 4
        assert resumed.step(1).loss == pytest.approx(trainer.step(1).loss, abs=1e-6)


def test_a_form_that_nobody_writes_is_an_error_before_the_first_step(folder: Path) -> None:
    with demitasse.compose(plugins=PLUGINS) as runtime:
        trainer = runtime.trainer(folder / "solver.prototxt", data=DATA)
        trainer.solver = replace(trainer.solver, snapshot_suffixes=(".odd",))
        with pytest.raises(CompositionError, match=r"asks for \.odd snapshots"):
            trainer.run()


def test_debugging_tells_the_size_of_every_blob_gradient_and_parameter(folder: Path) -> None:
    with demitasse.compose(plugins=PLUGINS) as runtime:
        trainer = runtime.trainer(
            folder / "solver.prototxt", data=DATA, overrides={"debug_info": True, "base_lr": 0}
        )
        told: list[Event] = []
        trainer.listeners.append(told.append)
        trainer.step(2)
        first, second = [event for event in told if event.kind == "iteration"]
        assert "sizes" not in first.values, "iteration 1 is not displayed"
        sizes = {(s.phase, s.layer, s.name, s.what): s.mean for s in second.values["sizes"]}
        w, b = trainer.net.params["first"]
        hidden = DATA["train"]["data"] @ w.T + b
        assert sizes["forward", "first", "first", "data"] == pytest.approx(
            np.abs(hidden).mean(), rel=1e-5
        )
        rectified = np.maximum(hidden, 0)
        assert sizes["forward", "relu", "first", "data"] == pytest.approx(rectified.mean(), rel=1e-5)
        assert sizes["update", "first", "0", "data"] == pytest.approx(np.abs(w).mean(), rel=1e-5)
        assert sizes["update", "first", "0", "diff"] == pytest.approx(
            sizes["backward", "first", "first[0]", "diff"], rel=1e-6
        )
        assert sizes["backward", "second", "first", "diff"] > 0


def test_debugging_without_a_display_tells_no_sizes(folder: Path) -> None:
    with demitasse.compose(plugins=PLUGINS) as runtime:
        overrides = {"debug_info": True, "display": 0}
        trainer = runtime.trainer(folder / "solver.prototxt", data=DATA, overrides=overrides)
        told: list[Event] = []
        trainer.listeners.append(told.append)
        trainer.step(2)
        assert ["sizes" in event.values for event in told if event.kind == "iteration"] == [False] * 2


def test_a_name_that_no_file_can_have_is_told_before_anything_is_trained(folder: Path) -> None:
    with demitasse.compose(plugins=PLUGINS) as runtime:
        solver = runtime.read(folder / "solver.prototxt").solver()
        named = replace(solver, snapshot_prefix=str(folder / ("x" * 250)))
        trainer = runtime.trainer(named, data=DATA)
        with pytest.raises(SnapshotError, match="File name too long; change snapshot_prefix"):
            trainer.run()
        assert trainer.iteration == 0


def test_of_a_snapshot_that_is_whole_in_one_form_only_the_error_says_so(folder: Path) -> None:
    (folder / "kept_iter_4.caffemodel").mkdir()  # so that no file can be written there
    with demitasse.compose(plugins=PLUGINS) as runtime:
        forms = (".demitasse", ".caffemodel")
        solver = replace(runtime.read(folder / "solver.prototxt").solver(), snapshot_suffixes=forms)
        with pytest.raises(SnapshotError) as caught:
            runtime.trainer(solver, data=DATA).run()
        told = str(caught.value)
        assert told.startswith(f"{folder}/kept_iter_4.caffemodel")
        assert told.endswith("; kept_iter_4.demitasse of this iteration exists")
        assert runtime.read(folder / "kept_iter_4.demitasse").weights().iteration == 4
