"""The tile sizes for which our own convolution kernels are compiled."""

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
"""The prefix of kernels' names, by their source."""
AMPERE = 8, 0
"""The compute capability from which on tensor cores support TF32."""
_MULTIPROCESSORS = 132
"""The number of multiprocessors for which sums are split up, on every device, so that all give the same
bits: that of an H100 or an H200."""


@dataclass(frozen=True)
class Tiles:
    """The tile of a block of a kernel of ``source``: ``down`` x ``across`` warps, each with 64 x
    ``warp`` numbers. A multiprocessor runs ``resident`` such blocks at a time."""

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
        """The number of blocks that run at a time."""
        return self.resident * _MULTIPROCESSORS

    def count(self, rows: int, columns: int) -> int:
        """Return the number of blocks for a result of ``rows`` x ``columns``."""
        return -(-rows // (64 * self.down)) * -(-columns // (self.warp * self.across))


TILES = tuple(Tiles(SCALAR, 32, *each) for each in ((2, 4, 2), (2, 2, 3), (1, 4, 3), (1, 2, 6)))
SPLIT_TILES = tuple(Tiles(SPLIT, 32, *each) for each in ((2, 2, 2), (2, 1, 5), (1, 4, 3), (1, 2, 4)))
TF32_TILES = tuple(Tiles(CUT, 64, *each) for each in ((2, 2, 2), (2, 1, 4), (1, 2, 4)))
"""As the kernels are compiled. Large tiles read less; small ones leave fewer multiprocessors idle."""


def tiles_for(device: Device, tf32: bool) -> Sequence[Tiles]:
    """Return the sizes to try on a device. If tensor cores support TF32, sums of three TF32 products are
    used for float32: as exact, and faster."""
    if device.driver.properties.capability < AMPERE:
        return () if tf32 else TILES
    return TF32_TILES if tf32 else SPLIT_TILES


def signature() -> str:
    """Return a text that changes with the sizes, because the fastest way may then be another."""
    told = repr((TILES, SPLIT_TILES, TF32_TILES))
    return hashlib.sha256(told.encode()).hexdigest()[:8]
