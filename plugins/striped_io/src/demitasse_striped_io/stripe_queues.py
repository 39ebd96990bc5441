"""A queue and a thread for each stripe: a slow stripe delays only its own reads, its rate can be
limited, and pieces that do not arrive in time can be given up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as Late
from typing import Any

import numpy as np

from demitasse_striped_io.loops import LATE


class RateLimit:
    """Limits the rate of each stripe: a read waits until earlier reads have used up their time."""

    def __init__(self, stripes: int, rate: float) -> None:
        self.rate = rate
        self._free = [0.0] * stripes
        self._lock = threading.Lock()
        self._stop = threading.Event()

    def take(self, stripe: int, count: int) -> None:
        """Wait for the time that ``count`` bytes take, after all bytes taken before."""
        if not self.rate:
            return
        with self._lock:
            start = max(time.perf_counter(), self._free[stripe])
            self._free[stripe] = start + count / self.rate
        self._stop.wait(self._free[stripe] - time.perf_counter())

    def stop(self) -> None:
        """Release all that wait."""
        self._stop.set()


class StripeQueues:
    """Reads pieces by stripe, from all stripes at once. ``patience`` is how many seconds a stripe may
    take for one request (0: any number). After that its pieces are late, and those that still arrive are
    dropped."""

    def __init__(self, stripes: int, fetch: Callable[..., None], rate: float, patience: float) -> None:
        self._fetch, self._patience = fetch, patience
        self.limit = RateLimit(stripes, rate)
        self._threads: list[ThreadPoolExecutor | None] = [None] * stripes
        self._lock = threading.Lock()

    def fetch(
        self,
        pieces: np.ndarray,
        out: np.ndarray,
        checks: np.ndarray,
        verify: np.ndarray,
        status: np.ndarray,
        tally: np.ndarray,
    ) -> None:
        """Read as ``loops.fetch`` does; the status of a piece that did not arrive in time is LATE."""
        asked: list[tuple[np.ndarray, Future[Any]]] = []
        for stripe in np.unique(pieces[:, 0]):
            some = np.flatnonzero(pieces[:, 0] == stripe)
            work = pieces[some].copy(), checks[some], verify[some], tally.shape
            asked.append((some, self._queue(int(stripe)).submit(self._read, int(stripe), *work)))
        due = time.perf_counter() + self._patience
        for some, future in asked:
            try:
                got, state, counted = future.result(
                    max(0.0, due - time.perf_counter()) if self._patience else None
                )
            except Late:
                future.cancel()
                status[some] = LATE
                continue
            at = 0
            for i in some:
                length, place = pieces[i, 2], pieces[i, 3]
                out[place : place + length] = got[at : at + length]
                at += length
            status[some] = state
            tally += counted

    def _read(
        self,
        stripe: int,
        pieces: np.ndarray,
        checks: np.ndarray,
        verify: np.ndarray,
        shape: tuple[int, ...],
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        # Into separate memory: a caller that gave up may already use the batch for something else.
        ends = np.cumsum(pieces[:, 2])
        pieces[:, 3] = ends - pieces[:, 2]
        got = np.empty(ends[-1], np.uint8)
        status, tally = np.empty(len(pieces), np.uint8), np.zeros(shape, np.int64)
        start = time.perf_counter_ns()
        self.limit.take(stripe, int(ends[-1]))
        self._fetch(pieces, got, checks, verify, status, tally)
        tally[stripe, 2] = time.perf_counter_ns() - start
        return got, status, tally

    def _queue(self, stripe: int) -> ThreadPoolExecutor:
        with self._lock:
            found = self._threads[stripe]
            if found is None:
                found = self._threads[stripe] = ThreadPoolExecutor(
                    1, thread_name_prefix=f"stripe {stripe}"
                )
            return found

    def close(self) -> None:
        """End the threads; reads that are still queued are dropped."""
        self.limit.stop()
        for thread in self._threads:
            if thread is not None:
                thread.shutdown(cancel_futures=True)
