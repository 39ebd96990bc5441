"""Memory: what an allocator provides, and an arena that buffers with disjoint lifetimes share."""

from bisect import insort
from collections.abc import Sequence
from typing import Any, Protocol


class Memory(Protocol):
    """A block of memory in one space, aligned to at least 64 bytes and filled with zeros when new."""

    nbytes: int

    def view(self, offset: int, shape: Sequence[int], dtype: str) -> Any:
        """Return a view of a part (on a host, a NumPy array); offset in bytes, dtype by NumPy's name."""

    def close(self) -> None:
        """Free the block; its views must no longer be used."""


class Allocator(Protocol):
    """Provides memory of one space. ``allocations`` and ``bytes`` count everything ever allocated, so
    that a test can show that the steady state allocates nothing.

    Two more attributes are optional. A method ``enter()`` is called first in each thread that computes
    with the memory, to bind the thread near it, and may return a function that undoes that. ``largest``
    is the maximum size of a block in bytes, if that is less than the capacity."""

    space: str
    allocations: int
    bytes: int

    def allocate(self, nbytes: int) -> Memory:
        """Return a new block. Raises MemoryError with the requested and the available amount."""


def place_lifetimes(lives: Sequence[tuple[int, int, int]]) -> tuple[list[int], int]:
    """Return offsets for buffers of (first use, last use, bytes), so that no two overlap while both
    live, and the total bytes. The largest go first, each in the lowest gap free during its life."""
    offsets, placed = [0] * len(lives), list[tuple[int, int, int, int]]()
    for i in sorted((i for i, life in enumerate(lives) if life[2]), key=lambda i: -lives[i][2]):
        (first, last, size), offset = lives[i], 0
        for start, stop, begin, end in placed:  # in the order of their starts
            if start >= offset + size:
                break
            if stop > offset and begin <= last and first <= end:
                offset = stop
        offsets[i] = offset
        insort(placed, (offset, offset + size, first, last))
    return offsets, max((stop for _, stop, _, _ in placed), default=0)
