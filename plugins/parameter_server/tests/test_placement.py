"""Workers have processors of their own; if they are more than processors, they compute one after the
other."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demitasse import DescriptionError, Stream
from demitasse_parameter_server.loops import LINE, TURNS, give_turn, take_turn
from demitasse_parameter_server.placement import place, processors

Train = Callable[..., Any]

pytestmark = pytest.mark.timeout(300, method="thread")

needs_affinity = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity") or len(processors()) < 2,
    reason="needs a system that binds threads, and two processors",
)


@given(st.integers(1, 40), st.integers(1, 8), st.integers(1, 16))
def test_all_processors_have_as_many_threads_or_none_has_its_own(
    workers: int, threads: int, count: int
) -> None:
    available = [3 * number for number in range(count)]
    places = [place(index, workers, threads, available) for index in range(workers)]
    if not places[0]:
        assert count == 1 or threads > count or workers * threads % count
        assert not any(places)
        return
    assert all(len(set(each)) == threads for each in places)
    load = Counter(processor for each in places for processor in each)
    assert load == dict.fromkeys(available, workers * threads // count)


def affinities() -> list[set[int]]:
    """Return the processors of each worker's thread."""
    named = [t for t in threading.enumerate() if t.name.startswith("demitasse-worker")]
    return [os.sched_getaffinity(thread.native_id or 0) for thread in named]


@needs_affinity
def test_as_many_workers_as_processors_have_one_each(train: Train) -> None:
    available = processors()
    trainer = train(len(available))
    trainer.step(1)
    assert sorted(min(each) for each in affinities()) == available
    assert all(len(each) == 1 for each in affinities())
    assert sorted(os.sched_getaffinity(0)) == available


@needs_affinity
@pytest.mark.parametrize(
    ("workers", "sync"), [(len(processors()), {"bind": False}), (len(processors()) + 1, {})]
)
def test_they_have_all_where_that_is_asked_for_or_some_would_be_behind(
    train: Train, workers: int, sync: dict[str, Any]
) -> None:
    train(workers, sync=sync).step(1)
    assert [sorted(each) for each in affinities()] == [processors()] * workers


def test_bind_is_true_or_false(train: Train) -> None:
    with pytest.raises(DescriptionError, match=r"sync: bind = 1 .valid: true, false"):
        train(2, sync={"bind": 1})


def test_a_turn_is_taken_once() -> None:
    gate = np.zeros(TURNS + 2 * LINE, np.int64)
    assert not take_turn(gate, 1, 100)
    give_turn(gate, 1)
    assert not take_turn(gate, 0, 100)
    assert take_turn(gate, 1, 100)
    assert not take_turn(gate, 1, 100)


def test_who_has_no_processor_begins_when_another_has_come_to_its_gate(
    train: Train, toy: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one processor: one after the other, in every iteration."""
    monkeypatch.setattr("demitasse_parameter_server.gradient_sync.processors", lambda: [0])
    began: list[str] = []

    class Told(toy.ArraySource):  # type: ignore[name-defined, misc]
        def stream(self, first: int, count: int, step: int) -> Stream:
            stream: Stream = super().stream(first, count, step)
            original = stream.read

            def read(out: Mapping[str, Any]) -> None:
                began.append(threading.current_thread().name)
                original(out)

            stream.read = read  # type: ignore[method-assign]
            return stream

    trainer = train(5, source=lambda spec: Told(toy.images()))
    trainer.step(20)
    rounds = [began[i : i + 5] for i in range(0, len(began), 5)]
    assert rounds == [[f"demitasse-worker-{worker}" for worker in range(5)]] * 20


def test_times_are_told_by_what_they_were_spent_on(train: Train) -> None:
    trainer = train(3)
    trainer.step(5)
    levels = [level for worker in trainer._workers for level in worker.levels]
    for level in levels:
        times = level.times()
        assert [*times] == ["waiting", "leaving", "summing", "ending"]
        assert min(times.values()) >= 0
        assert times["summing"] > 0
        rounded = 1 + 1e-9
        assert times["ending"] <= (times["waiting"] + times["leaving"]) * rounded
