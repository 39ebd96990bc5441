"""Random draws for a sample, determined by its number in the global order: the same however the work is
divided, and whatever was drawn before."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from demitasse import RandomStream

_FIRST = 32
"""How many numbers a sample draws if it does not sample parts."""
_STREAMS = 1 << 24
"""Random streams from here on belong to samples; those of parameters and filled blobs are below."""


class Draws:
    """Uniform random numbers for sample ``number``, one after the other."""

    def __init__(self, seed: int, stream: int, number: int, more: int = 0) -> None:
        """``more`` is how many numbers will be drawn beyond a few."""
        source = RandomStream(seed, _STREAMS + stream)
        source.calls = number  # a sample's numbers are those of one call
        self._numbers: NDArray[np.float64] = source.uniform(_FIRST + more)
        self._at = 0

    def block(self, *shape: int) -> NDArray[np.float64]:
        """Return the next numbers, in [0, 1)."""
        begin, self._at = self._at, self._at + int(np.prod(shape))
        return self._numbers[begin : self._at].reshape(shape)

    def uniform(self, low: float, high: float) -> float:
        """Return the next number, scaled to [low, high)."""
        return low + float(self.block(1)[0]) * (high - low)

    def below(self, count: int) -> int:
        """Return a whole number from 0 up to, not including, ``count``."""
        return min(int(self.uniform(0, count)), count - 1)

    def happens(self, probability: float) -> bool:
        """Return true with this probability."""
        return self.uniform(0, 1) < probability
