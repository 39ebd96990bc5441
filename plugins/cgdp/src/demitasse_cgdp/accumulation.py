"""The host's part: contributions that have come are added up by a few threads, and sent back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import numpy as np

from demitasse import Span

LEAST = 1 << 16
"""Elements that are worth a thread of their own: to wake one takes as long as to add some 50,000."""

CACHE_LINE = 64


def slices(span: Span, count: int, item: int) -> list[Span]:
    """A span in at most ``count`` parts of nearly equal length, none shorter than ``LEAST`` elements
    unless it is alone, cut between cache lines of elements of ``item`` bytes."""
    count = max(1, min(count, len(span) // LEAST))
    line = max(1, CACHE_LINE // item)
    lines = -(-len(span) // line)
    edges = [min(span.stop, span.start + lines * i // count * line) for i in range(count)]
    return [Span(a, b) for a, b in zip(edges, [*edges[1:], span.stop], strict=True)]


class Adder:
    """Does jobs one after the other in a thread of its own, which adds with ``threads`` - 1 others."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._jobs = SimpleQueue[Callable[[], None] | None]()
        self._pending, self._idle = 0, threading.Condition()
        self._others = ThreadPoolExecutor(max(1, threads - 1), "demitasse-cgdp-add")
        # A daemon: whoever forgets to close a trainer can still leave.
        self._thread = threading.Thread(target=self._work, name="demitasse-cgdp-add", daemon=True)
        self._thread.start()

    def post(self, job: Callable[[], None]) -> None:
        """Have a job done after those before it. It must not raise."""
        with self._idle:
            self._pending += 1
        self._jobs.put(job)

    def add(self, parts: Sequence[Any], total: Any, spans: Sequence[Span]) -> None:
        """In a job: ``total`` becomes over ``spans`` the sum of ``parts``, added in their order."""
        from demitasse_cgdp.loops import add_up

        def one(span: Span) -> None:
            part = slice(span.start, span.stop)
            add_up(tuple(each[part] for each in parts), total[part])

        mine, *others = [s for span in spans for s in slices(span, self.threads, total.itemsize)]
        if self.threads == 1:
            for span in (mine, *others):
                one(span)
            return
        going = [self._others.submit(one, span) for span in others]
        one(mine)
        for each in going:
            each.result()

    def settle(self) -> None:
        """Wait until all that was posted is done."""
        with self._idle:
            self._idle.wait_for(lambda: self._pending == 0)

    def close(self) -> None:
        """End the threads, when all that was posted is done."""
        self._jobs.put(None)
        self._thread.join()
        self._others.shutdown()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            with self._idle:
                self._pending -= 1
                self._idle.notify_all()


def compiled_for(count: int, dtype: Any) -> None:
    """Compile now what adds ``count`` arrays of a type, not in the first step."""
    from demitasse_cgdp.loops import add_up

    add_up(tuple(np.zeros(1, dtype) for _ in range(count)), np.zeros(1, dtype))
