"""The closed forms of swCaffe's paper (section V.A), which the simulated schedules are held against."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Exchange:
    """The numbers of swCaffe's equations: ``p`` nodes in supernodes of ``q``, ``n`` bytes; ``alpha``
    seconds a message, ``beta1`` seconds a byte inside and ``beta2`` between supernodes, ``gamma`` a
    byte that is added."""

    p: int
    q: int
    n: float
    alpha: float
    beta1: float
    beta2: float
    gamma: float

    def reduce_scatter(self) -> float:
        """Equation 3: ranks numbered supernode by supernode."""
        return self.allgather() + (self.p - 1) / self.p * self.n * self.gamma

    def allgather(self) -> float:
        """Equation 4."""
        q, part = min(self.p, self.q), self.n / self.p
        return (
            math.log2(self.p) * self.alpha
            + (q - 1) * self.beta1 * part
            + (self.p - q) * self.beta2 * part
        )

    def new_reduce_scatter(self) -> float:
        """Equation 5: ranks dealt out to the supernodes in turn."""
        return self.new_allgather() + (self.p - 1) / self.p * self.n * self.gamma

    def new_allgather(self) -> float:
        """Equation 6."""
        groups, part = self.p / min(self.p, self.q), self.n / self.p
        return (
            math.log2(self.p) * self.alpha
            + (self.p - groups) * self.beta1 * part
            + (groups - 1) * self.beta2 * part
        )

    def allreduce(self, order: str = "natural") -> float:
        """Equation 2."""
        if order == "natural":
            return self.reduce_scatter() + self.allgather()
        return self.new_reduce_scatter() + self.new_allgather()
