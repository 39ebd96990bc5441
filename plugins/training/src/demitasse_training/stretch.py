"""Iterations that workers do each at its own pace, where siblings may be at different ones."""

from __future__ import annotations

import functools
import operator
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

NAP = 1e-3
"""Seconds between looks at how far the others are, for one that ends."""


class Stretch:
    """Iterations ``first`` up to, not including, ``last``, by so many workers. ``done(iteration, loss)``
    is called when all of them have done one, in order, with the sum of their losses, added in the order
    of workers (the same bits in every run, whoever comes last); once it returns true, this ends. One
    worker at a time tells; the others go on meanwhile."""

    def __init__(self, first: int, last: int, workers: int, done: Callable[[int, float], bool]) -> None:
        self.first, self.last = first, last
        self._at, self._done = [first] * workers, done
        self._losses: list[deque[float]] = [deque() for _ in range(workers)]
        self._broken = False
        self._beginning, self._telling, self._told = threading.Lock(), threading.Lock(), first

    def run(self, worker: int, step: Callable[[int], float]) -> None:
        """A worker's part: ``step(iteration)`` gives its loss."""
        losses = self._losses[worker]
        try:
            while (iteration := self._next(worker)) is not None:
                losses.append(step(iteration))
                self._tell()
        except BaseException:
            self._broken = True
            raise

    def caught_up(self, iteration: int) -> bool:
        """Wait, for a worker that cannot do an iteration, until all have begun it, and so are done with
        those before; whether they have, since another may have failed before that."""
        while not all(begun > iteration for begun in self._at):
            if self._broken:
                return False
            time.sleep(NAP)
        return True

    def end(self) -> None:
        """Have no worker begin an iteration that none has begun."""
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
        """Of what all have done; nothing where another tells, who looks again when he has."""
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
    """The sum, one after the other: Python's own has other bits from 3.12 on."""
    return functools.reduce(operator.add, numbers, 0.0)
