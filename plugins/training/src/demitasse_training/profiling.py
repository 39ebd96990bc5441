"""How long each entry of a plan takes."""

from __future__ import annotations

import time
from collections.abc import Sequence

from demitasse import Entry, Step, Work


def timed(step: Step, iterations: int, reads: Sequence[Work] = ()) -> list[tuple[Entry, float]]:
    """The mean seconds of each entry of a step over some walks; ``reads`` come before each, untimed."""
    seconds = [0.0] * len(step.works)
    for _ in range(iterations):
        for read in reads:
            read()
        for i, (_, work) in enumerate(step.works):
            start = time.perf_counter()
            work()
            seconds[i] += time.perf_counter() - start
    return [(entry, s / iterations) for (entry, _), s in zip(step.works, seconds, strict=True)]
