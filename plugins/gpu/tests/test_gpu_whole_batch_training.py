"""Training on stand-ins for GPUs that share a batch, and add up its statistics amid a step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda_on_cpu import NO_COMPILER, EmulatedDriver, compiler
from threaded_driver import ThreadedDriver

import demitasse
from demitasse import Level, Machine, MemorySpace, SyncSpec, fingerprint

pytestmark = pytest.mark.skipif(compiler() is None, reason=NO_COMPILER)

PLUGINS = ["caffe", "training", "datasets", "gpu", "cpu", "reference", "snapshots", "cgdp"]
IGNORED, CLASSES, BATCH = 255, 4, 5
KEEP, EPSILON = 0.75, 0.01
NET = f"""
layer {{ name: "data" type: "Data" top: "data" top: "label"
  data_param {{ source: "given" batch_size: {BATCH} }} }}
layer {{ name: "mix" type: "Convolution" bottom: "data" top: "x"
  convolution_param {{ num_output: 6 kernel_size: 1 weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "norm" type: "BatchNorm" bottom: "x" top: "x"
  batch_norm_param {{ moving_average_fraction: {KEEP} eps: {EPSILON} }} }}
layer {{ name: "scale" type: "Scale" bottom: "x" top: "x"
  scale_param {{ bias_term: true filler {{ type: "gaussian" std: 1 }} }} }}
layer {{ name: "relu" type: "ReLU" bottom: "x" top: "x" }}
layer {{ name: "score" type: "Convolution" bottom: "x" top: "score"
  convolution_param {{ num_output: {CLASSES} kernel_size: 1 weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "score" bottom: "label" top: "loss"
  loss_param {{ ignore_label: {IGNORED} }} }}
"""
SOLVER = 'net: "net.prototxt" base_lr: 0.2 momentum: 0.9 lr_policy: "fixed" random_seed: 7'
TOGETHER = ["channel_moments", "settle_moments", "batch_norm_whole_backward", "count_labels"]


def samples() -> dict[str, Any]:
    """Four batches. In each, the workers have different numbers of labels; in the second, one has
    none."""
    random = np.random.default_rng(5)
    data = random.normal(2, 3, (4 * BATCH, 3, 6, 7)).astype(np.float32)
    label = random.integers(0, CLASSES, (4 * BATCH, 1, 6, 7)).astype(np.float32)
    label[random.uniform(size=label.shape) < 0.4] = IGNORED
    label[BATCH : BATCH + 3] = IGNORED
    return {"data": data, "label": label}


@pytest.fixture
def solver(tmp_path: Path) -> Path:
    (tmp_path / "net.prototxt").write_text(NET)
    (tmp_path / "solver.prototxt").write_text(SOLVER)
    return tmp_path / "solver.prototxt"


def on_gpus(driver: Any, workers: int, at: str = "gpu:*", **options: Any) -> demitasse.Runtime:
    sync = SyncSpec("cgdp") if workers > 1 else None
    memory = (MemorySpace("gpu", at=at),)
    gpu = Level("gpu", workers, workers="streams", memory=memory, sync=sync)
    machine = Machine("stand-in", (Level("node"), gpu), fingerprint=fingerprint())
    return demitasse.compose(machine, PLUGINS, {"gpu": {"driver": driver, **options}})


def on_host() -> demitasse.Runtime:
    names = ["caffe", "training", "datasets", "reference", "snapshots"]
    return demitasse.compose(Machine("host", (Level("node"),), fingerprint=fingerprint()), names)


def trained(
    runtime: demitasse.Runtime, solver: Path, precision: str = "f32"
) -> tuple[list[float], dict[str, list[np.ndarray]]]:
    """Return the losses of four iterations, and what was trained."""
    with runtime, runtime.trainer(solver, data={"train": samples()}, precision=precision) as trainer:
        losses = [trainer.step().loss for _ in range(4)]
        for worker in trainer._workers:
            plugins = {entry.operation: entry.plugin for entry in worker.plan.entries}
            if trainer.workers > 1:
                assert plugins.pop("sum_across_workers") == "training"
                assert plugins.keys() >= {*TOGETHER, "over_divisor"}
            assert {*plugins.values()} == ({"gpu"} if worker.place.streams else {"reference"})
        return losses, {name: [a.copy() for a in arrays] for name, arrays in trainer.net.params.items()}


def first_loss(parameters: dict[str, list[np.ndarray]]) -> float:
    """Return the loss of the first batch in float64, by the layers' formulas."""
    data, label = (values[:BATCH].astype(np.float64) for values in samples().values())
    (mix, _), (w, b), (score, _) = (parameters[name] for name in ("mix", "scale", "score"))
    x = np.einsum("fc,nchw->nfhw", mix[:, :, 0, 0].astype(np.float64), data)
    x = (x - x.mean((0, 2, 3), keepdims=True)) / np.sqrt(x.var((0, 2, 3), keepdims=True) + EPSILON)
    x = np.maximum(x * w[:, None, None] + b[:, None, None], 0)
    scores = np.einsum("fc,nchw->nfhw", score[:, :, 0, 0].astype(np.float64), x)
    counted = label[:, 0] != IGNORED
    scores, label = scores.transpose(0, 2, 3, 1)[counted], label[:, 0][counted].astype(int)
    likely = np.take_along_axis(scores, label[:, None], 1)[:, 0] - np.log(np.exp(scores).sum(1))
    return float(-likely.mean())


@pytest.mark.parametrize("workers", [2, 3])
def test_the_loss_is_that_of_the_whole_batch(solver: Path, workers: int) -> None:
    with (
        on_gpus(EmulatedDriver, workers) as runtime,
        runtime.trainer(solver, data={"train": samples()}) as trainer,
    ):
        parameters = {name: [a.copy() for a in each] for name, each in trainer.net.params.items()}
        assert trainer.step().loss == pytest.approx(first_loss(parameters), rel=1e-5)


DEVICES = {
    "in threads": (ThreadedDriver, "gpu:*", {}),
    "at once": (EmulatedDriver, "gpu:*", {}),
    "without graphs": (ThreadedDriver, "gpu:*", {"graphs": False}),
    "one for both": (ThreadedDriver, "gpu:0", {}),
}


@pytest.mark.parametrize("devices", DEVICES)
def test_devices_that_share_a_batch_train_as_one_worker(solver: Path, devices: str) -> None:
    """The third step on, launches are graphs, which end where numbers are added up."""
    driver, at, options = DEVICES[devices]
    losses, parameters = trained(on_gpus(driver, 2, at, **options), solver)
    expected, others = trained(on_host(), solver)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    for name, arrays in others.items():
        for ours, theirs in zip(parameters[name], arrays, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)


def test_half_precision_trains_as_on_one_device(solver: Path) -> None:
    losses, _ = trained(on_gpus(ThreadedDriver, 2), solver, "bf16")
    expected, _ = trained(on_gpus(EmulatedDriver, 1), solver, "bf16")
    np.testing.assert_allclose(losses, expected, rtol=1e-3)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_label_that_is_no_class_changes_no_statistics(solver: Path, workers: int) -> None:
    given = samples()
    given["label"][2 * BATCH + 4, 0, 3, 3] = 12
    with on_gpus(ThreadedDriver, workers) as runtime:
        trainer = runtime.trainer(solver, data={"train": given})
        trainer.step(2)
        before = [array.copy() for array in trainer.net.params["norm"]]
        with pytest.raises(demitasse.DataError, match=rf"label 12 .*: number {2 * BATCH + 4}\b"):
            trainer.step()
        for one, other in zip(before, trainer.net.params["norm"], strict=True):
            assert np.array_equal(one, other)
