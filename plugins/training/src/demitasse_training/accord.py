"""Agreement of a run's processes that all can continue, before anything that they share changes."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from demitasse import NumericsError, Processes, WorkerError


class ElsewhereError(WorkerError):
    """Another process, or another worker of this one, could not continue, and all have agreed to
    stop."""


class Accord:
    """The agreement of ``workers`` in this process with those of others. In each iteration, each calls
    ``arrive`` or ``fail`` once: after its last forward pass, before its gradients are summed with
    anybody's. If one fails later, or ends by an interrupt, the others learn of it while they wait for
    it.

    All processes then know of a failure at the same point. Parameters are as the iteration before left
    them, and no message is under way, so they can still do something together, such as writing a
    snapshot. ``stopped`` says whether this has happened. ``keeps`` says whether what was trained so far
    is worth keeping; it is not if a loss is not finite."""

    def __init__(self, processes: Processes) -> None:
        self.stopped = self.keeps = False
        self.error: Exception | None = None
        self._processes = processes
        self._changed = threading.Condition()
        self._missing: set[int] = set()
        self._verdict: Exception | bool | None = None  # common to all: True to continue, or the error

    def begin(self, workers: int) -> None:
        """Begin an iteration, or a test, of this many workers."""
        self._missing = set(range(workers))
        self._verdict, self.error, self.stopped, self.keeps = None, None, False, False

    def arrive(self, worker: int) -> None:
        """Report that the worker can continue, and wait for the others. Raises ElsewhereError if another
        worker cannot continue, WorkerError if a process has ended."""
        self._here(worker)
        with self._changed:
            self._changed.wait_for(lambda: self._verdict is not None)
        if isinstance(self._verdict, Exception):
            raise self._verdict

    def fail(self, worker: int, error: Exception) -> None:
        """Report that the worker cannot continue. Does not wait, because siblings may wait for its
        end."""
        with self._changed:
            if worker in self._missing and self.error is None:
                self.error = error
        self._here(worker)

    def _here(self, worker: int) -> None:
        with self._changed:
            if worker not in self._missing:
                return
            self._missing.remove(worker)
            if self._missing:
                return
        try:
            verdict: Exception | bool = self._agreed()
        except Exception as error:  # noqa: BLE001  raised in all workers that have arrived
            verdict = error
        with self._changed:
            self._verdict = verdict
            self._changed.notify_all()

    def _agreed(self) -> Exception | bool:
        if isinstance(self.error, WorkerError):  # a process has ended, and all get to know that
            return self.error
        hopeless = isinstance(self.error, NumericsError)
        mine = np.array([self.error is not None, hopeless], np.float64)
        failed, without = self._processes.total(mine).tolist()
        self.stopped, self.keeps = failed > 0, failed > 0 and not without
        return ElsewhereError("another process could not continue") if self.stopped else True

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
