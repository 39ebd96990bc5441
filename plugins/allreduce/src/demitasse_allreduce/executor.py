"""Running a schedule over MPI: this rank's moves as soon as they can be made, its messages in flight,
its sums."""

from __future__ import annotations

import heapq
import os
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from demitasse import InRounds, Move, PlanError, Schedule

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Check: TypeAlias = Callable[[], object]

PIECES, SHORTEST, LONGEST = 4, 256 * 1024, 1024 * 1024
"""A move of more than twice the shortest message goes in so many, within these bytes of each: the first
are added, or sent on, while others come, and yet few take each rank's time."""

AHEAD = 64
"""Messages that are awaited at once: those of the first moves that are not done."""

_TAGS = 32_768  # what every MPI has; a message's tag is its number between two ranks
_PATIENCE = 0.02  # seconds between two checks
_STALLED = 0.05  # seconds in which nothing comes or goes
_EAGER_TESTS = 20
_KNOWN = 2.0  # seconds in which those who watch know of what has made MPI fail


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

    A move is made as soon as those before it that touch its elements are done, whatever others wait for,
    so that links have work and sums the schedule's order of terms. Links are shared as the schedule's
    rounds share them: nothing is sent more than a round ahead of what is to be received, or beside what
    goes to others in an earlier round.

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
                f"a schedule for {schedule.ranks} ranks, but a communicator of {comm.Get_size()}"
            )
        contiguous = isinstance(array, Memory) or array.flags.c_contiguous
        if memory.shape != (schedule.size,) or not contiguous:
            raise PlanError(
                f"{schedule.algorithm} of {schedule.size:,} elements: an array of shape {memory.shape}, "
                f"which {'is' if contiguous else 'is not'} contiguous"
            )
        self.schedule, self.comm, self.check, self.memory = schedule, comm, check, memory
        self.rank = comm.Get_rank()
        self.program = _Program.of(schedule, self.rank, memory.itemsize)
        self._spare: dict[int, Any] = {}
        self._course: Iterator[None] | None = None

    def run(self) -> None:
        """Do all moves."""
        self.start()
        self.wait()

    def start(self) -> None:
        """Begin: send and post what can be. Raises PlanError when the last run is not done."""
        if self._course is not None:
            raise PlanError(f"{self.schedule.algorithm}: started twice")
        self._course = _Run(self).course()
        self.progress()

    def progress(self) -> bool:
        """Go on as far as messages have come; whether all is done. Raises what ``check`` does where MPI
        fails, and what MPI does if that knows nothing of it."""
        if self._course is not None:
            try:
                for _ in self._course:
                    return False
            except RuntimeError:  # mpi4py's Exception is one
                raise_cause(self.check)
                raise
            self._course = None
        return True

    def wait(self) -> None:
        """Go on until all is done, without taking the processor from who has work."""
        patiently(self.progress, self.check)

    def spare(self, i: int) -> Any:
        """Memory for what step ``i`` receives, kept for the next run."""
        if i not in self._spare:
            move = self.program.steps[i].move
            self._spare[i] = self.memory.spare(move.stop - move.start)
        return self._spare[i]


def raise_cause(check: Check | None) -> None:
    """After an error of MPI's, mostly of another process's end: have ``check``, which may hear of that a
    moment later, raise what is behind it."""
    until = time.monotonic() + _KNOWN
    while check is not None and time.monotonic() < until:
        check()
        time.sleep(1e-3)


def wait_for(request: Any, check: Check | None) -> None:
    """Wait for a request of mpi4py's, without keeping others from the processor."""
    try:
        while not request.Test():
            if check is not None:
                check()
            os.sched_yield()
    except RuntimeError:  # mpi4py's Exception is one
        raise_cause(check)
        raise


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


@dataclass
class _Step:
    """A message, or what a rank keeps of its own: the piece of a move, the schedule's round, its number
    between the two ranks, and the steps that wait for it. ``closed``: how many of the rounds in which
    this rank receives have to be over before it is sent. A step of kind "whole" is no message: it is
    done when all pieces of a move are."""

    move: Move
    round: int
    tag: int = -1
    closed: int = 0
    then: Sequence[int] = ()

    @property
    def sends(self) -> bool:
        return self.move.kind == "send"

    @property
    def receives(self) -> bool:
        return self.move.kind in ("receive", "reduce")


@dataclass(frozen=True)
class _Program:
    """A rank's steps with what a run begins with: of each the number of steps before it, those ready,
    those that await messages (the last one first), and the steps left in each round that receives."""

    steps: Sequence[_Step]
    needs: Sequence[int]
    ready: Sequence[int]
    awaited: Sequence[int]
    rounds: dict[int, int]

    @classmethod
    def of(cls, schedule: Schedule, rank: int, itemsize: int) -> _Program:
        """The program of one rank, whose moves are of ``itemsize`` bytes an element."""
        steps, through = _pieces(schedule, rank, itemsize)
        needs = _linked(steps, through, rank)
        rounds = Counter(step.round for step in steps if step.receives)
        receiving = list(rounds)
        for step in steps:
            step.closed = bisect_left(receiving, step.round - 1)
        ready = [i for i, step in enumerate(steps) if step.sends and not needs[i]]
        awaited = [i for i, step in enumerate(steps) if step.receives and step.move.peer != rank]
        return cls(steps, needs, ready, awaited[::-1], dict(rounds))


class _Run:
    """One run: steps that can be made, messages in flight, what has come before its turn."""

    def __init__(self, collective: Collective) -> None:
        self._all, self._memory, self._comm = collective, collective.memory, collective.comm
        self._rank, program = collective.rank, collective.program
        self._steps, self._left = program.steps, len(program.steps)
        self._needs, self._ready = list(program.needs), list(program.ready)
        self._ahead, self._open = list(program.awaited), dict(program.rounds)
        self._closing, self._closed = list(program.rounds), 0
        self._staged: list[tuple[int, Iterator[None]]] = []  # ready, but not where MPI reaches them
        self._going: set[int] = set()
        self._unposted: list[int] = []  # of those awaited, where the array is still in use
        self._target: dict[int, Any] = {}  # None: where it belongs
        self._came: dict[int, Any] = {}
        self._kept: dict[int, Any] = {}
        self._requests: list[Any] = []
        self._of: list[int] = []

    def course(self) -> Iterator[None]:
        """The run; yields whenever it has to wait."""
        self._memory.begin()
        since = 0.0
        while self._go_on():
            if self._test():
                since = 0.0
                continue
            if self._unposted:
                since = since or time.monotonic()
                if time.monotonic() - since > _STALLED:
                    # Another rank may wait for its send to this one before it sends what is awaited.
                    for i in self._unposted:
                        self._receive(i, self._all.spare(i))
                    self._unposted.clear()
            yield
        yield from self._memory.finish()

    def _go_on(self) -> bool:
        """Send and await what can be; whether anything is left to be done."""
        while self._ready and self._may_go(self._steps[self._ready[0]]):
            self._going.add(i := heapq.heappop(self._ready))
            move = self._steps[i].move
            self._staged.append((i, self._memory.sendable(move.start, move.stop)))
            self._send()
        if self._staged:
            self._send()
        self._await()
        return self._left > 0

    def _may_go(self, step: _Step) -> bool:
        """Whether it is a round's turn: not too far ahead of what is received, and no more than a
        message under way to others in earlier rounds."""
        if step.closed > self._closed:
            return False
        earlier = 0
        for j in self._going:
            other = self._steps[j]
            if other.round < step.round and other.move.peer != step.move.peer:
                earlier += other.move.stop - other.move.start
        return earlier * self._memory.itemsize <= LONGEST

    def _send(self) -> None:
        """Send those of the ready that MPI reaches."""
        waiting = []
        for i, course in self._staged:
            if next(course, self) is not self:
                waiting.append((i, course))
                continue
            _, peer, start, stop = self._steps[i].move
            part = self._memory.part(start, stop)
            if peer == self._rank:
                self._kept[self._steps[i].tag] = part.copy()
                self._going.discard(i)
                self._done(i)
                continue
            self._requests.append(self._comm.Isend(_bytes(part), peer, self._steps[i].tag))
            self._of.append(i)
        self._staged = waiting

    def _await(self) -> None:
        """Post receives ahead of their turn: to be added, in spare memory; else in the array, once
        nobody uses that part before."""
        while self._ahead and len(self._target) + len(self._unposted) < AHEAD:
            i = self._ahead.pop()
            if self._steps[i].move.kind == "reduce":
                self._receive(i, self._all.spare(i))
            else:
                self._unposted.append(i)
        if self._unposted:
            free = [i for i in self._unposted if not self._needs[i]]
            self._unposted = [i for i in self._unposted if self._needs[i]]
            for i in free:
                self._receive(i, None)

    def _receive(self, i: int, into: Any) -> None:
        _, peer, start, stop = self._steps[i].move
        self._target[i] = into
        place = self._memory.part(start, stop) if into is None else into
        self._requests.append(self._comm.Irecv(_bytes(place), peer, self._steps[i].tag))
        self._of.append(i)

    def _test(self) -> bool:
        """Take what has come and gone; whether anything has."""
        requests, of = self._requests, self._of
        if not requests or not (found := type(requests[0]).Testsome(requests)):
            return False
        ended = sorted(of[k] for k in found)
        for k in sorted(found, reverse=True):
            del requests[k], of[k]
        for i in ended:
            if self._steps[i].sends:
                self._going.discard(i)
                self._done(i)
                continue
            self._came[i] = self._target.pop(i)
            if not self._needs[i]:
                self._take(i)
                self._done(i)
        return True

    def _take(self, i: int) -> None:
        """Add or store what has come."""
        kind, _, start, stop = self._steps[i].move
        other = self._came.pop(i)
        if kind == "reduce":
            self._memory.reduce(start, stop, other)
        else:
            self._memory.store(start, stop, other)
        self._open[self._steps[i].round] -= 1
        while self._closed < len(self._closing) and not self._open[self._closing[self._closed]]:
            self._closed += 1

    def _done(self, i: int) -> None:
        """A step is done, and with it what only waited for it."""
        done = [i]
        while done:
            self._left -= 1
            for j in self._steps[done.pop()].then:
                self._needs[j] -= 1
                if self._needs[j]:
                    continue
                step = self._steps[j]
                if step.sends:
                    heapq.heappush(self._ready, j)
                    continue
                if step.receives and step.move.peer == self._rank:
                    self._came[j] = self._kept.pop(step.tag)
                if j in self._came:
                    self._take(j)
                elif step.receives:
                    continue
                done.append(j)


def _pieces(schedule: Schedule, rank: int, itemsize: int) -> tuple[list[_Step], set[int]]:
    """A rank's moves in messages; and the steps that need not wait for the whole of a move, as they go
    behind others to the same rank: that keeps a connection busy that would rest between two rounds
    else. Moves of no elements are left out, on both sides."""
    counts: Counter[tuple[bool, int]] = Counter()
    steps: list[_Step] = []
    through: set[int] = set()
    last = None  # whom the last message went to
    for number, move in _numbered(schedule, rank):
        way, first = (move.kind == "send", move.peer), len(steps)
        most = _elements(move.stop - move.start, itemsize)
        for start in range(move.start, move.stop, most):
            piece = Move(move.kind, move.peer, start, min(start + most, move.stop))
            if way == (True, last):
                through.add(len(steps))
            steps.append(_Step(piece, number, counts[way] % _TAGS))
            counts[way] += 1
        if move.kind == "send":
            last = move.peer
        elif len(steps) > first + 1:
            steps.append(_Step(Move("whole", move.peer, move.start, move.stop), number))
    return steps, through


def _elements(size: int, itemsize: int) -> int:
    """How many of a move's elements go in one message."""
    whole = size * itemsize
    if whole <= 2 * SHORTEST:
        return max(1, size)
    return max(1, min(max(SHORTEST, -(-whole // PIECES)), LONGEST) // itemsize)


def _linked(steps: Sequence[_Step], through: set[int], rank: int) -> list[int]:
    """Tell each step which wait for it: sends for what comes to their elements before, what comes for
    all that touch its elements before. Returns how many each waits for."""
    edges = np.unique([end for step in steps for end in step.move[2:]])
    written, whole = [-1] * len(edges), [-1] * len(edges)  # by the last piece, and all of its move
    read: list[list[int]] = [[] for _ in edges]
    after: list[list[int]] = [[] for _ in steps]
    kept: dict[int, int] = {}
    needs = []
    for i, step in enumerate(steps):
        before: set[int] = set()
        for k in range(*np.searchsorted(edges, step.move[2:])):
            if step.sends:
                before.add(written[k] if i in through else whole[k])
                read[k].append(i)
                continue
            before.add(written[k])
            whole[k] = i
            if step.receives:
                before.update(read[k])
                written[k], read[k] = i, []
        if step.move.peer == rank and step.sends:
            kept[step.tag] = i
        elif step.move.peer == rank and step.receives:
            before.add(kept[step.tag])
        before.discard(-1)
        needs.append(len(before))
        for j in before:
            after[j].append(i)
    for step, waiting in zip(steps, after, strict=True):
        step.then = waiting
    return needs


def _numbered(schedule: Schedule, rank: int) -> Iterator[tuple[int, Move]]:
    """A rank's moves, each with its round; where the schedule is not in rounds, one begins where a send
    follows what is received."""
    if isinstance(schedule.program, InRounds):
        yield from schedule.program.numbered(schedule, rank)
        return
    number, sent = 0, True
    for move in schedule.program(schedule, rank):
        number += move.kind == "send" and not sent
        sent = move.kind == "send"
        yield number, move


def _bytes(part: Any) -> Any:
    return part.view(np.uint8)
