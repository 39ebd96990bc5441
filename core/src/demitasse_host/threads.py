"""Threads of a process that work in step, and finish even if the thread that waits is interrupted."""

from __future__ import annotations

import atexit
import itertools
import logging
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import BrokenBarrierError
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from demitasse import Team, WorkerPlace

T = TypeVar("T")

log = logging.getLogger("demitasse.host")

LISTEN = 0.1
"""Seconds after which a waiting thread checks again, as a signal just before a wait does not end it."""


STILL = 30.0
"""Seconds without work after which a warning says where the threads are."""
IDLE = 0.1
"""The share of a processor's time that still counts as no work; showing progress takes some time."""


class Workers:
    """Threads that run a task together, in step, for one caller at a time. If the calling thread is
    interrupted (Python can interrupt the main thread anywhere), they continue; ``finish`` waits for
    them. They use only simple queues, because futures and conditions are written in Python and do not
    survive an interrupt in the middle. A task runs in a copy of the caller's context."""

    def __init__(self, places: Sequence[WorkerPlace]) -> None:
        self._teams = {group.team for place in places for _, group in place.groups if group.team}
        self._asked = [SimpleQueue[_Task | None]() for _ in places]
        self._done, self._threads = SimpleQueue[_Task](), list[threading.Thread]()
        # Dropping this object ends the threads, even if it was interrupted while being made.
        weakref.finalize(self, self._asked[0].put, None).atexit = False
        for worker, place in enumerate(places):
            about = worker, self._asked, self._done, self._teams
            name = f"demitasse-worker-{place.index}"
            self._threads.append(threading.Thread(None, _work, name, about, daemon=True))
            self._threads[-1].start()
        _OPEN.add(self)

    def run(self, task: Callable[[int], T]) -> list[T]:
        """Run ``task(worker)`` on every worker and return their results in order. If one fails, its
        siblings are woken from their barriers, and its error is raised once all have stopped."""
        asked, done = _Task(task, copy_context(), len(self._asked)), None
        self._asked[0].put(asked)  # all start or none, as the first worker tells the others
        watch = _Watch(self._threads)
        while done is not asked:  # an earlier task, for which nothing waited, may come first
            try:
                done = self._done.get(timeout=LISTEN)
            except Empty:
                watch.look(asked)
        errors = [error for error in asked.errors if error is not None]
        if errors:
            raise next((e for e in errors if not isinstance(e, BrokenBarrierError)), errors[0])
        return asked.results

    def finish(self, *, broken_off: bool = False) -> None:
        """Wait until all that was begun is done. If ``broken_off``, break the barriers first."""
        for team in self._teams if broken_off else ():
            team.barrier.abort()
        self.run(bool)

    def close(self) -> None:
        """End the threads, after their work is done."""
        self._asked[0].put(None)
        for thread in self._threads:
            if thread is not threading.current_thread():  # a worker may be the last to drop this object
                thread.join()


class _Watch:
    """Warns once, with the place of each thread, if nothing in this process has computed for a while.
    Threads that wait for each other at different places would otherwise do so forever, in silence."""

    def __init__(self, threads: Sequence[threading.Thread]) -> None:
        self._threads, self._told = threads, False
        self._since, self._used = time.monotonic(), time.process_time()

    def look(self, task: _Task) -> None:
        """Check whether anything has computed since the last look."""
        now, used = time.monotonic(), time.process_time()
        if used - self._used > IDLE * (now - self._since):
            self._since, self._used = now, used
        elif now - self._since > STILL and not self._told:
            self._told = True
            frames = sys._current_frames()
            where = [
                f"worker {number} {_where(frames.get(thread.ident or 0))}"
                for number, thread in enumerate(self._threads)
                if not task.done[number]
            ]
            log.warning(f"no worker has computed for {now - self._since:.0f} s: {', '.join(where)}")


def _where(frame: FrameType | None) -> str:
    """Return where in the program a thread is, skipping Python's library and barriers."""
    while frame is not None and (
        Path(frame.f_code.co_filename).parent == _LIBRARY
        or isinstance(frame.f_locals.get("self"), threading.Barrier)
    ):
        frame = frame.f_back
    if frame is None:
        return "is in Python's library"
    return f"waits in {frame.f_code.co_name} ({frame.f_code.co_filename}:{frame.f_lineno})"


_LIBRARY = Path(threading.__file__).parent


class _Task:
    def __init__(self, task: Callable[[int], Any], context: Context, workers: int) -> None:
        self.task, self.context, self.ended = task, context, itertools.count(1)
        self.results: list[Any] = [None] * workers
        self.done = [False] * workers
        self.errors: list[BaseException | None] = [None] * workers


def _work(
    worker: int, asked: list[SimpleQueue[Any]], done: SimpleQueue[_Task], teams: set[Team]
) -> None:
    mine, others = asked[worker], asked[1:] if worker == 0 else []
    while (task := mine.get()) is not None:
        for other in others:
            other.put(task)
        try:
            task.results[worker] = task.context.copy().run(task.task, worker)
        except BaseException as error:  # noqa: BLE001  it is raised where it is waited for
            task.errors[worker] = error
            for team in teams:
                team.barrier.abort()
        task.done[worker] = True
        if next(task.ended) == len(asked):
            for team in (each for each in teams if each.barrier.broken):
                team.barrier.reset()
                team.failures += 1
            done.put(task)
        del task  # so that what it holds is freed before the next task
    for other in others:
        other.put(None)


_OPEN: weakref.WeakSet[Workers] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """End the threads before the interpreter ends, as a thread in compiled code would then abort the
    process."""
    for each in list(_OPEN):
        each.close()
