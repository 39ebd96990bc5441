"""The ranks of one node: memory that all of them map, and sums in it without a message."""

from demitasse_allreduce.node.allocator import SharedAllocator, SharedMemory
from demitasse_allreduce.node.engine import Node, NodeWork

__all__ = ["Node", "NodeWork", "SharedAllocator", "SharedMemory"]
