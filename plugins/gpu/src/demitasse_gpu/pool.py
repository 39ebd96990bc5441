"""A device's memory, taken from the driver in segments, cut into blocks, and kept for the next; and
pinned memory of the host, kept likewise."""

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
"""A segment is a multiple of this: the driver gives memory in pages of 2 MiB anyway."""


@dataclass(frozen=True)
class Statistics:
    """Bytes that blocks have now, had at most, and that the driver gave; how many segments those are."""

    used: int
    peak: int
    held: int
    segments: int


class Block:
    """Part of a segment; given back when it is closed or forgotten."""

    def __init__(self, pool: Pool, address: Address, nbytes: int) -> None:
        self.address, self.nbytes = address, nbytes
        self.close = weakref.finalize(self, pool.give, address, nbytes)
        self.close.atexit = False  # the driver may be gone by then


class Pool:
    """The segments of one device. What is given back is joined to what lies free beside it; where
    nothing free is large enough a segment is taken, and where there is none either all unused ones are
    given back first. Blocks are handed out zeroed, when all that used them is done.

    What comes back is noted, and joined when somebody asks for memory: a block may be forgotten in any
    thread at any moment, also while this one looks through what is free."""

    def __init__(self, driver: Driver, stream: Handle) -> None:
        self._driver, self._stream = driver, stream
        self._lock = threading.RLock()
        self._segments: dict[Address, int] = {}
        self._free: dict[Address, int] = {}
        self._back: deque[tuple[Address, int]] = deque()
        self._used = self._peak = 0

    def take(self, nbytes: int) -> Block:
        """A zeroed block. Raises MemoryError with what was asked for and what there is."""
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
        """Have a block back. Waits for nobody."""
        self._back.append((address, nbytes))

    def trim(self) -> None:
        """Give the driver all segments that nobody uses a part of."""
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
        """How much it has, and had."""
        with self._lock:
            self._join()
            held = sum(self._segments.values())
            return Statistics(self._used, self._peak, held, len(self._segments))

    def _join(self) -> None:
        """Join what has come back to what lies free beside it."""
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
            gc.collect()  # what was dropped may lie in cycles, which no lack of device memory ends
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
    """Host memory that is never paged out. What is given back is kept: to free it waits for all that is
    under way on the device, and whoever drops an array is to wait for nothing."""

    def __init__(self, driver: Driver) -> None:
        self._driver, self._lock = driver, threading.Lock()
        self._free: dict[int, deque[Address]] = {}

    def take(self, nbytes: int) -> PinnedBlock:
        """A block with anything in it."""
        unit = SEGMENT if nbytes > SEGMENT else PINNED
        size = -(-max(1, nbytes) // unit) * unit
        with self._lock:
            kept = self._free.setdefault(size, deque())
            address = kept.pop() if kept else self._new(size)
        return PinnedBlock(self, address, size)

    def _new(self, size: int) -> Address:
        """More memory; where there is none, once all that is kept is given back."""
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
        """Have a block back. Waits for nobody, as in ``Pool``."""
        self._free[nbytes].append(address)


class PinnedBlock:
    """Pinned memory; given back when it is forgotten."""

    def __init__(self, pool: PinnedPool, address: Address, nbytes: int) -> None:
        self.address, self.nbytes = address, nbytes
        weakref.finalize(self, pool.give, address, nbytes).atexit = False
