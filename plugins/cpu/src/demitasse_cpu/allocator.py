"""Host memory straight from the system: zeroed, and in large pages where that pays."""

from __future__ import annotations

import contextlib
import mmap
import os
from typing import Any

import numpy as np

LARGE_PAGE = 2 * 2**20
"""A block from this size on begins at a multiple of it and asks for large pages: then the arrays of
a step need a 512th of the address translations."""


def in_pages(nbytes: int) -> Any:
    """So many bytes, all zero, aligned to 2 MiB when there are as many, else to a page; uint8. Raises
    OSError, OverflowError."""
    alignment = LARGE_PAGE if nbytes >= LARGE_PAGE else mmap.PAGESIZE
    # Private, not shared: shared anonymous memory has no transparent large pages.
    flags = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if os.name == "posix" else {}
    pages = mmap.mmap(-1, nbytes + alignment, **flags)
    raw = np.frombuffer(pages, np.uint8)
    first = -raw.ctypes.data % alignment
    if alignment == LARGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
        start = first // mmap.PAGESIZE * mmap.PAGESIZE
        # A system built without large pages: the block is as good with small ones.
        with contextlib.suppress(OSError):
            pages.madvise(mmap.MADV_HUGEPAGE, start, nbytes)
    return raw[first : first + nbytes]
