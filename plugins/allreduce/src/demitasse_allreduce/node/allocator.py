"""The allocator of ``shared:node``: memory that all ranks of a node map."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from demitasse import WorkerError
from demitasse_allreduce.node.engine import Block, Node

SPACE = "shared:node"


class SharedMemory:
    """One rank's part of a block. The siblings' parts have the same size; for an array in this part,
    ``Node.siblings`` returns the arrays at the same place in all ranks' parts."""

    def __init__(self, node: Node, block: Block) -> None:
        self.nbytes = block.nbytes
        self._node, self._block = node, block
        self._mapping = block.mappings[node.rank]
        self._closed = False

    def view(self, offset: int, shape: Sequence[int], dtype: str) -> Any:
        """Return an array over a part of the block; ``offset`` is in bytes. Raises ValueError if the
        part does not lie inside the block, or if the block was closed."""
        if self._closed:
            raise ValueError("the memory was closed")
        return self._mapping.view(offset, shape, dtype)

    def close(self) -> None:
        """Free the block. The system gets it back when all ranks have freed it and their views are
        gone."""
        self._closed = True
        self._node.release(self._block)


class SharedAllocator:
    """Allocates blocks of ``shared:node``, and counts all blocks and bytes that it ever allocated.
    ``allocate`` is collective: every rank of the node makes the same requests, in the same order."""

    space = SPACE

    def __init__(self, node: Node) -> None:
        self.node = node
        self.allocations = 0
        self.bytes = 0

    def allocate(self, nbytes: int) -> SharedMemory:
        """Return a new zeroed block, in large pages if it is large enough. Raises MemoryError on all
        ranks with the requested size and the reason."""
        try:
            block = self.node.allocate(nbytes)
        except WorkerError as error:
            raise MemoryError(f"{SPACE}: asked for {nbytes:,} bytes: {error}") from error
        self.allocations += 1
        self.bytes += nbytes
        return SharedMemory(self.node, block)


class _Lease:
    """The base object of an array's memory. When the last view of the array is gone, so is this object,
    and its finalizer frees the block."""

    def __init__(self, block: Block, rank: int) -> None:
        self.__array_interface__ = block.mappings[rank].__array_interface__


def shared_array(node: Node, shape: Sequence[int], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return a zeroed array in a block of its own, which is freed with the last view of the array. It is
    collective and raises MemoryError as ``SharedAllocator.allocate`` does; all ranks ask for the same
    shape and type."""
    nbytes = prod(shape) * dtype.itemsize
    try:
        block = node.allocate(max(1, nbytes))
    except WorkerError as error:
        raise MemoryError(f"{SPACE}: asked for {nbytes:,} bytes: {error}") from error
    lease = _Lease(block, node.rank)
    weakref.finalize(lease, node.release, block)
    array: np.ndarray[Any, Any] = np.asarray(lease)[:nbytes].view(dtype).reshape(shape)
    return array
