"""Memory for mini-batches: aligned for direct I/O, in large pages where the system gives them."""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping
from typing import Any

import numpy as np

from demitasse import Allocator, Field

LARGE = 2 << 20


def aligned(nbytes: int) -> np.ndarray:
    """Bytes (uint8) that begin on a page. They lie near the core that first writes to them, which is the
    reading thread's, and threads run where the worker that started them does."""
    if nbytes == 0:
        return np.empty(0, np.uint8)
    # Private: Linux gives memory that processes could share huge pages only where shmem_enabled says so.
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    block = mmap.mmap(-1, nbytes, **private)
    if nbytes >= LARGE and hasattr(mmap, "MADV_HUGEPAGE"):
        block.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(block, np.uint8)


def batch(
    fields: Mapping[str, Field], count: int, allocator: Allocator | None = None
) -> dict[str, np.ndarray]:
    """Arrays for ``count`` samples, in memory of an allocator where one is given."""
    made = {}
    for name, field in fields.items():
        shape = (count, *field.shape)
        nbytes = math.prod(shape) * np.dtype(field.dtype).itemsize
        if allocator is None:
            made[name] = aligned(nbytes).view(field.dtype).reshape(shape)
        else:
            memory: Any = allocator.allocate(nbytes)
            made[name] = memory.view(0, shape, field.dtype)
    return made
