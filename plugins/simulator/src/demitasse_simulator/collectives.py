"""The closed forms of swCaffe's paper (section V.A), with which the simulated schedules are compared."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Exchange:
    """The numbers of swCaffe's equations: ``p`` nodes in supernodes of ``q``, and ``n`` bytes; ``alpha``
    seconds per message, ``beta1`` seconds per byte inside and ``beta2`` between supernodes, ``gamma``
    seconds per byte added."""

    p: int
    q: int
    n: float
    alpha: float
    beta1: float
    beta2: float
    gamma: float

    def reduce_scatter(self) -> float:
        """Return the seconds of equation 3: ranks are numbered supernode by supernode."""
        return self.allgather() + (self.p - 1) / self.p * self.n * self.gamma

    def allgather(self) -> float:
        """Return the seconds of equation 4."""
        q, part = min(self.p, self.q), self.n / self.p
        return (
            math.log2(self.p) * self.alpha
            + (q - 1) * self.beta1 * part
            + (self.p - q) * self.beta2 * part
        )

    def new_reduce_scatter(self) -> float:
        """Return the seconds of equation 5: ranks are dealt out to the supernodes in turn."""
        return self.new_allgather() + (self.p - 1) / self.p * self.n * self.gamma

    def new_allgather(self) -> float:
        """Return the seconds of equation 6."""
        groups, part = self.p / min(self.p, self.q), self.n / self.p
        return (
            math.log2(self.p) * self.alpha
            + (self.p - groups) * self.beta1 * part
            + (groups - 1) * self.beta2 * part
        )

    def allreduce(self, order: str = "natural") -> float:
        """Return the seconds of equation 2, with the natural or any other (new) order of ranks."""
        if order == "natural":
            return self.reduce_scatter() + self.allgather()
        return self.new_reduce_scatter() + self.new_allgather()
