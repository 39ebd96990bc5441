"""What all stages share: chains put off until sums are there, the helper thread, and the record."""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from demitasse import Bucket, FlatMemory, GradientSync, Group, Span, Work
from demitasse_allreduce.processes import MpiProcesses
from demitasse_allreduce.stages.lane import Lane, Task, Ticket, mark
from demitasse_allreduce.stages.options import BUCKETS, OVERLAP, SC_OBR, Options
from demitasse_allreduce.stages.parcels import Parcel, Part, parcels

HELPER, MAIN, CHAIN = "communication", "waiting", "chains"
"""Lanes of the record: what the helper thread does; what a worker does of it itself, or waits for; and
its chains, which are that and updates."""


class Taken(NamedTuple):
    """A stretch of time in the record, in seconds of ``time.perf_counter``."""

    iteration: int
    name: str
    start: float
    stop: float
    lane: str


class InLine:
    """Tasks one after the other, as one."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.tasks, self._turn = tasks, 0

    def start(self) -> None:
        """Begin with the first."""
        self._turn = 0
        if self.tasks:
            self.tasks[0].start()

    def mark(self) -> None:
        """What they are to work on was enqueued before, where that is a device's."""
        for task in self.tasks:
            mark(task)

    def run(self) -> None:
        """All of them."""
        for task in self.tasks:
            task.run()

    def progress(self) -> bool:
        """Go on; whether the last is done."""
        while self._turn < len(self.tasks) and self.tasks[self._turn].progress():
            self._turn += 1
            if self._turn < len(self.tasks):
                self.tasks[self._turn].start()
        return self._turn == len(self.tasks)


class ProcessSync(GradientSync):
    """Synchronises a worker with those of other processes.

    A bucket's chain (reduce, update, distribute) is put off: when its gradients are final it is only
    noted that they are, and its parcel is summed when all of it is, by the helper thread, at once, or at
    the end of the iteration, as the stage says; the chains run in the worker's own thread at the end of
    the iteration, each once its sum is there, since who updates uses the cores, and so do kernels. Where
    levels inside this one synchronise too, or somebody measures gradients before any update, chains
    run at once, and nothing overlaps.

    Parcels are summed in the order of their buckets, which is the same on all ranks.
    """

    def __init__(self, group: Group, options: Options, stage: str, at_once: bool) -> None:
        self.index, self.size = group.processes.rank, group.processes.size
        self.processes, self.options, self.stage = group.processes, options, stage
        self.dtype = np.dtype(group.dtype)
        # Where this process is, for those who wait for it in vain: an attribute is set, no more.
        others = group.processes
        self.reach: Callable[[str], None] = _unwatched
        if isinstance(others, MpiProcesses):
            self.reach = others.reach
        self.told: list[str] = []
        self._at_once = at_once
        self._parts: dict[int, Part] = {}
        self._parcels: list[Parcel] = []
        self._of: dict[int, Parcel] = {}
        self._sums: dict[Parcel, Task] = {}
        self._shares: dict[Parcel, Task] = {}
        self._tickets: dict[Parcel, Ticket] = {}
        self._lane: Lane | None = None
        self._next, self._run, self._iteration = 0, 0, -1
        self._changed = False
        self._record: deque[Taken] = deque(maxlen=8192)

    # What the stages say.

    @property
    def notes(self) -> list[str]:  # type: ignore[override]
        """What was chosen and why; before the first iteration, by size, what costs least."""
        return [*self.told, *([] if self._sums else self.forecast())]

    def forecast(self) -> list[str]:
        """What is going to be chosen, by size."""
        return []

    def sum_of(self, parcel: Parcel) -> Task:
        """The collective that sums a parcel."""
        raise NotImplementedError

    def share_of(self, parcel: Parcel) -> Task:
        """What gives all ranks the parameters of a parcel, when all of it is updated."""
        raise NotImplementedError

    # The hooks of a step.

    def bind(self, memory: FlatMemory) -> None:
        """Take a worker's memory."""
        self.memory = memory

    def begin(self) -> Work | None:
        """An iteration begins."""
        return self._begin

    def before_forward(self, bucket: Bucket) -> Work | None:
        """Tells where this process is."""
        first = bucket.layers[-1]  # of those that follow each other in backward
        return lambda: self.reach(first)

    def reduce(self, bucket: Bucket, span: Span) -> Work | None:
        """The sum of a bucket's gradients, or the wait for that of its parcel."""
        self._parts[bucket.index] = Part(bucket, span)
        sync = weakref.proxy(self)  # it has the chain that has this: a trainer's memory goes with it

        def work() -> None:
            part = sync._parts[bucket.index]
            if part.chain is not None:
                sync._await(sync._of[bucket.index])
                return
            sync.reach(bucket.layers[-1])
            parcel = sync._alone(part)
            if parcel not in sync._sums:
                sync._sums[parcel] = sync.sum_of(parcel)
            sync._do(sync._sums[parcel], f"reduce {parcel.name}")

        return work

    def distribute(self, bucket: Bucket, span: Span) -> Work | None:
        """The parameters of a bucket, or with its parcel's last one of all of it, to all ranks."""
        sync = weakref.proxy(self)  # as in reduce

        def work() -> None:
            part = sync._parts[bucket.index]
            if part.chain is None:
                parcel, whole = sync._alone(part), True
            else:
                parcel = sync._of[bucket.index]
                parcel.distributed += 1
                whole = parcel.distributed == len(parcel.parts)
            if whole:
                if parcel not in sync._shares:
                    sync._shares[parcel] = sync.share_of(parcel)
                sync._do(sync._shares[parcel], f"share {parcel.name}")

        return work

    def schedule(self, bucket: Bucket, chain: Work) -> Work:
        """Work that notes that a bucket is final; its chain runs at once, or at the end."""
        part = self._parts.get(bucket.index)
        if part is None or self._at_once:
            return chain
        part.chain = chain

        def ready() -> None:
            self.reach(bucket.layers[-1])
            self._seal()
            parcel = self._of[bucket.index]
            parcel.pending -= 1
            self._advance()

        return ready

    def end(self) -> Work | None:
        """The chains that were put off."""
        return self._finish

    def quiesce(self) -> None:
        """Bring all of parameters and solver state to rank 0, at least."""
        if self._changed:
            self._changed = False
            self.complete()

    def complete(self) -> None:
        """What ``quiesce`` does after an iteration or more."""

    def close(self) -> None:
        """End the helper thread."""
        if self._lane is not None:
            self._lane.close()
            self._lane = None

    def spans(self) -> Iterable[tuple[str, float, float]]:
        """The communication beside the last iteration: (name, start, stop), in seconds of
        ``time.perf_counter``."""
        return [(each.name, each.start, each.stop) for each in self.record() if each.lane == HELPER]

    def record(self) -> list[Taken]:
        """The last iteration's communication, and what was waited for."""
        last = self._iteration
        return [each for each in self._record.copy() if each.iteration == last]

    # How they are done.

    def _alone(self, part: Part) -> Parcel:
        """The parcel of a part whose chain runs at once."""
        return self._of.setdefault(part.bucket.index, Parcel(part.bucket.index, [part]))

    @property
    def depth(self) -> int:
        """How many parcels may be under way at once."""
        return 1

    @property
    def overlaps(self) -> bool:
        """Whether a helper thread sums while backward goes on."""
        return self.stage in (OVERLAP, SC_OBR) and not self._at_once

    def lane(self) -> Lane:
        """The helper thread, made when it is first needed."""
        if self._lane is None:
            name = f"demitasse-allreduce-{self.index}"
            self._lane = Lane(name, self.processes.check, self.taken, self.depth)
        return self._lane

    def taken(self, name: str, start: float, stop: float, lane: str = HELPER) -> None:
        """Put a stretch of time into the record."""
        self._record.append(Taken(self._iteration, name, start, stop, lane))

    def waited(self, ticket: Ticket) -> None:
        """Wait for a task of the helper thread."""
        start = time.perf_counter()
        self.lane().wait(ticket)
        self.taken(ticket.name, start, time.perf_counter(), MAIN)

    def _begin(self) -> None:
        self._seal()
        self._iteration += 1
        self._changed = True
        self._next = self._run = 0
        self._tickets.clear()
        for parcel in self._parcels:
            parcel.reset()

    def _seal(self) -> None:
        """When all parts are known, put them into parcels."""
        if self._parcels:
            return
        whole = self.stage not in (OVERLAP, SC_OBR, BUCKETS)
        size = None if whole else self.parcel_bytes() // self.dtype.itemsize
        self._parcels = parcels((p for p in self._parts.values() if p.chain), size)
        self._of |= {part.bucket.index: parcel for parcel in self._parcels for part in parcel.parts}
        self._sums |= {parcel: self.sum_of(parcel) for parcel in self._parcels}
        for parcel in self._parcels:
            parcel.reset()

    def parcel_bytes(self) -> int:
        """From how many bytes on a parcel is full."""
        return self.options.bucket

    def _advance(self) -> None:
        """Post or do what is ready, in order."""
        while self._next < len(self._parcels) and self._parcels[self._next].pending == 0:
            parcel = self._parcels[self._next]
            if self.overlaps:
                task = self._sums[parcel], f"reduce {parcel.name}"
                (self._tickets[parcel],) = self.lane().post([task])
            elif self.stage == BUCKETS:
                self._run_chains(self._next + 1)
            self._next += 1

    def _await(self, parcel: Parcel) -> None:
        """The parcel's sum is there afterwards."""
        if parcel.summed:
            return
        if parcel in self._tickets:
            self.waited(self._tickets.pop(parcel))
        else:
            self._do(self._sums[parcel], f"reduce {parcel.name}")
        parcel.summed = True

    def _run_chains(self, stop: int) -> None:
        """The chains of parcels before number ``stop`` that did not run yet."""
        while self._run < stop:
            parcel, start = self._parcels[self._run], time.perf_counter()
            for part in parcel.parts:
                assert part.chain is not None
                part.chain()
            self.taken(parcel.name, start, time.perf_counter(), CHAIN)
            self._run += 1

    def _finish(self) -> None:
        self.reach("the update")
        self._run_chains(len(self._parcels))

    def _do(self, task: Task, name: str) -> None:
        """Run a task in this thread."""
        start = time.perf_counter()
        task.run()
        self.taken(name, start, time.perf_counter(), MAIN)


def _unwatched(layer: str) -> None:
    """Where nobody asks how far a process is."""
