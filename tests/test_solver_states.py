"""A run goes on to the same bits from Caffe's own pair of files, with every solver, parameters that are
shared, parameters that are not trained, and statistics."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import demitasse
from demitasse_caffe.schema import schema

NET = """
layer { name: "data" type: "Data" top: "data" top: "label" include { phase: TRAIN }
  data_param { source: "digits:train" batch_size: 8 } transform_param { scale: 0.0625 } }
layer { name: "zip" type: "InnerProduct" bottom: "data" top: "zip" param { lr_mult: 1 name: "w" }
  inner_product_param { num_output: 64 bias_term: false weight_filler { type: "xavier" } } }
layer { name: "norm" type: "BatchNorm" bottom: "zip" top: "zip" }
layer { name: "again" type: "InnerProduct" bottom: "zip" top: "again" param { name: "w" }
  inner_product_param { num_output: 64 bias_term: false weight_filler { type: "xavier" } } }
layer { name: "fixed" type: "InnerProduct" bottom: "again" top: "fixed" param { lr_mult: 0 }
  param { lr_mult: 1 } inner_product_param { num_output: 20 weight_filler { type: "xavier" } } }
layer { name: "answer" type: "InnerProduct" bottom: "fixed" top: "answer"
  inner_product_param { num_output: 10 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "answer" bottom: "label" top: "loss" }
"""
SHAPES = [(64, 64), (64,), (64,), (1,), (20, 64), (20,), (10, 20), (10,)]
SOLVERS = {
    "SGD": "momentum: 0.9",
    "Nesterov": "momentum: 0.9",
    "AdaGrad": "delta: 1e-6",
    "RMSProp": "rms_decay: 0.9",
    "AdaDelta": "momentum: 0.9 delta: 1e-6",
    "Adam": "momentum: 0.9 momentum2: 0.99",
}


@pytest.mark.parametrize("suffix", [".solverstate", ".solverstate.h5"])
@pytest.mark.parametrize("kind", SOLVERS)
def test_a_run_goes_on_from_the_files_of_caffe(tmp_path: Path, kind: str, suffix: str) -> None:
    (tmp_path / "net.prototxt").write_text(NET)
    solver = tmp_path / "solver.prototxt"
    solver.write_text(
        f'train_net: "net.prototxt" type: "{kind}" base_lr: 0.01 lr_policy: "fixed" max_iter: 100 '
        f"weight_decay: 0.001 {SOLVERS[kind]}"
    )
    with demitasse.compose(plugins=["-tuning"]) as runtime:
        trainer = runtime.trainer(solver)
        trainer.step(3)
        weights = runtime.read(trainer.snapshot(tmp_path / "ours")).weights()
        state = runtime.write(tmp_path / f"net_iter_3{suffix}", weights)
        again = runtime.trainer(solver, resume=state)
        assert again.iteration == 3
        for _ in range(3):
            assert again.step(1).loss == trainer.step(1).loss
        for layer, arrays in trainer.net.params.items():
            for ours, theirs in zip(arrays, again.net.params[layer], strict=True):
                assert np.array_equal(ours, theirs), layer
    check_history(tmp_path, 2 if kind in ("AdaDelta", "Adam") else 1, suffix)


def check_history(folder: Path, slots: int, suffix: str) -> None:
    """Every parameter once in the net's order, for each array that the solver keeps."""
    if suffix == ".solverstate":
        message: Any = schema({}).message("SolverState")
        message.ParseFromString((folder / "net_iter_3.solverstate").read_bytes())
        empty = [not any(blob.data) for blob in message.history]
        assert empty == [False, True, True, True, True, False, False, False] * slots
    assert history_shapes(folder / f"net_iter_3{suffix}") == SHAPES * slots


NORMALISED = """
layer { name: "data" type: "Data" top: "data" top: "label" include { phase: TRAIN }
  data_param { source: "digits:train" batch_size: 8 } transform_param { scale: 0.0625 } }
layer { name: "low" type: "InnerProduct" bottom: "data" top: "low"
  inner_product_param { num_output: 12 weight_filler { type: "xavier" } } }
layer { name: "norm" type: "BatchNorm" bottom: "low" top: "low" }
layer { name: "scale" type: "Scale" bottom: "low" top: "low" scale_param { bias_term: true } }
layer { name: "relu" type: "ReLU" bottom: "low" top: "low" }
layer { name: "answer" type: "InnerProduct" bottom: "low" top: "answer"
  inner_product_param { num_output: 10 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "answer" bottom: "label" top: "loss" }
"""
LAYERS = {
    "low": [(12, 64), (12,)],
    "norm": [(12,), (12,), (1,)],
    "scale": [(12,), (12,)],
    "answer": [(10, 12), (10,)],
}


@pytest.mark.parametrize("suffix", [".solverstate", ".solverstate.h5"])
def test_layers_that_became_one_operation_are_in_the_order_of_the_net(
    tmp_path: Path, suffix: str
) -> None:
    """And a state whose files have another order, as earlier versions wrote them, goes on just so."""
    (tmp_path / "net.prototxt").write_text(NORMALISED)
    solver = tmp_path / "solver.prototxt"
    solver.write_text(
        'train_net: "net.prototxt" base_lr: 0.01 lr_policy: "fixed" max_iter: 100 momentum: 0.9'
    )
    with demitasse.compose(plugins=["-tuning"]) as runtime:
        trainer = runtime.trainer(solver)
        assert all("scale" not in (e.layer, e.operation) for e in trainer.plan.entries)
        assert list(trainer.net.params) == list(LAYERS)
        trainer.step(3)
        weights = runtime.read(trainer.snapshot(tmp_path / "ours")).weights()
        runtime.write(tmp_path / f"ours{suffix}", weights)
        assert history_shapes(tmp_path / f"ours{suffix}") == [*chain(*LAYERS.values())]
        moved = [*(layer for layer in LAYERS if layer != "scale"), "scale"]
        weights.parameters = {layer: weights.parameters[layer] for layer in moved}
        runtime.write(tmp_path / f"old{suffix}", weights)
        others = [runtime.trainer(solver, resume=tmp_path / f"{n}{suffix}") for n in ("ours", "old")]
        for each in (trainer, *others):
            each.step(3)
        for layer, arrays in trainer.net.params.items():
            for number, array in enumerate(arrays):
                for each in others:
                    assert np.array_equal(array, each.net.params[layer][number]), layer


TWINS = """
layer { name: "data" type: "Data" top: "data" top: "label" include { phase: TRAIN }
  data_param { source: "digits:train" batch_size: 8 } transform_param { scale: 0.0625 } }
layer { name: "dark" type: "Power" bottom: "data" top: "dark" power_param { scale: -0.5 } }
layer { name: "left" type: "InnerProduct" bottom: "data" top: "left" param { name: "w" }
  param { name: "b" } inner_product_param { num_output: 10 weight_filler { type: "xavier" } } }
layer { name: "right" type: "InnerProduct" bottom: "dark" top: "right" param { name: "w" }
  param { name: "b" } inner_product_param { num_output: 10 weight_filler { type: "xavier" } } }
layer { name: "sum" type: "Eltwise" bottom: "left" bottom: "right" top: "sum" }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "sum" bottom: "label" top: "loss" }
"""


@pytest.mark.parametrize("suffix", [".solverstate", ".solverstate.h5"])
@pytest.mark.parametrize("kind", SOLVERS)
def test_a_net_of_twins_goes_on(tmp_path: Path, kind: str, suffix: str) -> None:
    """Two arrays for each parameter are then as many as the layers' parameters, of the same shapes."""
    (tmp_path / "net.prototxt").write_text(TWINS)
    solver = tmp_path / "solver.prototxt"
    solver.write_text(
        f'train_net: "net.prototxt" type: "{kind}" base_lr: 0.01 lr_policy: "fixed" max_iter: 9 '
        f"{SOLVERS[kind]}"
    )
    slots = 2 if kind in ("AdaDelta", "Adam") else 1
    with demitasse.compose(plugins=["-tuning"]) as runtime:
        trainer = runtime.trainer(solver)
        trainer.step(3)
        weights = runtime.read(trainer.snapshot(tmp_path / "ours")).weights()
        state = runtime.write(tmp_path / f"net_iter_3{suffix}", weights)
        assert history_shapes(state) == [(10, 64), (10,)] * slots
        assert len(runtime.read(state).weights().state) == slots
        again = runtime.trainer(solver, resume=state)
        assert again.step(3).loss == trainer.step(3).loss
        for ours, theirs in zip(trainer.net.params["left"], again.net.params["left"], strict=True):
            assert np.array_equal(ours, theirs)


def history_shapes(path: Path) -> list[tuple[int, ...]]:
    if path.suffix == ".h5":
        import h5py

        with h5py.File(path) as file:
            return [file[f"history/{n}"].shape for n in range(len(file["history"]))]
    message: Any = schema({}).message("SolverState")
    message.ParseFromString(path.read_bytes())
    return [tuple(blob.shape.dim) for blob in message.history]


@pytest.mark.parametrize("hdf5", [False, True])
@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ('"step" stepsize: 2', [0, 0, 1, 1, 2, 2]),
        ('"multistep" stepvalue: 1 stepvalue: 4', [0, 1, 1, 1, 2, 2]),
        ('"fixed"', [0] * 6),
    ],
)
def test_a_snapshot_has_the_steps_of_the_rate(
    tmp_path: Path, policy: str, expected: list[int], hdf5: bool
) -> None:
    """At 1, 2, ... iterations, as Caffe counts: when it asks for the rate of an iteration from 0."""
    (tmp_path / "net.prototxt").write_text(NORMALISED)
    solver = tmp_path / "solver.prototxt"
    solver.write_text(
        f'train_net: "net.prototxt" base_lr: 0.01 gamma: 0.5 lr_policy: {policy} max_iter: 6 '
        f'snapshot: 1 snapshot_prefix: "{tmp_path}/x" snapshot_format: '
        f"{'HDF5' if hdf5 else 'BINARYPROTO'}"
    )
    with demitasse.compose(plugins=["-tuning"]) as runtime:
        runtime.trainer(solver).run()
    found = []
    for iteration in range(1, 7):
        path = tmp_path / f"x_iter_{iteration}.solverstate"
        if hdf5:
            import h5py

            with h5py.File(f"{path}.h5") as file:
                found.append(int(file["current_step"][0]))
        else:
            message: Any = schema({}).message("SolverState")
            message.ParseFromString(path.read_bytes())
            found.append(message.current_step)
    assert found == expected
