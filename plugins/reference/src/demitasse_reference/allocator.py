"""Host memory from NumPy, aligned to cache lines."""

from __future__ import annotations

from demitasse import HostAllocator


class PlainAllocator(HostAllocator):
    """Allocates blocks of host memory; errors about it name this plugin."""
