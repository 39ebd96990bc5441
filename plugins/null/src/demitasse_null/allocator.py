"""Host memory, with the least that a plan needs."""

from __future__ import annotations

from demitasse import HostMemory, zeroed


class NullAllocator:
    """Allocates zeroed blocks and counts them."""

    space = "host"

    def __init__(self) -> None:
        self.allocations = 0
        self.bytes = 0

    def allocate(self, nbytes: int) -> HostMemory:
        """Return a new zeroed block. Raises NumPy's MemoryError with the requested bytes."""
        self.allocations += 1
        self.bytes += nbytes
        return HostMemory(zeroed(nbytes))
