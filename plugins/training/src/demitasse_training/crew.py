"""The workers of this process as one: tasks done by all, steps bound in the threads that run them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from demitasse import GradientSync, Phases, PlanError, Step, WorkerError, Workers
from demitasse_training.aside import Aside
from demitasse_training.worker import Worker

T = TypeVar("T")


class Crew:
    """``workers``, the first of which stands for all where one is asked."""

    def __init__(self) -> None:
        self.workers: list[Worker] = []
        self._threads: Workers | None = None
        self._aside: Aside | None = None
        self._binding = threading.Lock()
        self._process, self._one_thread = os.getpid(), threading.RLock()
        self._closed = self._broken_off = False

    @property
    def asynchronous(self) -> bool:
        """Whether workers may be at different iterations."""
        return any(level.asynchronous for level in self.workers[0].levels)

    @property
    def lockstep(self) -> bool:
        """Whether workers are joined after each iteration."""
        levels = self.workers[0].levels
        return not self.asynchronous and any(level.joined for level in levels or [GradientSync()])

    def run(self, task: Callable[[int], T], interrupted: Callable[[], object] | None = None) -> list[T]:
        """``task(worker)`` by each worker, in its own thread where there are several, which is told
        first that it computes with its memory. Raises WorkerError once it is closed, and PlanError in a
        forked process, which has none of the threads that would be waited for.

        Python raises what interrupts a program in its main thread, wherever that is. With
        ``interrupted`` this is never within a task, but once all are done; it is called when that
        comes."""
        if self._closed:
            raise WorkerError("this trainer is closed; make another (resume= goes on from a snapshot)")
        if self._process != os.getpid():
            raise PlanError(
                "this trainer was made before its process was forked, and would wait for threads that "
                "stayed behind: make it in the process that runs it"
            )
        if self._broken_off:
            raise WorkerError(
                "this trainer was interrupted twice, the second time in the middle of what it did; make "
                "another (resume= goes on from a snapshot)"
            )
        if not self._one_thread.acquire(blocking=False):
            raise WorkerError("this trainer is at work in another thread: it is one thread's at a time")
        try:
            if interrupted is None or threading.current_thread() is not threading.main_thread():
                return self._run(task)
            return self._run_aside(lambda: self._run(task), interrupted)
        finally:
            self._one_thread.release()

    def _run(self, task: Callable[[int], T]) -> list[T]:
        if len(self.workers) == 1:
            self.workers[0].enter()
            return [task(0)]
        if self._threads is None:
            self._threads = Workers(tuple(worker.place for worker in self.workers))
            self._threads.run(lambda w: self.workers[w].enter())
        return self._threads.run(task)

    def _run_aside(self, task: Callable[[], list[T]], interrupted: Callable[[], object]) -> list[T]:
        if self._aside is None:
            self._aside = Aside()
        try:
            return self._aside.run(task)
        except BaseException:
            self._broken_off = True  # if another interrupt comes while this waits
            interrupted()
            self._aside.finish()
            self._broken_off = False
            raise

    def bind(self, iteration: int) -> list[Step]:
        """Steps that go on at ``iteration``, bound in the threads that run them, one after the other:
        what kernels keep for themselves is near, and so are the threads that they start."""

        def bind(number: int) -> Step:
            with self._binding:
                return self.workers[number].bind(iteration)

        if all(worker.bound for worker in self.workers):
            return [worker.bind(iteration) for worker in self.workers]
        return self.run(bind)

    def rewind(self) -> None:
        """Have all samples read again from where the next ``bind`` says."""
        for worker in self.workers:
            worker.rewind()

    def quiesce(self) -> None:
        """Have synchronisation finish what is under way."""
        for worker in self.workers:
            for level in worker.levels:
                level.quiesce()

    def clock(self) -> Phases:
        """The first worker's phases so far."""
        step = self.workers[0].step
        return Phases(**vars(step.phases)) if step is not None else Phases()

    def spans(self) -> list[tuple[str, float, float]]:
        """What the first worker's synchronisation did beside the last step."""
        return [span for level in self.workers[0].levels for span in level.spans()]

    def statistics(self) -> list[list[Any]]:
        """Copies of what forward passes change besides activations."""
        return [[np.array(array) for array in worker.statistics] for worker in self.workers]

    def restore(self, statistics: list[list[Any]]) -> None:
        """Have them as they were."""
        for worker, values in zip(self.workers, statistics, strict=True):
            for array, value in zip(worker.statistics, values, strict=True):
                array[...] = value

    def close(self) -> None:
        """End threads, reading and synchronising."""
        self._closed = True
        if self._aside is not None:
            self._aside.close()
        if self._threads is not None:
            self._threads.close()
        for worker in self.workers:
            worker.close()
            worker.enter.leave()
