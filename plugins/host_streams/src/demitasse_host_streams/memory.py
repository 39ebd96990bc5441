"""Memory of stand-ins and of the host: ordinary memory, and a registry of each block's space."""

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
"""The space of the memory that ``StreamEngine.pinned`` returns."""


class Registry:
    """The memory space of each block of addresses. Blocks do not overlap, and die with their arrays."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._starts: list[int] = []
        self._blocks: list[tuple[int, str]] = []
        # An array may die at any time, even in a thread that holds the lock. Its end is therefore noted
        # without the lock, and the next caller removes the block.
        self._ended = deque[int]()

    def add(self, owner: np.ndarray, start: int, nbytes: int, space: str) -> None:
        """Register ``nbytes`` from address ``start`` as memory of ``space`` for as long as the array
        ``owner``, whose memory they are, lives."""
        with self._lock:
            self._take_out()
            at = bisect.bisect(self._starts, start)
            self._starts.insert(at, start)
            self._blocks.insert(at, (start + nbytes, space))
        weakref.finalize(owner, self._ended.append, start).atexit = False

    def space(self, array: np.ndarray) -> str | None:
        """Return the memory space that an array lies in, or None if its memory is not registered."""
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
"""One for the process, because addresses are the process's."""


def address(array: np.ndarray) -> int:
    """Return the address at which an array begins."""
    return int(array.__array_interface__["data"][0])


def block_of(nbytes: int, space: str) -> Bytes:
    """Return a zeroed block, registered as memory of ``space``. It begins at a 2 MiB boundary if it has
    at least 2 MiB, otherwise at a page boundary."""
    alignment = LARGE_PAGE if nbytes >= LARGE_PAGE else mmap.PAGESIZE
    raw = np.zeros(nbytes + alignment, np.uint8)
    first = -address(raw) % alignment
    REGISTRY.add(raw, address(raw) + first, nbytes, space)
    return raw[first : first + nbytes]


def pinned(shape: Sequence[int], dtype: str) -> np.ndarray:
    """Return zeroed host memory whose pages are allocated, so that the first copy to it is as fast as
    later ones."""
    size = prod(shape) * np.dtype(dtype).itemsize
    block = block_of(size, PINNED)
    block[:: mmap.PAGESIZE] = 0
    return block.view(dtype).reshape(tuple(shape))


class StandInAllocator(HostAllocator):
    """Allocates blocks of host memory that stand in for one accelerator's memory."""

    def __init__(self, space: str) -> None:
        told, remedy = f"{space} stands in the host's memory", "use a smaller batch or fewer stand-ins"
        super().__init__(partial(block_of, space=space), space, told, remedy)
