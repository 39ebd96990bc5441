"""Host memory is zeroed, aligned and counted, and reports truthfully how much there is."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from demitasse import LARGE_PAGE, available_bytes
from demitasse_cpu.allocator import PagesAllocator


@pytest.mark.parametrize("nbytes", [0, 1, 64, 5000, LARGE_PAGE - 1, LARGE_PAGE, 3 * LARGE_PAGE + 8])
def test_a_block_is_zero_and_aligned(nbytes: int) -> None:
    memory = PagesAllocator().allocate(nbytes)
    view = memory.view(0, (nbytes,), "uint8")
    assert not view.any()
    assert memory.nbytes == nbytes
    if nbytes:
        assert view.ctypes.data % (LARGE_PAGE if nbytes >= LARGE_PAGE else 64) == 0


def test_views_share_the_block() -> None:
    memory = PagesAllocator().allocate(256)
    whole = memory.view(0, (32,), "float64")
    part = memory.view(64, (2, 3), "float64")
    part[...] = [[1, 2, 3], [4, 5, 6]]
    assert np.array_equal(whole[8:14], [1, 2, 3, 4, 5, 6])


def test_a_view_outlives_a_closed_block() -> None:
    memory = PagesAllocator().allocate(LARGE_PAGE)
    view = memory.view(0, (4,), "float32")
    memory.close()
    gc.collect()
    view[:] = 3
    assert view.sum() == 12
    with pytest.raises(ValueError, match="closed"):
        memory.view(0, (1,), "uint8")


@pytest.mark.parametrize(("offset", "count"), [(-8, 1), (0, 9), (64, 1)])
def test_a_view_beyond_the_block_is_refused(offset: int, count: int) -> None:
    memory = PagesAllocator().allocate(64)
    with pytest.raises(ValueError, match="do not fit in a block of 64"):
        memory.view(offset, (count,), "float64")


def test_all_that_was_given_is_counted() -> None:
    allocator = PagesAllocator()
    for nbytes in (100, 200):
        allocator.allocate(nbytes).close()
    assert (allocator.allocations, allocator.bytes) == (2, 300)


def test_more_than_there_is_is_refused_with_both_numbers() -> None:
    allocator = PagesAllocator()
    with pytest.raises(MemoryError, match=r"asked for 1,152,921,504,606,846,976 bytes, available: \d"):
        allocator.allocate(2**60)
    assert allocator.allocations == 0


def test_available_memory_is_known_here() -> None:
    available = available_bytes()
    assert available is None or available > 2**20


LIMITED = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31))
from demitasse import address_space, available_bytes
from demitasse_cpu.allocator import PagesAllocator
limit, taken = address_space()
assert limit == 2**31 and 0 < taken < limit
assert 0 < available_bytes() <= limit - taken
try:
    PagesAllocator().allocate(2**31)
except MemoryError as error:
    print(error)
"""


@pytest.mark.skipif(not Path("/proc/self/limits").exists(), reason="this system tells no limits")
def test_what_a_limit_takes_is_not_available() -> None:
    """Otherwise more memory would be reported than a failed allocation requested."""
    told = subprocess.run(
        [sys.executable, "-c", LIMITED], capture_output=True, text=True, timeout=60, check=False
    )
    match = re.match(r"host memory: asked for 2,147,483,648 bytes, available: ([\d,]+); ", told.stdout)
    assert match, told.stderr
    assert int(match[1].replace(",", "")) < 2**31
