"""Host memory, as little as a plan needs."""

from __future__ import annotations

from demitasse import HostMemory, zeroed


class NullAllocator:
    """Gives zeroed blocks and counts them."""

    space = "host"

    def __init__(self) -> None:
        self.allocations = 0
        self.bytes = 0

    def allocate(self, nbytes: int) -> HostMemory:
        """A new zeroed block. Raises MemoryError, NumPy's, with the bytes asked for."""
        self.allocations += 1
        self.bytes += nbytes
        return HostMemory(zeroed(nbytes))
