"""Host memory as plans need it: zeroed, aligned, accessed through views that stay inside."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demitasse import HostAllocator, HostMemory, available_bytes, host_array, zeroed


@given(st.integers(0, 5000), st.sampled_from([1, 64, 128, 4096]))
def test_zeroed_bytes_begin_where_they_are_wanted(nbytes: int, alignment: int) -> None:
    block = zeroed(nbytes, alignment)
    assert (block.dtype, block.shape) == (np.uint8, (nbytes,))
    assert not block.any()
    assert nbytes == 0 or block.ctypes.data % alignment == 0


def test_views_of_one_place_are_of_one_memory() -> None:
    memory = HostMemory(zeroed(64))
    memory.view(8, (2, 3), "float32")[1, 2] = 7
    assert memory.view(8 + 5 * 4, (), "float32") == 7
    assert memory.nbytes == 64


@pytest.mark.parametrize(("offset", "shape"), [(-4, (1,)), (60, (2,)), (0, (17,))])
def test_a_part_that_does_not_lie_in_the_block_is_refused(offset: int, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=rf"bytes at {offset} do not fit in a block of 64"):
        HostMemory(zeroed(64)).view(offset, shape, "float32")


def test_closed_memory_gives_no_more_views_but_those_that_are_there_live_on() -> None:
    memory = HostMemory(zeroed(64))
    seen = memory.view(0, (16,), "float32")
    memory.close()
    seen[...] = 1
    with pytest.raises(ValueError, match="the memory was closed"):
        memory.view(0, (1,), "float32")


def test_a_host_has_memory_to_give() -> None:
    available = available_bytes()
    assert available is None or available > 2**20


class Shared:
    """An array of another library that supports only DLPack."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **given: Any) -> Any:
        return self.array.__dlpack__(**given)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


def test_an_array_that_has_dlpack_alone_is_used_where_it_lies() -> None:
    array = np.arange(6.0).reshape(2, 3)
    given = host_array(Shared(array))
    assert np.shares_memory(given, array)
    assert given.tolist() == array.tolist()


@pytest.mark.parametrize(
    ("made", "why"), [(RuntimeError("on a\ndevice"), "on a device"), (KeyError(), "KeyError")]
)
def test_what_gives_no_array_is_an_error_of_one_line(made: Exception, why: str) -> None:
    class Elsewhere:
        def __array__(self, *given: Any, **more: Any) -> Any:
            raise made

    with pytest.raises(ValueError, match=f"^{why}$"):
        host_array(Elsewhere())


@pytest.mark.parametrize("nbytes", [16, 2**20])
def test_a_block_that_the_system_does_not_give_is_told_with_what_is_available(nbytes: int) -> None:
    def refused(nbytes: int) -> Any:
        raise OSError("no memory")

    allocator = HostAllocator(refused)
    with pytest.raises(MemoryError, match=rf"asked for {nbytes:,} bytes, available: ([\d,]+|unknown);"):
        allocator.allocate(nbytes)
    assert allocator.allocations == allocator.bytes == 0
