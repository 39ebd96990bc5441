"""Workers at their own pace each do every iteration once, and all stop at the same one."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from drawn_examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from demitasse_training.stretch import Stretch


@settings(max_examples=examples(50))
@given(st.integers(1, 5), st.integers(0, 7), st.integers(0, 9), st.integers(0, 12))
def test_all_do_the_same_iterations_and_are_told_of_in_order(
    workers: int, first: int, count: int, stop_after: int
) -> None:
    told: list[tuple[int, float]] = []

    def done(iteration: int, loss: float) -> bool:
        told.append((iteration, loss))
        return iteration - first >= stop_after

    stretch = Stretch(first, first + count, workers, done)
    did: list[list[int]] = [[] for _ in range(workers)]

    def step(worker: int, iteration: int) -> float:
        did[worker].append(iteration)
        return float(iteration)

    with ThreadPoolExecutor(workers) as pool:
        tasks = [pool.submit(stretch.run, w, lambda i, w=w: step(w, i)) for w in range(workers)]
    for task in tasks:
        task.result()
    expected = [*range(first, stretch.last)]
    assert all(each == expected for each in did)
    assert told == [(i, float(i * workers)) for i in expected]
    assert stretch.last <= first + count
    assert count == 0 or stretch.last > first


def test_one_may_be_ahead_of_another_and_the_stop_waits_for_it() -> None:
    """The fast worker has begun its third iteration when the first is reported: all do three."""
    ahead = threading.Event()
    stretch = Stretch(0, 10, 2, lambda iteration, loss: True)
    did: dict[str, list[int]] = {"quick": [], "slow": []}

    def quick(iteration: int) -> float:
        did["quick"].append(iteration)
        if iteration == 2:
            ahead.set()
        return 0.0

    def slow(iteration: int) -> float:
        assert ahead.wait(30)
        did["slow"].append(iteration)
        return 0.0

    with ThreadPoolExecutor(2) as pool:
        tasks = pool.submit(stretch.run, 0, quick), pool.submit(stretch.run, 1, slow)
    for task in tasks:
        task.result()
    assert did["quick"] == did["slow"]
    assert len(did["slow"]) >= 3


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_losses_are_added_in_the_order_of_workers_whoever_comes_last(order: tuple[int, ...]) -> None:
    """So that every run has the same bits: these three numbers add up to two different sums."""
    told: list[float] = []
    stretch = Stretch(0, 1, 3, lambda iteration, loss: bool(told.append(loss)))
    losses = 0.1, 0.2, 0.3
    assert losses[0] + losses[1] + losses[2] != losses[1] + losses[2] + losses[0]
    for worker in order:
        stretch.run(worker, lambda iteration, worker=worker: losses[worker])
    assert told == [losses[0] + losses[1] + losses[2]]


def test_a_step_that_raises_ends_its_worker() -> None:
    stretch = Stretch(0, 3, 1, lambda iteration, loss: False)
    with pytest.raises(ValueError, match="step 1"):
        stretch.run(0, lambda i: float(i) if i == 0 else _fail(i))


def _fail(iteration: int) -> float:
    raise ValueError(f"step {iteration}")
