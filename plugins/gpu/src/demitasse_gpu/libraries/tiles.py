"""The sizes of tiles in which kernels of our own convolve, as those are compiled."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from demitasse_gpu.kernels.launches import Source

if TYPE_CHECKING:
    from demitasse_gpu.device import Device

SCALAR, SPLIT, CUT, AROUND = (
    Source(f"implicit_gemm{name}.cu", "float32") for name in ("", "_split", "_tf32", "_parts")
)
WINOGRAD = Source("winograd.cu", "float32")
_PREFIX = {SCALAR: "", SPLIT: "split_", CUT: "tf32_"}
"""Of kernels' names, by their sources."""
AMPERE = 8, 0
"""The compute capability from which on tensor cores multiply TF32."""
_MULTIPROCESSORS = 132
"""For how many sums are cut up, on any device, so that bits are the same: an H100's or an H200's."""


@dataclass(frozen=True)
class Tiles:
    """What a block of a kernel of ``source`` makes: ``down`` x ``across`` warps, each of 64 x ``warp``
    numbers; of such blocks a multiprocessor runs ``resident`` at a time."""

    source: Source
    warp: int
    down: int
    across: int
    resident: int

    @property
    def name(self) -> str:
        return f"{_PREFIX[self.source]}{self.down}x{self.across}"

    @property
    def threads(self) -> int:
        return 32 * self.down * self.across

    @property
    def at_once(self) -> int:
        """Blocks that run at a time."""
        return self.resident * _MULTIPROCESSORS

    def count(self, rows: int, columns: int) -> int:
        """The blocks that make so many rows and columns."""
        return -(-rows // (64 * self.down)) * -(-columns // (self.warp * self.across))


TILES = tuple(Tiles(SCALAR, 32, *each) for each in ((2, 4, 2), (2, 2, 3), (1, 4, 3), (1, 2, 6)))
SPLIT_TILES = tuple(Tiles(SPLIT, 32, *each) for each in ((2, 2, 2), (2, 1, 5), (1, 4, 3), (1, 2, 4)))
TF32_TILES = tuple(Tiles(CUT, 64, *each) for each in ((2, 2, 2), (2, 1, 4), (1, 2, 4)))
"""As the kernels are compiled: large tiles read less, small ones leave fewer multiprocessors idle."""


def tiles_for(device: Device, tf32: bool) -> Sequence[Tiles]:
    """The sizes that are tried on a device. Where tensor cores multiply TF32, their sums of three
    products are as exact as float32, and quicker."""
    if device.driver.properties.capability < AMPERE:
        return () if tf32 else TILES
    return TF32_TILES if tf32 else SPLIT_TILES


def signature() -> str:
    """What changes with them: which way was the quickest may then be another."""
    told = repr((TILES, SPLIT_TILES, TF32_TILES))
    return hashlib.sha256(told.encode()).hexdigest()[:8]
