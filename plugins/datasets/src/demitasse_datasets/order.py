"""The global order of samples: endless, epoch after epoch, and the same for any division of the work."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from demitasse import permutation

EPOCHS_KEPT = 4
"""How many epochs' permutations are kept. Streams of several workers, with their read-ahead, are in at
most two epochs; a few more allow batches larger than the data."""


class Order:
    """Maps sample ``i`` of the global order to a sample of the file.

    Sample ``i`` is at position ``i % size`` of epoch ``i // size``: with ``shuffle``, of
    ``permutation(seed, epoch, size)``, otherwise of the file's own order. ``skip`` samples are skipped
    once, at the start. With ``groups`` (the sizes of files, of which few are in memory at a time),
    groups are shuffled, and the samples within each group.
    """

    def __init__(
        self, size: int, shuffle: bool, seed: int, skip: int = 0, groups: Sequence[int] = ()
    ) -> None:
        self.size, self.shuffle, self.seed, self.skip = size, shuffle, seed, skip
        self._groups = tuple(groups)
        self._epochs: dict[int, np.ndarray] = {}
        self._lock = threading.Lock()

    def numbers(self, first: int, count: int) -> np.ndarray:
        """Return the numbers in the file of ``count`` samples from ``first`` on: (count,) int64."""
        epoch, position = divmod(first + self.skip, self.size)
        if not self.shuffle and position + count <= self.size:
            return np.arange(position, position + count, dtype=np.int64)
        numbers = np.empty(count, np.int64)
        done = 0
        while done < count:
            epoch, position = divmod(first + self.skip + done, self.size)
            run = min(count - done, self.size - position)
            if self.shuffle:
                numbers[done : done + run] = self._epoch(epoch)[position : position + run]
            else:
                numbers[done : done + run] = np.arange(position, position + run)
            done += run
        return numbers

    def place(self, first: int) -> str:
        """Return a sample's position in the order, for messages."""
        epoch, position = divmod(first + self.skip, self.size)
        return f"number {position} of epoch {epoch}"

    def _epoch(self, epoch: int) -> np.ndarray:
        with self._lock:
            order = self._epochs.get(epoch)
            if order is None:
                while len(self._epochs) >= EPOCHS_KEPT:
                    del self._epochs[next(iter(self._epochs))]
                order = self._epochs[epoch] = self._permuted(epoch)
            return order

    def _permuted(self, epoch: int) -> np.ndarray:
        if len(self._groups) < 2:
            whole: np.ndarray = permutation(self.seed, epoch, self.size)
            return whole
        starts = np.cumsum([0, *self._groups])
        return np.concatenate(
            [
                starts[group] + permutation(self.seed + 1 + int(group), epoch, self._groups[group])
                for group in permutation(self.seed, epoch, len(self._groups))
            ]
        )
