"""Options, parcels and the helper thread; what is rejected, and what a launcher's processes become."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demitasse import (
    Bucket,
    CompositionError,
    DescriptionError,
    Group,
    Level,
    Machine,
    MemorySpace,
    Processes,
    Span,
    SyncSpec,
    Team,
    WorkerError,
    discover,
)
from demitasse.synchronisation import chain
from demitasse_allreduce import plugin
from demitasse_allreduce.launch import with_processes
from demitasse_allreduce.stages.base import ProcessSync
from demitasse_allreduce.stages.foreseen import in_one_memory
from demitasse_allreduce.stages.lane import LONG, LONGEST, Lane
from demitasse_allreduce.stages.options import BUCKET, BUCKETS, Options
from demitasse_allreduce.stages.parcels import Part, inside, merged, parcels, shares


class Several(Processes):
    """Four processes that do not exist."""

    rank, size = 1, 4


# Options.


def test_options_have_defaults() -> None:
    options = Options.read({}, "here")
    assert (options.stage, options.algorithm, options.bucket, options.shared) == (
        None,
        "auto",
        BUCKET,
        True,
    )
    assert not options.hierarchical
    assert Options.read({"chain": 4}, "here").hierarchical
    assert Options.read({"bucket": "2 MiB"}, "here").bucket == 2 * 2**20


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"trials": -1}, "trials = -1 (valid: a whole number; 0: by predicted cost alone)"),
        ({"stge": "packed"}, "unknown option of sync 'stge'; did you mean 'stage'"),
        ({"stage": "SC-OBB"}, "unknown stage 'SC-OBB'; did you mean 'SC-OB'"),
        ({"algorithm": "rng"}, "unknown algorithm 'rng'; did you mean 'ring'"),
        ({"ranks": 3}, "unknown ranks '3'"),
        ({"chain": 0}, "chain = 0"),
        ({"chain": True}, "chain = True"),
        ({"shared": "no"}, "shared = 'no'"),
        (
            {"stage": "SC-B", "algorithm": "ring"},
            "'ring' has no reduction to one rank, which SC-B needs",
        ),
        ({"lower": "ring"}, "lower = 'ring' has no reduction"),
        ({"algorithm": "ring", "lower": "chain"}, "conflicts with lower and upper"),
        ({"algorithm": "ring", "chain": 2}, "has one level, so chain and members do not apply"),
    ],
)
def test_wrong_options_are_named_with_what_is_valid(given: dict[str, Any], says: str) -> None:
    with pytest.raises(CompositionError) as caught:
        Options.read(given, "machine.toml:7")
    assert str(caught.value).startswith("machine.toml:7")
    assert says in str(caught.value)


def test_a_bucket_needs_a_unit() -> None:
    with pytest.raises(DescriptionError, match=r"machine\.toml:7: bucket '4 MBits'"):
        Options.read({"bucket": "4 MBits"}, "machine.toml:7")


# What is rejected.


def group(
    machine: Machine, options: dict[str, Any], team: Team | None = None, remote: bool = True
) -> Group:
    """The group of the innermost level of processes."""
    return Group(("process",), 0, team, "float32", options, remote, machine, Several())


def of_processes(*inner: Level) -> Machine:
    """Four processes, with levels inside."""
    outer = Level("process", 4, workers="mpi", sync=SyncSpec("allreduce"))
    return Machine("test", (outer, *inner, Level("node", memory=(MemorySpace("host"),))))


def test_threads_need_a_sync_of_their_own() -> None:
    with pytest.raises(CompositionError, match=r'include threads; .*plugin = "reference"'):
        plugin.gradient_sync(group(of_processes(), {}, Team(2)))
    with pytest.raises(CompositionError, match="the 2 siblings here are threads of one"):
        plugin.gradient_sync(group(of_processes(), {}, Team(2), remote=False))


def test_a_root_cannot_serve_threads_inside() -> None:
    threads = Level("domain", 2, workers="threads", sync=SyncSpec("reference"))
    with pytest.raises(CompositionError, match="too late for level 'domain'"):
        plugin.gradient_sync(group(of_processes(threads), {"stage": "SC-OBR"}))


def test_two_levels_of_processes_need_one_sync() -> None:
    inner = Level("socket", 2, workers="mpi", sync=SyncSpec("allreduce"))
    with pytest.raises(CompositionError, match="both synchronise processes"):
        plugin.gradient_sync(group(of_processes(inner), {}))


def test_processes_of_another_kind_are_refused() -> None:
    with pytest.raises(CompositionError, match="processes that MPI connects, not those of Several"):
        plugin.gradient_sync(group(of_processes(), {}))


def test_memory_goes_with_a_trainer_and_not_when_python_looks_for_cycles() -> None:
    def bound() -> weakref.ref[Any]:
        sync = ProcessSync(group(of_processes(), {}), Options.read({}, "here"), BUCKETS, at_once=False)
        array = np.zeros(4)
        chain([sync], Bucket(0, Span(0, 4), ("ip",)), lambda span: partial(array.fill, 1))
        return weakref.ref(array)

    gc.collect()
    gc.disable()
    try:
        assert bound()() is None
    finally:
        gc.enable()


def test_one_process_has_nothing_to_do() -> None:
    sync = plugin.gradient_sync(Group(("process",), 0, None, "float32", {}, True))
    assert (sync.index, sync.size) == (0, 1)
    bucket = Bucket(0, Span(0, 8), ("layer",))
    assert (
        sync.reduce(bucket, bucket.span) is sync.distribute(bucket, bucket.span) is sync.begin() is None
    )


# Parcels.


@given(st.lists(st.integers(1, 50), min_size=1, max_size=12), st.one_of(st.none(), st.integers(1, 120)))
def test_parcels_keep_order_and_have_everything_once(sizes: list[int], least: int | None) -> None:
    edges = [0]
    for size in sizes:
        edges.append(edges[-1] + size)
    parts = [
        Part(Bucket(i, Span(*edge), (f"layer{i}",)), Span(*edge))
        for i, edge in enumerate(pairwise(edges))
    ]
    made = parcels(reversed(parts), least)
    assert [part for parcel in made for part in parcel.parts] == parts
    assert all(len(parcel.pieces) == 1 for parcel in made)
    if least is None:
        assert len(made) == 1
    else:
        for parcel in made:  # no parcel takes further parts once it is full
            assert parcel.elements - len(parcel.parts[-1].span) < least


@given(st.integers(0, 300), st.integers(0, 300), st.integers(1, 9), st.sampled_from([1, 8, 16]))
def test_shares_are_all_of_a_span_cut_at_lines(start: int, length: int, size: int, line: int) -> None:
    span = Span(start, start + length)
    made = shares(span, size, line)
    assert len(made) == size
    assert sum(map(len, made)) == len(span)
    assert merged(made) == ([span] if span else [])
    assert all(part.stop % line == 0 or part.stop in (span.start, span.stop) for part in made)
    assert [inside(span, part) for part in made if part] == [part for part in made if part]


# The helper thread.


class Steps:
    """A task that is done after a number of polls."""

    def __init__(self, log: list[str], name: str, asked: int, error: Exception | None = None) -> None:
        self.log, self.name, self.left, self.error = log, name, asked, error

    def run(self) -> None:
        raise NotImplementedError

    def start(self) -> None:
        self.log.append(f"{self.name} starts")

    def progress(self) -> bool:
        if self.error is not None:
            raise self.error
        self.left -= 1
        if self.left == 0:
            self.log.append(f"{self.name} ends")
        return self.left <= 0


def test_tasks_run_in_the_order_in_which_they_are_posted() -> None:
    log, spans = list[str](), list[str]()
    lane = Lane("test", lambda: None, lambda name, start, stop: spans.append(name))
    (first,) = lane.post([(Steps(log, "a", 200), "a")])
    (second,) = lane.post([(Steps(log, "b", 1), "b")])
    lane.wait(second)
    assert first.done.is_set()
    assert log == ["a starts", "a ends", "b starts", "b ends"]
    assert spans == ["a", "b"]
    lane.close()


def test_tasks_posted_together_are_under_way_together() -> None:
    log = list[str]()
    lane = Lane("test", lambda: None, lambda name, start, stop: None)
    tickets = lane.post([(Steps(log, "a", 9), "a"), (Steps(log, "b", 3), "b")])
    for ticket in tickets:
        lane.wait(ticket)
    assert log == ["a starts", "b starts", "b ends", "a ends"]
    lane.close()


def test_two_postings_under_way_make_room_when_the_first_of_them_is_done() -> None:
    """The third uses the first one's messages: it begins when the first is done, not when the second
    is."""
    log, hold = list[str](), threading.Event()

    class First(Steps):
        def progress(self) -> bool:
            return hold.is_set() and super().progress()

    lane = Lane("test", lambda: None, lambda name, start, stop: None, depth=2)
    lane.post([(First(log, "a", 1), "a")])
    (second,) = lane.post([(Steps(log, "b", 3), "b")])
    (third,) = lane.post([(Steps(log, "c", 1), "c")])
    lane.wait(second)
    assert log == ["a starts", "b starts", "b ends"]
    hold.set()
    lane.wait(third)
    assert log[3:] == ["a ends", "c starts", "c ends"]
    lane.close()


def test_naps_grow_with_what_the_shortest_under_way_took_last_time() -> None:
    lane = Lane("test", lambda: None, lambda name, start, stop: None)
    begun, hold = threading.Event(), threading.Event()

    class Held(Steps):
        def start(self) -> None:
            begun.set()

        def progress(self) -> bool:
            return hold.is_set() and super().progress()

    assert lane.longest() == LONG  # of nothing
    tickets = lane.post([(Held([], "a", 1), "a"), (Held([], "b", 1), "b")])
    assert begun.wait(30)
    for known, nap in (
        ({}, LONG),
        ({"a": 32e-3, "b": 70e-3}, 0.5e-3),
        ({"a": 1e-3, "b": 70e-3}, LONG),
        ({"a": 1.0, "b": 2.0}, LONGEST),
    ):
        lane._took = known
        assert lane.longest() == pytest.approx(nap)
    hold.set()
    for ticket in tickets:
        lane.wait(ticket)
    assert {*lane._took} == {"a", "b"}
    lane.close()


def test_an_error_is_raised_where_it_is_waited_for() -> None:
    lane = Lane("test", lambda: None, lambda name, start, stop: None)
    broken = WorkerError("rank 2 has ended")
    (first,) = lane.post([(Steps([], "a", 1, broken), "a")])
    for ticket in (first, *lane.post([(Steps([], "b", 1), "b")])):  # also for later tasks
        with pytest.raises(WorkerError) as caught:
            lane.wait(ticket)
        assert caught.value is broken
    lane.close()


@pytest.mark.timeout(30, method="thread")
def test_closing_ends_the_thread_with_what_it_has_in_line() -> None:
    before = threading.active_count()
    lane = Lane("test", lambda: None, lambda name, start, stop: None)
    (ticket,) = lane.post([(Steps([], "a", 10**12), "a")])
    lane.close()
    assert threading.active_count() == before
    with pytest.raises(WorkerError, match="was closed"):
        lane.wait(ticket)


@pytest.mark.timeout(30, method="thread")
def test_a_check_ends_a_wait_for_ever() -> None:
    def check() -> None:
        raise WorkerError("rank 1 on host b has died")

    lane = Lane("test", check, lambda name, start, stop: None)
    (ticket,) = lane.post([(Steps([], "a", 10**12), "a")])
    with pytest.raises(WorkerError, match="rank 1 on host b has died"):
        lane.wait(ticket)
    lane.close()


# The probe.


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``launched(size)`` sets what an MPI launcher sets."""
    for name in [
        name for name in os.environ if name.startswith(("OMPI_COMM_", "PMI", "MPI_", "SLURM_"))
    ]:
        monkeypatch.delenv(name)

    def launch(size: int) -> None:
        monkeypatch.setenv("PMI_RANK", "0")
        monkeypatch.setenv("PMI_SIZE", str(size))

    return launch


def test_a_launched_process_is_one_of_a_level(launched: Any) -> None:
    found = (Level("node", memory=(MemorySpace("host"),)),)
    assert with_processes(found) == found
    launched(1)
    assert with_processes(found) == found
    launched(4)
    outer, inner = with_processes(found)
    assert (outer.count, outer.workers, outer.sync) == (4, "mpi", SyncSpec("allreduce"))
    assert inner == found[0]
    assert with_processes((outer, inner)) == (outer, inner)
    assert tuple(plugin.probe(levels=found)) == (outer, inner)


def test_the_entry_point_serves_what_the_manifest_says() -> None:
    (manifest,) = [each for each in discover() if each.name == "allreduce"]
    assert manifest.problem == ""
    assert {"gradient_sync", "allocator", "probe", "processes"} <= set(manifest.roles)
    assert manifest.roles["allocator"]["spaces"] == ["shared:node"]
    assert plugin.allocator(space="host", options={}) is None


# A stage that is only foreseen.


@pytest.mark.parametrize(
    ("options", "ranks", "found"),
    [
        ({}, 4, (4, False, "packed")),
        ({}, 3, (3, False, "packed")),
        ({}, 8, (4, False, "overlap")),
        ({}, 6, (4, True, "overlap")),
        ({"between": "leaders"}, 8, (4, True, "overlap")),
        ({"stage": "buckets"}, 4, (4, False, "buckets")),
        ({"shared": False}, 4, (1, False, "overlap")),
        ({"stage": "SC-B"}, 4, (1, False, "SC-B")),
    ],
)
def test_described_ranks_share_the_memory_of_the_level_around_them(
    options: dict[str, Any], ranks: int, found: tuple[int, bool, str]
) -> None:
    levels = (
        Level("node", 2, memory=(MemorySpace("host"),)),
        Level("rank", 4, workers="mpi", sync=SyncSpec("allreduce")),
    )
    about = Machine("test", levels), Processes()
    alone = Group(("node", "rank"), 0, None, "float32", options, True, *about)
    sync = plugin.gradient_sync(alone).described()  # type: ignore[attr-defined]
    sync.taking_part(ranks)
    assert (sync.node_ranks, sync.leaders, sync.stage) == found


@pytest.mark.parametrize("workers", ["mpi", "streams"])
def test_ranks_with_memories_of_their_own_share_none(workers: str) -> None:
    levels = (
        Level("node", 2, memory=(MemorySpace("host"),)),
        Level("rank", 4, workers="mpi", sync=SyncSpec("allreduce")),
        Level("device", 1, workers=workers, memory=(MemorySpace("device"),)),
    )
    assert in_one_memory(Machine("test", levels), ("node", "rank")) == 1
