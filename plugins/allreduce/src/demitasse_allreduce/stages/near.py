"""This process's node: the ranks that share its memory, and the only allocator of this memory."""

from __future__ import annotations

from functools import cache

from demitasse_allreduce import launch, library
from demitasse_allreduce.node import Node, SharedAllocator
from demitasse_allreduce.node.allocator import SPACE


def allocate_space(space: str) -> SharedAllocator | None:
    """Return the allocator of ``shared:node``; None for another space, or if MPI does not join this
    process with others. The first call is collective, and so is every allocation."""
    if space != SPACE or not (library.running() or launch.started()):
        return None
    return _allocator()


def this_node() -> Node:
    """Return the ranks of COMM_WORLD that are on this node, in their order. The first call is
    collective."""
    return _allocator().node


@cache
def _allocator() -> SharedAllocator:
    mpi = library.start()
    return SharedAllocator(Node(mpi.COMM_WORLD.Split_type(mpi.COMM_TYPE_SHARED)))
