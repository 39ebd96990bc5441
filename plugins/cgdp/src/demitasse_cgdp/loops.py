"""The sum of all replicas' gradients, compiled and without the GIL."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from demitasse import compiled_loop

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

BLOCK = 2048
"""Elements that are summed over all replicas at a time, so that they stay in the L1 cache."""


@compiled_loop
def add_up(parts: tuple[Array, ...], total: Array) -> None:
    """Set ``total`` to the sum of ``parts``, flat arrays of its size, added in their order and in their
    own element type. Each part is read once, and ``total`` is written once."""
    for begin in range(0, total.size, BLOCK):
        end = min(total.size, begin + BLOCK)
        block, first, second = total[begin:end], parts[0][begin:end], parts[1][begin:end]
        for i in range(end - begin):
            block[i] = first[i] + second[i]
        for k in range(2, len(parts)):
            part = parts[k][begin:end]
            for i in range(end - begin):
                block[i] += part[i]
