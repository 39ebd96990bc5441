"""What is drawn at random for a sample, by its number in the global order: the same for any division of
the work, and whatever was drawn before it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from demitasse import RandomStream

_FIRST = 32
"""As many numbers as one that samples no parts takes."""
_STREAMS = 1 << 24
"""Random streams from here on are of samples; those of parameters and of filled blobs lie below."""


class Draws:
    """Uniform numbers for sample ``number``, one after the other."""

    def __init__(self, seed: int, stream: int, number: int, more: int = 0) -> None:
        """``more`` than a few will be taken."""
        source = RandomStream(seed, _STREAMS + stream)
        source.calls = number  # each sample's numbers are a call's
        self._numbers: NDArray[np.float64] = source.uniform(_FIRST + more)
        self._at = 0

    def block(self, *shape: int) -> NDArray[np.float64]:
        """The next ones, in [0, 1)."""
        begin, self._at = self._at, self._at + int(np.prod(shape))
        return self._numbers[begin : self._at].reshape(shape)

    def uniform(self, low: float, high: float) -> float:
        """The next one, in [low, high)."""
        return low + float(self.block(1)[0]) * (high - low)

    def below(self, count: int) -> int:
        """A whole number from 0 up to ``count``."""
        return min(int(self.uniform(0, count)), count - 1)

    def happens(self, probability: float) -> bool:
        """Whether something of this probability does."""
        return self.uniform(0, 1) < probability
