"""Host memory is zeroed, aligned, bounded and counted."""

from __future__ import annotations

import numpy as np
import pytest

from demitasse_reference import plugin


def test_only_the_host_is_served() -> None:
    assert plugin.allocator("gpu:0", {}) is None
    allocator = plugin.allocator("host", {})
    assert allocator is not None
    assert allocator.space == "host"


@pytest.mark.parametrize("nbytes", [1, 63, 64, 1000, 1 << 20])
def test_blocks_are_zero_and_aligned_to_cache_lines(nbytes: int) -> None:
    allocator = plugin.allocator("host", {})
    assert allocator is not None
    memory = allocator.allocate(nbytes)
    view = memory.view(0, (nbytes,), "uint8")
    assert memory.nbytes == view.nbytes == nbytes
    assert not view.any()
    assert view.ctypes.data % 64 == 0


def test_a_plan_may_need_no_memory() -> None:
    allocator = plugin.allocator("host", {})
    assert allocator is not None
    assert allocator.allocate(0).view(0, (0,), "float32").size == 0


def test_views_share_the_block() -> None:
    allocator = plugin.allocator("host", {})
    assert allocator is not None
    memory = allocator.allocate(256)
    memory.view(64, (2, 3), "float32")[...] = [[1, 2, 3], [4, 5, 6]]
    assert memory.view(64, (6,), "float32").tolist() == [1, 2, 3, 4, 5, 6]
    assert memory.view(64 + 4 * 5, (), "float32") == 6
    assert not memory.view(0, (64,), "uint8").any()
    assert not memory.view(88, (168,), "uint8").any()


def test_a_view_beyond_the_block_is_refused() -> None:
    allocator = plugin.allocator("host", {})
    assert allocator is not None
    memory = allocator.allocate(64)
    with pytest.raises(ValueError, match="128 bytes at 0 do not fit in a block of 64"):
        memory.view(0, (16,), "float64")
    with pytest.raises(ValueError, match="do not fit"):
        memory.view(-8, (1,), "float64")


def test_a_closed_block_gives_no_views() -> None:
    allocator = plugin.allocator("host", {})
    assert allocator is not None
    memory = allocator.allocate(64)
    view = memory.view(0, (16,), "float32")
    memory.close()
    assert np.array_equal(view, np.zeros(16))
    with pytest.raises(ValueError, match="closed"):
        memory.view(0, (1,), "float32")


def test_the_allocator_counts_what_it_gave() -> None:
    allocator = plugin.allocator("host", {})
    assert allocator is not None
    assert (allocator.allocations, allocator.bytes) == (0, 0)
    allocator.allocate(100)
    allocator.allocate(28).close()
    assert (allocator.allocations, allocator.bytes) == (2, 128)


def test_too_much_memory_is_refused_in_numbers() -> None:
    allocator = plugin.allocator("host", {})
    assert allocator is not None
    with pytest.raises(
        MemoryError, match=r"asked for 4,611,686,018,427,387,904 bytes, available: [\d,]+; "
    ):
        allocator.allocate(1 << 62)
    assert (allocator.allocations, allocator.bytes) == (0, 0)
