"""The global order of a set's samples: endless, epoch after epoch, and the same for any division of the
work.

``file`` is the order of the records. ``sample`` shuffles samples. ``block`` shuffles runs, which are
stretches of records in one block: a process that reads a mini-batch then reads consecutive bytes of at
most two stripes (swCaffe, V.B). All of them contain every sample once per epoch.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Protocol

import numpy as np

ORDERS = ("file", "sample", "block")
EPOCHS_KEPT = 3
"""Streams of several workers, with their read-ahead, are in two epochs; the third is prepared
meanwhile."""
APART = 1 << 32
"""Added to the seed for the order of stripes, to make it independent of the order of runs."""


class Order(Protocol):
    """The samples of epochs, by position."""

    @property
    def size(self) -> int:
        """The number of samples in an epoch."""

    def numbers(self, first: int, count: int) -> np.ndarray:
        """Return the records, (count,) int64, of ``count`` samples from number ``first`` of the order
        on."""

    def close(self) -> None:
        """Wait for the thread that prepares epochs."""


@dataclass(frozen=True)
class FileOrder:
    """The order of the records in the set."""

    size: int

    def numbers(self, first: int, count: int) -> np.ndarray:
        return np.arange(first, first + count) % self.size

    def close(self) -> None:
        """Do nothing: nothing is prepared in advance."""


class ShuffledOrder:
    """An order that is drawn for each epoch: of the samples, or of runs.

    An epoch's order is made when first needed, and the next one's in a thread whenever an epoch begins:
    drawing a million samples takes 40 ms, for which no worker should wait.
    """

    def __init__(self, size: int, seed: int, runs: Runs | None = None) -> None:
        self.size, self.seed, self._runs = size, seed, runs
        self.in_runs = runs is not None
        self._epochs: dict[int, np.ndarray] = {}
        self._begun = -1
        self._lock = threading.Lock()
        self._maker: threading.Thread | None = None

    def numbers(self, first: int, count: int) -> np.ndarray:
        epoch, position = divmod(first, self.size)
        if position + count <= self.size:
            return self._epoch(epoch)[position : position + count]
        parts = [self._epoch(epoch)[position:]]
        left = count - len(parts[0])
        while left > 0:
            epoch += 1
            parts.append(self._epoch(epoch)[:left])
            left -= len(parts[-1])
        return np.concatenate(parts)

    def close(self) -> None:
        maker = self._maker
        if maker is not None:
            maker.join()

    def _epoch(self, epoch: int) -> np.ndarray:
        found = self._epochs.get(epoch)
        if found is not None and epoch <= self._begun:
            return found
        with self._lock:
            if self._maker is not None:
                self._maker.join()
            if epoch not in self._epochs:
                self._keep(epoch)
            self._begun, found = epoch, self._epochs[epoch]
            if epoch + 1 not in self._epochs:
                self._maker = threading.Thread(
                    target=self._keep, args=(epoch + 1,), name="order of the next epoch"
                )
                self._maker.start()
            return found

    def _keep(self, epoch: int) -> None:
        if epoch not in self._epochs:
            made = self._made(epoch)
            # A new dictionary, so that readers of the old one need no lock.
            kept = dict(list(self._epochs.items())[-(EPOCHS_KEPT - 1) :])
            self._epochs = kept | {epoch: made}

    def _made(self, epoch: int) -> np.ndarray:
        if self._runs is not None:
            return self._runs.order(self.seed, epoch)
        drawn: np.ndarray = _permutation(self.seed, epoch, self.size)
        return drawn


class Runs:
    """Stretches of records that are read in one piece.

    Each block is cut into as many runs of at least ``run`` records as possible, as equal as possible. A
    mini-batch of up to ``run`` samples is therefore in at most two of them. (A last block with fewer
    records is a single run.)
    """

    def __init__(self, bounds: np.ndarray, stripes: int, run: int) -> None:
        firsts, lasts, owners = [], [], []
        for block in range(len(bounds) - 1):
            begin, end = int(bounds[block]), int(bounds[block + 1])
            if end > begin:
                cuts = begin + (end - begin) * np.arange(max(1, (end - begin) // run) + 1) // max(
                    1, (end - begin) // run
                )
                firsts.append(cuts[:-1])
                lasts.append(cuts[1:])
                owners.append(np.full(len(cuts) - 1, block % stripes))
        self.first = np.concatenate(firsts)
        self.length = np.concatenate(lasts) - self.first
        self.stripe = np.concatenate(owners)
        self.stripes = stripes

    def shuffled(self, seed: int, epoch: int) -> np.ndarray:
        """Return an epoch's order of the runs, (runs,) int64.

        The runs of a stripe are in random order, and stripes take turns, in an order that is drawn once.
        Any N consecutive runs are therefore spread evenly, at most ceil(N / stripes) on each stripe. If
        each of N processes reads one run at a time, or parts of two, never more than 2 ceil(N / stripes)
        of them read from one stripe: the paper's bound, N / 32 x 2, but at any time rather than on
        average. A stripe with fewer runs than others takes turns in proportion.
        """
        luck = np.empty(len(self.first), np.int64)
        luck[_permutation(seed, epoch, len(luck))] = np.arange(len(luck))
        by_stripe = np.lexsort((luck, self.stripe))
        counts = np.bincount(self.stripe, minlength=self.stripes)
        starts = np.cumsum(counts) - counts
        owner = self.stripe[by_stripe]
        turn = np.arange(len(luck)) - starts[owner]
        phase = np.empty(self.stripes)
        phase[_permutation(seed + APART, 0, self.stripes)] = np.arange(self.stripes)
        due = (turn + (phase[owner] + 0.5) / self.stripes) / counts[owner]
        return np.asarray(by_stripe[np.argsort(due, kind="stable")])

    def order(self, seed: int, epoch: int) -> np.ndarray:
        """Return an epoch's order of the samples, int64."""
        runs = self.shuffled(seed, epoch)
        length = self.length[runs]
        ends = np.cumsum(length)
        within = np.arange(ends[-1]) - np.repeat(ends - length, length)
        return np.asarray(np.repeat(self.first[runs], length) + within)


def _permutation(seed: int, epoch: int, size: int) -> np.ndarray:
    # It is a compiled loop; code that only asks whose a source is should not wait for its import.
    from demitasse_striped_io.shuffling import permutation

    return permutation(seed, epoch, size)
