"""The global order of a set's samples: endless, epoch after epoch, the same for any division of the
work.

``file`` is the order of the records. ``sample`` shuffles samples. ``block`` shuffles runs, stretches of
records in one block: a process that reads a mini-batch reads consecutive bytes, of at most two stripes
(swCaffe, V.B). All of them show every sample of an epoch once.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Protocol

import numpy as np

ORDERS = ("file", "sample", "block")
EPOCHS_KEPT = 3
"""Streams of several workers and what they read ahead stand in two epochs; the third is made
meanwhile."""
APART = 1 << 32
"""Added to the seed for the order of stripes, so that it owes nothing to that of runs."""


class Order(Protocol):
    """An epoch's samples, by position."""

    @property
    def size(self) -> int:
        """How many there are."""

    def numbers(self, first: int, count: int) -> np.ndarray:
        """The records, shape (count,) int64, of ``count`` samples from number ``first`` of the
        order on."""

    def close(self) -> None:
        """Wait for what is made ahead."""


@dataclass(frozen=True)
class FileOrder:
    """The records as they lie."""

    size: int

    def numbers(self, first: int, count: int) -> np.ndarray:
        return np.arange(first, first + count) % self.size

    def close(self) -> None:
        """Nothing is made ahead."""


class ShuffledOrder:
    """An order that is drawn for each epoch: of the samples, or of runs.

    An epoch's order is made when it is first asked for, and the next one's whenever an epoch begins, by
    a thread: drawing a million samples takes 40 ms, for which no worker should wait.
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
            # A new dictionary: readers of the old one need no lock.
            kept = dict(list(self._epochs.items())[-(EPOCHS_KEPT - 1) :])
            self._epochs = kept | {epoch: made}

    def _made(self, epoch: int) -> np.ndarray:
        if self._runs is not None:
            return self._runs.order(self.seed, epoch)
        drawn: np.ndarray = _permutation(self.seed, epoch, self.size)
        return drawn


class Runs:
    """Stretches of records that are read in one piece.

    Each block is cut into as many as have at least ``run`` records, as equal as can be: so a mini-batch
    of up to ``run`` samples lies in at most two of them. (The run of a last block with fewer is as long
    as that block.)
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
        """An epoch's order of the runs, shape (runs,) int64.

        Runs of a stripe are in random order, and stripes take turns, in an order that is drawn once: any
        N runs that follow each other are spread evenly, at most ceil(N / stripes) on each. So N
        processes that each read a run at a time, or parts of two, are never more than 2 ceil(N /
        stripes) on one stripe: the paper's bound, N / 32 x 2, not on average but at any time. A stripe
        with fewer runs than others takes its turns in proportion.
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
        """An epoch's order of the samples, int64."""
        runs = self.shuffled(seed, epoch)
        length = self.length[runs]
        ends = np.cumsum(length)
        within = np.arange(ends[-1]) - np.repeat(ends - length, length)
        return np.asarray(np.repeat(self.first[runs], length) + within)


def _permutation(seed: int, epoch: int, size: int) -> np.ndarray:
    # A compiled loop: who only looks whose a source is need not wait for its import.
    from demitasse_striped_io.shuffling import permutation

    return permutation(seed, epoch, size)
