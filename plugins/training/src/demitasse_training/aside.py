"""A thread that does what may not be broken off, for a main thread that may be interrupted.

Python raises an interrupt (Ctrl-C, or what else a program's handler of signals raises) in the main
thread, wherever that is. Simple queues are all that both threads use: conditions and futures, which are
Python themselves, do not bear an interrupt in their middle.
"""

from __future__ import annotations

import atexit
import itertools
import threading
import weakref
from collections.abc import Callable
from contextvars import Context, copy_context
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")
_Task = tuple[int, Context, Callable[[], Any]]
_Outcome = tuple[int, Any, BaseException | None]

LISTEN = 0.1
"""Seconds after which who waits listens anew: what comes just before a wait begins does not end it."""


class Aside:
    """``run(task)`` is ``task()``, and raises what it raises. An interrupt is raised at once, and leaves
    the task running: ``finish`` waits for it."""

    def __init__(self) -> None:
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._outcomes: SimpleQueue[_Outcome] = SimpleQueue()
        self._numbers = itertools.count()
        queues = self._tasks, self._outcomes
        self._thread = threading.Thread(
            target=_work, args=queues, name="demitasse-iterations", daemon=True
        )
        self._thread.start()
        _OPEN.add(self)

    def run(self, task: Callable[[], T]) -> T:
        number = next(self._numbers)
        self._tasks.put((number, copy_context(), task))
        done = -1
        while done != number:  # others' are of tasks that nobody waits for any more
            try:
                done, result, error = self._outcomes.get(timeout=LISTEN)
            except Empty:
                continue
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]

    def finish(self) -> None:
        """Wait until all that was begun is done."""
        self.run(bool)

    def close(self) -> None:
        """End the thread, once all is done."""
        self._tasks.put(None)
        if self._thread is not threading.current_thread():  # which may be the last to drop a trainer
            self._thread.join()


def _work(tasks: SimpleQueue[_Task | None], outcomes: SimpleQueue[_Outcome]) -> None:
    while (asked := tasks.get()) is not None:
        number, context, task = asked
        try:
            outcome: _Outcome = number, context.run(task), None
        except BaseException as error:  # noqa: BLE001  it is raised where it is waited for
            outcome = number, None, error
        outcomes.put(outcome)
        del asked, context, task, outcome  # what they hold is not kept until the next task


_OPEN: weakref.WeakSet[Aside] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """What is in compiled code when the interpreter ends would abort the process."""
    for each in list(_OPEN):
        each.close()
