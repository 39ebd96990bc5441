"""Host memory from NumPy, aligned to cache lines."""

from __future__ import annotations

from demitasse import HostMemory, available_bytes, zeroed


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
            available = available_bytes()
            known = "unknown" if available is None else f"{available:,}"
            raise MemoryError(
                f"host memory: asked for {nbytes:,} bytes, available are {known}; use a smaller batch"
            ) from error
        self.allocations += 1
        self.bytes += nbytes
        return memory
