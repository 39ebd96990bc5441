"""What the libraries leave to do around their products: biases, ReLU, sums of columns."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np

from demitasse_gpu.launch import Launch

if TYPE_CHECKING:
    from demitasse_gpu.device import Device

ELEMENTS = {
    "float32": ("float", "float"),
    "float64": ("double", "double"),
    "bfloat16": ("bf16", "float"),
}
"""The type of elements, and that of sums, by the element type in memory."""
BLOCK = 256
PART = 256
"""Rows that one thread adds up at least. A table of few columns has many parts, so that all
multiprocessors have something to do."""


@dataclass(frozen=True)
class Table:
    """How values of some columns lie: (rows / inner, columns, inner), elements of a type in memory. A
    row-major matrix has an ``inner`` of 1."""

    rows: int
    columns: int
    stored: str
    inner: int = 1

    @property
    def parts(self) -> int:
        """In how many parts the rows are added up: at most 512 of at least ``PART`` rows, and for many
        columns fewer."""
        return max(1, min(512, self.rows // PART, 2**18 // max(1, self.columns)))

    @property
    def partial_bytes(self) -> int:
        """Scratch memory that ``column_sums`` needs."""
        return self.parts * self.columns * (8 if self.stored == "float64" else 4)


def add_bias(device: Device, table: Table, y: Any, b: Any, relu: bool) -> Launch:
    """y += b in each row, both of the table's type, then ReLU where ``relu`` says so; b may be None."""
    function = _function(device, "add_bias", table.stored)
    sizes = np.int64(table.rows), np.int32(table.columns), np.int32(table.inner), np.int32(relu)
    return Launch(device, function, _grid(table.rows * table.columns), BLOCK, (y, b, *sizes))


def column_sums(device: Device, table: Table, x: Any, total: Any, partial: Any) -> list[Launch]:
    """The sums of x's columns, always in the same order; ``partial`` is scratch memory."""
    grid = -(-table.columns // BLOCK)
    rows, columns, inner, parts = (
        np.int64(table.rows),
        *map(np.int32, (table.columns, table.inner, table.parts)),
    )
    first, last = (_function(device, name, table.stored) for name in ("sum_parts", "sum_up"))
    arguments = x, partial, rows, columns, inner, parts
    return [
        Launch(device, first, (grid, table.parts), BLOCK, arguments),
        Launch(device, last, grid, BLOCK, (partial, total, columns, parts)),
    ]


def widened(device: Device, source: Any, target: Any, count: int, stored: str) -> Launch:
    """Elements as they are in memory, as the type of sums."""
    function = _function(device, "widen", stored)
    return Launch(device, function, _grid(count), BLOCK, (source, target, np.int64(count)))


def _grid(count: int) -> int:
    return max(1, min(-(-count // BLOCK), 4096))


def _function(device: Device, name: str, stored: str) -> Any:
    element, total = ELEMENTS[stored]
    return device.function(_source(), name, (f"-DELEMENT={element}", f"-DSUM={total}"))


@cache
def _source() -> str:
    return files(__package__).joinpath("epilogue.cu").read_text("utf-8")
