"""Parameters that siblings have in common, save for those that each changes by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from demitasse import Memory


class SharedParameters:
    """Another worker's block, save for what lies in ``own``, by offset in bytes: what a forward pass
    changes, as running means, is each worker's. Closing it closes nothing."""

    def __init__(self, lender: Memory, own: Mapping[int, Memory]) -> None:
        self.lender, self.own, self.nbytes = lender, own, lender.nbytes

    def view(self, offset: int, shape: Sequence[int], dtype: str) -> Any:
        """A buffer over part of it."""
        if offset in self.own:
            return self.own[offset].view(0, shape, dtype)
        return self.lender.view(offset, shape, dtype)

    def close(self) -> None:
        """The lender closes what it lends; what is one's own goes with it."""
