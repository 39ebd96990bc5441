"""Host memory from NumPy, aligned to cache lines."""

from __future__ import annotations

import os
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

ALIGNMENT = 64


class HostMemory:
    """One zeroed block of host memory, aligned to 64 bytes."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        raw = np.zeros(nbytes + ALIGNMENT, np.uint8)
        first = -raw.ctypes.data % ALIGNMENT
        self._block: np.ndarray | None = raw[first : first + nbytes]

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
        """Give the block back, once no view holds it any more."""
        self._block = None


class HostAllocator:
    """Gives blocks of host memory and counts all that it ever gave."""

    space = "host"

    def __init__(self) -> None:
        self.allocations = 0
        self.bytes = 0

    def allocate(self, nbytes: int) -> HostMemory:
        """A new zeroed block. Raises MemoryError with the bytes asked for and the bytes free."""
        try:
            memory = HostMemory(nbytes)
        except MemoryError as error:
            free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
            raise MemoryError(
                f"host memory: asked for {nbytes:,} bytes, {free:,} bytes are free"
            ) from error
        self.allocations += 1
        self.bytes += nbytes
        return memory
