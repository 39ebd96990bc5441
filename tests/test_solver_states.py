"""A run goes on to the same bits from Caffe's own pair of files, with every solver, parameters that are
shared, parameters that are not trained, and statistics."""

from __future__ import annotations

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
        shapes = [tuple(blob.shape.dim) for blob in message.history]
        empty = [not any(blob.data) for blob in message.history]
        assert empty == [False, True, True, True, True, False, False, False] * slots
    else:
        import h5py

        with h5py.File(folder / "net_iter_3.solverstate.h5") as file:
            shapes = [file[f"history/{n}"].shape for n in range(len(file["history"]))]
    assert shapes == SHAPES * slots
