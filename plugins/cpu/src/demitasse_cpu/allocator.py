"""Host memory straight from the system: zeroed, and in large pages where that pays."""

from __future__ import annotations

from demitasse import HostAllocator, in_pages


class PagesAllocator(HostAllocator):
    """Gives blocks of host memory in pages; errors that are about it name this plugin."""

    def __init__(self) -> None:
        super().__init__(in_pages)
