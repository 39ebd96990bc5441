"""Threads that share a kernel's work. Each calling thread has its own, started when they are first
needed."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from queue import SimpleQueue

from demitasse import Work, after_fork
from demitasse_cpu.compilation import settle


def divide(count: int, parts: int) -> list[tuple[int, int]]:
    """Divide ``count`` things into at most ``parts`` ranges of nearly equal size, none of them empty."""
    parts = max(1, min(count, parts))
    edges = [count * i // parts for i in range(parts + 1)]
    return list(itertools.pairwise(edges))


def together(parts: Sequence[Work]) -> Work:
    """Return work that runs all ``parts`` concurrently, on the calling thread and its companions.

    The parts must not depend on each other, must release the GIL, and must give the same result
    whichever thread runs them. The caller runs every part that no companion has taken.
    """
    return parts[0] if len(parts) == 1 else _Together(parts)


class _Together:
    def __init__(self, parts: Sequence[Work]) -> None:
        self._parts, self.prepare = tuple(parts), settle
        self._round = _round()

    def __call__(self) -> None:
        # Each call has a counter and results of its own, so a companion that comes late, or whose caller
        # was interrupted, does not disturb the next call.
        counter, results = self._round = _round()
        count = len(self._parts)
        _call_companions(self._help, count - 1)
        failure: BaseException | None = None
        taken = 0
        while (i := next(counter)) < count:
            taken += 1
            failure = _outcome(self._parts[i]) or failure
        for _ in range(count - taken):
            failure = results.get() or failure
        if failure is not None:
            raise failure

    def _help(self) -> None:
        counter, results = self._round
        while (i := next(counter)) < len(self._parts):
            results.put(_outcome(self._parts[i]))


def _round() -> tuple[itertools.count[int], SimpleQueue[BaseException | None]]:
    """Return the counter of the next part to take, and the queue of outcomes of the parts that
    companions took."""
    return itertools.count(), SimpleQueue()


def _outcome(part: Work) -> BaseException | None:
    try:
        part()
    except BaseException as error:  # noqa: BLE001 - raised by the caller when all parts are done
        return error
    return None


class _Companions:
    """The companions of one calling thread. They inherit its processor affinity and end with it."""

    def __init__(self) -> None:
        self._count = 0
        self._calls: SimpleQueue[Work | None] = SimpleQueue()

    def call(self, help_out: Work, count: int) -> None:
        """Have ``count`` threads call ``help_out`` soon."""
        while self._count < count:
            self._count += 1
            name = f"demitasse-cpu-{self._count}"
            threading.Thread(target=_serve, args=(self._calls,), name=name, daemon=True).start()
        for _ in range(count):
            self._calls.put(help_out)

    def __del__(self) -> None:
        for _ in range(self._count):
            self._calls.put(None)


def _serve(calls: SimpleQueue[Work | None]) -> None:
    while (help_out := calls.get()) is not None:
        help_out()
        del help_out  # a waiting thread must not keep alive the memory of a closed runtime


_local = threading.local()


def _call_companions(help_out: Work, count: int) -> None:
    companions: _Companions | None = getattr(_local, "companions", None)
    if companions is None:
        companions = _local.companions = _Companions()
    companions.call(help_out, count)


def _forked() -> None:
    """Forget the companions: a forked process has only its calling thread, which starts companions of
    its own."""
    _local.__dict__.clear()  # of this thread, not of the thread that imported this module


after_fork(_forked)
