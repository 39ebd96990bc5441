"""Allocating the memory of one domain: bound to the domain's nodes, in large pages, and first touched
by a helper thread in the domain."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from demitasse import (
    LARGE_PAGE,
    CompositionError,
    DescriptionError,
    HostMemory,
    KernelFiles,
    PlanError,
    option_place,
    unknown,
)
from demitasse_numa import pages
from demitasse_numa.binding import bound, domain_here, from_within
from demitasse_numa.topology import NODES, Domain, Topology

OPTIONS = ("first", "large_pages", "library")
FIRST = ("ddr", "hbm")
POPULATE_WRITE = 23
"""madvise's MADV_POPULATE_WRITE (Linux 5.14), which touches pages, and returns an error where a write
would end the process."""


class DomainMemory(HostMemory):
    """A zeroed block. It is aligned to 2 MiB if it has at least that size, else to a page. All of its
    pages are allocated at the first ``view``, so that finding out whether a net fits costs no time.
    ``parts`` are the (bytes, node) that make up the block, in order."""

    def __init__(
        self, nbytes: int, domain: Domain, parts: Sequence[tuple[int, int]], large: bool
    ) -> None:
        self.domain, self.parts = domain, tuple(parts)
        self._lock, self._placed = threading.Lock(), False
        alignment = LARGE_PAGE if nbytes >= LARGE_PAGE and large else pages.PAGE
        whole = -(-nbytes // pages.PAGE) * pages.PAGE
        # Private, not shared: shared anonymous memory has no transparent large pages.
        block = mmap.mmap(-1, whole + alignment, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        raw = np.frombuffer(block, np.uint8)
        first = -raw.ctypes.data % alignment
        super().__init__(raw[first : first + nbytes])
        address = raw.ctypes.data + first
        for size, node in self.parts:
            pages.bind(address, size, [node])
            address += size
        if alignment == LARGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
            # A system built without large pages refuses: the block then has small ones.
            with suppress(OSError):
                block.madvise(mmap.MADV_HUGEPAGE, first // pages.PAGE * pages.PAGE, nbytes)
        self._mapping: mmap.mmap | None = block
        self._first, self._whole = first, whole

    def view(self, offset: int, shape: Sequence[int], dtype: str) -> Any:
        """Return an array over a part of the block; ``offset`` is in bytes. Raises ValueError if the
        part does not lie inside the block, or if the block was closed."""
        seen = super().view(offset, shape, dtype)
        with self._lock:
            if not self._placed:
                from_within(self.domain, self._touch)
                self._placed = True
        return seen

    def _touch(self) -> None:
        block, mapping = self._block, self._mapping
        if block is None or mapping is None:
            return
        try:
            mapping.madvise(POPULATE_WRITE, self._first, self._whole)
        except OSError:
            # An older system: a write to each page does the same.
            block[:: pages.PAGE] = 0

    def close(self) -> None:
        """Free the block. The system gets it back when the last view is gone."""
        super().close()
        self._mapping = None


class DomainAllocator:
    """Allocates blocks of one domain's memory, and counts all blocks and bytes that it ever allocated.
    ``first`` is ``hbm`` to use the domain's high-bandwidth memory before its other memory (section
    5.1.1)."""

    def __init__(
        self,
        space: str,
        domain: Domain,
        first: str = "ddr",
        large_pages: bool = True,
        files: KernelFiles | None = None,
    ) -> None:
        self.space, self.domain, self.first, self.large_pages = space, domain, first, large_pages
        self.allocations = 0
        self.bytes = 0
        self._files = files or KernelFiles(Path("/"))

    def enter(self) -> Callable[[], None]:
        """Bind the calling thread to the domain. Each thread that computes with this memory calls it
        first. Returns a function that gives the thread its processors back."""
        return bound(self.domain)

    def allocate(self, nbytes: int) -> DomainMemory:
        """Return a new zeroed block. If the domain's nodes have too little memory, raises MemoryError
        with the requested bytes and those free in each node, before any memory is used: a system that
        runs out of memory in a node ends the process."""
        try:
            memory = DomainMemory(nbytes, self.domain, self._parts(nbytes), self.large_pages)
        except (OSError, OverflowError) as error:
            raise MemoryError(
                f"{self.domain}: asked for {nbytes:,} bytes, but the system refuses: {error}"
            ) from error
        self.allocations += 1
        self.bytes += nbytes
        return memory

    def _parts(self, nbytes: int) -> list[tuple[int, int]]:
        """Return the (bytes, node) of a block's parts, in whole pages. A part that is continued in the
        next node ends at a large page."""
        fast = self.domain.fast if self.first == "hbm" else ()
        parts: list[tuple[int, int]] = []
        needed = -(-nbytes // pages.PAGE) * pages.PAGE
        room: list[str] = []
        for node in (*fast, *self.domain.memory):
            free = self.free(node)
            room.append(f"node {node} has {'an unknown amount' if free is None else f'{free:,}'} free")
            size = needed if free is None else min(needed, free // LARGE_PAGE * LARGE_PAGE)
            if free is not None and free >= needed:
                size = needed
            if size:
                parts.append((size, node))
                needed -= size
            if not needed:
                return parts
        raise MemoryError(
            f"{self.domain} is full: asked for {nbytes:,} bytes; {', '.join(room)}; use a smaller "
            f"batch, or fewer domains with more memory each"
        )

    def free(self, node: int) -> int | None:
        """Return the bytes that a node could provide without swapping: unused memory and that of cached
        files. None if the system does not tell."""
        path = f"{NODES}/node{node}/meminfo"
        counts = [self._files.size(path, key) for key in ("MemFree", "Inactive(file)", "SReclaimable")]
        if counts[0] is None:
            return self._files.size("proc/meminfo", "MemAvailable")
        return sum(count for count in counts if count)


def allocate_space(
    space: str, options: Mapping[str, Any], machine: Topology | None = None
) -> DomainAllocator | None:
    """Return the allocator of ``numa:N``, or of ``numa``, the domain that the caller runs in; None for
    other spaces. Raises CompositionError for a domain that does not exist, or for high-bandwidth memory
    that a domain does not have; DescriptionError for an unknown option, PlanError if memory cannot be
    placed."""
    kind, _, number = space.partition(":")
    if kind != "numa":
        return None
    first, large = checked(options)
    if machine is None:
        from demitasse_numa.machine import this_machine

        machine = this_machine(str(options.get("library", "auto")))
    if number and not number.isdigit():
        valid = ", ".join(f"numa:{each.index}" for each in (*machine.domains, *machine.others))
        raise CompositionError(f"space {space!r} (valid: numa, {valid})")
    domain = machine.domain(int(number)) if number else domain_here(machine.domains)
    reason = pages.why_not()
    if reason is not None:
        raise PlanError(f"space {space!r}: {reason}; use the space 'host'")
    if first == "hbm" and not domain.fast:
        raise CompositionError(
            f"space {space!r}: options.numa asks for high-bandwidth memory first, but {domain} has none"
        )
    return DomainAllocator(f"numa:{domain.index}", domain, first, large)


def checked(options: Mapping[str, Any]) -> tuple[str, bool]:
    """Return ``first`` and ``large_pages`` of options.numa. Raises DescriptionError for unknown options
    and invalid values."""
    for key in options:
        if key not in OPTIONS:
            where = option_place(options, "numa", key)
            raise DescriptionError(unknown("option", key, OPTIONS, where))
    first, large = options.get("first", "ddr"), options.get("large_pages", True)
    if first not in FIRST:
        where = option_place(options, "numa", "first")
        raise DescriptionError(unknown("first", str(first), FIRST, where))
    if not isinstance(large, bool):
        where = option_place(options, "numa", "large_pages")
        raise DescriptionError(f"{where}: large_pages = {large!r} (valid: true, false)")
    return str(first), large
