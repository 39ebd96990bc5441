"""Iterations that workers do each at its own pace, where siblings may be at different ones."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable


class Stretch:
    """Iterations ``first`` up to, not including, ``last``, by so many workers. ``done(iteration, loss)``
    is called when all of them have done one, in order, with the sum of their losses, added in the order
    of workers (the same bits in every run, whoever comes last); once it returns true, no worker begins
    an iteration that none has begun."""

    def __init__(self, first: int, last: int, workers: int, done: Callable[[int, float], bool]) -> None:
        self.first, self.last = first, last
        self._at, self._done = [first] * workers, done
        self._losses: dict[int, dict[int, float]] = defaultdict(dict)
        self._lock, self._told = threading.Lock(), first

    def run(self, worker: int, step: Callable[[int], float]) -> None:
        """A worker's part: ``step(iteration)`` gives its loss."""
        while (iteration := self._next(worker)) is not None:
            self._report(worker, iteration, step(iteration))

    def _next(self, worker: int) -> int | None:
        with self._lock:
            iteration = self._at[worker]
            if iteration >= self.last:
                return None
            self._at[worker] += 1
            return iteration

    def _report(self, worker: int, iteration: int, loss: float) -> None:
        with self._lock:
            self._losses[iteration][worker] = loss
            while len(self._losses[self._told]) == len(self._at):
                losses = self._losses.pop(self._told)
                self._told += 1
                if self._done(self._told - 1, sum(losses[w] for w in range(len(self._at)))):
                    self.last = min(self.last, max(self._at))
