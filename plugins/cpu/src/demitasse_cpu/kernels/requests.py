"""What the factories of all families ask of a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from demitasse import Request, TensorSpec
from demitasse_cpu.native import openmp

REALS = ("float32", "float64")
LINE = 64


def spec(operand: TensorSpec | None) -> TensorSpec:
    """An operand that the operation always has."""
    assert operand is not None
    return operand


def is_real(*operands: TensorSpec | None) -> bool:
    """Whether all of the operands that are there have one type of real numbers."""
    kinds = {operand.dtype for operand in operands if operand is not None}
    return len(kinds) == 1 and kinds <= set(REALS)


def parts_for(request: Request, units: int, work: float) -> int:
    """In how many parts to do ``units`` of equal work, measured in elements moved, or 64 flop. OpenMP's
    team takes a part over in 1.2 us, which moves 20,000 elements in a near cache and fewer in a far
    one; threads of Python's take 20 us."""
    worth = int(work / (12_000 if openmp() is not None else 50_000))
    return max(1, min(request.place.threads, units, worth))


def pair(numbers: Sequence[int]) -> tuple[int, int]:
    """What is told of rows and of columns, as loops are compiled for it."""
    rows, columns = numbers
    return int(rows), int(columns)


def flat(array: Any) -> Any:
    """A buffer as one row of numbers, without a copy."""
    assert array.flags.c_contiguous
    return array.reshape(-1)


def rows_along(shape: Sequence[int], axis: int) -> tuple[int, int, int]:
    """How many predictions a shape makes along an axis, how many classes each has, and how far
    apart those lie."""
    inner = prod(shape[axis + 1 :])
    return prod(shape[:axis]) * inner, shape[axis], inner


_ROWS = 64

ROOM_OF_ROWS = 2 * 8 * _ROWS
"""Bytes of workspace that ``rows_together`` takes."""


def rows_together(workspace: Any, dtype: Any) -> tuple[Any, Any]:
    """A number of ``dtype`` and a float64 sum for each of the predictions that a loop takes together,
    which lie side by side, so that all numbers of a class are one vector."""
    numbers, sums = workspace[: ROOM_OF_ROWS // 2], workspace[ROOM_OF_ROWS // 2 : ROOM_OF_ROWS]
    return numbers.view(dtype)[:_ROWS], sums.view("float64")


def philox_key(attributes: Mapping[str, Any]) -> Any:
    """The two words, for 64-bit arithmetic, of an operation's key; see demitasse's random numbers."""
    import numpy as np

    seed, stream, low = int(attributes["seed"]), int(attributes["stream"]), 2**32 - 1
    return np.array([seed & low, ((seed >> 32) + stream * 0x9E3779B9) & low], np.uint64)


def aligned(nbytes: int) -> int:
    """Bytes rounded up to whole cache lines."""
    return -(-nbytes // LINE) * LINE


def cut(workspace: Any, dtype: Any, *sizes: int) -> list[Any]:
    """Consecutive pieces of the workspace of so many bytes, each on cache lines of its own."""
    pieces, at = [], 0
    for size in sizes:
        pieces.append(workspace[at : at + size].view(dtype))
        at += aligned(size)
    return pieces
