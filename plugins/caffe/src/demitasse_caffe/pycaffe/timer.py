"""Caffe's stop watch."""

from __future__ import annotations

import time


class Timer:
    """``start()``, ``stop()``, and the milliseconds between (``ms``)."""

    def __init__(self) -> None:
        self._start = self._stop = time.perf_counter()

    def start(self) -> None:
        """Begin to count."""
        self._start = self._stop = time.perf_counter()

    def stop(self) -> None:
        """End counting."""
        self._stop = time.perf_counter()

    @property
    def ms(self) -> float:
        """Milliseconds from start to stop."""
        return (self._stop - self._start) * 1e3
