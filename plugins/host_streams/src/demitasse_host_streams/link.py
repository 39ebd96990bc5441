"""The links between accelerators and the host. A link has two directions, each with its own rate, and
one transfer at a time in each (CGDP, section 3.1: "only one transfer in one direction is allowed at a
time")."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

PIECE = 4 * 2**20
"""Copies go in pieces of this many bytes, each in its time, so that a link that is slower than memory
takes no more than its share of memory bandwidth while others compute. A wake-up costs some 20 us of a
core, which is 1% of the time of a piece at 2 GB/s."""


@dataclass(frozen=True)
class Rate:
    """The rate of one direction: ``latency`` in seconds per transfer, ``bandwidth`` in B/s."""

    latency: float = 0.0
    bandwidth: float = float("inf")

    @property
    def limited(self) -> bool:
        """Whether a transfer takes longer than a copy in memory."""
        return self.latency > 0 or self.bandwidth < float("inf")

    def then(self, other: Rate) -> Rate:
        """Return the rate of this link followed by another: summed latencies, the lower bandwidth."""
        return Rate(self.latency + other.latency, min(self.bandwidth, other.bandwidth))


class Direction:
    """One direction of one accelerator's link. Whoever transfers holds ``lock``. ``free`` is when the
    last transfer ended, in seconds of ``time.perf_counter``."""

    def __init__(self) -> None:
        self.lock, self.free = threading.Lock(), 0.0


_DIRECTIONS: dict[tuple[str, str], Direction] = {}
"""By memory space and direction. A stand-in exists once in a process, as a device does."""


def direction(space: str, way: str) -> Direction:
    """Return direction ``way`` (``d2h`` or ``h2d``) of the link of the stand-in in ``space``."""
    return _DIRECTIONS.setdefault((space, way), Direction())


def transfer(
    target: Bytes, source: Bytes, rate: Rate, directions: Sequence[Direction], ready: float
) -> tuple[float, float]:
    """Copy bytes at a rate, holding the directions meanwhile (``d2h`` is locked before ``h2d``, so that
    no two transfers wait for each other). Return when the transfer's time on the link ended and when the
    copy was really done, which is later if this thread was late.

    The transfer's time begins when it was ``ready`` and the link was free, not when this thread woke, so
    delays do not add up. Measured with 200 copies of 64 KiB while the caller held the interpreter for 3
    of their 15 ms: they took 1.2216 times their nominal time when counted from waking, and 1.00 times
    this way."""
    with ExitStack() as held:
        for each in directions:
            held.enter_context(each.lock)
        start = max(ready, *(each.free for each in directions)) + rate.latency
        done = time.perf_counter()
        for first in range(0, len(source), PIECE):
            piece = source[first : first + PIECE]
            np.copyto(target[first : first + PIECE], piece)
            done = time.perf_counter()
            until(start + (first + len(piece)) / rate.bandwidth)
        end = start + len(source) / rate.bandwidth
        until(end)
        for each in directions:
            each.free = end
    return end, max(end, done)


def until(when: float) -> None:
    """Sleep until a time of ``time.perf_counter``, and never wake before it."""
    while (left := when - time.perf_counter()) > 0:
        time.sleep(left)


def wake_precisely() -> None:
    """Have the calling thread woken when its sleeps end, where the system supports it. Otherwise Linux
    wakes threads up to 50 us late, to save wake-ups. Measured: 77 us late before, 20 us after."""
    import ctypes
    import sys

    if sys.platform == "linux":
        set_timer_slack = 29
        ctypes.CDLL(None).prctl(set_timer_slack, 1, 0, 0, 0)
