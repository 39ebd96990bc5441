"""A core group's DDR3, emulated in host memory."""

from __future__ import annotations

from demitasse import Allocator, HostMemory, PlanError, zeroed

ALIGNMENT = 128
"""The alignment of the fastest DMA blocks, in bytes."""


class Ddr3Allocator:
    """Allocates blocks of a core group's memory and counts them."""

    space = "ddr3"

    def __init__(self) -> None:
        self.allocations = 0
        self.bytes = 0

    def allocate(self, nbytes: int) -> HostMemory:
        """Return a new zeroed block. Raises MemoryError, which says how many bytes were requested."""
        try:
            memory = HostMemory(zeroed(nbytes, ALIGNMENT))
        except MemoryError as error:
            raise MemoryError(f"ddr3, emulated in host memory: asked for {nbytes:,} bytes") from error
        self.allocations += 1
        self.bytes += nbytes
        return memory


def allocate_space(space: str) -> Allocator | None:
    """Return an allocator for ``ddr3``, or None for an unknown space. Raises PlanError for ``ldm``."""
    if space == "ldm":
        raise PlanError(
            "space 'ldm': tensors cannot be in LDM; it is 64 KiB of scratch memory on each CPE, which "
            "kernels divide for themselves (valid: ddr3, as the first memory of the workers' level)"
        )
    return Ddr3Allocator() if space == "ddr3" else None
