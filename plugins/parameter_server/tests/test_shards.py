"""Processes push to servers and pull from them: the losses equal one worker's, and the run ends when
one dies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from demitasse import (
    CompositionError,
    DescriptionError,
    Group,
    Level,
    Machine,
    Processes,
    SyncSpec,
    WorkerError,
    compose,
)
from demitasse_parameter_server.gradient_sync import server_of

pytestmark = pytest.mark.timeout(300, method="thread")

Run = Callable[..., list[dict[str, Any]]]


def saved(folder: Path) -> dict[str, Any]:
    """A solver that writes a snapshot at the end."""
    return {"snapshot_last": True, "snapshot_prefix": str(folder / "toy")}


@pytest.fixture
def right(toy: ModuleType) -> list[float]:
    plugins = ["reference", "training", toy.toy()]
    with compose(Machine("toys", (Level("worker"),), fingerprint="any"), plugins) as runtime:
        trainer = runtime.trainer(toy.solver(toy.classifier(batch=11)), precision="f64")
        return [trainer.step(1).loss for _ in range(20)]


@pytest.mark.parametrize(
    "threads", [{}, {"THREADS": 1, "PROCESSORS": 1}], ids=["alone", "two threads each, of one processor"]
)
def test_three_processes_have_the_losses_of_one_worker(
    across: Run, right: list[float], threads: dict[str, int], tmp_path: Path
) -> None:
    """Threads that outnumber their processors agree with all processes before any of them is at a gate:
    there, none may wait for its turn."""
    told = across(20, SOLVER=saved(tmp_path), **threads)
    assert [each["rank"] for each in told] == [0, 1, 2]
    for each in told:
        np.testing.assert_allclose(each["losses"], right, rtol=0, atol=1e-10)
    assert "2 of 3 processes hold a shard" in told[0]["notes"][-3]
    assert "2 of 3 processes hold a shard" in told[0]["before"][-1]  # and no bytes, which were 0 so far


def test_whole_gradients_are_measured_where_threads_and_servers_have_slices(
    across: Run, toy: ModuleType
) -> None:
    """All threads of a process sum at the same time, each with its siblings in the other processes."""
    caffe, solver = toy.installed("caffe"), {"clip": 0.3}
    words = toy.plugin("words", operations=caffe.operations, kernels=caffe.kernels)
    with compose(
        Machine("toys", (Level("worker"),), fingerprint="any"),
        ["reference", "training", words, toy.toy()],
    ) as runtime:
        trainer = runtime.trainer(toy.solver(toy.classifier(batch=11), **solver), precision="f64")
        clipped = [trainer.step(1).loss for _ in range(20)]
    for each in across(20, SOLVER=solver, THREADS=1):
        np.testing.assert_allclose(each["losses"], clipped, rtol=0, atol=1e-10)


def test_bytes_of_each_shard_are_shown(across: Run) -> None:
    """Process 2, which is not a server, pushes as much as it pulls; a server receives from two
    processes and sends to two."""
    told = across(3)
    for shard in (0, 1):
        lines = [each["notes"][-2 + shard] for each in told]
        assert [f"shard {shard}: " in line for line in lines] == [True] * 3
        sent = [int(line.split(": ")[-1].split()[0].replace(",", "")) for line in lines]
        assert sent[2] > 0
        assert sent[shard] == 2 * sent[2]
        assert sent[1 - shard] == sent[2]


def test_a_snapshot_has_the_state_of_all_shards(across: Run, toy: ModuleType, tmp_path: Path) -> None:
    across(3, SOLVER=saved(tmp_path))
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
    told = across(6, 2, 3, "dies")
    assert [each["rank"] for each in told] == [0, 1]
    assert all("WorkerError: rank 2 of 3" in each["error"] for each in told)
    assert all("died" in each["error"] for each in told)


class Two(Processes):
    """One of two processes that MPI does not join."""

    size = 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"model": "bsp"},
            "needs processes that MPI connects, not those of Two; add the plugin 'allreduce'",
        ),
        ({"model": "ssp"}, "needs processes that a run can lose, not those of Two"),
        ({"model": "bsp", "delay": [1]}, "delay across processes is for model"),
        ({"servers": 3}, "servers = 3, but the run has 2 processes"),
        ({"model": "asp", "delay": [1, 1, 1]}, "delay has 3 numbers, but the run has 2 processes"),
    ],
)
def test_what_cannot_work_across_processes_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises((CompositionError, DescriptionError), match=message):
        server_of(Group(("node",), 0, None, "float32", options, remote=True, processes=Two()))


class OneLost(Two):
    """One of two processes, of which the other is lost."""

    communicator = None
    lost: Mapping[int, str] = {1: "rank 1 of 2 (host a, process 7) died"}

    def tolerate(self, ranks: Iterable[int]) -> None:
        """The other was lost before."""


def test_no_share_is_given_to_who_is_lost() -> None:
    options = {"model": "asp"}
    with pytest.raises(WorkerError, match=r"rank 1 of 2 .*died: nobody would train a share"):
        server_of(Group(("node",), 0, None, "float32", options, remote=True, processes=OneLost()))


def test_threads_inside_that_synchronise_too_are_refused_where_processes_go_apart(
    toy: ModuleType,
) -> None:
    outer = Level("node", 2, workers="mpi", sync=SyncSpec("parameter_server", {"model": "asp"}))
    inner = Level("core", 2, workers="threads", sync=SyncSpec("parameter_server"))
    plugins = ["parameter_server", "reference", "training", toy.toy()]
    machine = Machine("toys", (outer, inner), fingerprint="any")
    refused = pytest.raises(CompositionError, match="each worker is at its own iteration")
    with compose(machine, plugins) as runtime, refused:
        runtime.trainer(toy.solver(toy.classifier()))
