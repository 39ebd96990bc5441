"""How far each worker is, and who may begin another iteration."""

from __future__ import annotations

from collections.abc import Iterable


class Progress:
    """How many iterations each of the ``workers`` has done. Under SSP one may begin another that has
    done at most ``staleness`` more than the slowest (None: no bound). ``widest`` is the largest lead
    with which one has begun."""

    def __init__(self, workers: Iterable[int], staleness: int | None) -> None:
        self.done, self.widest = dict.fromkeys(workers, 0), 0
        self._staleness = staleness

    def begins(self, worker: int) -> bool:
        """Whether the worker may begin its next iteration; then it does."""
        gap = self.done[worker] - min(self.done.values())
        if self._staleness is not None and gap > self._staleness:
            return False
        self.widest = max(self.widest, gap)
        return True

    def ends(self, worker: int) -> None:
        """The worker has pushed all of an iteration."""
        self.done[worker] += 1

    def drop(self, worker: int) -> None:
        """Nobody waits for the worker any more."""
        del self.done[worker]
