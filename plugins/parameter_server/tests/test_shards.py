"""Processes push to servers and pull from them: the losses of one worker, and an end when one dies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from demitasse import CompositionError, Level, Machine, SyncSpec, compose

MPIEXEC = Path(sys.executable).parent / "mpiexec"

pytestmark = [
    pytest.mark.timeout(300, method="thread"),
    pytest.mark.skipif(not MPIEXEC.exists(), reason=f"no MPI launcher {MPIEXEC}"),
]

Run = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def across() -> Run:
    """``across(*arguments, **environment)``: what three processes tell, by rank."""

    def run(*arguments: object, **environment: object) -> list[dict[str, Any]]:
        program = Path(__file__).with_name("across.py")
        # The launcher would end the others when one dies, before they can tell.
        command = [MPIEXEC, "-disable-auto-cleanup", "-n", "3", sys.executable, program, *arguments]
        made = subprocess.run(
            [str(word) for word in command],
            env={**os.environ, **{name: str(value) for name, value in environment.items()}},
            capture_output=True,
            text=True,
            check=False,
        )
        lines = [line for line in made.stdout.splitlines() if line.startswith("{")]
        assert lines, made.stderr
        return sorted((json.loads(line) for line in lines), key=lambda told: told["rank"])

    return run


@pytest.fixture
def right(toy: ModuleType) -> list[float]:
    plugins = ["reference", "training", toy.toy()]
    with compose(Machine("toys", (Level("worker"),), fingerprint="any"), plugins) as runtime:
        trainer = runtime.trainer(toy.solver(toy.classifier(batch=11)), precision="f64")
        return [trainer.step(1).loss for _ in range(20)]


@pytest.mark.parametrize("threads", [{}, {"THREADS": 1}], ids=["alone", "two threads each"])
def test_three_processes_have_the_losses_of_one_worker(
    across: Run, right: list[float], threads: dict[str, int], tmp_path: Path
) -> None:
    told = across(20, SNAPSHOT=tmp_path / "toy", **threads)
    assert [each["rank"] for each in told] == [0, 1, 2]
    for each in told:
        np.testing.assert_allclose(each["losses"], right, rtol=0, atol=1e-10)
    assert "2 of 3 processes hold a shard" in told[0]["notes"][-3]


def test_bytes_of_each_shard_are_shown(across: Run) -> None:
    """Process 2, no server, pushes what it pulls; a server collects from two and gives to two."""
    told = across(3)
    for shard in (0, 1):
        lines = [each["notes"][-2 + shard] for each in told]
        assert [f"shard {shard}: " in line for line in lines] == [True] * 3
        sent = [int(line.split(": ")[-1].split()[0].replace(",", "")) for line in lines]
        assert sent[2] > 0
        assert sent[shard] == 2 * sent[2]
        assert sent[1 - shard] == sent[2]


def test_a_snapshot_has_the_state_of_all_shards(across: Run, toy: ModuleType, tmp_path: Path) -> None:
    across(3, SNAPSHOT=tmp_path / "toy")
    (path,) = tmp_path.glob("toy_iter_3*")
    plugins = ["reference", "training", "snapshots", toy.toy()]
    with compose(Machine("toys", (Level("worker"),), fingerprint="any"), plugins) as runtime:
        solver = toy.solver(toy.classifier(batch=11))
        straight = runtime.trainer(solver, precision="f64")
        straight.step(5)
        resumed = runtime.trainer(solver, precision="f64", resume=path)
        resumed.step(2)
        for layer, arrays in straight.net.params.items():
            for ours, theirs in zip(arrays, resumed.net.params[layer], strict=True):
                np.testing.assert_allclose(theirs, ours, rtol=0, atol=1e-12)


def test_a_process_that_dies_ends_the_run_with_its_name(across: Run) -> None:
    told = across(6, 2, 3)
    assert [each["rank"] for each in told] == [0, 1]
    assert all("WorkerError: rank 2 of 3" in each["error"] for each in told)
    assert all("died" in each["error"] for each in told)


@pytest.mark.parametrize("model", ["ssp", "asp"])
def test_models_that_are_not_there_across_processes_are_refused(toy: ModuleType, model: str) -> None:
    level = Level("node", 2, workers="mpi", sync=SyncSpec("parameter_server", {"model": model}))
    plugins = ["parameter_server", "reference", "training", toy.toy()]
    machine = Machine("toys", (level,), fingerprint="any")
    refused = pytest.raises(CompositionError, match=r'across processes .* model = "bsp" alone')
    with compose(machine, plugins) as runtime, refused:
        runtime.trainer(toy.solver(toy.classifier()))
