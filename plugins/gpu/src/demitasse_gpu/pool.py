"""Pools of memory. Device memory is taken from the driver in segments, cut into blocks, and kept for
reuse; so is pinned host memory."""

from __future__ import annotations

import gc
import threading
import weakref
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from demitasse_gpu.problems import out_of_memory

if TYPE_CHECKING:
    from demitasse_gpu.driver import Address, Driver, Handle

ALIGNMENT = 512
PINNED = 4096
SEGMENT = 2 * 2**20
"""Segments are a multiple of this. The driver allocates memory in pages of 2 MiB anyway."""


@dataclass(frozen=True)
class Statistics:
    """The bytes in use now, the most that were in use, the bytes taken from the driver, and the number
    of segments."""

    used: int
    peak: int
    held: int
    segments: int


class Block:
    """Part of a segment. It is given back when it is closed or garbage-collected."""

    def __init__(self, pool: Pool, address: Address, nbytes: int) -> None:
        self.address, self.nbytes = address, nbytes
        self.close = weakref.finalize(self, pool.give, address, nbytes)
        self.close.atexit = False  # the driver may be gone by then


class Pool:
    """The segments of one device. A block that is given back is merged with free neighbours. If no free
    block is large enough, a new segment is allocated; if that fails, all unused segments are freed
    first. Blocks are handed out zeroed, once all previous uses are done.

    A returned block is only noted, and merged when somebody requests memory: a block may be
    garbage-collected in any thread at any moment, even while this one searches the free blocks."""

    def __init__(self, driver: Driver, stream: Handle) -> None:
        self._driver, self._stream = driver, stream
        self._lock = threading.RLock()
        self._segments: dict[Address, int] = {}
        self._free: dict[Address, int] = {}
        self._back: deque[tuple[Address, int]] = deque()
        self._used = self._peak = 0

    def take(self, nbytes: int) -> Block:
        """Return a zeroed block. Raises MemoryError with the requested and the available bytes."""
        size = -(-max(1, nbytes) // ALIGNMENT) * ALIGNMENT
        with self._lock:
            self._join()
            fitting = [(free, address) for address, free in self._free.items() if free >= size]
            if fitting:
                free, address = min(fitting)
                del self._free[address]
            else:
                free = -(-size // SEGMENT) * SEGMENT
                address = self._segment(free, size)
            if free > size:
                self._free[address + size] = free - size
            self._used += size
            self._peak = max(self._peak, self._used)
        block = Block(self, address, size)
        self._driver.clear(address, size, self._stream)
        self._driver.synchronise(self._stream)  # other streams may use it at once
        return block

    def give(self, address: Address, nbytes: int) -> None:
        """Take a block back. Waits for nothing."""
        self._back.append((address, nbytes))

    def trim(self) -> None:
        """Give all unused segments back to the driver."""
        with self._lock:
            self._join()
            unused = [a for a, size in self._segments.items() if self._free.get(a) == size]
            if unused:
                self._driver.synchronise(self._stream)
            for address in unused:
                del self._free[address], self._segments[address]
                self._driver.free(address)

    @property
    def statistics(self) -> Statistics:
        """What the pool has handed out and kept."""
        with self._lock:
            self._join()
            held = sum(self._segments.values())
            return Statistics(self._used, self._peak, held, len(self._segments))

    def _join(self) -> None:
        """Merge the blocks that came back with their free neighbours."""
        with suppress(IndexError):
            while True:
                address, nbytes = self._back.popleft()
                self._used -= nbytes
                before = next((a for a, size in self._free.items() if a + size == address), None)
                if before is not None and address not in self._segments:
                    address, nbytes = before, nbytes + self._free.pop(before)
                after = address + nbytes
                if after in self._free and after not in self._segments:
                    nbytes += self._free.pop(after)
                self._free[address] = nbytes

    def _segment(self, nbytes: int, asked: int) -> Address:
        try:
            address = self._driver.allocate(nbytes)
        except MemoryError:
            gc.collect()  # dropped arrays may be in cycles, which no lack of device memory collects
            self.trim()
            try:
                address = self._driver.allocate(nbytes)
            except MemoryError as error:
                free, total = self._driver.memory()
                where = f"gpu:{self._driver.number}"
                raise out_of_memory(where, asked, free, total, self._used) from error
        self._segments[address] = nbytes
        return address


class PinnedPool:
    """Page-locked host memory. What is given back is kept, because freeing it waits for everything that
    is under way on the device, and dropping an array must not wait."""

    def __init__(self, driver: Driver) -> None:
        self._driver, self._lock = driver, threading.Lock()
        self._free: dict[int, deque[Address]] = {}

    def take(self, nbytes: int) -> PinnedBlock:
        """Return an uninitialised block."""
        unit = SEGMENT if nbytes > SEGMENT else PINNED
        size = -(-max(1, nbytes) // unit) * unit
        with self._lock:
            kept = self._free.setdefault(size, deque())
            address = kept.pop() if kept else self._new(size)
        return PinnedBlock(self, address, size)

    def _new(self, size: int) -> Address:
        """Allocate memory. If there is not enough, free everything that is kept and try again."""
        try:
            return self._driver.allocate_pinned(size)
        except MemoryError:
            gc.collect()
            for kept in [*self._free.values()]:
                with suppress(IndexError):
                    while True:
                        self._driver.free_pinned(kept.pop())
            return self._driver.allocate_pinned(size)

    def give(self, address: Address, nbytes: int) -> None:
        """Take a block back. Waits for nothing, as in ``Pool``."""
        self._free[nbytes].append(address)


class PinnedBlock:
    """A block of pinned memory. It is given back when it is garbage-collected."""

    def __init__(self, pool: PinnedPool, address: Address, nbytes: int) -> None:
        self.address, self.nbytes = address, nbytes
        weakref.finalize(self, pool.give, address, nbytes).atexit = False
