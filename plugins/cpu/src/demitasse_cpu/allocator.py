"""Host memory straight from the system: zeroed, and in large pages where that pays."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from demitasse import available_bytes

LARGE_PAGE = 2 * 2**20
"""A block from this size on begins at a multiple of it and asks for large pages: then the arrays of
a step need a 512th of the address translations."""


class HostMemory:
    """One zeroed block, aligned to 2 MiB when it has as much, else to a page."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        alignment = LARGE_PAGE if nbytes >= LARGE_PAGE else mmap.PAGESIZE
        # Private, not shared: shared anonymous memory has no transparent large pages.
        flags = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if os.name == "posix" else {}
        pages = mmap.mmap(-1, nbytes + alignment, **flags)
        raw = np.frombuffer(pages, np.uint8)
        first = -raw.ctypes.data % alignment
        if alignment == LARGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
            start = first // mmap.PAGESIZE * mmap.PAGESIZE
            try:
                pages.madvise(mmap.MADV_HUGEPAGE, start, nbytes)
            except OSError:
                # A system built without large pages: the block is as good with small ones.
                alignment = mmap.PAGESIZE
        self._block: np.ndarray[Any, np.dtype[np.uint8]] | None = raw[first : first + nbytes]

    def view(self, offset: int, shape: Sequence[int], dtype: str) -> Any:
        """An array over part of the block; ``offset`` in bytes. Raises ValueError when the part
        does not lie in the block, or the block was closed."""
        size = prod(shape) * np.dtype(dtype).itemsize
        if self._block is None:
            raise ValueError("the memory was closed")
        if offset < 0 or offset + size > self.nbytes:
            raise ValueError(f"{size} bytes at {offset} do not lie in a block of {self.nbytes}")
        return self._block[offset : offset + size].view(dtype).reshape(tuple(shape))

    def close(self) -> None:
        """Give the block back; the system has it again when the last view is gone."""
        self._block = None


class HostAllocator:
    """Gives blocks of host memory and counts all that it ever gave."""

    space = "host"

    def __init__(self) -> None:
        self.allocations = 0
        self.bytes = 0

    def allocate(self, nbytes: int) -> HostMemory:
        """A new zeroed block. Raises MemoryError with the bytes asked for and those available:
        before they are used, as a system that lends more than it has would end the process then."""
        available = available_bytes()
        try:
            if available is not None and nbytes > available:
                raise MemoryError
            memory = HostMemory(nbytes)
        except (MemoryError, OSError, OverflowError) as error:
            known = "unknown" if available is None else f"{available:,}"
            raise MemoryError(
                f"host memory: asked for {nbytes:,} bytes, available are {known}; "
                f"use a smaller batch or a machine with more memory"
            ) from error
        self.allocations += 1
        self.bytes += nbytes
        return memory
