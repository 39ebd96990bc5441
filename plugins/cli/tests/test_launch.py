"""Processes that a launcher has started are counted; if they are not connected, that is reported."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from demitasse import CompositionError, Level, Machine, Processes
from demitasse_cli import launch
from demitasse_cli.main import main


@pytest.fixture(autouse=True)
def started_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("OMPI_", "PMI", "MPI_", "SLURM_"))]:
        monkeypatch.delenv(name)


def runtime(*levels: Level, fingerprint: str = "any", path: Path | None = None) -> SimpleNamespace:
    machine = Machine("here", levels or (Level("machine"),), fingerprint=fingerprint, path=path)
    return SimpleNamespace(machine=machine, processes=Processes())


def test_a_process_that_was_started_alone_is_alone() -> None:
    assert (launch.processes(), launch.rank()) == (1, None)
    launch.check_together(runtime())


@pytest.mark.parametrize(
    ("size", "rank"),
    [
        ("PMI_SIZE", "PMI_RANK"),
        ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
        ("PMIX_SIZE", "PMIX_RANK"),
        ("MPI_WORLD_SIZE", "MPI_WORLD_RANK"),
    ],
)
def test_a_launcher_s_processes_are_counted(
    monkeypatch: pytest.MonkeyPatch, size: str, rank: str
) -> None:
    monkeypatch.setenv(size, "4")
    monkeypatch.setenv(rank, "2")
    assert (launch.processes(), launch.rank()) == (4, 2)


def test_srun_s_processes_that_meet_by_pmix_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMIX_RANK", "2")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    assert (launch.processes(), launch.rank()) == (4, 2)


def test_srun_s_processes_without_mpi_are_warned_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    monkeypatch.setenv("SLURM_MPI_TYPE", "none")
    for task in ("0", "1"):
        monkeypatch.setenv("SLURM_PROCID", task)
        launch.check_together(runtime())
        assert launch.processes() == 1
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "each of srun's 4 processes trains alone (SLURM_MPI_TYPE=none)" in told


def test_what_all_meet_that_cannot_meet_is_told_by_the_first_of_each_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The others stay until it has been reported, because some launchers kill all once one has ended."""
    slept = list[float]()
    monkeypatch.setattr(launch.time, "sleep", slept.append)
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    for task, local in (("0", "0"), ("1", "1"), ("2", "0"), ("3", "1")):
        monkeypatch.setenv("SLURM_PROCID", task)
        monkeypatch.setenv("SLURM_LOCALID", local)
        for everywhere in (True, False):
            with launch.said_once("nobody hears of the others", everywhere) as who:
                assert who == (None if everywhere and local == "1" else "demitasse")
    assert slept == [launch.SPEAKING] * 2


def test_processes_that_would_train_alone_are_told_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PMI_SIZE", "4")
    level = Level("process", workers="mpi")
    with pytest.raises(CompositionError, match=r"no level with workers.*or compose the plugin 'allred"):
        launch.check_together(runtime())
    with pytest.raises(
        CompositionError, match=r"4 processes were started.*desk.toml has no .*--hw auto"
    ):
        launch.check_together(runtime(path=Path("desk.toml")))
    with pytest.raises(CompositionError, match="compose the plugin 'allreduce'"):
        launch.check_together(runtime(level))
    for mark in ("elsewhere", ""):
        with pytest.raises(
            CompositionError, match=r"describes another machine.*give it fingerprint = \"any\""
        ):
            launch.check_together(runtime(level, fingerprint=mark))


def test_only_the_first_of_several_writes_to_standard_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launch, "_meet", lambda words: None)
    assert main(["plugins"]) == 0
    alone = capsys.readouterr().out
    monkeypatch.setenv("PMI_SIZE", "2")
    for rank, told in (("0", alone), ("1", "")):
        monkeypatch.setenv("PMI_RANK", rank)
        assert main(["plugins"]) == 0
        assert capsys.readouterr().out == told
        assert main(["nosuch"]) == 2
        assert f"demitasse, rank {rank}: unknown command" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("counts", "started", "told"),
    [
        ((1, 1), 3, ""),
        ((2, 3), 6, ""),
        (
            (2, 3),
            4,
            "6 processes (level 'process' of desk) are described, but 4 were started and will train",
        ),
        (
            (2, 3),
            1,
            "6 processes (level 'process' of desk) are described, but 1 was started and will train",
        ),
    ],
)
def test_fewer_or_more_processes_than_are_described_are_told(
    counts: tuple[int, int], started: int, told: str
) -> None:
    node = Level("node", count=counts[0])
    process = Level("process", count=counts[1], parent="node", workers="mpi")
    cores = Level("core", count=8, parent="process")
    machine = Machine("desk", (node, process, cores), fingerprint="any")
    assert launch.counted_otherwise(machine, started) == told.replace("of desk", f"of {machine.origin}")
    assert launch.counted_otherwise(Machine("desk", (Level("machine", count=4),)), started) == ""


@pytest.mark.parametrize(
    ("variables", "mine", "told"),
    [
        (
            {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
            1,
            "each of this host's 2 processes",
        ),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, 4, "this process"),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, 4, ""),
        ({"PMI_RANK": "0", "MPI_LOCALNRANKS": "1"}, 1, ""),
        ({"PMIX_RANK": "0", "SLURM_STEP_NUM_TASKS": "2"}, 1, ""),
        ({}, 1, ""),
    ],
)
def test_processes_that_are_bound_to_few_of_their_launcher_s_cores_are_told(
    variables: dict[str, str], mine: int, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Open MPI's mpiexec binds each of one or two processes to a core, on a host of any size."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    cores = {0: range(mine), os.getppid(): range(8)}
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {*cores[process]})
    words = launch.bound_narrowly()
    assert bool(words) == bool(told)
    assert words.startswith(told)
    assert not told or f"bound to {mine} of 8 processors; mpiexec --bind-to none" in words
