"""Mini-batches of a set in its global order, with replacements for samples that cannot be read."""

from __future__ import annotations

import math

import numpy as np

from demitasse import DataError
from demitasse_striped_io.faults import Faults
from demitasse_striped_io.order import Order
from demitasse_striped_io.records import Fill, Records

GOLDEN = 0.6180339887498949
"""The distance to a sample's replacement, as a fraction of an epoch. Its multiples are spread evenly, so
bad neighbours, such as all samples of a missing stripe, have replacements far from each other."""
ATTEMPTS = 64


class Reading:
    """Fills mini-batches. ``first`` is always a number in the global order, not counting samples skipped
    at the start (Caffe's rand_skip)."""

    def __init__(self, records: Records, order: Order, faults: Faults, skip: int) -> None:
        self.records, self.order, self.faults, self.skip = records, order, faults, skip
        # Coprime with the size, so that its multiples reach every sample.
        self._stride = max(1, round(order.size * GOLDEN))
        while math.gcd(self._stride, order.size) != 1:
            self._stride += 1

    def numbers(self, first: int, count: int) -> np.ndarray:
        """Return the records of samples, (count,) int64."""
        return self.order.numbers(first + self.skip, count)

    def fill(self, first: int, count: int, fill: Fill) -> None:
        """Read ``count`` samples from ``first`` on. Raises DataError for a sample that cannot be read;
        if such samples are skipped, another one of its epoch replaces it instead."""
        numbers, where = self.numbers(first, count), range(first, first + count)
        if not self.faults.found:
            found = fill(numbers, where)
            if not found:
                return
            self.faults.met(found)
            bad = np.flatnonzero(np.isin(numbers, [fault.sample for fault in found]))
        else:
            bad = np.flatnonzero([int(n) in self.faults.found for n in numbers])
        self.faults.replaced(self._replace(numbers, where, bad, fill))

    def _replace(self, numbers: np.ndarray, where: range, bad: np.ndarray, fill: Fill) -> int:
        """Replace bad samples by others until all of them could be read; return how many were
        replaced."""
        numbers, turns = numbers.copy(), np.zeros(len(numbers), np.int64)
        replaced = set(bad.tolist())
        for _ in range(ATTEMPTS):
            for i in bad:
                numbers[i], turns[i] = self._other(where[i], int(turns[i]))
            found = fill(numbers, where)
            if not found:
                return len(replaced)
            self.faults.met(found)
            bad = np.flatnonzero(np.isin(numbers, [fault.sample for fault in found]))
            replaced |= set(bad.tolist())
        raise DataError(
            f"{self.faults.name}: {ATTEMPTS} samples in a row cannot be read; the last: {found[0]}"
        )

    def _other(self, number: int, turn: int) -> tuple[int, int]:
        size = self.order.size
        epoch, position = divmod(number + self.skip, size)
        stride = self._stride
        for later in range(turn + 1, turn + 1 + size):
            other = int(self.order.numbers(epoch * size + (position + later * stride) % size, 1)[0])
            if other not in self.faults.found:
                return other, later
        raise DataError(f"{self.faults.name}: none of its {size:,} samples can be read")
