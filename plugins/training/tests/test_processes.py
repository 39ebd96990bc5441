"""Processes train together: here each is a thread with a runtime of its own."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from demitasse import (
    Bucket,
    DataError,
    DemitasseError,
    GradientSync,
    Group,
    Level,
    Machine,
    NumericsError,
    Processes,
    SnapshotError,
    Span,
    SyncSpec,
    Work,
    WorkerError,
    compose,
)
from demitasse_training import agreement
from demitasse_training.beginning import in_common

Job = Callable[[Any, int], Any]


class Room:
    """What the processes of one run have in common."""

    def __init__(self, size: int) -> None:
        self.size, self.barrier = size, threading.Barrier(size)
        self.given: list[Any] = [None] * size
        self.failures: list[str] = []


class Member(Processes):
    """One of them; who fails wakes all that wait."""

    def __init__(self, room: Room, rank: int) -> None:
        self.room, self.rank, self.size = room, rank, room.size
        self.reports: list[tuple[int, str]] = []

    def gather(self, value: Any) -> list[Any]:
        self.room.given[self.rank] = value
        self.wait()
        all_of_them = [*self.room.given]
        self.wait()
        return all_of_them

    def total(self, values: Any) -> Any:
        return np.sum(self.gather(values), axis=0)

    def report(self, iteration: int, layer: str = "") -> None:
        self.reports.append((iteration, layer))

    def wait(self) -> None:
        try:
            self.room.barrier.wait(30)
        except threading.BrokenBarrierError:
            raise WorkerError(self.room.failures[0]) from None

    def fail(self, error: BaseException) -> None:
        self.room.failures.append(f"rank {self.rank}: {error}")
        self.room.barrier.abort()


class Sum(GradientSync):
    """Every process has the sum of all gradients, and updates by itself."""

    def __init__(self, group: Group) -> None:
        assert group.remote and isinstance(group.processes, Member)
        self.processes = group.processes
        self.index, self.size = self.processes.rank, self.processes.size
        self.quiet = 0

    def bind(self, memory: Any) -> None:
        self.memory = memory

    def reduce(self, bucket: Bucket, span: Span) -> Work:
        gradients = self.memory.gradients[span.start : span.stop]

        def add() -> None:
            gradients[...] = self.processes.total(gradients.copy())

        return add

    def total(self, mine: Any, total: Any) -> Work | None:
        return None

    def quiesce(self) -> None:
        self.quiet += 1


class HalfSum(Sum):
    """Adds up the first half of each bucket."""

    def reduce(self, bucket: Bucket, span: Span) -> Work:
        return super().reduce(bucket, Span(span.start, span.start + len(span) // 2))


class Rounded(Sum):
    """Sums that are not the same bits everywhere."""

    def reduce(self, bucket: Bucket, span: Span) -> Work:
        work = super().reduce(bucket, span)
        gradients = self.memory.gradients[span.start : span.stop]

        def add() -> None:
            work()
            gradients[...] *= 1 + self.index * 1e-9

        return add


class Free(Sum):
    """Nobody waits for anybody."""

    asynchronous = True

    def reduce(self, bucket: Bucket, span: Span) -> Work:
        return lambda: None


@pytest.fixture
def together(toy: ModuleType, no_threads_left: None) -> Iterator[Callable[..., list[Any]]]:
    """``together(size, job, sync=..., threads=..., source=...)``: what ``job(runtime, rank)`` returns in
    each process, which may have several workers; ``source(rank)`` makes its samples."""

    def run(
        size: int, job: Job, sync: type[GradientSync] = Sum, threads: int = 1, source: Any = None
    ) -> list[Any]:
        room = Room(size)
        inner = Level("thread", threads, workers="threads", sync=SyncSpec("reference"))
        level = Level("process", size, workers="mpi", sync=SyncSpec("joined"))
        levels = (Level("machine"), level, *([inner] if threads > 1 else []))
        described = Machine("joined", levels, fingerprint="any")

        def process(rank: int) -> Any:
            joined = toy.plugin(
                "joined",
                processes=lambda machine, options: Member(room, rank),
                gradient_sync=lambda group: sync(group),  # noqa: PLW0108  hooks are functions
            )
            samples = toy.toy(None, source and source(rank))
            with compose(described, ["reference", "training", "snapshots", samples, joined]) as made:
                return job(made, rank)

        with ThreadPoolExecutor(size) as pool:
            futures = [pool.submit(process, rank) for rank in range(size)]
            return [future.exception() or future.result() for future in futures]

    yield run


def trained(toy: ModuleType, iterations: int = 5, **options: Any) -> Job:
    """A job: the losses of some iterations, the scores after them and the parameters."""

    def job(runtime: Any, rank: int) -> Any:
        net = toy.classifier()
        tests = toy.classifier(phase="test"), toy.classifier(batch=7, phase="test")
        solver = toy.solver(net, *tests, test_iterations=(4, 2))
        with runtime.trainer(solver, precision="f64", **options) as trainer:
            losses = [trainer.step().loss for _ in range(iterations)]
            params = {k: [a.copy() for a in v] for k, v in trainer.net.params.items()}
            return losses, trainer.test(), params, trainer.batch

    return job


@pytest.mark.parametrize("size", [2, 3, 7])
def test_processes_compute_what_one_does(toy: ModuleType, together: Any, differ: Any, size: int) -> None:
    (alone,) = together(1, trained(toy))
    losses, tested, parameters, whole = alone
    for theirs, scores, params, batch in together(size, trained(toy)):
        assert theirs == pytest.approx(losses, rel=1e-12)
        assert scores == pytest.approx(tested, rel=1e-12)
        assert differ(params, parameters) < 1e-12
        assert batch == whole


def test_under_weak_scaling_the_batch_grows_with_the_processes(toy: ModuleType, together: Any) -> None:
    (_, _, _, batch), _, _ = together(3, trained(toy, scaling="weak"))
    assert batch == 3 * 10


def test_a_process_with_another_solver_is_named_with_what_differs(
    toy: ModuleType, together: Any
) -> None:
    def job(runtime: Any, rank: int) -> Any:
        solver = toy.solver(toy.classifier(), passes=2 if rank == 1 else 1)
        runtime.trainer(solver, precision="f64")

    for error in together(3, job):
        assert isinstance(error, WorkerError)
        assert "rank 1 of 3: the solver's passes is 2, on the others 1" in str(error)


def test_a_process_with_another_layer_is_named_with_it(toy: ModuleType, together: Any) -> None:
    def job(runtime: Any, rank: int) -> Any:
        net = toy.classifier()
        if rank == 2:
            layers = [
                replace(layer, parameters={"outputs": 5}) if layer.name == "scores" else layer
                for layer in net.layers
            ]
            net = replace(net, layers=tuple(layers))
        runtime.trainer(toy.solver(net), precision="f64")

    errors = together(3, job)
    assert all("rank 2 of 3: layer 'scores'" in str(error) for error in errors), errors


def test_a_process_with_another_test_net_or_other_samples_is_named(
    toy: ModuleType, together: Any
) -> None:
    """Its scores, or its share of each gradient, would be of something else."""

    def job(runtime: Any, rank: int) -> Any:
        solver = toy.solver(toy.classifier())
        test = toy.classifier()
        if rank == 1:
            test = replace(test, layers=test.layers[:-1])
        runtime.trainer(replace(solver, tests=(test,), test_iterations=(1,)), precision="f64")

    def fewer(runtime: Any, rank: int) -> Any:
        images = {name: part[: 31 if rank == 2 else None] for name, part in toy.images().items()}
        data = {"train": images}
        runtime.trainer(toy.solver(toy.classifier()), precision="f64", data=data)

    for error in together(2, job):
        assert "rank 1 of 2: test net 0's layers is " in str(error), error
    for error in together(3, fewer):
        assert "rank 2 of 3: what layer 'samples' reads is 31 samples, " in str(error), error


@pytest.mark.parametrize(
    ("setting", "found"),
    [
        ({"scale": 0.063}, "rank 1 of 2: layer 'samples'"),
        ({"source": "/scratch/images"}, ""),  # a host may have them elsewhere
    ],
)
def test_settings_of_a_layer_that_reads_samples_are_alike_but_for_its_places(
    toy: ModuleType, together: Any, setting: Any, found: str
) -> None:
    def job(runtime: Any, rank: int) -> Any:
        net = toy.classifier()
        given = {"scale": 0.0625, "source": "/data/images", **(setting if rank == 1 else {})}
        layers = [replace(each, parameters=given) if not each.bottoms else each for each in net.layers]
        solver = toy.solver(replace(net, layers=tuple(layers)))
        facts = agreement.composition(runtime, solver, "f64", "strong", 1)
        agreement.agree(runtime.processes, facts)

    for error in together(2, job):
        assert found in str(error) if found else error is None, error


def test_a_process_with_other_parameters_is_named(toy: ModuleType, together: Any) -> None:
    def job(runtime: Any, rank: int) -> Any:
        solver = toy.solver(toy.classifier())
        read = runtime.trainer(solver, precision="f64")
        read.net.params["scores"][1][...] += rank == 1
        mine = in_common(read._workers[0], read.batch, read.iteration)
        agreement.agree(runtime.processes, mine)

    errors = together(3, job)
    assert all("rank 1 of 3: parameter 1 of layer 'scores'" in str(error) for error in errors), errors


def test_a_loss_that_is_no_number_in_one_process_ends_all(toy: ModuleType, together: Any) -> None:
    def job(runtime: Any, rank: int) -> Any:
        images = toy.images()
        if rank == 1:  # the first batch of 10 is 5 samples of each process
            images["data"][5:10] = np.nan
        with runtime.trainer(
            toy.solver(toy.classifier()), precision="f64", data={"train": images}
        ) as trainer:
            before = {k: [a.copy() for a in v] for k, v in trainer.net.params.items()}
            try:
                trainer.step()
            finally:
                after = trainer.net.params
                for name, arrays in before.items():
                    for array, now in zip(arrays, after[name], strict=True):
                        assert np.array_equal(array, now)

    first, second = together(2, job)
    assert isinstance(second, NumericsError)
    assert isinstance(first, WorkerError) and "rank 1: iteration 0: the loss is nan" in str(first)


@pytest.mark.parametrize("kind", [Sum, HalfSum, Rounded, Free])
def test_processes_that_train_apart_are_told_of_once(
    kind: type[Sum], toy: ModuleType, together: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def job(runtime: Any, rank: int) -> None:
        with runtime.trainer(toy.solver(toy.classifier()), precision="f64") as trainer:
            trainer.step(3)

    assert together(3, job, sync=kind) == [None] * 3
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == (kind is HalfSum)
    for message in told:
        assert re.fullmatch(
            r"processes 0 and 1 train apart: after an iteration they have another parameter \d of layer "
            r"'\w+' \(synchronised by \w+; see demitasse check \w+\)",
            message,
        )


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
    now_and_then = "iteration", "testing"  # of tests that take half a second
    assert [each for each in told if each[0] not in now_and_then] == [
        ("start", 0),
        ("test", 2),
        ("snapshot", 4),
        ("end", 4),
    ]


Failing = Callable[..., Any]


def run_to(toy: ModuleType, path: Any, iterations: int = 4, **fields: Any) -> Job:
    """A job: the error that ends a run, and how many iterations were done."""

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
    words = f"samples.bin: sample 17 is cut off; iteration 2 is kept in {kept}"
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
    assert str(second) == f"test.bin is torn; iteration 3 is kept in {kept}"
    assert isinstance(first, WorkerError) and str(first).startswith("rank 1: test.bin is torn")


def test_all_hear_that_what_was_trained_could_not_be_kept(
    toy: ModuleType, together: Any, failing: Failing, tmp_path: Any
) -> None:
    (tmp_path / "toy_iter_2.demitasse").mkdir()
    error = DataError("a hiccup")
    job = run_to(toy, tmp_path / "toy")
    found = together(2, job, source=lambda rank: failing(rank - 1, 3, error))
    for told, _ in found:
        assert re.search(r"a hiccup; iteration 2 could not be kept: .*toy_iter_2", str(told))


def test_the_last_snapshot_is_no_second_one_where_the_interval_ends_there(
    toy: ModuleType, together: Any, tmp_path: Any
) -> None:
    """Else a process would wait for the first to write it, which has left."""
    job = run_to(toy, tmp_path / "toy", snapshot_interval=2)
    assert together(3, job) == [([0, 1, 2], 4)] * 3


def test_a_snapshot_that_cannot_be_written_is_no_process_s_last_one(
    toy: ModuleType, together: Any, tmp_path: Any
) -> None:
    """A folder stands where the first process's file would go."""
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


def test_at_its_own_pace_each_process_does_all_its_iterations_and_the_first_tests(
    toy: ModuleType, together: Any
) -> None:
    results = together(2, trained(toy, iterations=4), Free)
    (losses, scores, *_), (theirs, none, *_) = results
    assert len(losses) == len(theirs) == 4
    assert scores["accuracy"] >= 0 and none == {}
