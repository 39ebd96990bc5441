"""How far each worker has come, and which may begin another iteration."""

from __future__ import annotations

from collections.abc import Iterable


class Progress:
    """How many iterations each of the ``workers`` has done. Under SSP a worker may begin another if it
    has done at most ``staleness`` more than the slowest (None: no bound). ``widest`` is the largest
    lead with which a worker has begun."""

    def __init__(self, workers: Iterable[int], staleness: int | None) -> None:
        self.done, self.widest = dict.fromkeys(workers, 0), 0
        self._staleness = staleness

    def begins(self, worker: int) -> bool:
        """Return whether a worker may begin its next iteration; if so, this counts as begun."""
        gap = self.done[worker] - min(self.done.values())
        if self._staleness is not None and gap > self._staleness:
            return False
        self.widest = max(self.widest, gap)
        return True

    def ends(self, worker: int) -> None:
        """Note that a worker has pushed all gradients of an iteration."""
        self.done[worker] += 1

    def drop(self, worker: int) -> None:
        """Remove a worker, so that no other worker waits for it any more."""
        del self.done[worker]
