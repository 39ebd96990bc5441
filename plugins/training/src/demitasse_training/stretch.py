"""Iterations that each worker does at its own pace, so that siblings may be at different ones."""

from __future__ import annotations

import functools
import operator
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

NAP = 1e-3
"""Seconds between checks of how far the others are, in a worker that waits for them before it fails."""


class Stretch:
    """Iterations from ``first`` up to, not including, ``last``, by several workers. ``done(iteration,
    loss)`` is called, in order, for each iteration that all workers have done, with the sum of their
    losses. The losses are added in the order of workers, so that every run has the same bits, whoever
    comes last. Once ``done`` returns true, the stretch ends. One worker at a time calls it, while the
    others continue."""

    def __init__(self, first: int, last: int, workers: int, done: Callable[[int, float], bool]) -> None:
        self.first, self.last = first, last
        self._at, self._done = [first] * workers, done
        self._losses: list[deque[float]] = [deque() for _ in range(workers)]
        self._broken = False
        self._beginning, self._telling, self._told = threading.Lock(), threading.Lock(), first

    def run(self, worker: int, step: Callable[[int], float]) -> None:
        """Run one worker's part; ``step(iteration)`` returns its loss."""
        losses = self._losses[worker]
        try:
            while (iteration := self._next(worker)) is not None:
                losses.append(step(iteration))
                self._tell()
        except BaseException:
            self._broken = True
            raise

    def caught_up(self, iteration: int) -> bool:
        """Called by a worker that cannot do an iteration: wait until all workers have begun it, and have
        therefore finished those before it. Returns false if another worker fails before that."""
        while not all(begun > iteration for begun in self._at):
            if self._broken:
                return False
            time.sleep(NAP)
        return True

    def end(self) -> None:
        """Let no worker begin an iteration that none has begun yet."""
        with self._beginning:
            self.last = min(self.last, max(self._at))

    def _next(self, worker: int) -> int | None:
        with self._beginning:
            iteration = self._at[worker]
            if iteration >= self.last:
                return None
            self._at[worker] += 1
            return iteration

    def _tell(self) -> None:
        """Report the iterations that all have done, unless another worker is reporting: it checks
        again."""
        while all(self._losses) and self._telling.acquire(blocking=False):
            try:
                while all(self._losses):
                    loss = in_order(losses.popleft() for losses in self._losses)
                    self._told += 1
                    if self._done(self._told - 1, loss):
                        self.end()
            finally:
                self._telling.release()


def in_order(numbers: Iterable[float]) -> float:
    """Return the sum, added one by one: Python's own sum rounds differently from 3.12 on."""
    return functools.reduce(operator.add, numbers, 0.0)
