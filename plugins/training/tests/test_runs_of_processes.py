"""Runs of several processes: which one writes snapshots, which can stop all, and what a failure
keeps."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from demitasse import (
    DataError,
    DemitasseError,
    SnapshotError,
    WorkerError,
    compose,
)

Job = Callable[[Any, int], Any]


def test_the_first_process_writes_snapshots_and_any_may_be_asked_to_stop(
    toy: ModuleType, together: Any, tmp_path: Any
) -> None:
    told = []

    def job(runtime: Any, rank: int) -> Any:
        solver = toy.solver(toy.classifier(), snapshot_prefix=str(tmp_path / f"by{rank}"))
        with runtime.trainer(solver, precision="f64") as trainer:
            if rank == 0:
                trainer.listeners.append(lambda event: told.append((event.kind, event.iteration)))
            asked = iter([False, rank == 1, False, False])
            result = trainer.run(
                stop=lambda: rank == 1 and trainer.iteration == 4, save=lambda: next(asked)
            )
            return result.iteration, trainer._workers[0].levels[0].quiet

    assert together(2, job) == [(4, 2), (4, 2)]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "by0_iter_2.demitasse",
        "by0_iter_4.demitasse",
    ]
    assert [iteration for kind, iteration in told if kind == "snapshot"] == [2, 4]


@pytest.mark.parametrize("threads", [1, 2])
def test_any_process_may_be_asked_to_stop_within_a_test(
    toy: ModuleType, together: Any, tmp_path: Any, threads: int
) -> None:
    told: list[tuple[str, int]] = []

    def job(runtime: Any, rank: int) -> Any:
        nets = toy.classifier(), toy.classifier(10, "test"), toy.classifier(10, "test")
        counts = {"test_interval": 2, "test_iterations": (16, 16), "test_first": False}
        solver = toy.solver(*nets, snapshot_prefix=str(tmp_path / "by"), **counts)
        with runtime.trainer(solver, precision="f64") as trainer:
            if rank == 0:
                trainer.listeners.append(lambda event: told.append((event.kind, event.iteration)))
            asked: list[int] = []

            def stop() -> bool:
                asked.append(trainer.iteration)
                return rank == 1 and asked.count(4) == 3

            result = trainer.run(stop=stop)
            return result.iteration, trainer.stopped, asked.count(4)

    batches = 16 // (2 * threads)
    assert together(2, job, threads=threads) == [(4, True, batches), (4, True, 3)]
    now_and_then = "iteration", "testing"  # the latter during tests that take half a second
    assert [each for each in told if each[0] not in now_and_then] == [
        ("start", 0),
        ("test", 2),
        ("snapshot", 4),
        ("end", 4),
    ]


Failing = Callable[..., Any]


def run_to(toy: ModuleType, path: Any, iterations: int = 4, **fields: Any) -> Job:
    """Return a job; it returns the error that ended a run, and how many iterations were done."""

    def job(runtime: Any, rank: int) -> Any:
        tests = [toy.classifier(phase="test")] if "test_interval" in fields else []
        solver = toy.solver(
            toy.classifier(),
            *tests,
            snapshot_prefix=str(path),
            max_iterations=iterations,
            snapshot_last=True,
            **fields,
        )
        trainer = runtime.trainer(solver, precision="f64")
        try:
            trainer.run()
        except DemitasseError as error:
            return error, trainer.iteration
        return runtime.processes.gather(rank), trainer.iteration

    return job


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("victim", [0, 1])
def test_what_all_have_trained_before_one_cannot_read_its_samples_is_kept(
    toy: ModuleType,
    together: Any,
    failing: Failing,
    differ: Any,
    tmp_path: Any,
    threads: int,
    passes: int,
    victim: int,
) -> None:
    error = DataError("samples.bin: sample 17 is cut off")
    at = 2 * passes + passes  # the last pass of the third iteration

    def source(rank: int) -> Any:
        return failing(threads - 1 if rank == victim else -1, at, error)

    job = run_to(toy, tmp_path / "toy", passes=passes)
    found = together(2, job, threads=threads, source=source)
    kept = tmp_path / "toy_iter_2.demitasse"
    words = f"samples.bin: sample 17 is cut off; iteration 2 is saved in {kept}"
    assert found[victim][0] is error and str(error) == words
    other = found[1 - victim][0]
    assert isinstance(other, WorkerError) and str(other).startswith(f"rank {victim}: {words}")
    assert [iteration for _, iteration in found] == [2, 2]
    assert [*tmp_path.iterdir()] == [kept]
    (alone,) = together(1, run_to(toy, tmp_path / "plain", 2, passes=passes))
    assert alone == ([0], 2)
    with compose(toy.machine(), ["reference", "training", "snapshots", toy.toy()]) as runtime:
        ours, theirs = (
            runtime.read(tmp_path / f"{name}_iter_2.demitasse").weights() for name in ("toy", "plain")
        )
    assert differ(ours.parameters, theirs.parameters) < 1e-12
    assert ours.record["cursors"] == theirs.record["cursors"]


def test_a_test_that_one_process_cannot_do_ends_all_with_what_was_trained(
    toy: ModuleType, together: Any, tmp_path: Any
) -> None:
    class Torn(toy.ArraySource):  # type: ignore[name-defined, misc]
        def stream(self, first: int, count: int, step: int) -> Any:
            stream = super().stream(first, count, step)

            def read(out: Any) -> None:
                raise DataError("test.bin is torn")

            stream.read = read
            return stream

    def source(rank: int) -> Any:
        opened = []

        def open_source(spec: Any) -> Any:
            opened.append(spec)
            torn = rank == 1 and len(opened) > 1
            return (Torn if torn else toy.ArraySource)(toy.images())

        return open_source

    job = run_to(toy, tmp_path / "toy", test_interval=3, test_iterations=(2,), test_first=False)
    (first, done), (second, _) = together(2, job, source=source)
    kept = tmp_path / "toy_iter_3.demitasse"
    assert done == 3 and [*tmp_path.iterdir()] == [kept]
    assert str(second) == f"test.bin is torn; iteration 3 is saved in {kept}"
    assert isinstance(first, WorkerError) and str(first).startswith("rank 1: test.bin is torn")


def test_all_hear_that_what_was_trained_could_not_be_kept(
    toy: ModuleType, together: Any, failing: Failing, tmp_path: Any
) -> None:
    (tmp_path / "toy_iter_2.demitasse").mkdir()
    error = DataError("a hiccup")
    job = run_to(toy, tmp_path / "toy")
    found = together(2, job, source=lambda rank: failing(rank - 1, 3, error))
    for told, _ in found:
        assert re.search(r"a hiccup; iteration 2 could not be saved: .*toy_iter_2", str(told))


def test_the_last_snapshot_is_no_second_one_where_the_interval_ends_there(
    toy: ModuleType, together: Any, tmp_path: Any
) -> None:
    """Otherwise a process would wait for the first one to write it, which has already left."""
    job = run_to(toy, tmp_path / "toy", snapshot_interval=2)
    assert together(3, job) == [([0, 1, 2], 4)] * 3


def test_a_snapshot_that_cannot_be_written_is_no_process_s_last_one(
    toy: ModuleType, together: Any, tmp_path: Any
) -> None:
    """A folder is in the place of the first process's file."""
    (tmp_path / "by_iter_0.demitasse").mkdir()

    def job(runtime: Any, rank: int) -> Any:
        with runtime.trainer(toy.solver(toy.classifier()), precision="f64") as trainer:
            try:
                trainer.snapshot(tmp_path / "by")
            except (SnapshotError, WorkerError) as error:
                runtime.processes.fail(error)
                return type(error).__name__, trainer._kept()

    none = "no snapshot has been written yet"
    assert together(2, job) == [("SnapshotError", none), ("WorkerError", none)]
