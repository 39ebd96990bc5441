"""Host memory from NumPy, aligned to cache lines."""

from __future__ import annotations

import os

from demitasse import HostMemory, zeroed


class HostAllocator:
    """Gives blocks of host memory and counts all that it ever gave."""

    space = "host"

    def __init__(self) -> None:
        self.allocations = 0
        self.bytes = 0

    def allocate(self, nbytes: int) -> HostMemory:
        """A new zeroed block. Raises MemoryError with the bytes asked for and the bytes free."""
        try:
            memory = HostMemory(zeroed(nbytes))
        except MemoryError as error:
            free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
            raise MemoryError(
                f"host memory: asked for {nbytes:,} bytes, {free:,} bytes are free"
            ) from error
        self.allocations += 1
        self.bytes += nbytes
        return memory
