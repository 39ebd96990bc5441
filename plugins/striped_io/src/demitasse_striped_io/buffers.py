"""Memory for mini-batches: aligned for direct I/O, in large pages if the system provides them, and near
the reading thread, which first writes to it and runs where the worker that started it does."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from demitasse import Allocator, Field, in_pages


def batch(
    fields: Mapping[str, Field], count: int, allocator: Allocator | None = None
) -> dict[str, np.ndarray]:
    """Return arrays for ``count`` samples, in memory from the allocator if one is given."""
    made = {}
    for name, field in fields.items():
        shape = (count, *field.shape)
        nbytes = math.prod(shape) * np.dtype(field.dtype).itemsize
        if allocator is None:
            made[name] = in_pages(nbytes).view(field.dtype).reshape(shape)
        else:
            memory: Any = allocator.allocate(nbytes)
            made[name] = memory.view(0, shape, field.dtype)
    return made
