"""Checks of allocators, and of the arrays over their memory."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np

from demitasse_conformance.promises import hold

if TYPE_CHECKING:
    from demitasse import Allocator

SIZES = (1, 64, 1000, 4096, 100_000)
REAL, WHOLE = ("float32", "float64"), ("int32", "uint16", "int64", "uint8")
"""Element types of arrays; whole numbers are only moved."""


def check_allocator(allocator: Allocator, too_many: int = 1 << 60) -> None:
    """Check that an allocator follows its protocol. Blocks must be as large as requested, zero (used
    ones too), aligned to 64 bytes if the host addresses them, and separate. Views of a block must share
    its memory. Allocations must be counted. A request for ``too_many`` bytes must raise a MemoryError
    that says so. Arrays must do what a runtime asks of an accelerator's arrays. Raises
    BrokenPromiseError."""
    counted = allocator.allocations, allocator.bytes
    with contextlib.ExitStack() as stack:

        def given(nbytes: int) -> Any:
            block = allocator.allocate(nbytes)
            stack.callback(block.close)
            hold(block.nbytes >= nbytes, f"{nbytes} bytes were asked for, but {block.nbytes} given")
            return block

        arrays = []
        for number, nbytes in enumerate(SIZES, 1):
            block = given(nbytes)
            array = block.view(0, (nbytes,), "uint8")
            hold(not np.asarray(array).any(), f"a new block of {nbytes} bytes is not zero")
            near = not isinstance(array, np.ndarray) or array.ctypes.data % 64 == 0
            hold(near, f"a block of {nbytes} bytes is not aligned to 64")
            array[...] = number
            same = (np.asarray(block.view(0, (nbytes,), "uint8")) == number).all()
            hold(same, "two views of a block do not share its memory")
            arrays.append(array)
        for number, (nbytes, array) in enumerate(zip(SIZES, arrays, strict=True), 1):
            kept = (np.asarray(array) == number).all()
            hold(kept, f"writing to another block has changed one of {nbytes} bytes")
    with contextlib.ExitStack() as stack:
        for nbytes in SIZES:
            again = np.asarray(given(nbytes).view(0, (nbytes,), "uint8"))
            hold(not again.any(), f"a block of {nbytes} bytes that was used before is not zero")
        blocks, size = 2 * len(SIZES), 2 * sum(SIZES)
        told = allocator.allocations - counted[0], allocator.bytes - counted[1]
        hold(told[0] >= blocks, f"{blocks} blocks were given, but {told[0]} counted")
        hold(told[1] >= size, f"at least {size} bytes were given, but {told[1]} counted")
        for dtype in REAL:
            _check_arrays(given(4096), dtype)
        for dtype in WHOLE:
            expected = np.arange(24, dtype=dtype).reshape(4, 6)
            array = given(4096).view(64, (4, 6), dtype)
            array[...] = expected
            _same(array.copy(), expected, f"after {dtype} was assigned and copied")
    try:
        allocator.allocate(too_many)
    except MemoryError as error:
        hold(str(error), "the MemoryError does not say what was asked for")
    else:
        hold(False, f"{too_many} bytes were given; more than there is must raise MemoryError")


def _check_arrays(block: Any, dtype: str) -> None:
    """Check that arrays over a block, the host's or not, do what a runtime asks of them."""
    expected = np.arange(24, dtype=dtype).reshape(4, 6)
    array, other = block.view(64, (4, 6), dtype), block.view(2048, (4, 6), dtype)
    about = tuple(array.shape), np.dtype(array.dtype), array.size, array.nbytes
    hold(
        about == ((4, 6), np.dtype(dtype), 24, expected.nbytes),
        f"shape, dtype, size and nbytes of {dtype} 4 x 6 are {about}",
    )
    given = expected.copy()
    array[...] = given
    given[...] = -1  # the source may change as soon as it was assigned
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
    hold(
        np.asarray(array.view("uint8")).tobytes() == expected.tobytes(), "view('uint8') has other bytes"
    )
    expected.reshape(-1)[2:4] = 50, 60
    expected.reshape(3, 8)[1:2] = 9
    _same(kept, expected, "after parts were assigned and it was copied")
    array[...] = kept
    _same(array, expected, "after another array of its kind was assigned")


def _same(array: Any, expected: np.ndarray, when: str) -> None:
    found = np.asarray(array)
    hold(
        np.array_equal(found, expected),
        f"{when}, an array is {found.tolist()}, not {expected.tolist()}",
    )
