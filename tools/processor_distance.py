"""Measure how far apart two processors are: ``python tools/processor_distance.py``.

Two threads pass a cache line to and fro. Processors that share a last-level cache need some 60 ns for a
round trip; others (on another chiplet or socket) take several times as long, and so does memory that
threads write and read in turn: a line that another processor has read is written again in 7 ns if that
one is near, and in 28 ns if it is far (AMD EPYC, Zen 4). Processors of a virtual machine may be either,
and may change from one second to the next, so a benchmark reports their distance while it ran. Two
threads of one core are also near."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import numpy as np

from demitasse import load_numba

TURNS = 4000
WARM = 1000
FAR = 200.0
"""From so many nanoseconds per round trip on, processors share no last-level cache."""


def _bouncing() -> Any:
    from demitasse_allreduce.node.words import look, publish

    @load_numba().njit(nogil=True)  # type: ignore[untyped-decorator]
    def bounce(line: int, first: int, turns: int) -> None:
        for turn in range(first, first + 2 * turns, 2):
            while look(line, 0) != turn:
                pass
            publish(line, 0, turn + 1)

    return bounce


class Distance:
    """The distance of the first two of ``processors`` (those that this process may use)."""

    def __init__(self) -> None:
        before = os.sched_getaffinity(0)
        self.processors = sorted(before)[:2]
        for processor in self.processors:  # fails here if the system cannot bind threads
            os.sched_setaffinity(0, {processor})
        os.sched_setaffinity(0, before)
        self._bounce = _bouncing() if len(self.processors) == 2 else None
        if self._bounce is not None:
            self._bounce(np.zeros(8, np.int64).ctypes.data, 0, 0)

    def round_trip(self) -> float | None:
        """Return nanoseconds per round trip, the smaller of two measurements; None with one
        processor."""
        return min(self._measure() for _ in range(2)) if self._bounce is not None else None

    def _measure(self) -> float:
        lines = np.zeros(32, np.int64)
        line = lines.ctypes.data + -lines.ctypes.data % 128  # a line of its own, with its neighbour
        there = threading.Thread(target=self._answer, args=(line,))
        before = os.sched_getaffinity(0)
        there.start()
        try:
            os.sched_setaffinity(0, {self.processors[0]})
            self._bounce(line, 0, WARM)
            begin = time.perf_counter()
            self._bounce(line, 2 * WARM, TURNS)
            return (time.perf_counter() - begin) / TURNS * 1e9
        finally:
            os.sched_setaffinity(0, before)
            there.join()

    def _answer(self, line: int) -> None:
        os.sched_setaffinity(0, {self.processors[1]})
        self._bounce(line, 1, WARM + TURNS)


def told(trips: list[float]) -> str:
    """Return the median of round trips and, if some were near and some far, how many were far."""
    if not trips:
        return "one processor"
    far = sum(trip >= FAR for trip in trips)
    where = "far" if far == len(trips) else "near" if not far else f"far in {far} of {len(trips)}"
    return f"processors {np.median(trips):.0f} ns there and back ({where})"


if __name__ == "__main__":
    distance = Distance()
    trips = [trip for _ in range(5) if (trip := distance.round_trip()) is not None]
    print(told(trips))
