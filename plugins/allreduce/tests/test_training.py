"""Ranks train like one process that has the whole batch: with dropout, in every stage."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demitasse_allreduce.stages.options import STAGES

if find_spec("sklearn") is None:  # importing it would take two seconds of collecting tests
    pytest.skip("the digits are scikit-learn's", allow_module_level=True)

Job = dict[str, Any]
Trained = Callable[[int, list[Job]], list[dict[str, Any]]]

NET = """
name: "small"
layer {{ name: "digits" type: "Data" top: "data" top: "label" include {{ phase: TRAIN }}
  transform_param {{ scale: 0.0625 }} data_param {{ source: "digits:train" batch_size: {batch} }} }}
layer {{ name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param {{ num_output: 8 kernel_size: 3 weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "relu" type: "ReLU" bottom: "conv" top: "conv" }}
layer {{ name: "hidden" type: "InnerProduct" bottom: "conv" top: "hidden"
  inner_product_param {{ num_output: 40 weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "drop" type: "Dropout" bottom: "hidden" top: "hidden" }}
layer {{ name: "score" type: "InnerProduct" bottom: "hidden" top: "score"
  inner_product_param {{ num_output: 10 weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "score" bottom: "label" top: "loss" }}
"""

SOLVER = """
net: "{net}"
base_lr: 0.02 momentum: 0.9 weight_decay: 0.0005 lr_policy: "fixed"
display: 0 max_iter: 1000 random_seed: 1 snapshot_prefix: "out"
"""

BATCH = 60
"""The batch of all ranks; with weak scaling on 3 ranks, each has 20."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the solvers."""
    made = tmp_path_factory.mktemp("net")
    for name, batch, more in (
        ("solver", BATCH, ""),
        ("third", BATCH // 3, ""),
        ("clipped", BATCH, "clip_gradients: 0.5"),
    ):
        (made / f"{name}_net.prototxt").write_text(NET.format(batch=batch))
        (made / f"{name}.prototxt").write_text(SOLVER.format(net=f"{name}_net.prototxt") + more)
    return made


@pytest.fixture(scope="module")
def trained(folder: Path, on_ranks: Callable[..., str]) -> Trained:
    """``trained(ranks, jobs)``: what ``training.py`` reports for each of the jobs."""
    program = Path(__file__).with_name("training.py")

    def run_alone(jobs: str) -> str:
        words = [sys.executable, str(program), jobs]
        done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout

    def run(ranks: int, jobs: list[Job]) -> list[dict[str, Any]]:
        numbered = json.dumps(
            [{"folder": str(folder), "prefix": f"{ranks}-{i}", **job} for i, job in enumerate(jobs)]
        )
        told = run_alone(numbered) if ranks == 1 else on_ranks(ranks, program.read_text(), numbered)
        return [json.loads(line) for line in told.splitlines() if line.startswith("{")]

    return run


@pytest.fixture(scope="module")
def alone(trained: Trained) -> dict[str, list[float]]:
    """The losses of one process that has all samples, by solver; those in float32 under "f32"."""
    jobs = [
        {"iterations": 100},
        {"iterations": 10, "precision": "f32"},
        {"iterations": 10, "solver": "clipped.prototxt"},
    ]
    losses = [found["losses"] for found in trained(1, jobs)]
    return dict(zip(("solver", "f32", "clipped"), losses, strict=True))


@pytest.mark.parametrize(
    "ranks", [2, pytest.param(3, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow)]
)
def test_ranks_have_the_losses_of_one(
    trained: Trained, alone: dict[str, list[float]], ranks: int
) -> None:
    clipped = {"iterations": 5, "solver": "clipped.prototxt"}
    found = trained(
        ranks,
        [
            {"iterations": 100},
            {"iterations": 10, "precision": "f32"},
            clipped,
            {**clipped, "sync": {"stage": "overlap", "shared": False}},
        ],
    )
    long, single, *clips = found
    assert all(each["alike"] for each in found)
    assert np.allclose(long["losses"], alone["solver"], rtol=0, atol=1e-10)
    assert np.allclose(single["losses"], alone["f32"], rtol=0, atol=1e-5)
    for each in clips:
        assert np.allclose(each["losses"], alone["clipped"][:5], rtol=0, atol=1e-10)


@pytest.mark.parametrize("shared", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_every_stage_has_the_losses_of_one(
    trained: Trained, alone: dict[str, list[float]], shared: bool
) -> None:
    """On three ranks, which is not a power of two and does not divide every layer."""
    jobs: list[Job] = [
        {"iterations": 6, "sync": {"stage": stage, "shared": shared, "bucket": 4096}} for stage in STAGES
    ]
    jobs.append({"iterations": 6, "sync": {"stage": "SC-OBR", "chain": 2, "upper": "chain"}})
    jobs.append({"iterations": 6, "sync": {"stage": "SC-B"}, "solver": "clipped.prototxt"})
    for job, found in zip(jobs, trained(3, jobs), strict=True):
        expected = alone["clipped" if "solver" in job else "solver"][:6]
        assert np.allclose(found["losses"], expected, rtol=0, atol=1e-10), job
        assert found["alike"], job


def test_another_plugins_algorithm_is_chosen_by_its_name(
    trained: Trained, alone: dict[str, list[float]]
) -> None:
    sync = {"stage": "packed", "shared": False, "algorithm": "strangers-ring"}
    (found,) = trained(2, [{"iterations": 3, "sync": sync}])
    assert np.allclose(found["losses"], alone["solver"][:3], rtol=0, atol=1e-10)
    assert found["alike"]
    assert any("bytes: strangers-ring" in note for note in found["notes"])


def test_weak_scaling_is_a_larger_batch(trained: Trained, alone: dict[str, list[float]]) -> None:
    (found,) = trained(3, [{"iterations": 6, "scaling": "weak", "solver": "third.prototxt"}])
    assert np.allclose(found["losses"], alone["solver"][:6], rtol=0, atol=1e-10)


def test_another_number_of_ranks_goes_on_from_a_snapshot(
    trained: Trained, alone: dict[str, list[float]]
) -> None:
    """The snapshot has the momentum of all slices."""
    first = trained(3, [{"iterations": 3}, {"iterations": 3, "sync": {"stage": "SC-OB"}}])
    then = [
        {"iterations": 3, "resume": found["saved"], "prefix": f"then{i}"}
        for i, found in enumerate(first)
    ]
    for found in trained(2, then):
        assert np.allclose(found["losses"], alone["solver"][3:6], rtol=0, atol=1e-10)
