"""Host memory from NumPy, aligned to cache lines."""

from __future__ import annotations

from demitasse import HostAllocator


class PlainAllocator(HostAllocator):
    """Gives blocks of host memory; errors that are about it name this plugin."""
