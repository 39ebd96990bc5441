"""Allocators, and the arrays over their memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from demitasse_conformance.promises import hold

if TYPE_CHECKING:
    from demitasse import Allocator

SIZES = (1, 64, 100_000)


def check_allocator(allocator: Allocator, too_many: int = 1 << 60) -> None:
    """Hold an allocator to its protocol: blocks are as large as asked for, zero, and aligned to 64 bytes
    where the host addresses them; views are of one memory; what is given is counted; ``too_many`` bytes
    are refused by a MemoryError that says so; and arrays do what a runtime asks of an accelerator's.
    Raises BrokenPromiseError."""
    counted = allocator.allocations, allocator.bytes
    for nbytes in SIZES:
        block = allocator.allocate(nbytes)
        hold(block.nbytes >= nbytes, f"{nbytes} bytes were asked for, {block.nbytes} given")
        array = block.view(0, (nbytes,), "uint8")
        hold(not np.asarray(array).any(), "a new block is not zero")
        near = not isinstance(array, np.ndarray) or array.ctypes.data % 64 == 0
        hold(near, "a block is not aligned to 64 bytes")
        array[...] = 7
        same = (np.asarray(block.view(0, (nbytes,), "uint8")) == 7).all()
        hold(same, "two views of a block are not of one memory")
        block.close()
    again = allocator.allocate(SIZES[-1])
    hold(not np.asarray(again.view(0, SIZES[-1:], "uint8")).any(), "a block that was used is not zero")
    again.close()
    given = allocator.allocations - counted[0]
    hold(given >= len(SIZES) + 1, f"{len(SIZES) + 1} blocks were given, {given} counted")
    more = allocator.bytes - counted[1]
    hold(more >= sum(SIZES), f"{sum(SIZES)} bytes and more were given, {more} counted")
    for dtype in ("float32", "float64"):
        block = allocator.allocate(4096)
        _check_arrays(block, dtype)
        block.close()
    try:
        allocator.allocate(too_many)
    except MemoryError as error:
        hold(str(error), "the MemoryError does not say what was asked for")
    else:
        hold(False, f"{too_many} bytes were given; a MemoryError refuses what there is not")


def _check_arrays(block: Any, dtype: str) -> None:
    """Hold arrays over a block to what a runtime asks of them, whoever can look inside."""
    expected = np.arange(24, dtype=dtype).reshape(4, 6)
    array, other = block.view(64, (4, 6), dtype), block.view(2048, (4, 6), dtype)
    about = tuple(array.shape), np.dtype(array.dtype), array.size, array.nbytes
    hold(
        about == ((4, 6), np.dtype(dtype), 24, expected.nbytes),
        f"shape, dtype, size and nbytes of {dtype} 4 x 6 are {about}",
    )
    given = expected.copy()
    array[...] = given
    given[...] = -1  # what was assigned may change at once
    other[...] = 0.5
    other[1:3] = array[1:3]
    other += array
    array.reshape(-1)[2:4] = np.array([50, 60])
    array.reshape(3, 8)[1:2] = 9
    kept = array.copy()
    array[...] = expected
    hold(
        type(kept) is type(array),
        f"copy() gave a {type(kept).__name__}, and is to be a {type(array).__name__} where that is",
    )
    twice = np.full((4, 6), 0.5, dtype)
    twice[1:3] = expected[1:3]
    _same(other, twice + expected, "after slices were assigned and an array added")
    total = expected.sum()
    hold(float(array.sum()) == total, f"the sum of 0 to 23 is {float(array.sum())}")
    hold(np.asarray(array.view("uint8")).tobytes() == expected.tobytes(), "view('uint8') is otherwise")
    expected.reshape(-1)[2:4] = 50, 60
    expected.reshape(3, 8)[1:2] = 9
    _same(kept, expected, "after parts were assigned and it was copied")
    array[...] = kept
    _same(array, expected, "after another such array was assigned")


def _same(array: Any, expected: np.ndarray, when: str) -> None:
    found = np.asarray(array)
    hold(
        np.array_equal(found, expected),
        f"{when}, an array is {found.tolist()}, not {expected.tolist()}",
    )
