"""Threads that share a kernel's work: each calling thread has its own, started when first needed."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from queue import SimpleQueue

from demitasse import Work, after_fork
from demitasse_cpu.compilation import settle


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


class _Together:
    def __init__(self, parts: Sequence[Work]) -> None:
        self._parts, self.prepare = tuple(parts), settle
        self._round = _round()

    def __call__(self) -> None:
        # Each call has a counter and results of its own: a companion that comes late, or whose
        # caller was interrupted, does not disturb the next.
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
    """The number of the next part to take, and what came of those that companions took."""
    return itertools.count(), SimpleQueue()


def _outcome(part: Work) -> BaseException | None:
    try:
        part()
    except BaseException as error:  # noqa: BLE001 - raised by the caller when all parts are done
        return error
    return None


class _Companions:
    """The threads of one calling thread; they inherit its processor affinity and end with it."""

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
        del help_out  # a waiting thread must not hold the memory of a runtime that was closed


_local = threading.local()


def _call_companions(help_out: Work, count: int) -> None:
    companions: _Companions | None = getattr(_local, "companions", None)
    if companions is None:
        companions = _local.companions = _Companions()
    companions.call(help_out, count)


def _forked() -> None:
    """A forked process has its calling thread only, which starts companions of its own."""
    _local.__dict__.clear()  # this thread's, and not those of whoever imported this


after_fork(_forked)
