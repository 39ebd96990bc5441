"""Sibling threads end an iteration with the same parameters, updated by the sum of gradients."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from demitasse import Bucket, FlatMemory, GradientSync, Group, Span, Team, Work, chain
from demitasse_reference import plugin


def in_threads(tasks: list[Callable[[], None]], *teams: Team) -> list[BaseException]:
    """Run all tasks at once, each in a thread, and return what they raised. A task that fails breaks the
    teams' barriers, as in a runtime."""
    errors: list[BaseException] = []

    def call(task: Callable[[], None]) -> None:
        try:
            task()
        except BaseException as error:  # noqa: BLE001  handed to the test
            errors.append(error)
            for team in teams:
                team.barrier.abort()

    threads = [threading.Thread(target=call, args=(task,), daemon=True) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert not any(thread.is_alive() for thread in threads)
    return errors


def siblings(size: int, dtype: str, elements: int) -> tuple[Team, list[GradientSync]]:
    """Return a team whose workers start with the same parameters, and their bound synchronisations."""
    team = Team(size)
    for _ in range(size):
        memory = FlatMemory(np.arange(elements).astype(dtype), np.zeros(elements, dtype))
        team.memory.append(memory)
    syncs = []
    for index in range(size):
        sync = plugin.gradient_sync(Group(("thread",), index, team, dtype, {}))
        assert (sync.index, sync.size) == (index, size)
        sync.bind(team.memory[index])
        syncs.append(sync)
    return team, syncs


def descent(memory: FlatMemory) -> Callable[[Span], Work]:
    """Return an update: parameters minus half their gradient, over the span that a worker owns."""

    def update(span: Span) -> Work:
        part = slice(span.start, span.stop)

        def work() -> None:
            memory.parameters[part] -= memory.gradients[part] / 2

        return work

    return update


@settings(max_examples=examples(25))
@given(
    size=st.integers(1, 5),
    cuts=st.lists(st.integers(0, 40), min_size=1, max_size=3),
    dtype=st.sampled_from(["float32", "float64"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_all_siblings_follow_the_sum_of_gradients(
    size: int, cuts: list[int], dtype: str, seed: int
) -> None:
    edges = sorted({0, *cuts, 41})
    buckets = [
        Bucket(i, Span(start, stop), ("layer",)) for i, (start, stop) in enumerate(pairwise(edges))
    ]
    team, syncs = siblings(size, dtype, 41)
    expected = team.memory[0].parameters.astype(np.float64)
    rng = np.random.default_rng(seed)
    steps = 3
    gradients = rng.normal(size=(steps, size, 41)).astype(dtype)

    def worker(index: int) -> Callable[[], None]:
        memory, sync = team.memory[index], syncs[index]
        works = [chain([sync], bucket, descent(memory)) for bucket in buckets]

        def run() -> None:
            for step in range(steps):
                memory.gradients[...] = gradients[step, index]
                for work in works:
                    assert work is not None
                    work()

        return run

    assert in_threads([worker(index) for index in range(size)], team) == []
    for step in range(steps):
        expected -= gradients[step].astype(np.float64).sum(axis=0) / 2
    for memory in team.memory:
        assert np.array_equal(memory.parameters, team.memory[0].parameters)
    tolerance = 1e-12 if dtype == "float64" else 1e-5
    assert np.allclose(team.memory[0].parameters, expected, rtol=tolerance, atol=tolerance)


def test_a_sum_is_rounded_once() -> None:
    team, syncs = siblings(3, "float32", 1)
    for memory, value in zip(team.memory, (1.0, 1e8, -1e8), strict=True):
        memory.gradients[0] = value
    bucket = Bucket(0, Span(0, 1), ("layer",))
    works: list[Any] = [sync.reduce(bucket, bucket.span) for sync in syncs]
    assert in_threads(works, team) == []
    assert team.memory[0].gradients[0] == 1.0


def test_the_first_sibling_owns_all_and_the_others_nothing() -> None:
    _, syncs = siblings(3, "float32", 8)
    assert [len(sync.owned(Span(2, 8))) for sync in syncs] == [6, 0, 0]


def test_nothing_beyond_the_span_is_touched() -> None:
    team, syncs = siblings(2, "float64", 6)
    for memory in team.memory:
        memory.gradients[...] = 1.0
    team.memory[1].parameters[...] = -7.0
    bucket = Bucket(0, Span(2, 4), ("layer",))
    works: list[Any] = [chain([sync], bucket, lambda span: None) for sync in syncs]
    assert in_threads(works, team) == []
    assert team.memory[0].gradients.tolist() == [1, 1, 2, 2, 1, 1]
    assert team.memory[1].parameters.tolist() == [-7, -7, 2, 3, -7, -7]


def test_one_worker_only_updates() -> None:
    team, (sync,) = siblings(1, "float32", 4)
    bucket = Bucket(0, Span(0, 4), ("layer",))
    assert sync.reduce(bucket, bucket.span) is None
    assert sync.distribute(bucket, bucket.span) is None
    team.memory[0].gradients[...] = 2.0
    work = chain([sync], bucket, descent(team.memory[0]))
    assert work is not None
    work()
    assert team.memory[0].parameters.tolist() == [-1, 0, 1, 2]


@pytest.mark.parametrize("fails", [0, 2])
def test_a_sibling_that_fails_wakes_those_that_wait(fails: int) -> None:
    team, syncs = siblings(3, "float32", 4)
    bucket = Bucket(0, Span(0, 4), ("layer",))

    def fail() -> None:
        raise ArithmeticError("this sibling failed")

    works: list[Any] = [chain([sync], bucket, descent(team.memory[i])) for i, sync in enumerate(syncs)]
    works[fails] = fail
    raised = sorted(type(error).__name__ for error in in_threads(works, team))
    assert raised == ["ArithmeticError", "BrokenBarrierError", "BrokenBarrierError"]


def test_levels_nest_into_a_tree() -> None:
    """Two pairs of threads: each pair sums inside, the first members sum across, and back."""
    memories = [FlatMemory(np.full(4, 9.0), np.full(4, float(10**i))) for i in range(4)]
    pairs, across = [Team(2), Team(2)], Team(2)
    for i, memory in enumerate(memories):
        pairs[i // 2].memory.append(memory)
    across.memory.extend([memories[0], memories[2]])
    bucket = Bucket(0, Span(0, 4), ("layer",))
    works: list[Any] = []
    for i, memory in enumerate(memories):
        inner = plugin.gradient_sync(Group(("thread",), i % 2, pairs[i // 2], "float64", {}))
        outer = plugin.gradient_sync(Group(("node",), i // 2, across, "float64", {}))
        works.append(chain([inner, outer], bucket, descent(memory)))
    assert in_threads(works, *pairs, across) == []
    for memory in memories:
        assert memory.parameters.tolist() == [9.0 - 1111 / 2] * 4
