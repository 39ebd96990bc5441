"""The allocator of a device's memory."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from demitasse_gpu.array import DeviceArray

if TYPE_CHECKING:
    from demitasse_gpu.device import Device
    from demitasse_gpu.guard import Guard
    from demitasse_gpu.pool import Block, Statistics


class DeviceMemory:
    """One zeroed block of a device's memory, aligned to 512 bytes."""

    def __init__(self, device: Device, nbytes: int) -> None:
        self.nbytes, self._device = nbytes, device
        self._block: Block | None = device.pool.take(nbytes)

    def view(self, offset: int, shape: Sequence[int], dtype: str) -> DeviceArray:
        """Return an array over part of the block, at ``offset`` bytes. The array keeps the block alive.
        Raises ValueError if the part does not lie in the block, or if the block was closed."""
        size = prod(shape) * np.dtype(dtype).itemsize
        if self._block is None:
            raise ValueError("the memory was closed")
        if offset < 0 or offset + size > self.nbytes:
            raise ValueError(f"{size} bytes at {offset} do not fit in a block of {self.nbytes}")
        return DeviceArray(self._device, self._block.address + offset, shape, dtype, self._block)

    def close(self) -> None:
        """Return the block to the pool once everything enqueued is done."""
        if self._block is not None:
            self._device.synchronise()
            self._block.close()
            self._block = None


class DeviceAllocator:
    """Allocates blocks of one device's memory, and counts all that it ever allocated."""

    def __init__(self, device: Device) -> None:
        self.device, self.space = device, device.space
        self.allocations = 0
        self.bytes = 0

    def allocate(self, nbytes: int) -> DeviceMemory:
        """Return a new zeroed block. Raises MemoryError with the requested and the free bytes."""
        memory = DeviceMemory(self.device, nbytes)
        self.allocations += 1
        self.bytes += nbytes
        return memory

    def guard(self, losses: Sequence[tuple[DeviceArray, float]], rate: DeviceArray) -> Guard:
        """Return what adds up and checks a step's loss on the device."""
        from demitasse_gpu.guard import Guard

        return Guard(self.device, losses, rate)

    @property
    def statistics(self) -> Statistics:
        """The bytes that the device's pool has handed out and kept."""
        return self.device.pool.statistics
