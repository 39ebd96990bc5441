"""A core group's DDR3, emulated in host memory."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from demitasse import Allocator, PlanError

ALIGNMENT = 128
"""Of a DMA's fastest blocks."""


class Ddr3:
    """One zeroed block."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        raw = np.zeros(nbytes + ALIGNMENT, np.uint8)
        first = -raw.ctypes.data % ALIGNMENT
        self._block: np.ndarray[Any, np.dtype[np.uint8]] | None = raw[first : first + nbytes]

    def view(self, offset: int, shape: Sequence[int], dtype: str) -> Any:
        """An array over part of the block. Raises ValueError when the part does not lie in it."""
        size = prod(shape) * np.dtype(dtype).itemsize
        if self._block is None:
            raise ValueError("the memory was closed")
        if offset < 0 or offset + size > self.nbytes:
            raise ValueError(f"{size} bytes at {offset} do not lie in a block of {self.nbytes}")
        return self._block[offset : offset + size].view(dtype).reshape(tuple(shape))

    def close(self) -> None:
        """Give the block back, once no view holds it any more."""
        self._block = None


class Ddr3Allocator:
    """Gives blocks of a core group's memory and counts them."""

    space = "ddr3"

    def __init__(self) -> None:
        self.allocations = 0
        self.bytes = 0

    def allocate(self, nbytes: int) -> Ddr3:
        """A new zeroed block. Raises MemoryError with the bytes asked for."""
        try:
            memory = Ddr3(nbytes)
        except MemoryError as error:
            raise MemoryError(f"ddr3, emulated in host memory: asked for {nbytes:,} bytes") from error
        self.allocations += 1
        self.bytes += nbytes
        return memory


def allocate_space(space: str) -> Allocator | None:
    """An allocator of ``ddr3``. Raises PlanError for ``ldm``."""
    if space == "ldm":
        raise PlanError(
            "space 'ldm': tensors do not lie in LDM; it is 64 KiB of scratch memory on each CPE, which "
            "kernels divide for themselves (valid: ddr3, as the first memory of the workers' level)"
        )
    return Ddr3Allocator() if space == "ddr3" else None
