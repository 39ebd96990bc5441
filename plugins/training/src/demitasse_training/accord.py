"""Whether the processes of a run can all go on, agreed before anything that they share is changed."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from demitasse import NumericsError, Processes, WorkerError


class ElsewhereError(WorkerError):
    """Another process, or another worker of this one, could not go on, and all have agreed to stop."""


class Accord:
    """Of ``workers`` in this process, each of which calls ``arrive`` or ``fail`` once in an iteration:
    behind its last forward pass, before its gradients are summed with anybody's. Who fails later than
    that, or ends by an interrupt, has the others learn of it as they wait for him.

    All processes then know of a failure at the same point, with parameters as the iteration before left
    them and no message under way, and can still do something together, such as writing a snapshot.
    ``stopped`` is whether that is so, ``keeps`` whether what was trained so far is worth it, which it is
    not where a loss is no number."""

    def __init__(self, processes: Processes) -> None:
        self.stopped = self.keeps = False
        self.error: Exception | None = None
        self._processes = processes
        self._changed = threading.Condition()
        self._missing: set[int] = set()
        self._verdict: Exception | bool | None = None  # of all: True, for going on, or what says not to

    def begin(self, workers: int) -> None:
        """An iteration begins, or a test, of so many workers."""
        self._missing = set(range(workers))
        self._verdict, self.error, self.stopped, self.keeps = None, None, False, False

    def arrive(self, worker: int) -> None:
        """The worker can go on. Raises ElsewhereError where another cannot, and WorkerError where a
        process has ended."""
        self._here(worker)
        with self._changed:
            self._changed.wait_for(lambda: self._verdict is not None)
        if isinstance(self._verdict, Exception):
            raise self._verdict

    def fail(self, worker: int, error: Exception) -> None:
        """The worker cannot go on. It waits for nobody, since siblings may wait for its end."""
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
        except Exception as error:  # noqa: BLE001  raised in all that have arrived
            verdict = error
        with self._changed:
            self._verdict = verdict
            self._changed.notify_all()

    def _agreed(self) -> Exception | bool:
        if isinstance(self.error, WorkerError):  # of another's end, which all come to know
            return self.error
        hopeless = isinstance(self.error, NumericsError)
        mine = np.array([self.error is not None, hopeless], np.float64)
        failed, without = self._processes.total(mine).tolist()
        self.stopped, self.keeps = failed > 0, failed > 0 and not without
        return ElsewhereError("another process could not continue") if self.stopped else True

    def ended(self, error: BaseException, keep: Callable[[BaseException], None]) -> BaseException:
        """What this process ends with once all have stopped: its own error or, where it has none, the
        WorkerError that names the process which has one, once that has told of it. ``keep`` is called
        in all of them first, with what each of them has of an error, where there is anything to keep."""
        if self.error is not None and isinstance(error, ElsewhereError):
            error = self.error  # a sibling's, which has not come out of its own worker yet
        if self.keeps:
            keep(error)
        if not isinstance(error, ElsewhereError):
            return error
        try:
            while True:  # what others gather meanwhile is of no interest
                self._processes.gather(None)
        except WorkerError as news:
            return news
