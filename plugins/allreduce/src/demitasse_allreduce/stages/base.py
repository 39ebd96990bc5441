"""What all stages share: chains deferred until their sums are available, the helper thread, the
record."""

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
"""Lanes of the record: the communication of the helper thread; the communication that a worker does
itself or waits for; and a worker's chains, which contain the latter and updates."""


class Taken(NamedTuple):
    """An interval in the record, in seconds of ``time.perf_counter``."""

    iteration: int
    name: str
    start: float
    stop: float
    lane: str


class InLine:
    """A task that consists of several tasks, one after the other."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.tasks, self._turn = tasks, 0

    def start(self) -> None:
        """Start the first task."""
        self._turn = 0
        if self.tasks:
            self.tasks[0].start()

    def mark(self) -> None:
        """Tell the tasks that all work on their device arrays has been enqueued."""
        for task in self.tasks:
            mark(task)

    def run(self) -> None:
        """Run all tasks."""
        for task in self.tasks:
            task.run()

    def progress(self) -> bool:
        """Continue without waiting; return whether the last task is done."""
        while self._turn < len(self.tasks) and self.tasks[self._turn].progress():
            self._turn += 1
            if self._turn < len(self.tasks):
                self.tasks[self._turn].start()
        return self._turn == len(self.tasks)


class ProcessSync(GradientSync):
    """Synchronises a worker with the workers of other processes.

    A bucket's chain (reduce, update, distribute) is deferred. When the bucket's gradients are final,
    this is only noted. Once all buckets of a parcel are final, the parcel is summed: by the helper
    thread, immediately, or at the end of the iteration, depending on the stage. The chains run in the
    worker's own thread at the end of the iteration, each as soon as its sum is available, because
    updates and kernels use the same cores. If levels inside this one synchronise too, or if gradients
    are measured before any update, chains run immediately and nothing overlaps.

    Parcels are summed in the order of their buckets, which is the same on all ranks.
    """

    def __init__(self, group: Group, options: Options, stage: str, at_once: bool) -> None:
        self.index, self.size = group.processes.rank, group.processes.size
        self.processes, self.options, self.stage = group.processes, options, stage
        self.dtype = np.dtype(group.dtype)
        # Reports where this process is, for processes that wait for it in vain. It only sets attributes.
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

    # What stages define.

    @property
    def notes(self) -> list[str]:  # type: ignore[override]
        """What was chosen and why; before the first iteration, the forecast of what will be chosen."""
        return [*self.told, *([] if self._sums else self.forecast())]

    def forecast(self) -> list[str]:
        """Return lines about what will be chosen, by size."""
        return []

    def sum_of(self, parcel: Parcel) -> Task:
        """Return the collective that sums a parcel."""
        raise NotImplementedError

    def share_of(self, parcel: Parcel) -> Task:
        """Return the task that gives all ranks a parcel's parameters, once all of these are updated."""
        raise NotImplementedError

    # The hooks of a step.

    def bind(self, memory: FlatMemory) -> None:
        """Use a worker's memory."""
        self.memory = memory

    def begin(self) -> Work | None:
        """Return the work at the beginning of an iteration."""
        return self._begin

    def before_forward(self, bucket: Bucket) -> Work | None:
        """Return work that reports where this process is."""
        first = bucket.layers[-1]  # layers are in backward's order: the last one is first in forward
        return lambda: self.reach(first)

    def reduce(self, bucket: Bucket, span: Span) -> Work | None:
        """Return work that sums a bucket's gradients, or waits for its parcel's sum."""
        self._parts[bucket.index] = Part(bucket, span)
        # Weak, since this object keeps the chain that keeps this work: the trainer's memory can be
        # freed.
        sync = weakref.proxy(self)

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
        """Return work that gives all ranks a bucket's parameters. If chains are deferred, the last
        bucket of a parcel does so for the whole parcel."""
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
        """Return work that notes that a bucket is final, so that its chain runs later; or the chain
        itself if it must run immediately."""
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
        """Return work that runs the deferred chains."""
        return self._finish

    def quiesce(self) -> None:
        """Bring all parameters and the whole solver state to rank 0, at least."""
        if self._changed:
            self._changed = False
            self.complete()

    def complete(self) -> None:
        """Do what ``quiesce`` needs after one or more iterations."""

    def close(self) -> None:
        """End the helper thread."""
        if self._lane is not None:
            self._lane.close()
            self._lane = None

    def spans(self) -> Iterable[tuple[str, float, float]]:
        """Return the communication that ran beside the last iteration: (name, start, stop), in seconds
        of ``time.perf_counter``."""
        return [(each.name, each.start, each.stop) for each in self.record() if each.lane == HELPER]

    def record(self) -> list[Taken]:
        """Return the last iteration's communication, and the waits for it."""
        last = self._iteration
        return [each for each in self._record.copy() if each.iteration == last]

    # How the hooks work.

    def _alone(self, part: Part) -> Parcel:
        """Return a parcel that has only this part, whose chain runs immediately."""
        return self._of.setdefault(part.bucket.index, Parcel(part.bucket.index, [part]))

    @property
    def depth(self) -> int:
        """How many parcels may be under way at the same time."""
        return 1

    @property
    def overlaps(self) -> bool:
        """Whether a helper thread sums during the backward pass."""
        return self.stage in (OVERLAP, SC_OBR) and not self._at_once

    def lane(self) -> Lane:
        """Return the helper thread, which is created when it is first needed."""
        if self._lane is None:
            name = f"demitasse-allreduce-{self.index}"
            self._lane = Lane(name, self.processes.check, self.taken, self.depth)
        return self._lane

    def taken(self, name: str, start: float, stop: float, lane: str = HELPER) -> None:
        """Add an interval to the record."""
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
        """Join the parts into parcels, now that all parts are known."""
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
        """Return the number of bytes from which on a parcel is full."""
        return self.options.bucket

    def _advance(self) -> None:
        """Post the sums of ready parcels, or run their chains, in order."""
        while self._next < len(self._parcels) and self._parcels[self._next].pending == 0:
            parcel = self._parcels[self._next]
            if self.overlaps:
                task = self._sums[parcel], f"reduce {parcel.name}"
                (self._tickets[parcel],) = self.lane().post([task])
            elif self.stage == BUCKETS:
                self._run_chains(self._next + 1)
            self._next += 1

    def _await(self, parcel: Parcel) -> None:
        """Wait for a parcel's sum, or make it now."""
        if parcel.summed:
            return
        if parcel in self._tickets:
            self.waited(self._tickets.pop(parcel))
        else:
            self._do(self._sums[parcel], f"reduce {parcel.name}")
        parcel.summed = True

    def _run_chains(self, stop: int) -> None:
        """Run the chains of all parcels before number ``stop`` that have not run yet."""
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
    """Report nothing: no other process asks where this one is."""
