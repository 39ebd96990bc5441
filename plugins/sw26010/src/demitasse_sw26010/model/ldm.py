"""LDM: what a kernel allocates from each CPE's 64 KiB, and that memory in emulation."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from demitasse import PlanError
from demitasse_sw26010.model.figures import CPES, LDM_BYTES


@dataclass(frozen=True)
class LdmBuffer:
    """An array of the whole mesh, divided evenly: its shape over all CPEs, its element type, and how
    many copies there are (2 if one is filled while the other is used)."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    copies: int = 1

    @property
    def nbytes(self) -> int:
        """Bytes of each CPE."""
        return self.copies * -(-prod(self.shape) * np.dtype(self.dtype).itemsize // CPES)


@dataclass(frozen=True)
class Ldm:
    """All LDM that a kernel allocates. Raises PlanError if a CPE does not have that much."""

    kernel: str
    buffers: tuple[LdmBuffer, ...]

    def __post_init__(self) -> None:
        if self.nbytes > LDM_BYTES:
            each = ", ".join(f"{b.name} {b.nbytes:,}" for b in self.buffers)
            raise PlanError(
                f"kernel {self.kernel!r} needs {self.nbytes:,} bytes of LDM, but a CPE has "
                f"{LDM_BYTES:,}: {each}; use smaller blocks"
            )

    @property
    def nbytes(self) -> int:
        return sum(buffer.nbytes for buffer in self.buffers)


class CoreGroup(threading.local):
    """The mesh memory of the core group that a thread emulates: 64 KiB for each of 64 CPEs."""

    def __init__(self) -> None:
        self.memory = np.full(CPES * LDM_BYTES // 8, np.nan)
        self.taken: dict[Ldm, list[np.ndarray[Any, np.dtype[Any]]]] = {}

    def arrays(self, ldm: Ldm, fill: bool = True) -> list[np.ndarray[Any, np.dtype[Any]]]:
        """Return the kernel's arrays, filled with NaN, so that what it does not get by DMA is NaN."""
        found = self.taken.get(ldm)
        if found is None:
            found = self.taken[ldm] = self._cut(ldm.buffers)
        if fill:
            words = sum(-(-array.nbytes // 8) for array in found)
            # All bits set is NaN with four bytes as well as with eight.
            self.memory[:words].view("int64").fill(-1)
        return found

    def _cut(self, buffers: Sequence[LdmBuffer]) -> list[np.ndarray[Any, np.dtype[Any]]]:
        arrays, at = [], 0
        for buffer in buffers:
            words = -(-prod(buffer.shape) * np.dtype(buffer.dtype).itemsize // 8)
            part = self.memory[at : at + words].view(buffer.dtype)
            arrays.append(part[: prod(buffer.shape)].reshape(buffer.shape))
            at += words
        return arrays
