"""Memory of stand-ins and of the host: plain memory, and a note of which addresses are whose."""

from __future__ import annotations

import bisect
import mmap
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from demitasse import LARGE_PAGE, HostAllocator

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

PINNED = "host (pinned)"
"""Whose memory ``StreamEngine.pinned`` gives."""


class Registry:
    """Which addresses are whose: blocks that do not overlap, each forgotten with its array."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._starts: list[int] = []
        self._blocks: list[tuple[int, str]] = []
        # An array may end at any time, in a thread that holds the lock too: what ended is noted
        # without it and taken out by whoever asks next.
        self._ended = deque[int]()

    def add(self, owner: np.ndarray, start: int, nbytes: int, space: str) -> None:
        """From now on ``nbytes`` from address ``start`` are memory of ``space``, as long as the array
        ``owner`` lives, whose memory they are."""
        with self._lock:
            self._take_out()
            at = bisect.bisect(self._starts, start)
            self._starts.insert(at, start)
            self._blocks.insert(at, (start + nbytes, space))
        weakref.finalize(owner, self._ended.append, start).atexit = False

    def space(self, array: np.ndarray) -> str | None:
        """Whose memory an array lies in; None where nobody said."""
        start = address(array)
        with self._lock:
            self._take_out()
            at = bisect.bisect(self._starts, start) - 1
            if at < 0:
                return None
            stop, space = self._blocks[at]
        return space if start < stop else None

    def _take_out(self) -> None:
        while self._ended:
            at = bisect.bisect_left(self._starts, self._ended.popleft())
            del self._starts[at], self._blocks[at]


REGISTRY = Registry()
"""Addresses are a process's, so is the note of whose they are."""


def address(array: np.ndarray) -> int:
    """Where an array begins."""
    return int(array.__array_interface__["data"][0])


def block_of(nbytes: int, space: str) -> Bytes:
    """A zeroed block that is noted as memory of ``space``; it begins at a page of 2 MiB when it has as
    much, else at a page."""
    alignment = LARGE_PAGE if nbytes >= LARGE_PAGE else mmap.PAGESIZE
    raw = np.zeros(nbytes + alignment, np.uint8)
    first = -address(raw) % alignment
    REGISTRY.add(raw, address(raw) + first, nbytes, space)
    return raw[first : first + nbytes]


def pinned(shape: Sequence[int], dtype: str) -> np.ndarray:
    """Zeroed host memory, its pages taken: the first copy to it is as quick as the others."""
    size = prod(shape) * np.dtype(dtype).itemsize
    block = block_of(size, PINNED)
    block[:: mmap.PAGESIZE] = 0
    return block.view(dtype).reshape(tuple(shape))


class StandInAllocator(HostAllocator):
    """Gives blocks of host memory that stand for one accelerator's."""

    def __init__(self, space: str) -> None:
        told, remedy = f"{space} stands in the host's memory", "use a smaller batch or fewer stand-ins"
        super().__init__(partial(block_of, space=space), space, told, remedy)
