"""What the libraries leave to be done around their products: biases, ReLU, column sums, wider types."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from demitasse import PLAIN, Work
from demitasse_gpu.kernels.batch_normalization import Channels, channel_sums
from demitasse_gpu.kernels.launches import CUDA, DIVISOR, Source, cut, divisor, room, structure
from demitasse_gpu.launch import Launch

if TYPE_CHECKING:
    from demitasse_gpu.device import Device

ELEMENTS = {
    "float32": ("float", "float"),
    "float64": ("double", "double"),
    "bfloat16": ("bf16", "float"),
}
"""The types of elements and of sums in CUDA C++, by the element type in memory."""
BLOCK = 256


@dataclass(frozen=True)
class Table:
    """The layout of a table's values: (rows / inner, columns, inner), elements of type ``stored``. A
    row-major matrix has an ``inner`` of 1."""

    rows: int
    columns: int
    stored: str
    inner: int = 1

    @property
    def summed(self) -> Channels:
        """Its columns as channels to be summed, as a normalisation's are."""
        real = "float64" if self.stored == "float64" else "float32"
        source = Source("batch_normalization.cu", real, "" if self.stored == real else self.stored)
        return Channels(PLAIN, self.rows // self.inner, self.columns, self.inner, source)

    @property
    def partial_bytes(self) -> int:
        """The scratch memory that ``column_sums`` needs."""
        return room(self.summed.partial)


def add_bias(device: Device, table: Table, y: Any, b: Any, relu: bool) -> Launch:
    """Return y += b in each row, both in the table's type, then a ReLU if ``relu``; b may be None."""
    function = _function(device, "add_bias", table.stored)
    sizes = np.int64(table.rows), np.int32(table.columns), np.int32(table.inner), np.int32(relu)
    return Launch(device, function, _grid(table.rows * table.columns), BLOCK, (y, b, *sizes))


def column_sums(table: Table, x: Any, total: Any, partial: Any) -> list[Work]:
    """Return the works that sum x's columns, always in the same order. ``partial`` is scratch memory."""
    return channel_sums(table.summed, x, None, None, total, *cut(partial, table.summed.partial))


def widened(device: Device, source: Any, target: Any, count: int, stored: str) -> Launch:
    """Return the conversion of elements from their type in memory to the type of sums."""
    function = _function(device, "widen", stored)
    return Launch(device, function, _grid(count), BLOCK, (source, target, np.int64(count)))


def channels_fitted(
    device: Device, x: int, y: int, points: int, channels: tuple[int, int], stored: str
) -> Launch:
    """Return a copy of points at address x to y with another number of channels: the first ones, or with
    zeros added."""
    function = _function(device, "fit_channels", stored)
    numbers = np.int64(points), *(np.int32(count) for count in channels)
    return Launch(device, function, _grid(points), BLOCK, (x, y, *numbers))


@dataclass(frozen=True)
class Squares:
    """How squares of ``side`` x ``side`` points become points with as many times the channels, padded
    with zeros: the extents of images before (``given``) and after (``made``), in logical order. The
    former are padded with ``pad``. Channels are innermost in both, and those of ``made`` fill a multiple
    of 16 bytes."""

    given: tuple[int, ...]
    made: tuple[int, ...]
    side: int
    pad: tuple[int, ...] = (0, 0)

    def told(self, pack: int) -> Any:
        """Return the structure for kernels that move ``pack`` elements at once."""
        _, channels, rows, columns = self.given
        _, depth, lines, places = self.made
        strip, (top, left) = self.side * channels, self.pad
        numbers = rows, columns * channels, self.side, strip, lines, places, depth // pack
        names = "rows", "row", "side", "strip", "lines", "places", "packs"
        fields = (*((name, list(DIVISOR)) for name in names), ("top", "i4"), ("left", "i4"))
        return structure(fields, *map(divisor, numbers), top, left * channels)


def points_gathered(device: Device, x: int, y: int, squares: Squares, stored: str) -> Launch:
    """Return a copy of the images at address x to y in which squares of points become the channels of
    one point."""
    pack, function = _pack(stored), _function(device, "gather_points", stored)
    packs = prod(squares.made) // pack
    told = squares.told(pack), np.uint32(packs)
    return Launch(device, function, _grid(packs), BLOCK, (x, y, *told))


def channels_split(device: Device, x: int, y: int, squares: Squares, stored: str) -> Launch:
    """Return the reverse, without padding: from the copy at address x, the given images at address y."""
    function, count = _function(device, "split_channels", stored), prod(squares.given)
    told = squares.told(_pack(stored)), np.uint32(count)
    return Launch(device, function, _grid(count), BLOCK, (x, y, *told))


def _pack(stored: str) -> int:
    """Return the number of elements in 16 bytes."""
    return {"bfloat16": 8, "float32": 4, "float64": 2}[stored]


def _grid(count: int) -> int:
    return max(1, min(-(-count // BLOCK), 4096))


def _function(device: Device, name: str, stored: str) -> Any:
    element, total = ELEMENTS[stored]
    return device.function(_source(), name, (f"-I{CUDA}", f"-DELEMENT={element}", f"-DSUM={total}"))


@cache
def _source() -> str:
    return files(__package__).joinpath("epilogue.cu").read_text("utf-8")
