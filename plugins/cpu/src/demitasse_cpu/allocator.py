"""Host memory straight from the operating system: zeroed, and in large pages where that pays."""

from __future__ import annotations

from demitasse import HostAllocator, in_pages


class PagesAllocator(HostAllocator):
    """Allocates host memory in pages. Errors about that memory name this plugin."""

    def __init__(self) -> None:
        super().__init__(in_pages)
