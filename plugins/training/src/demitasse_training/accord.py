"""Agreement of a run's processes that all can continue, before anything that they share changes."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence

import numpy as np

from demitasse import NumericsError, Processes, WorkerError


class ElsewhereError(WorkerError):
    """Another process, or another worker of this one, could not continue, and all have agreed to
    stop."""


class Accord:
    """The agreement of ``workers`` in this process with those of others. In each iteration, each calls
    ``arrive`` or ``fail`` once: after its last forward pass, before its gradients are summed with
    anybody's. Before and after that, all may ``add`` numbers, all in the same order. If one fails after
    it has arrived, or ends by an interrupt, other processes learn of it while they wait for it.

    All processes then know of a failure at the same point. Parameters are as the iteration before left
    them, and no message is under way, so they can still do something together, such as writing a
    snapshot. ``stopped`` says whether this has happened. ``keeps`` says whether what was trained so far
    is worth keeping; it is not if a loss is not finite."""

    def __init__(self, processes: Processes) -> None:
        self.stopped = self.keeps = False
        self.error: Exception | None = None
        self._processes = processes
        self._changed = threading.Condition()
        self._workers, self._sizes = 0, tuple[int, ...]()
        self._number = 0  # the meetings that are over
        self._here: dict[int, np.ndarray] = {}  # what workers have brought to the present meeting
        self._failed: set[int] = set()
        self._total: np.ndarray = np.zeros(0)
        self._verdict: Exception | None = None  # for all that meet, from meeting ``_last`` on
        self._last = 0

    def begin(self, workers: int, sizes: Sequence[int] = ()) -> None:
        """Begin an iteration, or a test, of this many workers. ``sizes``: how many numbers they add each
        time before they arrive."""
        self._workers, self._sizes, self._number = workers, tuple(sizes), 0
        self._here, self._failed = {}, set()
        self._verdict, self.error, self.stopped, self.keeps = None, None, False, False

    def end(self) -> None:
        """End the iteration: from now on, nobody waits for others."""
        self._workers = 0

    def add(self, worker: int, numbers: np.ndarray) -> np.ndarray:
        """Return the sum of all workers' numbers, with the same bits for each; outside of an iteration,
        the worker's own. Waits for the others. Raises ElsewhereError if another worker cannot continue,
        WorkerError if a process has ended."""
        return self._meet(worker, numbers) if self._workers else numbers

    def arrive(self, worker: int) -> None:
        """Report that the worker can continue, and wait for the others. Raises what ``add`` raises."""
        self._meet(worker, np.zeros(0))

    def fail(self, worker: int, error: Exception) -> None:
        """Report that the worker cannot continue. Does not wait for its siblings, because these may wait
        for its end."""
        with self._changed:
            if self._verdict is not None or not self._workers:
                return
            self.error = self.error or error
            self._failed.add(worker)
            if self._processes.size == 1 or self._number > len(self._sizes):
                self._decide(ElsewhereError("another worker could not continue"), self._number)
                return
            last = len(self._here) + len(self._failed) == self._workers
        if last:
            self._hold()

    def _meet(self, worker: int, numbers: np.ndarray) -> np.ndarray:
        with self._changed:
            number = self._number
            self._here[worker] = numbers
            last = self._verdict is None and len(self._here) + len(self._failed) == self._workers
            if not last:
                self._changed.wait_for(lambda: self._verdict is not None or self._number > number)
        if last:
            self._hold()
        if self._verdict is not None and number >= self._last:
            raise self._verdict
        return self._total

    def _hold(self) -> None:
        """Hold the present meeting with other processes, once all workers are here or have failed."""
        try:
            total, verdict = self._summed()
        except Exception as error:  # noqa: BLE001  raised in all workers that wait
            total, verdict = np.zeros(0), error
        with self._changed:
            self._total, self._here = total, {}
            if verdict is not None:
                self._decide(verdict, self._number)
            self._number += 1
            self._changed.notify_all()

    def _summed(self) -> tuple[np.ndarray, Exception | None]:
        if isinstance(self.error, WorkerError):  # a process has ended, and all get to know that
            return np.zeros(0), self.error
        here = [self._here[worker] for worker in sorted(self._here)]
        size = self._sizes[self._number] if self._number < len(self._sizes) else 0
        mine = functools.reduce(np.add, here) if here else np.zeros(size)
        if self._processes.size == 1:
            return mine, None
        hopeless = isinstance(self.error, NumericsError)
        flags = np.array([self.error is not None, hopeless], np.float64)
        total = self._processes.total(np.concatenate([mine, flags]))
        failed, without = total[-2:].tolist()
        self.stopped, self.keeps = failed > 0, failed > 0 and not without
        stopped = ElsewhereError("another process could not continue") if self.stopped else None
        return total[:-2], stopped

    def _decide(self, verdict: Exception, meeting: int) -> None:
        self._verdict, self._last = verdict, meeting
        self._changed.notify_all()

    def ended(self, error: BaseException, keep: Callable[[BaseException], None]) -> BaseException:
        """Return the error with which this process ends once all have stopped: its own or, if it has
        none, the WorkerError that names the process that failed, once that one has reported it. If there
        is anything to keep, ``keep`` is called first, in all processes, each with the error it has."""
        if self.error is not None and isinstance(error, ElsewhereError):
            error = self.error  # of a sibling, whose own worker has not raised it yet
        if self.keeps:
            keep(error)
        if not isinstance(error, ElsewhereError):
            return error
        try:
            while True:  # ignore what others gather in the meantime
                self._processes.gather(None)
        except WorkerError as news:
            return news
