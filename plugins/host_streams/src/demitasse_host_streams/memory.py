"""Memory of stand-ins and of the host: plain memory, and a note of which addresses are whose."""

from __future__ import annotations

import bisect
import mmap
import os
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

PINNED = "host (pinned)"
"""Whose memory ``StreamEngine.pinned`` gives."""
LARGE_PAGE = 2 * 2**20


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


class StandInMemory:
    """One zeroed block of a stand-in's memory."""

    def __init__(self, nbytes: int, space: str) -> None:
        self.nbytes = nbytes
        self._block: Bytes | None = block_of(nbytes, space)

    def view(self, offset: int, shape: Sequence[int], dtype: str) -> Any:
        """An array over part of the block; ``offset`` in bytes. Raises ValueError when the part does
        not lie in the block, or the block was closed."""
        size = prod(shape) * np.dtype(dtype).itemsize
        if self._block is None:
            raise ValueError("the memory was closed")
        if offset < 0 or offset + size > self.nbytes:
            raise ValueError(f"{size} bytes at {offset} do not lie in a block of {self.nbytes}")
        return self._block[offset : offset + size].view(dtype).reshape(tuple(shape))

    def close(self) -> None:
        """Give the block back; the system has it again when the last view is gone."""
        self._block = None


class StandInAllocator:
    """Gives blocks of host memory that stand for one accelerator's, and counts all that it ever gave."""

    def __init__(self, space: str) -> None:
        self.space = space
        self.allocations = 0
        self.bytes = 0

    def allocate(self, nbytes: int) -> StandInMemory:
        """A new zeroed block. Raises MemoryError with the bytes asked for and those that the host has:
        before they are used, as a system that lends more than it has would end the process then."""
        available = available_bytes()
        try:
            if available is not None and nbytes > available:
                raise MemoryError
            memory = StandInMemory(nbytes, self.space)
        except (MemoryError, OverflowError, ValueError) as error:
            known = "an unknown amount is" if available is None else f"{available:,} are"
            raise MemoryError(
                f"{self.space} stands in the host's memory: asked for {nbytes:,} bytes, {known} "
                f"available; use a smaller batch or fewer stand-ins"
            ) from error
        self.allocations += 1
        self.bytes += nbytes
        return memory


def available_bytes() -> int | None:
    """What the system could give without swapping, or None where it does not tell."""
    meminfo = Path("/proc/meminfo")
    lines = meminfo.read_text(encoding="ascii").splitlines() if meminfo.exists() else []
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    if "SC_AVPHYS_PAGES" in getattr(os, "sysconf_names", {}):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None
