"""Threads that share a kernel's work: each calling thread has its own, started when first needed."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any

from demitasse import Work


def divide(count: int, parts: int) -> list[tuple[int, int]]:
    """``count`` things in at most ``parts`` ranges of nearly equal size, none of them empty."""
    parts = max(1, min(count, parts))
    edges = [count * i // parts for i in range(parts + 1)]
    return list(itertools.pairwise(edges))


def together(parts: Sequence[Work]) -> Work:
    """Work that is done when all ``parts`` are, by the calling thread and its companions at once.

    The parts must not depend on each other, release the GIL, and give the same result whoever does
    them: a part that no companion has taken is done by the caller.
    """
    return parts[0] if len(parts) == 1 else _Together(parts)


def spread(loop: Callable[..., None], arguments: Sequence[Any], count: int, parts: int) -> Work:
    """A loop, whose last arguments are begin and end, over ``count`` things in ``parts`` ranges."""
    return together([partial(loop, *arguments, *part) for part in divide(count, parts)])


def in_order(stages: Sequence[Work]) -> Work:
    """Work that does ``stages`` one after the other."""
    if len(stages) == 1:
        return stages[0]

    def work() -> None:
        for stage in stages:
            stage()

    return work


class _Together:
    def __init__(self, parts: Sequence[Work]) -> None:
        self._parts = tuple(parts)
        self._next = itertools.count(len(parts))
        self._finished: SimpleQueue[BaseException | None] = SimpleQueue()

    def __call__(self) -> None:
        count = len(self._parts)
        self._next = itertools.count()
        _companions.call(self.help, count - 1)
        taken, failure = 0, None
        while (i := next(self._next)) < count:
            self._parts[i]()
            taken += 1
        for _ in range(count - taken):
            failure = self._finished.get() or failure
        if failure is not None:
            raise failure

    def help(self) -> None:
        """Take parts while there are any. A call that comes late finds none, or helps a later step."""
        counter = self._next
        while (i := next(counter)) < len(self._parts):
            failure: BaseException | None = None
            try:
                self._parts[i]()
            except BaseException as error:  # noqa: BLE001 - the calling thread raises it
                failure = error
            self._finished.put(failure)


class _Companions(threading.local):
    """The threads of one calling thread; they inherit its processor affinity and end with it."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._count = 0
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def call(self, help_out: Callable[[], None], count: int) -> None:
        """Have up to ``count`` threads call ``help_out`` soon."""
        while self._count < count:
            self._count += 1
            threading.Thread(
                target=_serve, args=(self._calls,), name=f"demitasse-cpu-{self._count}", daemon=True
            ).start()
        for _ in range(count):
            self._calls.put(help_out)

    def __del__(self) -> None:
        for _ in range(self._count):
            self._calls.put(None)


def _serve(calls: SimpleQueue[Callable[[], None] | None]) -> None:
    while (help_out := calls.get()) is not None:
        help_out()
        del help_out  # what is bound to a closed runtime's memory must not be held by a waiting thread


_companions = _Companions()


def _forget() -> None:
    global _companions
    _companions = _Companions()


os.register_at_fork(after_in_child=_forget)
