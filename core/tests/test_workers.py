"""Threads that each run a task."""

from __future__ import annotations

import contextvars
import itertools
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
from interrupted import Interrupted

import demitasse
from demitasse import Team, WorkerPlace, Workers


@pytest.fixture
def places(toy: ModuleType) -> tuple[WorkerPlace, ...]:
    return demitasse.arrange(toy.machine(3), "float32")


@pytest.fixture
def team(places: tuple[WorkerPlace, ...]) -> Team:
    (found,) = {group.team for place in places for _, group in place.groups}
    assert found is not None
    return found


@pytest.fixture
def threads(places: tuple[WorkerPlace, ...], no_threads_left: None) -> Iterator[Workers]:
    made = Workers(places)
    yield made
    made.close()


def test_results_come_in_the_order_of_workers_each_from_a_thread_of_its_own(threads: Workers) -> None:
    for _ in range(50):
        found = threads.run(lambda worker: (worker, threading.current_thread().name))
        assert found == [(worker, f"demitasse-worker-{worker}") for worker in range(3)]


class Meeting(threading.Barrier):
    """A barrier with its own ``wait``, like the trainer's; messages should name a place outside it."""

    def wait(self, timeout: float | None = None) -> int:
        return super().wait(timeout)


def test_threads_that_wait_for_each_other_are_told_of_once(
    threads: Workers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("demitasse_host.threads.STILL", 0.3)
    reached, go_on = Meeting(2), threading.Event()

    def wait_for_two() -> None:
        reached.wait(20)

    def task(worker: int) -> None:
        if worker == 0:
            wait_for_two()
        elif worker == 1:
            go_on.wait(20)
            reached.wait(20)

    def end() -> None:
        while not caplog.records:
            time.sleep(0.05)
        time.sleep(0.5)
        go_on.set()

    ending = threading.Thread(target=end)
    ending.start()
    threads.run(task)
    ending.join()
    (told,) = [record.getMessage() for record in caplog.records]
    here = re.escape(__file__)
    assert re.fullmatch(
        rf"no worker has computed for \d s: worker 0 waits in wait_for_two \({here}:\d+\), "
        rf"worker 1 waits in task \({here}:\d+\)",
        told,
    )


def test_threads_that_compute_are_not_told_of(
    threads: Workers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("demitasse_host.threads.STILL", 0.3)
    until = time.monotonic() + 1

    def task(worker: int) -> None:
        while time.monotonic() < until:
            sum(range(1000))

    threads.run(task)
    assert not caplog.records


def test_an_interrupt_leaves_no_barrier_broken(
    threads: Workers, team: Team, interrupt: Callable[[], None]
) -> None:
    inside, go_on, done = queue.SimpleQueue[int](), threading.Event(), list[int]()

    def task(worker: int) -> None:
        if worker == 1:
            interrupt()
        inside.put(worker)
        go_on.wait(20)
        team.barrier.wait()
        done.append(worker)

    with pytest.raises(Interrupted):
        threads.run(task)
    assert sorted(inside.get() for _ in range(3)) == [0, 1, 2]
    assert not done
    go_on.set()
    threads.finish()
    assert sorted(done) == [0, 1, 2]
    assert (team.barrier.broken, team.failures) == (False, 0)
    assert len(threads.run(lambda worker: team.barrier.wait())) == 3


def test_what_is_broken_off_waits_at_no_barrier(
    threads: Workers, team: Team, interrupt: Callable[[], None]
) -> None:
    def task(worker: int) -> None:
        if worker == 2:
            interrupt()
        else:
            team.barrier.wait()

    with pytest.raises(Interrupted):
        threads.run(task)
        threads.finish()
    threads.finish(broken_off=True)
    assert not team.barrier.broken
    assert len(threads.run(lambda worker: team.barrier.wait())) == 3


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_the_error_of_the_one_that_failed_is_raised_once_all_have_stopped(
    threads: Workers, team: Team, failing: int
) -> None:
    stopped = list[int]()

    def task(worker: int) -> None:
        try:
            if worker == failing:
                raise ValueError(f"worker {worker}")
            team.barrier.wait()
        finally:
            stopped.append(worker)

    for failures in (1, 2):
        with pytest.raises(ValueError, match=f"worker {failing}"):
            threads.run(task)
        assert (team.barrier.broken, team.failures) == (False, failures)
    assert sorted(stopped) == [0, 0, 1, 1, 2, 2]


def test_a_task_sees_its_callers_context(threads: Workers) -> None:
    number = contextvars.ContextVar("number", default=0)
    for wanted in itertools.islice(itertools.count(5), 3):
        number.set(wanted)
        assert threads.run(lambda worker: number.get()) == [wanted] * 3


def test_threads_that_one_of_themselves_closes_end(places: Any, no_threads_left: None) -> None:
    made = Workers(places)
    made.run(lambda worker: made.close() if worker == 1 else None)
    made.close()


def test_threads_that_are_dropped_end(places: Any, no_threads_left: None) -> None:
    made = Workers(places)
    threads = made._threads
    made.run(bool)
    del made
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


@pytest.mark.parametrize("last", [0, 1, 2])
def test_threads_end_that_an_interrupt_left_half_made(
    places: Any, threads_end: None, monkeypatch: pytest.MonkeyPatch, last: int
) -> None:
    """Starting a thread waits for it, and that is where an interrupt comes most often."""
    start, started = threading.Thread.start, itertools.count()

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        if next(started) == last:
            raise Interrupted

    with monkeypatch.context() as patched, pytest.raises(Interrupted):
        patched.setattr(threading.Thread, "start", interrupted)
        Workers(places)


@pytest.mark.parametrize(
    ("node", "thread", "sharing", "cores"),
    [(8, 0, 1, 2), (8, 0, 2, 1), (2, 0, 1, 1), (8, 6, 1, 6), (8, 6, 2, 3), (0, 0, 1, 1)],
    ids=[
        "a share of the node's",
        "with another process on it",
        "one at least",
        "its own",
        "its own, with another process",
        "of no number",
    ],
)
def test_workers_of_a_node_share_its_cores(node: int, thread: int, sharing: int, cores: int) -> None:
    class Company(demitasse.Processes):
        pass

    company = Company()
    company.sharing = sharing
    levels = (
        demitasse.Level("node", cores=node or None),
        demitasse.Level(
            "thread", 4, workers="threads", cores=thread or None, sync=demitasse.SyncSpec("any")
        ),
    )
    machine = demitasse.Machine("desk", levels, fingerprint="any")
    places = demitasse.arrange(machine, "float32", company)
    assert [place.place.threads for place in places] == [cores] * 4
