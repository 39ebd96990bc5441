"""Levels of synchronisation nest: reduce from the inside out, update once, distribute back in.

Threads inside simulated nodes, both levels toys, train a net with a shared blob, two passes an
iteration and a batch that does not divide; every event is written down in the order it happens.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from demitasse import (
    Bucket,
    Candidate,
    FlatMemory,
    GradientSync,
    Group,
    Request,
    Span,
    Team,
    Work,
    compose,
)

pytestmark = pytest.mark.usefixtures("no_threads_left")

NODES, THREADS, BATCH, PASSES = 2, 3, 10, 2
ITERATIONS = 3


@dataclass(frozen=True)
class Event:
    """What a worker did: begin, end, before_forward, reduce or distribute at a level, or a kernel."""

    worker: int
    what: str
    level: str = ""
    bucket: int = -1
    span: tuple[int, int] = (0, 0)
    iteration: int = -1
    layer: str = ""


@dataclass
class Diary:
    """All events in order. Appending to a list is atomic, and a worker waits for its siblings."""

    events: list[Event] = field(default_factory=list)
    memories: list[FlatMemory] = field(default_factory=list)
    workers: dict[int, int] = field(default_factory=dict)
    buckets: dict[int, Bucket] = field(default_factory=dict)
    iteration: int = 0

    def write(self, what: str, **facts: Any) -> None:
        worker = self.workers.get(threading.get_ident(), 0)
        self.events.append(Event(worker, what, iteration=self.iteration, **facts))

    def number(self, memory: FlatMemory) -> int:
        """A worker's number: its place in the order in which workers are bound."""
        known = [i for i, other in enumerate(self.memories) if other is memory]
        if not known:
            self.memories.append(memory)
        return known[0] if known else len(self.memories) - 1

    def place(self, array: Any) -> tuple[int, int]:
        """Which part of some worker's flat parameters an array is."""
        address = array.__array_interface__["data"][0]
        for memory in self.memories:
            first = memory.parameters.__array_interface__["data"][0]
            if first <= address < first + memory.parameters.nbytes:
                start = (address - first) // memory.parameters.itemsize
                return start, start + array.size
        assert not self.memories, "an update of memory that no worker has"
        return 0, array.size


class ToySync(GradientSync):
    """Siblings sum in order into the owner's memory, and copy the parameters back from it. The owner
    of a span is the first sibling, or each of them owns a slice."""

    def __init__(self, group: Group, diary: Diary, sliced: bool, shares: bool) -> None:
        assert group.team is not None
        self.shares_parameters = shares
        self.level, self.team, self.diary, self.sliced = group.levels[-1], group.team, diary, sliced
        self.index, self.size = group.index, group.team.size
        self.worker = 0

    def bind(self, memory: FlatMemory) -> None:
        assert memory is self.team.memory[self.index], "siblings stand in order of index"
        self.worker = self.diary.number(memory)

    def begin(self) -> Work:
        def work() -> None:
            self.diary.workers[threading.get_ident()] = self.worker
            self.diary.write("begin", level=self.level)

        return work

    def end(self) -> Work:
        return lambda: self.diary.write("end", level=self.level)

    def before_forward(self, bucket: Bucket) -> Work:
        return lambda: self.diary.write("before_forward", level=self.level, bucket=bucket.index)

    def owned(self, span: Span) -> Span:
        return self.part(self.index, span)

    def part(self, index: int, span: Span) -> Span:
        if not self.sliced:
            return span if index == 0 else Span(span.start, span.start)
        edges = [span.start + len(span) * i // self.size for i in (index, index + 1)]
        return Span(*edges)

    def reduce(self, bucket: Bucket, span: Span) -> Work:
        self.diary.buckets[bucket.index] = bucket
        part, team = self.owned(span), self.team
        mine = slice(part.start, part.stop)

        def work() -> None:
            team.barrier.wait()
            self.write("reduce", bucket, span)
            if part:
                total = sum(memory.gradients[mine] for memory in team.memory)
            team.barrier.wait()  # nobody writes before everybody has read
            if part:
                team.memory[self.index].gradients[mine] = total

        return work

    def distribute(self, bucket: Bucket, span: Span) -> Work:
        parts = [(i, self.part(i, span)) for i in range(self.size)]
        target = self.team.memory[self.index].parameters

        def work() -> None:
            self.team.barrier.wait()
            self.write("distribute", bucket, span)
            for i, part in parts:
                if i != self.index and part:
                    source = self.team.memory[i].parameters
                    target[part.start : part.stop] = source[part.start : part.stop]
            self.team.barrier.wait()

        return work

    def write(self, what: str, bucket: Bucket, span: Span) -> None:
        place = (span.start, span.stop)
        self.diary.write(what, level=self.level, bucket=bucket.index, span=place)


def watched(toy: ModuleType, diary: Diary) -> Any:
    """Reference kernels that write down when they run; an update also writes down what it updates."""

    def kernels(request: Request) -> Iterable[Candidate]:
        candidate = next(iter(toy.installed("reference").kernels(request)), None)
        operation = request.operation
        if candidate is None:  # nobody but it would do two operations at once
            return []

        def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
            work: Work = candidate.bind(inputs, outputs, workspace)
            span = diary.place(inputs[0]) if operation.family == "update" else (0, 0)

            def run() -> None:
                diary.write(operation.name, span=span)
                work()

            return run

        return [Candidate("watched", bind, candidate.input_layouts, candidate.output_layouts)]

    return toy.plugin("watched", kernels=kernels)


@contextmanager
def training(
    toy: ModuleType, *counts: int, sliced: tuple[bool, bool] = (False, False), shares: bool = False
) -> Iterator[tuple[Any, Diary]]:
    """A trainer on nodes and threads (or one worker for no counts), and its diary. ``sliced`` tells
    for nodes and threads whether each sibling owns a slice, ``shares`` whether the threads of a node
    have one copy of the parameters."""
    diary = Diary()

    def level(slices: bool, shares: bool) -> Callable[[Group], GradientSync]:
        return lambda group: ToySync(group, diary, slices, shares)

    plugins = [
        watched(toy, diary),
        toy.plugin("toy_nodes", gradient_sync=level(sliced[0], False)),
        toy.plugin("toy_threads", gradient_sync=level(sliced[1], shares)),
        "reference",
        "training",
        toy.toy(),
    ]
    machine = toy.machine(*counts, sync=("toy_nodes", "toy_threads"))
    with compose(machine, plugins) as runtime:
        solver = toy.solver(toy.classifier(BATCH), passes=PASSES)
        yield runtime.trainer(solver, precision="f64"), diary


def run(trainer: Any, diary: Diary, iterations: int = ITERATIONS) -> list[float]:
    losses = []
    for _ in range(iterations):
        losses.append(trainer.step(1).loss)
        diary.iteration += 1
    return losses


LEADERS, SLICES = (False, False), (True, True)


@pytest.fixture(
    scope="module",
    params=[LEADERS, SLICES, (True, False), (False, True)],
    ids=["leaders", "slices", "slices of nodes", "slices of threads"],
)
def diary(toy: ModuleType, request: pytest.FixtureRequest) -> Diary:
    """What six workers of two levels did in some iterations."""
    with training(toy, NODES, THREADS, sliced=request.param) as (trainer, diary):
        run(trainer, diary)
    return diary


def synchronisation(diary: Diary, worker: int, iteration: int) -> list[tuple[int, str, str]]:
    """(bucket, what, level) of one worker in order; the bucket of an update is found by its span."""
    spans = {i: bucket.span for i, bucket in diary.buckets.items()}
    found = []
    for event in diary.events:
        if (event.worker, event.iteration) != (worker, iteration):
            continue
        if event.what in ("reduce", "distribute"):
            found.append((event.bucket, event.what, event.level))
        if event.what == "momentum_update":
            (bucket,) = [i for i, s in spans.items() if s.start <= event.span[0] < s.stop]
            assert event.span[1] <= spans[bucket].stop
            found.append((bucket, "update", ""))
    return found


def test_each_bucket_is_reduced_inside_out_updated_and_distributed_outside_in(diary: Diary) -> None:
    """Whoever owns nothing after the inner reduce waits inside; whoever owns nothing after the outer
    one does not update."""
    whole: list[tuple[str, str]] = [
        ("reduce", "thread"),
        ("reduce", "node"),
        ("update", ""),
        ("distribute", "node"),
        ("distribute", "thread"),
    ]
    without_update = [step for step in whole if step[0] != "update"]
    inner_only = [("reduce", "thread"), ("distribute", "thread")]
    seen = set()
    for worker in range(NODES * THREADS):
        for iteration in range(ITERATIONS):
            events = synchronisation(diary, worker, iteration)
            order = list(dict.fromkeys(bucket for bucket, _, _ in events))
            assert order == sorted(diary.buckets), "buckets in the order in which backward ends them"
            for number in order:
                steps = [(what, level) for bucket, what, level in events if bucket == number]
                assert steps in (whole, without_update, inner_only)
                seen.add((worker, tuple(steps)))
    assert (0, tuple(whole)) in seen


def test_across_workers_inner_comes_before_outer_and_outer_before_inner(diary: Diary) -> None:
    """Not only in each worker: no node is reduced before all its threads are, and no thread gets
    parameters before its node has them."""
    for iteration in range(ITERATIONS):
        for number in diary.buckets:
            when: dict[tuple[str, str], list[tuple[int, int]]] = {}
            for position, event in enumerate(diary.events):
                if (event.bucket, event.iteration) == (number, iteration) and event.level:
                    when.setdefault((event.what, event.level), []).append((position, event.worker))
            for node in range(NODES):
                workers = range(node * THREADS, (node + 1) * THREADS)
                inner = [p for p, w in when["reduce", "thread"] if w in workers]
                outer = [p for p, w in when["reduce", "node"] if w in workers]
                assert len(inner) == THREADS
                assert max(inner) < min(outer)
                after = [p for p, w in when["distribute", "node"] if w in workers]
                last = [p for p, w in when["distribute", "thread"] if w in workers]
                assert max(after) < min(last)
            for thread in range(THREADS):
                siblings = range(thread, NODES * THREADS, THREADS)
                outer = [p for p, w in when["reduce", "node"] if w in siblings]
                after = [p for p, w in when["distribute", "node"] if w in siblings]
                assert len(outer) == len(after)
                assert max(outer, default=0) < min(after, default=1)


def test_every_parameter_is_updated_exactly_once_an_iteration(diary: Diary) -> None:
    """By its one owner after the outermost reduce: the spans of the updates are all of the trained
    parameters, without gap or overlap."""
    total = max(bucket.span.stop for bucket in diary.buckets.values())
    for iteration in range(ITERATIONS):
        updated = np.zeros(total, int)
        for event in diary.events:
            if event.what == "momentum_update" and event.iteration == iteration:
                updated[slice(*event.span)] += 1
        assert (updated == 1).all()


def test_the_update_comes_after_the_last_reduce_and_before_the_first_distribute(diary: Diary) -> None:
    for iteration in range(ITERATIONS):
        for number, bucket in diary.buckets.items():
            mine = [
                (position, event)
                for position, event in enumerate(diary.events)
                if event.iteration == iteration
                and (
                    event.bucket == number
                    or (
                        event.what == "momentum_update"
                        and bucket.span.start <= event.span[0] < bucket.span.stop
                    )
                )
            ]
            for position, event in mine:
                if event.what == "momentum_update":
                    # Of the siblings at the outermost level, those who reduced this very slice.
                    reduced = [p for p, e in mine if e.what == "reduce" and e.worker == event.worker]
                    given = [p for p, e in mine if e.what == "distribute" and e.worker == event.worker]
                    assert max(reduced) < position < min(given)


def test_iterations_begin_and_end_at_every_level(diary: Diary) -> None:
    for worker in range(NODES * THREADS):
        for iteration in range(ITERATIONS):
            events = [e for e in diary.events if (e.worker, e.iteration) == (worker, iteration)]
            for level in ("node", "thread"):
                assert sum((e.what, e.level) == ("begin", level) for e in events) == 1
                assert sum((e.what, e.level) == ("end", level) for e in events) == 1
            assert {events[0].what, events[1].what} == {"begin"}
            assert {events[-1].what, events[-2].what} == {"end"}


def test_parameters_are_waited_for_once_an_iteration_the_outer_level_first(diary: Diary) -> None:
    for worker in range(NODES * THREADS):
        events = [e for e in diary.events if (e.worker, e.iteration) == (worker, 1)]
        whats = [e.what for e in events]
        for number, bucket in diary.buckets.items():
            waits = [
                (position, e.level)
                for position, e in enumerate(events)
                if (e.what, e.bucket) == ("before_forward", number)
            ]
            assert [level for _, level in waits] == ["node", "thread"]
            reader = "inner_product" if bucket.layers == ("scores",) else "convolution"
            assert waits[-1][0] < len(whats) - whats[::-1].index(reader)
            assert waits[-1][0] < whats.index("softmax_loss")


def test_a_bucket_is_final_only_after_its_last_use_in_the_last_pass(diary: Diary) -> None:
    """The two convolutions that share their weights add to one gradient in each of two passes; none
    of it is reduced before all four contributions are there, and none comes later."""
    (shared,) = [i for i, b in diary.buckets.items() if {"second", "third"} <= {*b.layers}]
    # In backward order, second is the last but one to finish: only first comes after it.
    (after,) = [i for i, b in diary.buckets.items() if b.layers == ("first",)]
    assert after > shared
    for worker in range(NODES * THREADS):
        for iteration in range(ITERATIONS):
            events = [e for e in diary.events if (e.worker, e.iteration) == (worker, iteration)]
            whats = [e.what for e in events]
            assert whats.count("softmax_loss") == PASSES
            (reduced,) = [
                position
                for position, e in enumerate(events)
                if (e.what, e.level, e.bucket) == ("reduce", "thread", shared)
            ]
            backward = [i for i, what in enumerate(whats) if what == "convolution_backward_weights"]
            assert len(backward) == 3 * PASSES
            # All but the first layer's own, which is the last of each pass.
            assert backward[-2] < reduced < backward[-1]
            gradients = [i for i, what in enumerate(whats) if what == "accumulate"]
            assert sum(i < reduced for i in gradients) == len(gradients) - 2, "weights and biases"
            last_loss = max(i for i, what in enumerate(whats) if what == "softmax_loss")
            assert min(i for i, what in enumerate(whats) if what == "reduce") > last_loss


@pytest.mark.parametrize(
    ("counts", "sliced"),
    [
        ((NODES, THREADS), LEADERS),
        ((NODES, THREADS), SLICES),
        ((3, 2), (True, False)),
        ((3, 2), (False, True)),
        ((1, 4), LEADERS),
        ((7,), SLICES),
    ],
    ids=str,
)
def test_any_workers_train_what_one_worker_trains(
    toy: ModuleType, counts: tuple[int, ...], sliced: tuple[bool, bool]
) -> None:
    with training(toy) as (alone, diary):
        losses = run(alone, diary)
        expected = alone.net.params
    with training(toy, *counts, sliced=sliced) as (trainer, diary):
        assert run(trainer, diary) == pytest.approx(losses, abs=1e-10)
        workers = int(np.prod(counts))
        shares = [worker.share.of(BATCH)[2] for worker in trainer._workers]
        assert (sum(shares), len(shares)) == (BATCH, workers)
        assert len(set(shares)) == (1 if BATCH % workers == 0 else 2), "uneven shares"
        for layer, arrays in expected.items():
            for ours, theirs in zip(trainer.net.params[layer], arrays, strict=True):
                assert np.allclose(ours, theirs, rtol=0, atol=1e-10)
        first, *others = diary.memories
        assert len(others) == workers - 1
        for other in others:
            assert np.array_equal(first.parameters, other.parameters), "all have the same bits"


@pytest.mark.parametrize("sliced", [LEADERS, SLICES], ids=str)
def test_the_threads_of_a_node_may_have_one_copy_of_the_parameters(
    toy: ModuleType, sliced: tuple[bool, bool]
) -> None:
    """A bucket is updated when no sibling reads it any more, so nobody sees half of an update."""
    with training(toy) as (alone, diary):
        losses = run(alone, diary)
    with training(toy, NODES, THREADS, sliced=sliced, shares=True) as (trainer, diary):
        assert run(trainer, diary) == pytest.approx(losses, abs=1e-10)
        parameters = [memory.parameters for memory in diary.memories]
        gradients = [memory.gradients for memory in diary.memories]
    for i in range(NODES * THREADS):
        for j in range(i):
            together = i // THREADS == j // THREADS
            assert np.shares_memory(parameters[i], parameters[j]) is together
            assert not np.shares_memory(gradients[i], gradients[j])


def test_two_levels_do_what_one_level_of_as_many_workers_does(toy: ModuleType) -> None:
    """The order of the sums differs, so the last bits may."""
    with training(toy, NODES, THREADS) as (nested, diary):
        nested_losses = run(nested, diary)
    with training(toy, NODES * THREADS) as (flat, diary):
        assert run(flat, diary) == pytest.approx(nested_losses, abs=1e-10)


def test_a_team_breaks_when_a_sibling_fails() -> None:
    """What lets the others stop waiting: a broken barrier raises in all of them."""
    team = Team(2)
    team.barrier.abort()
    with pytest.raises(threading.BrokenBarrierError):
        team.barrier.wait()
