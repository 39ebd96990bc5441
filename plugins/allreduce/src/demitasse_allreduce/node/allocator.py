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
    """One rank's part of a block. The siblings' parts have the same size; ``Node.siblings`` gives
    their arrays beside one of this part's."""

    def __init__(self, node: Node, block: Block) -> None:
        self.nbytes = block.nbytes
        self._node, self._block = node, block
        self._mapping = block.mappings[node.rank]
        self._closed = False

    def view(self, offset: int, shape: Sequence[int], dtype: str) -> Any:
        """An array over part of the block; ``offset`` in bytes. Raises ValueError when the part
        does not lie in the block, or the block was closed."""
        if self._closed:
            raise ValueError("the memory was closed")
        return self._mapping.view(offset, shape, dtype)

    def close(self) -> None:
        """Give the block back: the system has it again when all ranks have, and their views are gone."""
        self._closed = True
        self._node.release(self._block)


class SharedAllocator:
    """Gives blocks of ``shared:node`` and counts all that it ever gave. ``allocate`` is collective:
    every rank of the node asks for the same, in the same order."""

    space = SPACE

    def __init__(self, node: Node) -> None:
        self.node = node
        self.allocations = 0
        self.bytes = 0

    def allocate(self, nbytes: int) -> SharedMemory:
        """A new zeroed block, in large pages where it has as much. Raises MemoryError on all ranks
        with what was asked for and what went wrong."""
        try:
            block = self.node.allocate(nbytes)
        except WorkerError as error:
            raise MemoryError(f"{SPACE}: asked for {nbytes:,} bytes: {error}") from error
        self.allocations += 1
        self.bytes += nbytes
        return SharedMemory(self.node, block)


class _Lease:
    """What an array's memory hangs on, to be told when the last view of it has gone."""

    def __init__(self, block: Block, rank: int) -> None:
        self.__array_interface__ = block.mappings[rank].__array_interface__


def shared_array(node: Node, shape: Sequence[int], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """A zeroed array in a block of its own, which goes with it. Collective, and raises, as
    ``SharedAllocator.allocate``; all ranks ask for the same shape and type."""
    nbytes = prod(shape) * dtype.itemsize
    try:
        block = node.allocate(max(1, nbytes))
    except WorkerError as error:
        raise MemoryError(f"{SPACE}: asked for {nbytes:,} bytes: {error}") from error
    lease = _Lease(block, node.rank)
    weakref.finalize(lease, node.release, block)
    array: np.ndarray[Any, Any] = np.asarray(lease)[:nbytes].view(dtype).reshape(shape)
    return array
