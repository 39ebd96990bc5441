"""Host memory, as little as a plan needs."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

ALIGNMENT = 64


class NullMemory:
    """One zeroed block, aligned to 64 bytes."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        raw = np.zeros(nbytes + ALIGNMENT, np.uint8)
        first = -raw.ctypes.data % ALIGNMENT
        self._block = raw[first : first + nbytes]

    def view(self, offset: int, shape: Sequence[int], dtype: str) -> Any:
        """An array over part of the block; ``offset`` in bytes. Raises ValueError when the part
        does not lie in the block."""
        size = prod(shape) * np.dtype(dtype).itemsize
        return self._block[offset : offset + size].view(dtype).reshape(tuple(shape))

    def close(self) -> None:
        """Let go of the block."""
        self._block = self._block[:0]


class NullAllocator:
    """Gives zeroed blocks and counts them."""

    space = "host"

    def __init__(self) -> None:
        self.allocations = 0
        self.bytes = 0

    def allocate(self, nbytes: int) -> NullMemory:
        """A new zeroed block. Raises MemoryError, NumPy's, with the bytes asked for."""
        self.allocations += 1
        self.bytes += nbytes
        return NullMemory(nbytes)
