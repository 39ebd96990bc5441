"""Parameters that siblings share, except for those that each worker changes by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from demitasse import Memory


class SharedParameters:
    """Another worker's block, except for what lies in ``own``, by offset in bytes: parameters that a
    forward pass changes, such as running means, belong to each worker. Closing it closes nothing."""

    def __init__(self, lender: Memory, own: Mapping[int, Memory]) -> None:
        self.lender, self.own, self.nbytes = lender, own, lender.nbytes

    def view(self, offset: int, shape: Sequence[int], dtype: str) -> Any:
        """Return a buffer over part of the block."""
        if offset in self.own:
            return self.own[offset].view(0, shape, dtype)
        return self.lender.view(offset, shape, dtype)

    def close(self) -> None:
        """Do nothing: the lender closes the block, and ``own`` is freed with this object."""
