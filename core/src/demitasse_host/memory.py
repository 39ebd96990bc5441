"""Host memory for plans: zeroed, aligned, and accessed through views that stay inside it."""

import contextlib
import mmap
import os
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

LARGE_PAGE = 2 * 2**20
"""In bytes. A block of at least this size begins at a multiple of it and requests large pages, so that
the arrays of a step need a 512th of the address translations."""


SMALL = 2**16
"""In bytes. A smaller block is allocated without asking the system first what is available, which takes
longer than the block."""


def zeroed(nbytes: int, alignment: int = 64) -> Any:
    """Return ``nbytes`` zero bytes (uint8), aligned to ``alignment``. Raises MemoryError."""
    raw = np.zeros(nbytes + alignment, np.uint8)
    first = -raw.ctypes.data % alignment
    return raw[first : first + nbytes]


def in_pages(nbytes: int) -> Any:
    """Return ``nbytes`` zero bytes (uint8) directly from the system. 2 MiB or more are aligned to 2 MiB,
    in large pages if the system has them; fewer are aligned to a page. They lie near the core that first
    writes to them. Raises OSError or OverflowError."""
    alignment = LARGE_PAGE if nbytes >= LARGE_PAGE else mmap.PAGESIZE
    # Private, not shared: shared anonymous memory has no transparent large pages.
    flags: Any = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if os.name == "posix" else {}
    pages = mmap.mmap(-1, nbytes + alignment, **flags)
    raw = np.frombuffer(pages, np.uint8)
    first = -raw.ctypes.data % alignment
    if alignment == LARGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
        start = first // mmap.PAGESIZE * mmap.PAGESIZE
        # A system built without large pages: small pages do as well.
        with contextlib.suppress(OSError):
            pages.madvise(mmap.MADV_HUGEPAGE, start, nbytes)
    return raw[first : first + nbytes]


def host_array(given: Any) -> np.ndarray:
    """Return a host array of anything that NumPy accepts, or of an object that supports only DLPack,
    without a copy if the memory is the host's. Raises ValueError that says why it is not possible."""
    try:
        dlpack = hasattr(given, "__dlpack__") and not hasattr(given, "__array__")
        interface = hasattr(given, "__array_interface__")
        return np.from_dlpack(given) if dlpack and not interface else np.asarray(given)
    except MemoryError:
        raise
    except Exception as error:
        raise ValueError(" ".join(str(error).split()) or type(error).__name__) from error


class HostMemory:
    """A block of host memory (``demitasse.Memory``) over an array of bytes, freed with its last view."""

    def __init__(self, block: Any) -> None:
        self.nbytes: int = block.nbytes
        self._block = block

    def view(self, offset: int, shape: Sequence[int], dtype: str) -> Any:
        """Return an array over part of the block; ``offset`` is in bytes. Raises ValueError if the part
        does not lie in the block, or the block is closed."""
        size = prod(shape) * np.dtype(dtype).itemsize
        if self._block is None:
            raise ValueError("the memory was closed")
        if offset < 0 or offset + size > self.nbytes:
            raise ValueError(f"{size} bytes at {offset} do not fit in a block of {self.nbytes}")
        return self._block[offset : offset + size].view(dtype).reshape(tuple(shape))

    def close(self) -> None:
        """Release the block; its memory goes back to the system with the last view."""
        self._block = None


class HostAllocator:
    """Allocates blocks of host memory (``demitasse.Allocator``), each over what ``block`` returns for a
    number of bytes, and counts everything that it ever allocated. Errors call it ``told`` and advise
    ``remedy``. A plugin should return an instance of a subclass of its own, so that errors can name the
    plugin."""

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
        """Return a new zeroed block. Raises MemoryError with the bytes requested and those available. It
        does so before they are used, as a system that overcommits memory would kill the process then."""
        available = available_bytes() if nbytes >= SMALL else None
        try:
            if available is not None and nbytes > available:
                raise MemoryError
            memory = HostMemory(self._block(nbytes))
        except (MemoryError, OSError, OverflowError, ValueError) as error:
            available = available_bytes() if available is None else available
            known = "unknown" if available is None else f"{available:,}"
            raise MemoryError(
                f"{self._told}: asked for {nbytes:,} bytes, available: {known}; {self._remedy}"
            ) from error
        self.allocations += 1
        self.bytes += nbytes
        return memory


def available_bytes() -> int | None:
    """Return the bytes that the system could give this process without swapping, or None if it does not
    tell."""
    spare, limit = _spare_bytes(), address_space()
    if limit is None:
        return spare
    free = max(0, limit[0] - limit[1])
    return free if spare is None else min(spare, free)


def address_space() -> tuple[int, int] | None:
    """Return (the bytes of address space that a limit such as ``ulimit -v`` allows this process, the
    bytes in use), or None if there is no limit or the system does not tell."""
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
