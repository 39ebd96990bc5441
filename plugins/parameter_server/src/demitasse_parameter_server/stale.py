"""SSP and ASP: workers push and pull at their own pace (section III.C.2)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from demitasse import Bucket, FlatMemory, Group, Team, Work
from demitasse_parameter_server.board import PATIENCE
from demitasse_parameter_server.gradient_sync import ThreadServer
from demitasse_parameter_server.options import Options
from demitasse_parameter_server.progress import Progress

BUCKET_BYTES = 1 << 20


class Scheduler:
    """The progress of ``workers`` workers, which wait here until they may begin. Waiting workers call
    ``check`` from time to time; it raises if a sibling has failed."""

    def __init__(self, workers: int, staleness: int | None, check: Callable[[], None]) -> None:
        self.progress, self._check = Progress(range(workers), staleness), check
        self._changed = threading.Condition()

    def begin(self, worker: int) -> None:
        """Wait until a worker may begin its next iteration."""
        with self._changed:
            while not self.progress.begins(worker):
                if not self._changed.wait(PATIENCE * 1e-6):
                    self._check()

    def end(self, worker: int) -> None:
        """Note that a worker has pushed all gradients of an iteration."""
        with self._changed:
            self.progress.ends(worker)
            self._changed.notify_all()


class StaleServer(ThreadServer):
    """Parameters have a master copy. A worker that has a bucket's gradients updates the master with
    them itself, under the bucket's lock, in order of arrival. Before the first layer of its next
    iteration that reads the bucket, it copies the bucket from the master. So there is one version for
    each worker, and the master.

    Under SSP a worker waits, before an iteration, while it is more than ``staleness`` iterations ahead
    of the slowest; under ASP it never waits.
    """

    asynchronous = True

    def __init__(self, group: Group, team: Team, options: Options) -> None:
        super().__init__(group, team, options)
        self.bucket_bytes = options.bucket_bytes or BUCKET_BYTES
        self.notes = (options.told(self.size, "worker"),)

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler of all siblings since the last failure."""
        make = partial(Scheduler, self.size, self.options.bound, self.board.check)
        return self.shared.kept("scheduler", make)

    def update_memory(self, memory: FlatMemory) -> FlatMemory:
        """Return the master's parameters, this worker's gradients, and the shared state."""
        first = self.team.memory[0]
        return FlatMemory(self.board.master(first), memory.gradients, first.state)

    def begin(self) -> Work | None:
        """Return work that waits for slower siblings, as the model says."""
        self.bind_thread()

        def work() -> None:
            self.begun()
            self.board.check()
            start = self.pace.now()
            self.scheduler.begin(self.index)
            self.board.follow(self.team.memory[0])
            self.pace.waited(start)

        return work

    def before_forward(self, bucket: Bucket) -> Work | None:
        """Return work that pulls the bucket's parameters."""
        part = slice(bucket.span.start, bucket.span.stop)
        mine = self.team.memory[self.index]
        if part.start >= mine.gradients.size:
            return None  # parameters without a gradient never change
        source, target = self.board.master(self.team.memory[0])[part], mine.parameters[part]

        def work() -> None:
            lock = self.taken(bucket)
            try:
                np.copyto(target, source)
            finally:
                lock.release()

        return work

    def reduce(self, bucket: Bucket, span: Any) -> Work | None:
        """Return work that locks the master's bucket for this worker; the update that follows is the
        push."""

        def work() -> None:
            self.taken(bucket)

        return work

    def distribute(self, bucket: Bucket, span: Any) -> Work | None:
        """Return work that unlocks the master's bucket."""
        return lambda: self.lock(bucket).release()

    def end(self) -> Work | None:
        """Return work that notes that the iteration is done."""

        def work() -> None:
            self.pace.ended()
            self.scheduler.end(self.index)

        return work

    def total(self, mine: Any, total: Any) -> Work | None:
        """Return work that only copies, because each update uses one worker's own gradients."""

        def take() -> None:
            total[...] = mine

        return take

    def quiesce(self) -> None:
        """Copy the master to the first worker's memory."""
        if self.index == 0:
            self.board.settle(self.team.memory[0])

    def lock(self, bucket: Bucket) -> threading.Lock:
        """Return the lock of the bucket's part of the master."""
        return self.shared.kept(bucket.index, threading.Lock)

    def taken(self, bucket: Bucket) -> threading.Lock:
        """Wait for the bucket's lock, acquire it, and return it."""
        lock = self.lock(bucket)
        if not lock.acquire(blocking=False):
            start = self.pace.now()
            while not lock.acquire(timeout=PATIENCE * 1e-6):
                self.board.check()
            self.pace.waited(start)
        return lock
