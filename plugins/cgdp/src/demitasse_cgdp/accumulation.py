"""The host's part: a few threads add up the contributions that have arrived, and send the sums back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import numpy as np

from demitasse import Span

LEAST = 1 << 16
"""The fewest elements worth a thread of their own: waking one takes as long as adding some 50,000."""

CACHE_LINE = 64


def slices(span: Span, count: int, item: int) -> list[Span]:
    """Split a span into at most ``count`` parts of nearly equal length. No part is shorter than
    ``LEAST`` elements unless it is the only one. Cuts fall between cache lines of elements of ``item``
    bytes."""
    count = max(1, min(count, len(span) // LEAST))
    line = max(1, CACHE_LINE // item)
    lines = -(-len(span) // line)
    edges = [min(span.stop, span.start + lines * i // count * line) for i in range(count)]
    return [Span(a, b) for a, b in zip(edges, [*edges[1:], span.stop], strict=True)]


class Adder:
    """Runs jobs one after the other in a thread of its own. ``threads`` - 1 others help it to add."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._jobs = SimpleQueue[Callable[[], None] | None]()
        self._pending, self._idle = 0, threading.Condition()
        self._others = ThreadPoolExecutor(max(1, threads - 1), "demitasse-cgdp-add")
        # A daemon, so that a process can exit even if somebody forgot to close the trainer.
        self._thread = threading.Thread(target=self._work, name="demitasse-cgdp-add", daemon=True)
        self._thread.start()

    def post(self, job: Callable[[], None]) -> None:
        """Queue a job behind the earlier ones. It must not raise."""
        with self._idle:
            self._pending += 1
        self._jobs.put(job)

    def add(self, parts: Sequence[Any], total: Any, spans: Sequence[Span]) -> None:
        """Called in a job: set ``total`` over ``spans`` to the sum of ``parts``, in their order."""
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
        """Wait until everything posted is done."""
        with self._idle:
            self._idle.wait_for(lambda: self._pending == 0)

    def close(self) -> None:
        """End the threads once everything posted is done."""
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
    """Compile the loop that adds ``count`` arrays of a type now, rather than in the first step."""
    from demitasse_cgdp.loops import add_up

    add_up(tuple(np.zeros(1, dtype) for _ in range(count)), np.zeros(1, dtype))
