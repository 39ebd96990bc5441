"""Caffe's stopwatch."""

from __future__ import annotations

import time


class Timer:
    """A stopwatch: ``ms`` is the time between ``start()`` and ``stop()`` in milliseconds."""

    def __init__(self) -> None:
        self._start = self._stop = time.perf_counter()

    def start(self) -> None:
        """Start measuring."""
        self._start = self._stop = time.perf_counter()

    def stop(self) -> None:
        """Stop measuring."""
        self._stop = time.perf_counter()

    @property
    def ms(self) -> float:
        """The time from start to stop in milliseconds."""
        return (self._stop - self._start) * 1e3
