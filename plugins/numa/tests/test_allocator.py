"""Memory of a domain: where it is, how it is counted, and the error if there is none left."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from demitasse import CompositionError, DescriptionError, KernelFiles
from demitasse_numa import pages
from demitasse_numa.allocator import DomainAllocator, allocate_space
from demitasse_numa.binding import bind_thread, domain_here, from_within
from demitasse_numa.machine import this_machine
from demitasse_numa.topology import Domain, topology

Make = Callable[..., Path]
placed = pytest.mark.skipif(not pages.available(), reason=str(pages.why_not()))
MIB = 2**20


@placed
@pytest.mark.parametrize("nbytes", [1, 4096, 100_000, 2 * MIB, 5 * MIB + 3])
def test_a_block_is_zero_aligned_and_lies_in_its_domain(nbytes: int) -> None:
    allocator = allocate_space("numa:0", {})
    block = allocator.allocate(nbytes)
    view = block.view(0, (nbytes,), "uint8")
    assert not view.any()
    assert view.ctypes.data % (2 * MIB if nbytes >= 2 * MIB else 4096) == 0
    node = this_machine().domains[0].memory[0]
    assert set(pages.nodes_of(view)) == {node}
    assert (allocator.space, allocator.allocations, allocator.bytes) == ("numa:0", 1, nbytes)


@placed
def test_a_block_takes_no_memory_until_it_is_viewed() -> None:
    block = DomainAllocator("numa:0", this_machine().domains[0]).allocate(64 * MIB)
    raw = np.frombuffer(block._mapping, np.uint8)
    assert set(pages.nodes_of(raw)) == {-1}
    block.view(0, (4,), "float32")
    assert pages.nodes_of(raw)[this_machine().domains[0].memory[0]] >= 64 * MIB // pages.PAGE


@placed
def test_views_share_the_block_and_end_with_it() -> None:
    block = allocate_space("numa", {}).allocate(4096)
    block.view(128, (4, 5), "float32")[...] = 2
    assert block.view(128, (20,), "float32").sum() == 40
    with pytest.raises(ValueError, match="do not fit in a block"):
        block.view(4092, (2,), "float32")
    block.close()
    block.close()
    with pytest.raises(ValueError, match="closed"):
        block.view(0, (1,), "float32")


def four(machine: Make, free: list[int]) -> tuple[list[Domain], KernelFiles]:
    """Two domains that each have high-bandwidth memory, with the given MiB free."""
    path = "sys/devices/system/node/node{}/{}"
    about = {path.format(i, "access0/initiators/read_bandwidth"): "100" for i in (0, 1)}
    about |= {path.format(i, "access0/initiators/read_bandwidth"): "400" for i in (2, 3)}
    about |= {
        path.format(i, "meminfo"): f"Node {i} MemTotal: 2097152 kB\nNode {i} MemFree: {m * 1024} kB\n"
        f"Node {i} Inactive(file): 1024 kB"
        for i, m in enumerate(free)
    }
    distances = [[10, 20, 15, 25], [20, 10, 25, 15], [15, 25, 10, 20], [25, 15, 20, 10]]
    root = machine(["0", "1", "", ""], distances=distances, more=about)
    return list(topology(root).domains), KernelFiles(root)


def test_high_bandwidth_memory_is_taken_first_then_the_other(machine: Make) -> None:
    (_, second), files = four(machine, [1000, 1000, 500, 99])
    allocator = DomainAllocator("numa:1", second, first="hbm", files=files)
    assert allocator._parts(40 * MIB) == [(40 * MIB, 3)]
    assert allocator._parts(150 * MIB) == [(100 * MIB, 3), (50 * MIB, 1)]
    plain = DomainAllocator("numa:1", second, files=files)
    assert plain._parts(150 * MIB) == [(150 * MIB, 1)]


def test_a_full_domain_names_its_nodes_and_what_they_have(machine: Make) -> None:
    (first, _), files = four(machine, [9, 1000, 19, 1000])
    allocator = DomainAllocator("numa:0", first, first="hbm", files=files)
    with pytest.raises(MemoryError) as caught:
        allocator.allocate(64 * MIB)
    text = str(caught.value)
    assert "numa:0 (node 0 of the system) is full: asked for 67,108,864 bytes" in text
    assert f"node 2 has {20 * MIB:,} free, node 0 has {10 * MIB:,} free" in text
    assert (allocator.allocations, allocator.bytes) == (0, 0)


@placed
def test_more_than_there_is_is_refused_before_it_is_taken() -> None:
    with pytest.raises(MemoryError, match="is full: asked for 1,000,000,000,000,000 bytes"):
        allocate_space("numa:0", {}).allocate(10**15)


def test_spaces_and_options_that_are_none_are_named(machine: Make) -> None:
    found = topology(machine(["0", "1"]))
    assert allocate_space("host", {}) is None
    with pytest.raises(CompositionError, match="numa:7"):
        allocate_space("numa:7", {}, found)
    with pytest.raises(CompositionError, match=r"'numa:one' \(valid: numa, numa:0, numa:1\)"):
        allocate_space("numa:one", {}, found)
    with pytest.raises(DescriptionError, match=r"unknown option 'frist'.*did you mean 'first'"):
        allocate_space("numa:0", {"frist": "hbm"}, found)
    with pytest.raises(DescriptionError, match=r"unknown first 'hmb'.*did you mean 'hbm'"):
        allocate_space("numa:0", {"first": "hmb"}, found)
    with pytest.raises(DescriptionError, match="large_pages = 1"):
        allocate_space("numa:0", {"large_pages": 1}, found)
    with pytest.raises(DescriptionError, match=r"unknown library"):
        allocate_space("numa:0", {"library": "hwlok"})


@placed
def test_fast_memory_that_is_not_there_is_refused(machine: Make) -> None:
    with pytest.raises(CompositionError, match=r"numa:0 .* has none"):
        allocate_space("numa:0", {"first": "hbm"}, topology(machine(["0"])))


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system cannot bind threads")
def test_a_helper_is_bound_and_its_caller_is_not() -> None:
    before = os.sched_getaffinity(0)
    one = Domain(0, 0, frozenset([min(before)]), frozenset(), (0,))
    other = Domain(1, 1, frozenset([max(before)]), frozenset(), (1,))
    assert from_within(one, lambda: os.sched_getaffinity(0)) == {min(before)}
    if len(before) > 1:
        assert from_within(other, lambda: domain_here((one, other))) == other
    assert os.sched_getaffinity(0) == before
    with pytest.raises(ZeroDivisionError):
        from_within(one, lambda: 1 // 0)


def test_threads_that_a_bound_thread_starts_are_bound_too() -> None:
    import threading

    before = os.sched_getaffinity(0)
    one = Domain(0, 0, frozenset([min(before)]), frozenset(), (0,))
    seen: list[set[int]] = []

    def compute() -> None:
        bind_thread(one)
        inner = threading.Thread(target=lambda: seen.append(os.sched_getaffinity(0)))
        inner.start()
        inner.join()

    outer = threading.Thread(target=compute)
    outer.start()
    outer.join()
    assert seen == [{min(before)}]
