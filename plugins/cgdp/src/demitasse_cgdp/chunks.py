"""Chunks of layers, and the search for their size (CGDP, sections 4.1 and 4.2). Pure functions, for the
training step and for predictions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def chunks(layers: Sequence[T], size: int) -> list[tuple[T, ...]]:
    """Group ``layers``, given in the order in which backward finishes them, into chunks of ``size``. The
    last layers of backward become chunks of one, so that little is left to send when backward is over
    (section 4.2).

    Of l layers in chunks of size k there are l // k chunks of that size, or one fewer if k divides l;
    then the last k layers stand alone. A k from l on is therefore the same as 1. Raises ValueError for a
    size below 1."""
    if size < 1:
        raise ValueError(f"chunks of {size} layers (valid: a whole number, 1 or more)")
    count, rest = divmod(len(layers), size)
    whole = count if rest else max(0, count - 1)
    together = [tuple(layers[i * size : (i + 1) * size]) for i in range(whole)]
    return [*together, *((layer,) for layer in layers[whole * size :])]


class ChunkSearch:
    """Algorithm 1: find the chunk size that makes iterations fastest, during the first of them.

    ``chunk`` is the size for the next iteration; pass each iteration's time to ``iterated``. Each size
    is kept for ``interval`` iterations. Sizes grow by 1 up to ``step``, and by ``step`` from there on.
    The search ends, with ``best_chunk``, once a size is ``step * reach`` or more above the best
    (``reach`` is the paper's range). ``lapses`` has the seconds that an interval took by size, in the
    order of measuring."""

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
        """Record the time of an iteration with the size ``chunk``; return the size for the next (lines 6
        to 26)."""
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
        """The number of iterations that the search takes if the first size stays the best: sizes 1 to
        ``step``, and ``reach`` more."""
        return (self.step + self.reach) * self.interval


def sizes_tried(seconds: Iterable[float], step: int, reach: int) -> Iterator[int]:
    """Yield the sizes that a search tries, one after the other, if an interval with each takes the next
    of ``seconds``. The last is the size that it settles on."""
    search = ChunkSearch(step, reach, 1)
    for lapse in seconds:
        yield search.chunk
        search.iterated(lapse)
        if search.done:
            break
    yield search.chunk
