"""The ranks of one node: memory that all of them map, and sums in it without a message."""

from demitasse_allreduce.node.allocator import SharedAllocator, SharedMemory
from demitasse_allreduce.node.engine import Node
from demitasse_allreduce.node.work import NodeWork

__all__ = ["Node", "NodeWork", "SharedAllocator", "SharedMemory"]
