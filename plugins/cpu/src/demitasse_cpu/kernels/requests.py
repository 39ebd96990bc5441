"""What the factories of all families ask about a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from demitasse import Request, TensorSpec
from demitasse_cpu.native import openmp

REALS = ("float32", "float64")
LINE = 64


def spec(operand: TensorSpec | None) -> TensorSpec:
    """Return an operand that the operation always has."""
    assert operand is not None
    return operand


def is_real(*operands: TensorSpec | None) -> bool:
    """Return whether all operands that are present have the same type of real numbers."""
    kinds = {operand.dtype for operand in operands if operand is not None}
    return len(kinds) == 1 and kinds <= set(REALS)


def parts_for(request: Request, units: int, work: float) -> int:
    """Return into how many parts to divide ``units`` of equal work. Work is measured in elements moved,
    or in 64 flop. Handing a part to OpenMP's team takes 1.2 us, in which 20,000 elements are moved in a
    near cache and fewer in a far one; handing it to a Python thread takes 20 us."""
    worth = int(work / (12_000 if openmp() is not None else 50_000))
    return max(1, min(request.place.threads, units, worth))


def pair(numbers: Sequence[int]) -> tuple[int, int]:
    """Return a pair of (rows, columns) as integers, the type for which loops are compiled."""
    rows, columns = numbers
    return int(rows), int(columns)


def flat(array: Any) -> Any:
    """Return a buffer as one row of numbers, without a copy."""
    assert array.flags.c_contiguous
    return array.reshape(-1)


def rows_along(shape: Sequence[int], axis: int) -> tuple[int, int, int]:
    """Return the number of predictions that a shape has along an axis, the number of classes of each,
    and the distance between these in memory."""
    inner = prod(shape[axis + 1 :])
    return prod(shape[:axis]) * inner, shape[axis], inner


_ROWS = 64

ROOM_OF_ROWS = 2 * 8 * _ROWS
"""The bytes of workspace that ``rows_together`` uses."""


def rows_together(workspace: Any, dtype: Any) -> tuple[Any, Any]:
    """Return a number of ``dtype`` and a float64 sum for each prediction that a loop takes at a time.
    These predictions are side by side, so that the numbers of a class form one vector."""
    numbers, sums = workspace[: ROOM_OF_ROWS // 2], workspace[ROOM_OF_ROWS // 2 : ROOM_OF_ROWS]
    return numbers.view(dtype)[:_ROWS], sums.view("float64")


def philox_key(attributes: Mapping[str, Any]) -> Any:
    """Return the two words, for 64-bit arithmetic, of an operation's key; see demitasse's random
    numbers."""
    import numpy as np

    seed, stream, low = int(attributes["seed"]), int(attributes["stream"]), 2**32 - 1
    return np.array([seed & low, ((seed >> 32) + stream * 0x9E3779B9) & low], np.uint64)


def aligned(nbytes: int) -> int:
    """Return a number of bytes rounded up to whole cache lines."""
    return -(-nbytes // LINE) * LINE


def cut(workspace: Any, dtype: Any, *sizes: int) -> list[Any]:
    """Return consecutive pieces of the workspace with ``sizes`` in bytes, each on cache lines of its
    own."""
    pieces, at = [], 0
    for size in sizes:
        pieces.append(workspace[at : at + size].view(dtype))
        at += aligned(size)
    return pieces
