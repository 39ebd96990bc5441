"""The workers of this process as a unit: tasks that all of them run, each in its own thread."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import wraps
from itertools import zip_longest
from typing import Concatenate, ParamSpec, Protocol, TypeVar

import numpy as np

from demitasse import (
    GradientSync,
    Phases,
    PlanError,
    Step,
    WorkerError,
    Workers,
    blamed_inside,
)
from demitasse_training.diagnosis import lost_parameter
from demitasse_training.passes import Passes
from demitasse_training.siblings import may_go_on
from demitasse_training.worker import Worker

T = TypeVar("T")
P = ParamSpec("P")


class Crewed(Protocol):
    """An object that has a crew."""

    _crew: Crew

    def close(self) -> None:
        """Release everything it has."""


C = TypeVar("C", bound=Crewed)


def one_at_a_time(method: Callable[Concatenate[C, P], T]) -> Callable[Concatenate[C, P], T]:
    """Make a method exclusive: of all methods marked this way, one thread at a time runs one, from
    beginning to end; others get the WorkerError of ``Crew.check``. (There is no call at any point where
    an interrupt would leave the turn taken.)"""

    @wraps(method)
    def alone(self: C, /, *arguments: P.args, **options: P.kwargs) -> T:
        crew = self._crew
        crew.check()
        with crew.turn:
            before, crew.at_work = crew.at_work, threading.get_ident()
            try:
                return method(self, *arguments, **options)
            finally:
                crew.at_work = before
                if before is None and crew.closed:  # meanwhile, by a listener, which could not wait
                    self.close()

    return alone


class Crew:
    """``workers`` of one process; properties of all of them are asked of the first."""

    def __init__(self) -> None:
        self.workers: list[Worker] = []
        self._threads: Workers | None = None
        self._binding = threading.Lock()
        self._process, self._own = os.getpid(), set[int]()
        self.turn = threading.RLock()
        self.at_work: int | None = None  # the thread whose turn it is
        self.shown = False  # whether a user holds the first worker's parameters and may write to them
        self.closed = self._ended = self._broken_off = False

    @property
    def asynchronous(self) -> bool:
        """Whether workers may be at different iterations."""
        return any(level.asynchronous for level in self.workers[0].levels)

    @property
    def lockstep(self) -> bool:
        """Whether workers are joined after each iteration."""
        levels = self.workers[0].levels
        return not self.asynchronous and any(level.joined for level in levels or [GradientSync()])

    def check(self) -> None:
        """Raise WorkerError if another thread is at work or earlier work was broken off, and PlanError
        in a forked process, which lacks the threads that it would wait for."""
        if self._process != os.getpid():
            raise PlanError(
                "this trainer was made before its process was forked, and would wait for threads that "
                "exist only in the parent: make it in the process that runs it"
            )
        if self._broken_off:
            raise WorkerError(
                "this trainer was interrupted twice, the second time in the middle of its work; make "
                "another (resume= continues from a snapshot)"
            )
        if self.at_work not in (None, threading.get_ident()):
            raise WorkerError(
                "this trainer is running in another thread: one thread at a time may use it; to end or "
                "to save, give run() stop= and save=, called between iterations (stop= also in tests)"
            )

    def check_open(self) -> None:
        """Raise WorkerError if closed."""
        if self.closed:
            raise WorkerError("this trainer is closed; make another (resume= continues from a snapshot)")

    def run(self, task: Callable[[int], T], interrupted: Callable[[], object] | None = None) -> list[T]:
        """Run ``task(worker)`` for each worker; return the results. If there are several workers, each
        runs in its own thread, which first learns that it computes with the worker's memory. Raises what
        ``check`` raises, and WorkerError if closed.

        Python raises interrupts in a program's main thread, wherever that thread is. With
        ``interrupted``, they are raised after all tasks are done, never within one; ``interrupted`` is
        called when the interrupt comes."""
        self.check_open()
        self.check()
        task = self._watched(task)
        alone = len(self.workers) == 1
        if alone and (interrupted is None or threading.current_thread() is not threading.main_thread()):
            self.workers[0].enter()
            return [task(0)]
        threads = self._threads or self._start()
        try:
            return threads.run(task)
        except BaseException:
            self._broken_off = True  # in case another interrupt comes during the wait
            if interrupted is not None:
                interrupted()
            threads.finish(broken_off=interrupted is None)
            self._broken_off = False
            raise

    def _watched(self, task: Callable[[int], T]) -> Callable[[int], T]:
        """Wrap the task, so that errors in an accelerator's code name its function and plugin."""

        def watched(number: int) -> T:
            worker = self.workers[number]
            with blamed_inside(worker.engine, worker.place.space):
                return task(number)

        return watched if self.workers[0].engine is not None else task

    def _start(self) -> Workers:
        self._threads = threads = Workers([worker.place for worker in self.workers])
        threads.run(self._enter)
        return threads

    def _enter(self, number: int) -> None:
        self._own.add(threading.get_ident())
        self.workers[number].enter()

    def bind(self, iteration: int) -> list[Step | Passes]:
        """Return steps that continue at ``iteration``. Each is bound in the thread that will run it, one
        after the other, so that what its kernels allocate is near, and so are the threads that they
        start."""

        def bind(number: int) -> Step | Passes:
            with self._binding:
                return self.workers[number].bind(iteration)

        if all(worker.bound for worker in self.workers):
            return [worker.bind(iteration) for worker in self.workers]
        return self.run(bind)

    def rewind(self) -> None:
        """Close the sample streams; they are read again from where the next ``bind`` says."""
        for worker in self.workers:
            worker.rewind()

    def quiesce(self) -> None:
        """Have synchronisation finish what is under way: outer levels first, because inner levels take
        from their workers."""
        for levels in reversed([*zip_longest(*(worker.watched for worker in self.workers))]):
            for level in levels:
                if level is not None:
                    level.quiesce()

    def show(self) -> None:
        """Note that from now on a user can write to the first worker's parameters."""
        self.shown = True

    def follow(self) -> None:
        """If a user may have written to the first worker's parameters, copy them to all workers of this
        process, unless the workers' parameters are meant to differ."""
        first, *others = self.workers
        levels, flat = first.levels, first.flat.parameters
        apart = any(level.apart for level in levels)
        if not self.shown or not others or apart or not isinstance(flat, np.ndarray):
            return
        if any(map(may_go_on, levels)):
            self.quiesce()
        for worker in others:
            for span in () if worker.borrows else first.statistics.others:
                part = slice(span.start, span.stop)
                worker.flat.parameters[part] = flat[part]

    def clock(self) -> Phases:
        """The first worker's time by phase so far."""
        step = self.workers[0].step
        return Phases(**vars(step.phases)) if step is not None else Phases()

    def spans(self) -> list[tuple[str, float, float]]:
        """What the first worker's synchronisation did concurrently with the last step."""
        return [span for level in self.workers[0].levels for span in level.spans()]

    def lost_parameter(self) -> str:
        """Name a parameter of the first worker that is no longer finite; empty if all are finite.
        Parameters on a device are not checked: copying them to the host takes longer than a step."""
        first = self.workers[0]
        flat = first.flat.parameters
        # The sum of all is cheap to compute, and finite only if all are finite.
        with np.errstate(all="ignore"):
            if not isinstance(flat, np.ndarray) or np.isfinite(flat.sum()):
                return ""
        return lost_parameter(first.plan.slots, flat)

    def keep_statistics(self) -> None:
        """Copy what forward passes change besides activations."""
        for worker in self.workers:
            worker.statistics.keep()

    def restore_statistics(self) -> None:
        """Restore what ``keep_statistics`` copied."""
        for worker in self.workers:
            worker.statistics.restore()

    def close(self, end: Callable[[], None]) -> None:
        """Let nobody begin another iteration, wait until nobody is at work, and call ``end``, once. In
        one of the crew's own threads, where a listener may run, this does not wait: the thread at work
        then closes. In a forked process it does nothing, because everything belongs to the parent."""
        self.closed = True
        if self._process != os.getpid() or threading.get_ident() in self._own:
            return
        with self.turn:
            if not self._ended:
                end()
                self._ended = True

    def end(self) -> None:
        """End threads, reading and synchronisation."""
        self.closed = True
        if self._threads is not None:
            self._threads.close()
        for worker in self.workers:
            worker.close()
            worker.enter.leave()
