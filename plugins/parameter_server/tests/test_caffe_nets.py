"""Nets in Caffe's files, with shuffled samples: several workers compute what one does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demitasse import Level, Machine, SyncSpec, compose

pytestmark = [
    pytest.mark.timeout(300, method="thread"),
    pytest.mark.usefixtures("no_threads_left"),
]

NET = """
layer { name: "samples" type: "HDF5Data" top: "data" top: "label"
        hdf5_data_param { source: "list.txt" batch_size: 17 shuffle: true } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
        convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "drop" type: "Dropout" bottom: "conv" top: "conv" }
layer { name: "scores" type: "InnerProduct" bottom: "conv" top: "scores"
        inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "scores" bottom: "label" top: "loss" }
"""

SOLVER = 'net: "net.prototxt"\nlr_policy: "fixed"\nrandom_seed: 5\nmax_iter: 1000\nsnapshot: 0\n'

Losses = Callable[..., list[float]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A net, and 40 samples of three classes for it."""
    h5py = pytest.importorskip("h5py")
    place: Path = tmp_path_factory.mktemp("net")
    random = np.random.default_rng(2)
    with h5py.File(place / "samples.h5", "w") as file:
        file["data"] = random.normal(size=(40, 1, 6, 6)).astype(np.float32)
        file["label"] = random.integers(0, 3, 40).astype(np.float32)
    (place / "list.txt").write_text("samples.h5\n", encoding="utf-8")
    (place / "net.prototxt").write_text(NET, encoding="utf-8")
    return place


@pytest.fixture
def losses(folder: Path) -> Iterator[Losses]:
    """``losses(workers, iterations, solver, precision)``: the losses of a training of so many
    iterations."""

    def train(workers: int, iterations: int, solver: str = "", precision: str = "f64") -> list[float]:
        path = folder / "solver.prototxt"
        rates = "" if "base_lr" in solver else "base_lr: 0.02\nmomentum: 0.9\nweight_decay: 0.0005\n"
        path.write_text(SOLVER + rates + solver, encoding="utf-8")
        level = Level("worker", workers, workers="threads", sync=SyncSpec("parameter_server"))
        names = ["parameter_server", "caffe", "training", "datasets", "reference"]
        with compose(Machine("test", (level,), fingerprint="any"), names) as runtime:
            trainer: Any = runtime.trainer(path, precision=precision)
            try:
                return [trainer.step(1).loss for _ in range(iterations)]
            finally:
                trainer.close()

    yield train


@pytest.fixture(scope="module")
def right() -> dict[str, list[float]]:
    """The losses of one worker, by solver."""
    return {}


@pytest.mark.parametrize(("workers", "iterations"), [(2, 25), (3, 100), (5, 25), (8, 25)])
def test_shuffled_samples_and_dropout_train_as_on_one(
    losses: Losses, right: dict[str, list[float]], workers: int, iterations: int
) -> None:
    """In float64 over a hundred iterations, ten times through the data; in float32 over ten."""
    if "momentum" not in right:
        right["momentum"] = losses(1, 100)
    found = losses(workers, iterations)
    np.testing.assert_allclose(found, right["momentum"][:iterations], rtol=0, atol=1e-10)
    brief = losses(workers, 10, precision="f32")
    np.testing.assert_allclose(brief, right["momentum"][:10], rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["Adam", "RMSProp", "AdaDelta", "AdaGrad", "Nesterov", "SGD"])
def test_every_solver_works_on_slices(losses: Losses, kind: str) -> None:
    decay = "" if kind == "RMSProp" else "momentum: 0.9\n"
    more = {"RMSProp": "rms_decay: 0.98\n", "Adam": "momentum2: 0.999\n", "AdaDelta": "delta: 1e-6\n"}
    if kind == "AdaGrad":
        decay = ""
    solver = f'type: "{kind}"\nbase_lr: 0.001\nweight_decay: 0.0005\n{decay}{more.get(kind, "")}'
    np.testing.assert_allclose(losses(3, 8, solver), losses(1, 8, solver), rtol=0, atol=1e-9)


def test_gradients_are_clipped_by_the_size_of_the_sum(losses: Losses) -> None:
    solver = "clip_gradients: 0.05\n"
    clipped = losses(1, 8, solver)
    np.testing.assert_allclose(losses(3, 8, solver), clipped, rtol=0, atol=1e-10)
    assert abs(clipped[-1] - losses(1, 8)[-1]) > 1e-4


def test_running_means_are_each_workers_own(folder: Path) -> None:
    """The parameters are one copy, but a forward pass of each worker changes its running means: Caffe's
    third blob counts how often, 1 and then 1 + 0.999."""
    net = NET.replace(
        'layer { name: "relu"',
        'layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "conv" }\nlayer { name: "relu"',
    )
    (folder / "normalised.prototxt").write_text(net, encoding="utf-8")
    path = folder / "normalised_solver.prototxt"
    path.write_text(
        SOLVER.replace("net.proto", "normalised.proto") + "base_lr: 0.01\n", encoding="utf-8"
    )
    level = Level("worker", 3, workers="threads", sync=SyncSpec("parameter_server"))
    names = ["parameter_server", "caffe", "training", "datasets", "reference"]
    with compose(Machine("test", (level,), fingerprint="any"), names) as runtime:
        trainer: Any = runtime.trainer(path, precision="f64")
        trainer.step(2)
        (factor,) = trainer.net.params["bn"][2].ravel()
        trainer.close()
    assert factor == pytest.approx(1.999, abs=1e-12)
