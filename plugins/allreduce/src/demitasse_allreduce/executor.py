"""Running a schedule over MPI: this rank's moves, its messages in flight, its sums."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from demitasse import Move, PlanError, Schedule

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Check: TypeAlias = Callable[[], object]

PIECE = 512 * 1024
"""Bytes of a message: a longer move goes in several, of which the first are added while others come."""

_TAGS = 32_768  # what every MPI has; a message's tag is its number between two ranks
_PATIENCE = 0.02  # seconds between two checks
_EAGER_TESTS, _STALLED_TESTS = 50, 400


class Memory:
    """Where an array of one dimension lies of which parts are sent, received and added: on the host,
    where MPI and NumPy reach it. A device's has another one of these. ``add(a, b, out)`` is a ufunc or
    acts as one."""

    def __init__(self, array: Array, add: Callable[..., Any] = np.add) -> None:
        self.array, self._add = array, add
        self.shape, self.dtype, self.itemsize = array.shape, array.dtype, array.itemsize

    def spare(self, elements: int) -> Any:
        """Memory for what is received and has no place yet."""
        return np.empty(elements, self.dtype)

    def part(self, start: int, stop: int) -> Any:
        """What MPI is given of these elements."""
        return self.array[start:stop]

    def begin(self) -> None:
        """A run begins."""

    def sendable(self, start: int, stop: int) -> Iterator[None]:
        """Until MPI may send these elements; yields whenever that has to wait."""
        return iter(())

    def reduce(self, start: int, stop: int, other: Any) -> None:
        """Add what lies in spare memory to these elements."""
        mine = self.array[start:stop]
        self._add(mine, other, mine)

    def store(self, start: int, stop: int, other: Any) -> None:
        """What was received becomes these elements: from spare memory, or (None) where it belongs."""
        if other is not None:
            self.array[start:stop] = other

    def finish(self) -> Iterator[None]:
        """Until whoever uses the array next finds it as it should be."""
        return iter(())


class Collective:
    """A schedule's moves of this rank on ``array`` (one dimension, contiguous, of its size, or a Memory
    of it), over ``comm``, of which no one else uses messages meanwhile. Prepared once, run any number of
    times.

    What is received to be added lies in memory of this object until then. ``add(a, b, out)``
    is a ufunc or acts as one. ``check`` is called about every 20 ms of a wait, and ends it by raising;
    then messages may be in flight, and neither this nor ``comm`` can be used again.
    """

    def __init__(
        self,
        schedule: Schedule,
        comm: Any,
        array: Array | Memory,
        add: Callable[..., Any] = np.add,
        check: Check | None = None,
    ) -> None:
        memory = array if isinstance(array, Memory) else Memory(array, add)
        if schedule.ranks != comm.Get_size():
            raise PlanError(
                f"a schedule for {schedule.ranks} ranks, a communicator of {comm.Get_size()}"
            )
        contiguous = isinstance(array, Memory) or array.flags.c_contiguous
        if memory.shape != (schedule.size,) or not contiguous:
            raise PlanError(
                f"{schedule.algorithm} of {schedule.size:,} elements: an array of shape {memory.shape}, "
                f"which {'is' if contiguous else 'is not'} contiguous"
            )
        self.schedule, self._comm, self.check = schedule, comm, check
        self.memory, self._rank = memory, comm.Get_rank()
        self._moves = list(_in_pieces(schedule.program(schedule, self._rank), memory.itemsize))
        self._tags = _numbered(self._moves)
        self._ready = [_last_use(self._moves, i) + 1 for i in range(len(self._moves))]
        self._spare: dict[int, Any] = {}
        self._course: Iterator[None] | None = None

    def run(self) -> None:
        """Do all moves."""
        self.start()
        self.wait()

    def start(self) -> None:
        """Begin: post what can be. Raises PlanError when the last run is not done."""
        if self._course is not None:
            raise PlanError(f"{self.schedule.algorithm}: started twice")
        self._course = self._run()
        self.progress()

    def progress(self) -> bool:
        """Go on as far as messages have come; whether all is done."""
        if self._course is not None:
            for _ in self._course:
                return False
            self._course = None
        return True

    def wait(self) -> None:
        """Go on until all is done, without taking the processor from who has work."""
        patiently(self.progress, self.check)

    def _run(self) -> Iterator[None]:
        """The moves; yields whenever one has to wait."""
        memory = self.memory
        memory.begin()
        flight = _Flight(self)
        for i, move in enumerate(self._moves):
            flight.post(i)
            kind, peer, start, stop = move
            if kind == "send":
                yield from memory.sendable(start, stop)
                flight.send(i)
                continue
            if peer == self._rank:
                other = flight.kept.popleft()
            else:
                yield from flight.arrival(i)
                other = flight.target[i]
            if other is not None:
                yield from flight.departures(start, stop)
            if kind == "reduce":
                memory.reduce(start, stop, other)
            else:
                memory.store(start, stop, other)
        yield from flight.departures(0, self.schedule.size)
        yield from memory.finish()

    def spare(self, i: int) -> Any:
        """Memory for what move ``i`` receives, kept for the next run."""
        if i not in self._spare:
            self._spare[i] = self.memory.spare(self._moves[i].stop - self._moves[i].start)
        return self._spare[i]


def patiently(progress: Callable[[], bool], check: Check | None) -> None:
    """Go on until ``progress`` says that all is done, without taking the processor from who has work."""
    tests, checked = 0, time.monotonic()
    while not progress():
        tests += 1
        if tests > _EAGER_TESTS:
            os.sched_yield() if tests < 2 * _EAGER_TESTS else time.sleep(5e-5)
        if check is not None and time.monotonic() - checked > _PATIENCE:
            check()
            checked = time.monotonic()


class _Flight:
    """Messages of one run: receives posted ahead of their moves, sends not yet gone."""

    def __init__(self, collective: Collective) -> None:
        self._all, self._comm = collective, collective._comm
        self._moves, self._tags = collective._moves, collective._tags
        self.kept: deque[Any] = deque()
        self.target: dict[int, Any] = {}  # None where it is received where it belongs
        self._requests: dict[int, Any] = {}
        self._sends: list[tuple[int, int, Any]] = []
        mine = collective._rank
        self._unposted = [i for i, move in enumerate(self._moves) if move.kind != "send"]
        self._unposted = [i for i in self._unposted if self._moves[i].peer != mine]
        for i in self._unposted:
            if self._moves[i].kind == "reduce":
                self._receive(i, collective.spare(i))
        self._unposted = [i for i in self._unposted if i not in self._requests]

    def _receive(self, i: int, into: Any = None) -> None:
        self.target[i] = into
        place = into if into is not None else self._all.memory.part(*self._moves[i][2:])
        self._requests[i] = self._comm.Irecv(_bytes(place), self._moves[i].peer, self._tags[i])

    def post(self, now: int) -> None:
        """Post the receives whose place in the array nobody uses between move ``now`` and theirs; where
        it is still being sent, into spare memory."""
        later = []
        for i in self._unposted:
            if self._all._ready[i] > now:
                later.append(i)
                continue
            start, stop = self._moves[i][2:]
            if self._going(start, stop):
                self._receive(i, self._all.spare(i))
            else:
                self._receive(i)
        self._unposted = later

    def send(self, i: int) -> None:
        _, peer, start, stop = self._moves[i]
        part = self._all.memory.part(start, stop)
        if peer == self._all._rank:
            self.kept.append(part.copy())
        else:
            self._sends.append((start, stop, self._comm.Isend(_bytes(part), peer, self._tags[i])))

    def arrival(self, i: int) -> Iterator[None]:
        yield from self._until(self._requests[i].Test)

    def departures(self, start: int, stop: int) -> Iterator[None]:
        """Until nothing of this span is still being sent."""
        yield from self._until(lambda: not self._going(start, stop))

    def _until(self, done: Callable[[], bool]) -> Iterator[None]:
        tests = 0
        while not done():
            tests += 1
            if tests == _STALLED_TESTS:
                # Another rank may wait for its send to this one before it sends what this one waits for.
                for i in self._unposted:
                    self._receive(i, self._all.spare(i))
                self._unposted = []
            yield

    def _going(self, start: int, stop: int) -> bool:
        """Whether some of this span is still being sent. Forgets what has gone."""
        left, going = [], False
        for sent in self._sends:
            if sent[0] < stop and start < sent[1]:
                if sent[2].Test():
                    continue
                going = True
            left.append(sent)
        self._sends = left
        return going


def _in_pieces(moves: Any, itemsize: int) -> Iterator[Move]:
    """Moves of at most PIECE bytes; those of no elements are left out on both sides."""
    most = max(1, PIECE // itemsize)
    for move in moves:
        for start in range(move.start, move.stop, most):
            yield Move(move.kind, move.peer, start, min(start + most, move.stop))


def _numbered(moves: Sequence[Move]) -> list[int]:
    """A tag for each move: how many went before it between the two ranks in its direction."""
    counts: dict[tuple[bool, int], int] = {}
    tags = []
    for move in moves:
        way = (move.kind == "send", move.peer)
        tags.append(counts.get(way, 0) % _TAGS)
        counts[way] = counts.get(way, 0) + 1
    return tags


def _last_use(moves: Sequence[Move], i: int) -> int:
    """The last move before ``i`` that touches its span, or -1."""
    _, _, start, stop = moves[i]
    return next((j for j in range(i - 1, -1, -1) if moves[j][2] < stop and start < moves[j][3]), -1)


def _bytes(part: Any) -> list[Any]:
    from mpi4py import MPI

    return [part.view(np.uint8), MPI.BYTE]
