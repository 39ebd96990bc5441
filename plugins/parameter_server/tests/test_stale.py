"""SSP and ASP: each worker at its own pace, as far ahead as the model allows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from demitasse import Stream
from demitasse_parameter_server.stale import Scheduler

Train = Callable[..., Any]

pytestmark = pytest.mark.timeout(300, method="thread")


def nobody_failed() -> None:
    """What a scheduler calls while it waits: nothing has failed."""


class Runners:
    """Threads that run iterations of a scheduler, half of one at each turn that they are given. How far
    ahead of the slowest a thread begins is measured here too, by what is certainly done."""

    def __init__(self, workers: int, staleness: int | None) -> None:
        self.scheduler = Scheduler(workers, staleness, nobody_failed)
        self.turns = [threading.Semaphore(0) for _ in range(workers)]
        self.done, self.widest, self.lock = [0] * workers, 0, threading.Lock()

    def run(self, order: list[int]) -> None:
        """Give turns in an order in which each worker has the same number. What cannot run yet runs
        later."""
        iterations = len(order) // len(self.turns) // 2
        threads = [
            threading.Thread(target=self._iterate, args=(worker, iterations))
            for worker in range(len(self.turns))
        ]
        for thread in threads:
            thread.start()
        for worker in order:
            self.turns[worker].release()
        for thread in threads:
            thread.join()

    def _iterate(self, worker: int, iterations: int) -> None:
        for _ in range(iterations):
            self.turns[worker].acquire()
            self.scheduler.begin(worker)
            with self.lock:
                self.widest = max(self.widest, self.done[worker] - min(self.done))
            self.turns[worker].acquire()
            with self.lock:
                self.done[worker] += 1
            self.scheduler.end(worker)


@st.composite
def orders(draw: Any) -> tuple[int, list[int]]:
    """Some workers, and their turns in a made-up order: any delays."""
    workers, iterations = draw(st.integers(2, 5)), draw(st.integers(1, 6))
    turns = [worker for worker in range(workers) for _ in range(2 * iterations)]
    return workers, draw(st.permutations(turns))


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
@given(orders(), st.integers(0, 4))
def test_under_ssp_nobody_is_further_ahead_than_the_bound(
    drawn: tuple[int, list[int]], staleness: int
) -> None:
    workers, order = drawn
    runners = Runners(workers, staleness)
    runners.run(order)
    assert runners.widest <= staleness
    assert runners.scheduler.progress.widest <= staleness
    assert len(set(runners.scheduler.progress.done.values())) == 1


@pytest.mark.parametrize(("staleness", "furthest"), [(0, 0), (2, 2), (None, 4)])
def test_the_fastest_gets_as_far_ahead_as_it_may(staleness: int | None, furthest: int) -> None:
    """All turns of one worker come before all of the other's."""
    scheduler = Scheduler(2, staleness, nobody_failed)
    for _ in range(furthest + 1):
        scheduler.begin(0)
        scheduler.end(0)
    assert scheduler.progress.widest == furthest
    if staleness is not None:
        late = threading.Thread(target=scheduler.begin, args=(0,))
        late.start()
        assert late.is_alive() or scheduler.progress.widest <= staleness
        scheduler.end(1)
        late.join()
        assert scheduler.progress.widest == furthest


class Paced:
    """Samples of which one worker's first batch comes only when others have read a number of
    batches."""

    def __init__(self, toy: ModuleType, slow: int, until: int) -> None:
        self.reads: list[int] = []
        self.seen: list[int] = []
        others, lock, far = threading.Event(), threading.Lock(), until

        class Source(toy.ArraySource):  # type: ignore[name-defined, misc]
            def stream(source, first: int, count: int, step: int) -> Stream:  # noqa: N805
                stream: Stream = super().stream(first, count, step)
                number, original = len(self.reads), stream.read
                self.reads.append(0)

                def read(out: Mapping[str, np.ndarray]) -> None:
                    if number == slow and self.reads[number] == 0:
                        others.wait()
                        with lock:
                            self.seen = list(self.reads)
                    with lock:
                        self.reads[number] += 1
                        if all(r >= far for i, r in enumerate(self.reads) if i != slow):
                            others.set()
                    original(out)

                stream.read = read  # type: ignore[method-assign]
                return stream

        self.open = lambda spec: Source(toy.images())


@pytest.mark.parametrize(("model", "until"), [("ssp", 2), ("asp", 6)])
def test_a_slow_worker_holds_others_up_only_as_the_model_says(
    train: Train, toy: ModuleType, model: str, until: int
) -> None:
    """Under SSP with a bound of 1 the others begin two iterations while one worker is in its first, and
    no third; under ASP they begin all of theirs."""
    paced = Paced(toy, 1, until)
    sync = {"model": model, **({"staleness": 1} if model == "ssp" else {})}
    trainer = train(3, source=paced.open, sync=sync)
    trainer.step(6)
    assert paced.seen == [until, 0, until]
    assert paced.reads == [6, 6, 6]
    assert trainer.iteration == 6


@pytest.mark.parametrize("model", ["ssp", "asp"])
def test_the_loss_falls(train: Train, model: str) -> None:
    trainer = train(3, sync={"model": model})
    first = trainer.step(1).loss
    trainer.step(60)
    assert trainer.step(1).loss < 0.5 * first


@pytest.mark.parametrize("workers", [2, 3])
def test_pushes_of_an_iteration_add_up_to_the_synchronous_step(train: Train, workers: int) -> None:
    """To first order in the learning rate, weight decay included: the difference is of second order."""
    solver = {"rate": 1e-6, "momentum": 0.0, "decay": 0.5}
    moved = []
    for model in ("bsp", "asp"):
        trainer = train(workers, solver=solver, sync={"model": model})
        before = trainer.net.params["scores"][0].copy()
        trainer.step(1)
        moved.append(trainer.net.params["scores"][0] - before)
    assert np.abs(moved[0]).max() > 1e-9
    np.testing.assert_allclose(moved[1], moved[0], rtol=0, atol=1e-4 * np.abs(moved[0]).max())


def test_a_version_for_each_worker_and_one_state(train: Train) -> None:
    trainer = train(3, sync={"model": "asp"})
    for name, shared in (("parameters", False), ("history", True), ("gradients", False)):
        first, *others = [array for _, kind, array in trainer.arrays() if kind == name]
        assert [np.shares_memory(first, other) for other in others] == [shared] * 2


def test_what_is_edited_between_steps_counts(train: Train) -> None:
    trainer = train(2, sync={"model": "asp"}, solver={"rate": 1e-6})
    trainer.step(2)
    for arrays in trainer.net.params.values():
        for array in arrays:
            array[...] = 0.0
    trainer.step(2)
    largest = max(np.abs(a).max() for arrays in trainer.net.params.values() for a in arrays)
    assert 0 < largest < 1e-3


def test_a_snapshot_has_the_masters_parameters_and_state(train: Train, tmp_path: Any) -> None:
    trainer = train(2, sync={"model": "asp"})
    trainer.step(5)
    path = trainer.snapshot(tmp_path / "toy")
    resumed = train(2, sync={"model": "asp"}, resume=path)
    assert resumed.iteration == 5
    for kind in ("parameters", "history"):
        saved, loaded = (
            next(array for _, name, array in each.arrays() if name == kind)
            for each in (trainer, resumed)
        )
        assert np.abs(saved).max() > 0
        np.testing.assert_array_equal(loaded, saved)


def test_notes_tell_one_worker_from_several() -> None:
    from demitasse_parameter_server.options import Options

    asked = Options.read({"model": "ssp", "staleness": 2}, "here")
    ahead = "at most 2 iterations ahead"
    assert asked.told(1, "worker") == f"SSP: one worker pushes and pulls on its own {ahead}"
    assert asked.told(3, "process") == f"SSP: 3 processes push and pull on their own {ahead}"
