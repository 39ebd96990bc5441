"""Running a schedule over MPI: makes this rank's moves as soon as possible, keeps its messages in
flight, and adds what it receives."""

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
"""A move of more than twice SHORTEST bytes is cut into PIECES messages, each of SHORTEST to LONGEST
bytes (into more messages if LONGEST requires it). The first ones are added, or passed on, while others
arrive, but there are few enough that handling them costs little."""

AHEAD = 64
"""The most messages that are awaited at the same time: those of the first unfinished moves."""

_TAGS = 32_768  # every MPI has as many; a message's tag is its number between two ranks
_PATIENCE = 0.02  # seconds between two checks
_STALLED = 0.05  # seconds without any message in either direction
_EAGER_TESTS = 20
_KNOWN = 2.0  # seconds within which the watch between processes knows what made MPI fail


class Memory:
    """The memory of a one-dimensional array whose parts are sent, received and added. This class is for
    host memory, which MPI and NumPy can access; subclasses are for a device's memory. ``add(a, b, out)``
    is a ufunc or acts like one."""

    def __init__(self, array: Array, add: Callable[..., Any] = np.add) -> None:
        self.array, self._add = array, add
        self.shape, self.dtype, self.itemsize = array.shape, array.dtype, array.itemsize

    def spare(self, elements: int) -> Any:
        """Return memory for received elements that cannot be stored in their place yet."""
        return np.empty(elements, self.dtype)

    def part(self, start: int, stop: int) -> Any:
        """Return the buffer to pass to MPI for these elements."""
        return self.array[start:stop]

    def begin(self) -> None:
        """Called when a run begins."""

    def sendable(self, start: int, stop: int) -> Iterator[None]:
        """Wait until MPI may send these elements; yields whenever it would have to block."""
        return iter(())

    def reduce(self, start: int, stop: int, other: Any) -> None:
        """Add ``other``, which is spare memory, to these elements."""
        mine = self.array[start:stop]
        self._add(mine, other, mine)

    def store(self, start: int, stop: int, other: Any) -> None:
        """Store what was received as these elements: ``other`` is spare memory, or None if the elements
        were received in their place."""
        if other is not None:
            self.array[start:stop] = other

    def finish(self) -> Iterator[None]:
        """Wait until the array is ready for its next user; yields whenever it would have to block."""
        return iter(())


class Collective:
    """This rank's moves of a schedule on ``array``, over ``comm``. ``array`` is one-dimensional,
    contiguous and of the schedule's size, or a Memory of such an array. Nobody else may send messages
    over ``comm`` during a run. A Collective is prepared once and can be run any number of times.

    A move is made as soon as all earlier moves that touch its elements are done, whatever other moves
    wait for. Links therefore stay busy, while terms are added in the schedule's order. Links are shared
    as in the schedule's rounds: nothing is sent more than one round ahead of what is still to be
    received, or while messages of an earlier round to other ranks are under way (beyond 1 MiB).

    Elements that are received to be added stay in memory of this object until then. ``add(a, b, out)``
    is a ufunc or acts like one. ``check`` is called about every 20 ms during a wait and ends it by
    raising. Messages may then be in flight, and neither this object nor ``comm`` can be used again.
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
        """Make all moves and wait until they are done."""
        self.start()
        self.wait()

    def start(self) -> None:
        """Begin a run: post the sends and receives that are possible. Raises PlanError if the last run
        is not done."""
        if self._course is not None:
            raise PlanError(f"{self.schedule.algorithm}: started twice")
        self._course = _Run(self).course()
        self.progress()

    def progress(self) -> bool:
        """Continue as far as the messages that have come allow; return whether all is done. If MPI
        fails, raises what ``check`` raises, or MPI's own error if ``check`` does not know of a
        cause."""
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
        """Continue until all is done, yielding the processor to threads that have work."""
        patiently(self.progress, self.check)

    def spare(self, i: int) -> Any:
        """Return memory for what step ``i`` receives. It is kept for the next run."""
        if i not in self._spare:
            move = self.program.steps[i].move
            self._spare[i] = self.memory.spare(move.stop - move.start)
        return self._spare[i]


def raise_cause(check: Check | None) -> None:
    """Let ``check`` raise the cause of an MPI error. Most such errors mean that another process has
    ended, which ``check`` may learn only a moment later, so it is called for up to 2 s."""
    until = time.monotonic() + _KNOWN
    while check is not None and time.monotonic() < until:
        check()
        time.sleep(1e-3)


def wait_for(request: Any, check: Check | None) -> None:
    """Wait for an mpi4py request, yielding the processor to others. If MPI fails, raises as
    ``Collective.progress`` does."""
    try:
        while not request.Test():
            if check is not None:
                check()
            os.sched_yield()
    except RuntimeError:  # mpi4py's Exception is one
        raise_cause(check)
        raise


def patiently(progress: Callable[[], bool], check: Check | None) -> None:
    """Call ``progress`` until it returns True, yielding the processor to threads that have work.
    ``check`` is called about every 20 ms and ends the wait by raising."""
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
    """A message, or a copy from a rank to itself: the piece of a move, its round in the schedule, its
    tag (its number between the two ranks), and the steps that wait for it (``then``). ``closed`` is how
    many of the rounds in which this rank receives have to be over before the step is sent. A step of
    kind "whole" is not a message: it is done when all pieces of a move are."""

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
    """A rank's steps and the initial state of a run: how many steps each step waits for (``needs``), the
    sends that are ready, the steps that await messages (the last one first), and the number of receiving
    steps in each round that has any."""

    steps: Sequence[_Step]
    needs: Sequence[int]
    ready: Sequence[int]
    awaited: Sequence[int]
    rounds: dict[int, int]

    @classmethod
    def of(cls, schedule: Schedule, rank: int, itemsize: int) -> _Program:
        """Return the program of one rank for elements of ``itemsize`` bytes."""
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
    """The state of one run: steps that are ready, messages in flight, messages that came before their
    turn."""

    def __init__(self, collective: Collective) -> None:
        self._all, self._memory, self._comm = collective, collective.memory, collective.comm
        self._rank, program = collective.rank, collective.program
        self._steps, self._left = program.steps, len(program.steps)
        self._needs, self._ready = list(program.needs), list(program.ready)
        self._ahead, self._open = list(program.awaited), dict(program.rounds)
        self._closing, self._closed = list(program.rounds), 0
        self._staged: list[tuple[int, Iterator[None]]] = []  # ready, but not yet where MPI can read them
        self._going: set[int] = set()
        self._unposted: list[int] = []  # awaited, but their place in the array is still in use
        self._target: dict[int, Any] = {}  # None: received in its place in the array
        self._came: dict[int, Any] = {}
        self._kept: dict[int, Any] = {}
        self._requests: list[Any] = []
        self._of: list[int] = []

    def course(self) -> Iterator[None]:
        """Carry out the run; yields whenever it has to wait."""
        self._memory.begin()
        since = 0.0
        while self._go_on():
            if self._test():
                since = 0.0
                continue
            if self._unposted:
                since = since or time.monotonic()
                if time.monotonic() - since > _STALLED:
                    # Another rank may be waiting to finish a send to this one before it sends what this
                    # one waits for: receive into spare memory, so that the two do not block each other.
                    for i in self._unposted:
                        self._receive(i, self._all.spare(i))
                    self._unposted.clear()
            yield
        yield from self._memory.finish()

    def _go_on(self) -> bool:
        """Post the sends and receives that are possible; return whether anything is left to do."""
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
        """Return whether a step may be sent: its round is not too far ahead of what has been received,
        and no more than LONGEST bytes of earlier rounds are on their way to other ranks."""
        if step.closed > self._closed:
            return False
        earlier = 0
        for j in self._going:
            other = self._steps[j]
            if other.round < step.round and other.move.peer != step.move.peer:
                earlier += other.move.stop - other.move.start
        return earlier * self._memory.itemsize <= LONGEST

    def _send(self) -> None:
        """Send the ready steps whose elements MPI can read."""
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
        """Post receives ahead of their turn: what will be added goes into spare memory, all else into
        the array, once no earlier step uses that part."""
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
        """Handle the sends and receives that have completed; return whether there were any."""
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
        """Add or store what was received."""
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
        """Mark a step as done, and make the steps ready, or done, that waited only for it."""
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
    """Cut a rank's moves into messages. Also returns the steps that need not wait for the whole of an
    earlier move, because they follow other messages to the same rank; this keeps a connection busy that
    would otherwise pause between two rounds. Moves without elements are left out, on both sides."""
    counts: Counter[tuple[bool, int]] = Counter()
    steps: list[_Step] = []
    through: set[int] = set()
    last = None  # the receiver of the last message
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
    """Return how many of a move's elements go into one message."""
    whole = size * itemsize
    if whole <= 2 * SHORTEST:
        return max(1, size)
    return max(1, min(max(SHORTEST, -(-whole // PIECES)), LONGEST) // itemsize)


def _linked(steps: Sequence[_Step], through: set[int], rank: int) -> list[int]:
    """Set each step's ``then``, the steps that wait for it, and return how many steps each one waits
    for. A send waits for earlier receives of its elements; a receive waits for all earlier steps that
    touch its elements."""
    edges = np.unique([end for step in steps for end in step.move[2:]])
    written, whole = [-1] * len(edges), [-1] * len(edges)  # last piece received, and end of its move
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
    """Yield a rank's moves, each with its round. In a schedule without rounds, a round begins wherever a
    send follows a receive."""
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
