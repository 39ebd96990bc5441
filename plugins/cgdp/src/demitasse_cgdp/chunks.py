"""Chunks of layers, and the search for their size (CGDP, sections 4.1 and 4.2): pure, for the step and
for whoever predicts it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def chunks(layers: Sequence[T], size: int) -> list[tuple[T, ...]]:
    """``layers``, in the order in which backward ends them, in chunks of ``size``; the last of backward
    are chunks of one, so that little is left to send when backward is over (section 4.2).

    Of l layers, the chunks of ``size`` k are l // k, or one less where k divides l: then it is the last
    k layers that stand alone. So a k from l on is as good as 1. Raises ValueError for a size below 1."""
    if size < 1:
        raise ValueError(f"chunks of {size} layers (valid: a whole number, 1 or more)")
    count, rest = divmod(len(layers), size)
    whole = count if rest else max(0, count - 1)
    together = [tuple(layers[i * size : (i + 1) * size]) for i in range(whole)]
    return [*together, *((layer,) for layer in layers[whole * size :])]


class ChunkSearch:
    """Algorithm 1: which chunk size makes iterations quickest, found in the first of them.

    ``chunk`` is the size for the next iteration; ``iterated`` is told what one took. Each size is kept
    for ``interval`` iterations; sizes grow by 1 up to ``step`` and by ``step`` from there on; the search
    ends, with ``best_chunk``, once a size is ``step * reach`` or more above the best (``reach`` is the
    paper's range). ``lapses`` has the seconds of an interval by size, in the order of measuring."""

    def __init__(self, step: int = 10, reach: int = 5, interval: int = 10) -> None:
        for name, value in (("step", step), ("range", reach), ("interval", interval)):
            if value < 1:
                raise ValueError(f"{name} = {value} (valid: a whole number, 1 or more)")
        self.step, self.reach, self.interval = step, reach, interval
        self.chunk, self.best_chunk, self.lapse_min = 1, 1, math.inf
        self.iterations, self.done = 0, False
        self.lapses: dict[int, float] = {}
        self._lapse = 0.0

    def iterated(self, seconds: float) -> int:
        """An iteration with the size ``chunk`` took so long; the size for the next (lines 6 to 26)."""
        self.iterations += 1
        self._lapse += seconds
        if self.done or self.iterations % self.interval:
            return self.chunk
        if self.chunk >= self.best_chunk + self.step * self.reach:
            self.chunk, self.done = self.best_chunk, True
            return self.chunk
        self.lapses[self.chunk] = lapse = self._lapse
        if lapse < self.lapse_min:
            self.lapse_min, self.best_chunk = lapse, self.chunk
        self.chunk += 1 if self.chunk < self.step else self.step
        self._lapse = 0.0
        return self.chunk

    @property
    def longest(self) -> int:
        """Iterations that the search takes if the first size stays the best: sizes 1 to ``step``, and
        ``reach`` more."""
        return (self.step + self.reach) * self.interval


def sizes_tried(seconds: Iterable[float], step: int, reach: int) -> Iterator[int]:
    """The sizes that a search asks for, one after the other, when an interval with each takes the next
    of ``seconds``; the last is the one that it settles on."""
    search = ChunkSearch(step, reach, 1)
    for lapse in seconds:
        yield search.chunk
        search.iterated(lapse)
        if search.done:
            break
    yield search.chunk
