"""What the libraries leave to do around their products: biases, ReLU, sums of columns, wider numbers."""

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
"""The type of elements, and that of sums, by the element type in memory."""
BLOCK = 256


@dataclass(frozen=True)
class Table:
    """How values of some columns lie: (rows / inner, columns, inner), elements of a type in memory. A
    row-major matrix has an ``inner`` of 1."""

    rows: int
    columns: int
    stored: str
    inner: int = 1

    @property
    def summed(self) -> Channels:
        """How its columns are summed: as a normalisation's channels are."""
        real = "float64" if self.stored == "float64" else "float32"
        source = Source("batch_normalization.cu", real, "" if self.stored == real else self.stored)
        return Channels(PLAIN, self.rows // self.inner, self.columns, self.inner, source)

    @property
    def partial_bytes(self) -> int:
        """Scratch memory that ``column_sums`` needs."""
        return room(self.summed.partial)


def add_bias(device: Device, table: Table, y: Any, b: Any, relu: bool) -> Launch:
    """y += b in each row, both of the table's type, then ReLU where ``relu`` says so; b may be None."""
    function = _function(device, "add_bias", table.stored)
    sizes = np.int64(table.rows), np.int32(table.columns), np.int32(table.inner), np.int32(relu)
    return Launch(device, function, _grid(table.rows * table.columns), BLOCK, (y, b, *sizes))


def column_sums(table: Table, x: Any, total: Any, partial: Any) -> list[Work]:
    """The sums of x's columns, always in the same order; ``partial`` is scratch memory."""
    return channel_sums(table.summed, x, None, None, total, *cut(partial, table.summed.partial))


def widened(device: Device, source: Any, target: Any, count: int, stored: str) -> Launch:
    """Elements as they are in memory, as the type of sums."""
    function = _function(device, "widen", stored)
    return Launch(device, function, _grid(count), BLOCK, (source, target, np.int64(count)))


def channels_fitted(
    device: Device, x: int, y: int, points: int, channels: tuple[int, int], stored: str
) -> Launch:
    """Points at address x of so many channels, as points at y of another number: the first of them, or
    with zeros behind them."""
    function = _function(device, "fit_channels", stored)
    numbers = np.int64(points), *(np.int32(count) for count in channels)
    return Launch(device, function, _grid(points), BLOCK, (x, y, *numbers))


@dataclass(frozen=True)
class Squares:
    """How squares of points, of ``side`` each way, become points of as many more channels, and of zeros
    behind those: extents of images before and after, in logical order, of which the former are padded.
    Both lie with channels innermost, ``made`` with a multiple of 16 bytes of them."""

    given: tuple[int, ...]
    made: tuple[int, ...]
    side: int
    pad: tuple[int, ...] = (0, 0)

    def told(self, pack: int) -> Any:
        """As kernels take it that move so many elements at once."""
        _, channels, rows, columns = self.given
        _, depth, lines, places = self.made
        strip, (top, left) = self.side * channels, self.pad
        numbers = rows, columns * channels, self.side, strip, lines, places, depth // pack
        names = "rows", "row", "side", "strip", "lines", "places", "packs"
        fields = (*((name, list(DIVISOR)) for name in names), ("top", "i4"), ("left", "i4"))
        return structure(fields, *map(divisor, numbers), top, left * channels)


def points_gathered(device: Device, x: int, y: int, squares: Squares, stored: str) -> Launch:
    """Images at address x with squares of their points as channels of one, at address y."""
    pack, function = _pack(stored), _function(device, "gather_points", stored)
    packs = prod(squares.made) // pack
    told = squares.told(pack), np.uint32(packs)
    return Launch(device, function, _grid(packs), BLOCK, (x, y, *told))


def channels_split(device: Device, x: int, y: int, squares: Squares, stored: str) -> Launch:
    """The reverse, without pad: of what is at address x, the images that there are, at address y."""
    function, count = _function(device, "split_channels", stored), prod(squares.given)
    told = squares.told(_pack(stored)), np.uint32(count)
    return Launch(device, function, _grid(count), BLOCK, (x, y, *told))


def _pack(stored: str) -> int:
    """Elements in 16 bytes."""
    return {"bfloat16": 8, "float32": 4, "float64": 2}[stored]


def _grid(count: int) -> int:
    return max(1, min(-(-count // BLOCK), 4096))


def _function(device: Device, name: str, stored: str) -> Any:
    element, total = ELEMENTS[stored]
    return device.function(_source(), name, (f"-I{CUDA}", f"-DELEMENT={element}", f"-DSUM={total}"))


@cache
def _source() -> str:
    return files(__package__).joinpath("epilogue.cu").read_text("utf-8")
