"""Host memory for plans: zeroed, aligned, and seen through views that stay inside."""

import contextlib
import mmap
import os
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

LARGE_PAGE = 2 * 2**20
"""A block from this size on begins at a multiple of it and asks for large pages: then the arrays of
a step need a 512th of the address translations."""


def zeroed(nbytes: int, alignment: int = 64) -> Any:
    """``nbytes`` zero bytes (uint8) that begin at a multiple of ``alignment``. Raises MemoryError."""
    raw = np.zeros(nbytes + alignment, np.uint8)
    first = -raw.ctypes.data % alignment
    return raw[first : first + nbytes]


def in_pages(nbytes: int) -> Any:
    """``nbytes`` zero bytes (uint8) straight from the system. From 2 MiB on they are aligned to 2 MiB,
    in large pages if the system has them; fewer are aligned to a page. They lie near the core that first
    writes to them. Raises OSError, OverflowError."""
    alignment = LARGE_PAGE if nbytes >= LARGE_PAGE else mmap.PAGESIZE
    # Private, not shared: shared anonymous memory has no transparent large pages.
    flags: Any = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if os.name == "posix" else {}
    pages = mmap.mmap(-1, nbytes + alignment, **flags)
    raw = np.frombuffer(pages, np.uint8)
    first = -raw.ctypes.data % alignment
    if alignment == LARGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
        start = first // mmap.PAGESIZE * mmap.PAGESIZE
        # A system built without large pages: the block is as good with small ones.
        with contextlib.suppress(OSError):
            pages.madvise(mmap.MADV_HUGEPAGE, start, nbytes)
    return raw[first : first + nbytes]


def host_array(given: Any) -> np.ndarray:
    """An array of the host from whatever NumPy takes, or an object that has DLPack alone; without a copy
    if the memory is the host's. Raises ValueError that says why it cannot be one."""
    try:
        dlpack = hasattr(given, "__dlpack__") and not hasattr(given, "__array__")
        interface = hasattr(given, "__array_interface__")
        return np.from_dlpack(given) if dlpack and not interface else np.asarray(given)
    except MemoryError:
        raise
    except Exception as error:
        raise ValueError(" ".join(str(error).split()) or type(error).__name__) from error


class HostMemory:
    """A block of host memory (``demitasse.Memory``) over an array of bytes. It ends with its last
    view."""

    def __init__(self, block: Any) -> None:
        self.nbytes: int = block.nbytes
        self._block = block

    def view(self, offset: int, shape: Sequence[int], dtype: str) -> Any:
        """An array over part of the block; ``offset`` in bytes. Raises ValueError when the part does
        not lie in the block, or the block was closed."""
        size = prod(shape) * np.dtype(dtype).itemsize
        if self._block is None:
            raise ValueError("the memory was closed")
        if offset < 0 or offset + size > self.nbytes:
            raise ValueError(f"{size} bytes at {offset} do not fit in a block of {self.nbytes}")
        return self._block[offset : offset + size].view(dtype).reshape(tuple(shape))

    def close(self) -> None:
        """Give the block back; the system has it again when the last view is gone."""
        self._block = None


class HostAllocator:
    """Gives blocks of host memory (``demitasse.Allocator``), each over what ``block`` makes of a number
    of bytes, and counts all that it ever gave. Errors call it ``told`` and advise ``remedy``. A plugin
    should give one of a class of its own, so that errors can name the plugin."""

    def __init__(
        self,
        block: Callable[[int], Any] = zeroed,
        space: str = "host",
        told: str = "host memory",
        remedy: str = "use a smaller batch or a machine with more memory",
    ) -> None:
        self.space, self.allocations, self.bytes = space, 0, 0
        self._block, self._told, self._remedy = block, told, remedy

    def allocate(self, nbytes: int) -> HostMemory:
        """A new zeroed block. Raises MemoryError with the bytes asked for and those available: before
        they are used, as a system that lends more than it has would end the process then."""
        available = available_bytes()
        try:
            if available is not None and nbytes > available:
                raise MemoryError
            memory = HostMemory(self._block(nbytes))
        except (MemoryError, OSError, OverflowError, ValueError) as error:
            known = "unknown" if available is None else f"{available:,}"
            raise MemoryError(
                f"{self._told}: asked for {nbytes:,} bytes, available: {known}; {self._remedy}"
            ) from error
        self.allocations += 1
        self.bytes += nbytes
        return memory


def available_bytes() -> int | None:
    """The bytes that the system could give this process without swapping, or None if it does not
    tell."""
    spare, limit = _spare_bytes(), address_space()
    if limit is None:
        return spare
    free = max(0, limit[0] - limit[1])
    return free if spare is None else min(spare, free)


def address_space() -> tuple[int, int] | None:
    """(bytes of addresses that a limit such as ``ulimit -v`` allows this process, bytes that it has);
    None if there is no limit, or the system does not tell."""
    try:
        rows = Path("/proc/self/limits").read_text(encoding="ascii").splitlines()
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except OSError:  # not Linux
        return None
    limit = next((row.split()[3] for row in rows if row.startswith("Max address space")), "unlimited")
    return (int(limit), pages * os.sysconf("SC_PAGE_SIZE")) if limit.isdigit() else None


def _spare_bytes() -> int | None:
    with contextlib.suppress(OSError):  # not Linux
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    if "SC_AVPHYS_PAGES" in getattr(os, "sysconf_names", {}):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None
