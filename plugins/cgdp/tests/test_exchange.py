"""Whatever the order in which streams proceed, sums have the same bits, and nobody uses one too early.

The streams here do nothing by themselves. A driver executes what is enqueued in them, one item after the
other; among those that could proceed, the test chooses.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from demitasse import (
    Bucket,
    FlatMemory,
    Group,
    Place,
    PlanError,
    Span,
    Team,
    WorkerError,
    WorkerPlace,
    Workers,
    chain,
)
from demitasse_cgdp.accumulation import LEAST, slices
from demitasse_cgdp.exchange import told_of
from demitasse_cgdp.gradient_sync import sync_of
from demitasse_cgdp.loops import BLOCK, add_up
from demitasse_cgdp.replica import CpuGpuSync

pytestmark = pytest.mark.timeout(300, method="thread")

# A busy machine may stop this process for seconds, and threads give no smaller example of a failing one.
SLOWLY = settings(
    deadline=None,
    max_examples=examples(25),
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


class Point:
    """An event, reached once the driver gets there."""

    def __init__(self) -> None:
        self.reached, self.seconds = threading.Event(), 0.0
        self.error: Exception | None = None

    @property
    def done(self) -> bool:
        return self.reached.is_set()

    def reach(self, error: Exception | None = None) -> None:
        self.seconds, self.error = time.perf_counter(), error
        self.reached.set()

    def wait(self) -> None:
        assert self.reached.wait(60)
        if self.error is not None:
            raise self.error


class Driven:
    """A stream in which items are executed when the driver says."""

    def __init__(self, name: str, driver: Driver) -> None:
        self.name, self.driver = name, driver
        self.things: deque[tuple[Callable[[], bool], Callable[[Exception | None], None]]] = deque()
        self.error: Exception | None = None

    def _put(self, act: Callable[[], None], ready: Callable[[], bool] = lambda: True) -> None:
        def run(error: Exception | None) -> None:
            if error is None:
                try:
                    act()
                except Exception as raised:  # noqa: BLE001  whoever waits gets it
                    self.error = raised

        with self.driver.changed:
            self.things.append((ready, run))
            self.driver.changed.notify_all()

    def copy(self, target: Any, source: Any) -> None:
        def act() -> None:
            if self.driver.broken == self.name:
                raise OSError("the link is down")
            np.copyto(target, source)

        self._put(act)

    def call(self, work: Callable[[], None]) -> None:
        self._put(work)

    def record(self) -> Point:
        point = Point()
        with self.driver.changed:
            self.things.append((lambda: True, point.reach))
            self.driver.changed.notify_all()
        return point

    def wait(self, event: Any) -> None:
        self._put(event.wait, lambda: event.done)

    def synchronise(self) -> None:
        self.record().wait()


class Inline:
    """The default stream: it executes at once, in the caller's thread."""

    name = "default"

    def record(self) -> Point:
        point = Point()
        point.reach()
        return point

    def wait(self, event: Any) -> None:
        event.wait()


class Engine:
    """The streams of one replica."""

    def __init__(self, place: str, driver: Driver) -> None:
        self.place, self.default = place, Inline()
        self._streams = {n: Driven(f"{place} {n}", driver) for n in ("d2h", "h2d")}
        driver.streams.extend(self._streams.values())

    def stream(self, name: str) -> Driven:
        return self._streams[name]

    def pinned(self, shape: Sequence[int], dtype: str) -> np.ndarray:
        return np.zeros(tuple(shape), dtype)

    def close(self) -> None:
        """There is no thread to end."""


class Driver:
    """Executes what could proceed in some stream. ``prefer`` chooses: by a number for each stream, or at
    random."""

    def __init__(self, seed: int) -> None:
        self.streams: list[Driven] = []
        self.changed = threading.Condition()
        self.random = random.Random(seed)
        self.broken = ""
        self.ended = False

    def run(self) -> None:
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.ended or bool(self._ready()))
                ready = self._ready()
                if not ready and self.ended:
                    return
                stream = self.random.choice(ready)
                _, act = stream.things.popleft()
            act(stream.error)
            with self.changed:
                self.changed.notify_all()

    def pending(self, way: str) -> list[Driven]:
        """Return the streams of that name that have something to do."""
        return [stream for stream in self.streams if stream.things and stream.name.endswith(way)]

    def drain(self, way: str) -> None:
        """Execute everything in the streams of that name."""
        for stream in self.pending(way):
            while stream.things:
                stream.things.popleft()[1](stream.error)

    def _ready(self) -> list[Driven]:
        return [stream for stream in self.streams if stream.things and stream.things[0][0]()]

    def end(self) -> None:
        with self.changed:
            self.ended = True
            self.changed.notify_all()


LAYERS = [Span(0, 3000), Span(3000, 3016), Span(3016, 3100), Span(3100, 9000), Span(9000, 9008)]
BUCKETS = [Bucket(i, span, (f"layer{i}",)) for i, span in enumerate(LAYERS)]


class Run:
    """``replicas`` of some layers for some iterations, each in a thread of its own, and a driver of all
    streams.

    Gradients differ by replica and iteration. What each update finds is kept, and compared."""

    def __init__(self, replicas: int, seed: int, options: dict[str, Any], iterations: int = 2) -> None:
        self.size, self.driver, self.random = replicas, Driver(seed), np.random.default_rng(seed)
        self.given = self.random.normal(size=(iterations, replicas, LAYERS[-1].stop)).astype(np.float32)
        self.found: dict[tuple[int, int, int], bytes] = {}
        self.team, self.iteration = Team(replicas), [0] * replicas
        self.spoil: Callable[[int, int, int], None] = lambda iteration, replica, bucket: None
        self.syncs, self.steps = list[CpuGpuSync](), list[list[Any]]()
        for index in range(replicas):
            flat = FlatMemory(np.zeros(LAYERS[-1].stop, np.float32), np.zeros_like(self.given[0, 0]))
            self.team.memory.append(flat)
            engine = Engine(f"gpu:{index}", self.driver)
            group = Group(("gpu",), index, self.team, "float32", options, engine=engine)  # type: ignore[arg-type]
            made = sync_of(group)
            assert isinstance(made, CpuGpuSync)
            self.syncs.append(made)
        for sync, memory in zip(self.syncs, self.team.memory, strict=True):
            sync.bind(memory)
            works = [chain([sync], b, lambda span, s=sync: self._update(s, span)) for b in BUCKETS]
            self.steps.append(works)

    def _update(self, sync: CpuGpuSync, span: Span) -> Callable[[], None]:
        def work() -> None:
            gradients = self.team.memory[sync.index].gradients[span.start : span.stop]
            self.found[self.iteration[sync.index], sync.index, span.start] = gradients.tobytes()

        return work

    def iterate(self, index: int) -> None:
        """Run one iteration of a replica: gradients become final from the first layer here to the
        last."""
        sync, memory, number = self.syncs[index], self.team.memory[index], self.iteration[index]
        begin, end = sync.begin(), sync.end()
        assert begin is not None
        assert end is not None
        begin()
        for bucket, work in zip(BUCKETS, self.steps[index], strict=True):
            part = slice(bucket.span.start, bucket.span.stop)
            memory.gradients[part] = self.given[number, index, part]
            self.spoil(number, index, bucket.index)
            work()
        end()
        self.iteration[index] += 1

    def run(self, iterations: int = 2) -> None:
        """Run all replicas in threads of their own, and the driver in another."""
        place = Place("gpu")
        groups = (("cgdp", Group(("gpu",), 0, self.team, "float32", {})),)
        workers = Workers(tuple(WorkerPlace(i, place, None, groups) for i in range(self.size)))
        thread = threading.Thread(target=self.driver.run)
        thread.start()

        def work(index: int) -> None:
            for _ in range(iterations):
                self.iterate(index)

        try:
            workers.run(work)
        finally:
            workers.close()
            for sync in self.syncs:
                sync.close()
            self.driver.end()
            thread.join()

    def right(self, iteration: int, span: Span) -> bytes:
        """Return the sum in the order of replicas."""
        parts = self.given[iteration, :, span.start : span.stop]
        total = parts[0].copy()
        for part in parts[1:]:
            total += part
        return total.tobytes()


@SLOWLY
@given(
    st.integers(2, 5),
    st.integers(0, 2**32 - 1),
    st.sampled_from([{"chunk": 1}, {"chunk": 2}, {"chunk": 4}, {}, {"chunk": 2, "threads": 3}]),
)
def test_in_whatever_order_streams_go_on_every_update_has_the_whole_sum_in_the_same_bits(
    no_threads_left: None, replicas: int, seed: int, options: dict[str, Any]
) -> None:
    """An update before the last contribution was back would find a replica's own gradients."""
    run = Run(replicas, seed, options)
    run.run()
    assert len(run.found) == 2 * replicas * len(LAYERS)
    for (iteration, _, start), bits in run.found.items():
        (span,) = [each for each in LAYERS if each.start == start]
        assert bits == run.right(iteration, span)


def test_nothing_comes_back_before_the_last_contribution(no_threads_left: None) -> None:
    """All replicas but one have contributed all of their gradients; their streams have nothing more to
    do."""
    run = Run(3, 0, {"chunk": 2}, 1)
    ends = list[Any]()
    for index in (2, 0, 1):
        sync, memory = run.syncs[index], run.team.memory[index]
        assert not run.driver.pending("h2d")
        if index == 1:
            assert not run.syncs[0].exchange.summed.any()
        begin = sync.begin()
        assert begin is not None
        if index == 2:  # replica 0 alone decides on the chunks
            run.syncs[0].begin()()  # type: ignore[misc]
            begin()
        elif index == 1:
            begin()
        memory.gradients[...] = run.given[0, index]
        for work in run.steps[index]:
            work()
        run.driver.drain("d2h")
        ends.append(sync.end())
    run.syncs[0].exchange.settle_sums()
    assert [len(stream.things) for stream in run.driver.streams if "h2d" in stream.name] == [9] * 3
    run.driver.drain("h2d")
    for end in ends:
        end()
    for span in LAYERS:
        found = {bits for (_, _, start), bits in run.found.items() if start == span.start}
        assert found == {run.right(0, span)}
    for sync in run.syncs:
        sync.close()


@pytest.mark.parametrize(("way", "words"), [("d2h", "to the host"), ("h2d", "back to the accelerator")])
def test_a_copy_that_fails_ends_all_and_names_replica_and_layer(
    no_threads_left: None, way: str, words: str
) -> None:
    run = Run(3, 5, {"chunk": 1})
    run.driver.broken = f"gpu:1 {way}"
    with pytest.raises(WorkerError, match=f"replica 1: the gradients of layer layer0 .*{words}.*link"):
        run.run()


def test_what_an_engine_raises_is_told_with_whose_it_is_and_where() -> None:
    engine: Any = Engine("gpu:0", Driver(0))
    assert told_of(WorkerError("gpu:0: the link is down"), engine) == "gpu:0: the link is down"
    try:
        engine.stream("d2h").copy(None, None, None, None)
    except TypeError as error:
        told = told_of(error, engine)
    assert re.match(r"Engine of \S*test_exchange: raised TypeError: .*copy\(\) takes", told)


@pytest.mark.parametrize("options", [{}, {"scheme": "typical"}], ids=str)
def test_buckets_that_a_level_outside_puts_off_are_missed(options: dict[str, Any]) -> None:
    """Otherwise they would be left behind, and training would continue without them."""
    driver, team = Driver(0), Team(2)
    for index in range(2):
        team.memory.append(FlatMemory(np.zeros(9008, np.float32), np.zeros(9008, np.float32)))
        engine: Any = Engine(f"gpu:{index}", driver)
        sync = sync_of(Group(("gpu",), index, team, "float32", options, engine=engine))
        sync.bind(team.memory[index])
    assert chain([sync], BUCKETS[0], lambda span: None) is not None
    end = sync.end()
    assert end is not None
    with pytest.raises(PlanError, match="1 of 1 buckets of gradients are not final"):
        end()


def test_a_replica_that_fails_lets_nobody_wait(no_threads_left: None) -> None:
    run = Run(4, 7, {"chunk": 2})

    def spoil(iteration: int, replica: int, bucket: int) -> None:
        if (iteration, replica, bucket) == (1, 2, 3):
            raise ArithmeticError("replica 2 is ill")

    run.spoil = spoil
    with pytest.raises(ArithmeticError, match="replica 2 is ill"):
        run.run()


@SLOWLY
@given(
    st.sampled_from([1, 7, BLOCK - 1, BLOCK, 2 * BLOCK + 5]),
    st.integers(2, 6),
    st.sampled_from([np.float32, np.float64]),
)
def test_sums_are_made_in_the_order_of_replicas(count: int, replicas: int, kind: Any) -> None:
    values = np.random.default_rng(count).normal(size=(replicas, count)).astype(kind)
    right = values[0].copy()
    for value in values[1:]:
        right += value
    total = np.empty(count, kind)
    add_up(tuple(values), total)
    assert total.tobytes() == right.tobytes()


@SLOWLY
@given(st.integers(0, 100), st.integers(1, 5 * LEAST), st.integers(1, 8), st.sampled_from([2, 4, 8]))
def test_slices_are_all_of_a_span_in_order(start: int, length: int, count: int, item: int) -> None:
    found = slices(Span(start, start + length), count, item)
    assert [found[0].start, *(s.stop for s in found)] == [*(s.start for s in found), start + length]
    assert 1 <= len(found) <= count
    assert len(found) == 1 or min(map(len, found)) > LEAST - 64
    assert all((span.start - start) * item % 64 == 0 for span in found)
