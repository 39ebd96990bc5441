"""Sums over nodes whose ranks share memory: without messages inside a node, by a schedule between
nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from demitasse import Schedule
from demitasse_allreduce.executor import Collective
from demitasse_allreduce.node.engine import Node

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


def homes(comm: Any) -> list[int]:
    """Return the number of each rank's node, which is the lowest rank on it. Collective."""
    from mpi4py import MPI

    near = comm.Split_type(MPI.COMM_TYPE_SHARED, comm.Get_rank())
    home = np.array([comm.Get_rank()])
    near.Bcast(home)
    near.Free()
    found = np.empty(comm.Get_size(), home.dtype)
    comm.Allgather(home, found)
    return [int(each) for each in found]


class Levels:
    """The communicators of a node, and of the ranks that represent the same part of each node. If all
    nodes have the same number of ranks, every rank represents its slice; otherwise a node's first rank
    represents everything. Making one is collective."""

    def __init__(
        self, comm: Any, node_ranks: int | None = None, homes: Sequence[int] | None = None
    ) -> None:
        """``node_ranks``: treat every so many consecutive ranks as a node, whatever the machine is.
        ``homes``: each rank's node, if it is known already."""
        from mpi4py import MPI

        if homes is not None:
            inner = comm.Split(homes[comm.Get_rank()], comm.Get_rank())
        elif node_ranks is None:
            inner = comm.Split_type(MPI.COMM_TYPE_SHARED)
        else:
            inner = comm.Split(comm.Get_rank() // node_ranks)
        self.inner, self.node = inner, Node(inner)
        sizes = np.empty(comm.Get_size(), np.int64)
        comm.Allgather(np.array([inner.Get_size()], np.int64), sizes)
        self.slices = bool((sizes == sizes[0]).all())
        speaks = self.slices or inner.Get_rank() == 0
        self.outer = comm.Split(inner.Get_rank() if speaks else MPI.UNDEFINED)

    def owned(self, size: int) -> list[tuple[int, int]]:
        """Return the (start, stop) of the elements that each rank of the node represents, of
        ``size``."""
        ranks = self.inner.Get_size()
        if not self.slices:
            return [(0, size), *[(size, size)] * (ranks - 1)]
        edges = [size * i // ranks for i in range(ranks + 1)]
        return list(pairwise(edges))

    def close(self) -> None:
        """Free the communicators and the node."""
        from mpi4py import MPI

        self.node.close()
        self.inner.Free()
        if self.outer != MPI.COMM_NULL:
            self.outer.Free()


class Hierarchical:
    """The sum of a one-dimensional ``array`` over all ranks of ``levels``. Each node adds its ranks'
    arrays into the arrays of the slices' owners, ``schedule(ranks, size)`` sums these between nodes,
    and the result is copied to all ranks of each node.

    An array outside the node's shared memory is copied to such memory and back.
    """

    def __init__(
        self,
        levels: Levels,
        array: Array,
        schedule: Callable[[int, int], Schedule],
        check: Callable[[], object] | None = None,
    ) -> None:
        from mpi4py import MPI

        node = levels.node
        self._array, self._block = array, None
        self._node, self._shared = node, array
        own = np.array([node.find(array) is None], np.int64)
        levels.inner.Allreduce(MPI.IN_PLACE, own)
        if own[0]:
            self._block = node.allocate(max(array.nbytes, 1))
            self._shared = self._block.mappings[node.rank].view(0, array.shape, array.dtype)
        owned = levels.owned(array.size)
        self._reduce = node.reduce_scatter(self._shared, owned, check)
        self._gather = node.allgather(self._shared, owned, check)
        self._across: Collective | None = None
        if levels.outer != MPI.COMM_NULL and levels.outer.Get_size() > 1:
            part = self._shared[slice(*owned[node.rank])]
            plan = schedule(levels.outer.Get_size(), part.size)
            self._across = Collective(plan, levels.outer, part, check=check)

    def run(self) -> None:
        """Sum the arrays. Collective."""
        if self._shared is not self._array:
            self._shared[:] = self._array
        self._reduce.run()
        if self._across is not None:
            self._across.run()
        self._gather.run()
        if self._shared is not self._array:
            self._array[:] = self._shared

    def check(self, check: Callable[[], object] | None) -> None:
        """Set the function that waits in the next run call, and that ends them by raising."""
        self._reduce.check = self._gather.check = check
        if self._across is not None:
            self._across.check = check

    def close(self) -> None:
        """Free the memory that the array was copied to, if any."""
        if self._block is not None:
            self._node.release(self._block)
