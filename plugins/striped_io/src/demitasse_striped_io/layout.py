"""The location of records: block, stripe, and offset in the stripe."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from demitasse_striped_io.index import Index


class Layout:
    """The locations of a set's records. ``bounds`` (blocks + 1) int64 are the first records of its
    blocks and, at the end, the number of records."""

    def __init__(self, index: Index, table: Mapping[str, np.ndarray]) -> None:
        self.stripes, self.block, self.record = len(index.stripes), index.block, index.record
        self.samples = index.samples
        if self.record:
            self.in_block = index.in_block
            blocks = -(-self.samples // self.in_block)
            self.bounds = np.minimum(np.arange(blocks + 1) * self.in_block, self.samples)
        else:
            self._offset, self._length = table["offset"], table["length"]
            blocks = int(self._offset[-1]) // self.block + 1
            starts = np.arange(blocks + 1) * self.block
            self.bounds = np.searchsorted(self._offset, starts).astype(np.int64)

    @property
    def blocks(self) -> int:
        return len(self.bounds) - 1

    def lengths(self, numbers: np.ndarray) -> np.ndarray:
        """Return the bytes of each of these records."""
        return self._length[numbers] if not self.record else np.full(len(numbers), self.record)

    def pieces(self, numbers: np.ndarray, places: np.ndarray | None = None) -> np.ndarray:
        """Return (n, 4) int64 for ``loops.fetch``: stripe, offset in it, length, and position in the
        batch. Without ``places``, the records are placed one after the other."""
        made = np.empty((len(numbers), 4), np.int64)
        if self.record:
            block, within = np.divmod(numbers, self.in_block)
            within *= self.record
            made[:, 2] = self.record
        else:
            block, within = np.divmod(self._offset[numbers], self.block)
            made[:, 2] = self._length[numbers]
        turn, made[:, 0] = np.divmod(block, self.stripes)
        made[:, 1] = turn * self.block + within
        if places is None:
            made[0, 3] = 0
            np.cumsum(made[:-1, 2], out=made[1:, 3])
        else:
            made[:, 3] = places
        return made

    def block_of(self, number: int) -> int:
        """Return the block of a record."""
        return int(np.searchsorted(self.bounds, number, side="right")) - 1

    def where(self, number: int) -> str:
        """Return stripe, block and sample, for messages."""
        block = self.block_of(number)
        return f"stripe {block % self.stripes}, block {block}, sample {number}"

    def stripe_lengths(self) -> tuple[int, ...]:
        """Return the bytes of each stripe, up to the end of its last record."""
        ends = [0] * self.stripes
        for block in range(max(0, self.blocks - self.stripes), self.blocks):
            first, last = int(self.bounds[block]), int(self.bounds[block + 1]) - 1
            if last >= first:
                stripe, offset, length, _ = self.pieces(np.array([last]))[0]
                ends[stripe] = int(offset + length)
        return tuple(ends)
