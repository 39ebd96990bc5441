"""This process's node: the ranks that share its memory, and the one allocator of that."""

from __future__ import annotations

from functools import cache

from demitasse_allreduce import launch, library
from demitasse_allreduce.node import Node, SharedAllocator
from demitasse_allreduce.node.allocator import SPACE


def allocate_space(space: str) -> SharedAllocator | None:
    """The allocator of ``shared:node``; None for another space, or for a process without siblings that
    MPI joins. The first call is collective, and so is every allocation."""
    if space != SPACE or not (library.running() or launch.started()):
        return None
    return _allocator()


def this_node() -> Node:
    """The ranks of this node of all that MPI started, in their order. The first call is collective."""
    return _allocator().node


@cache
def _allocator() -> SharedAllocator:
    mpi = library.start()
    return SharedAllocator(Node(mpi.COMM_WORLD.Split_type(mpi.COMM_TYPE_SHARED)))
