"""Memory: what an allocator gives, and one arena in which buffers with disjoint lifetimes share."""

from bisect import insort
from collections.abc import Sequence
from typing import Any, Protocol


class Memory(Protocol):
    """A block of memory in one space, aligned to 64 bytes at least, zero when it is new."""

    nbytes: int

    def view(self, offset: int, shape: Sequence[int], dtype: str) -> Any:
        """A buffer over part of it, no copy (on a host, a NumPy array); offset in bytes, NumPy dtype."""

    def close(self) -> None:
        """Give the block back; views must no longer be used."""


class Allocator(Protocol):
    """Gives memory of one space. ``allocations`` and ``bytes`` count all that was ever given, so that a
    test can show that the steady state takes none.

    Two more attributes are optional. A method ``enter()`` is called first in each thread that computes
    with the memory, to bind the thread near it, and may return a function that undoes that. ``largest``
    is the most bytes that one block may have, if that is less than there are."""

    space: str
    allocations: int
    bytes: int

    def allocate(self, nbytes: int) -> Memory:
        """A new block. Raises MemoryError that says how much was asked for and how much there is."""


def place_lifetimes(lives: Sequence[tuple[int, int, int]]) -> tuple[list[int], int]:
    """Offsets for buffers of (first use, last use, bytes) such that no two overlap while both live, and
    the bytes that this takes: the largest first, each in the lowest gap that is free during its life."""
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
