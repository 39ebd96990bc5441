"""The n-ary tree of domains (section 4.2), and the part of a span that each domain is the root of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from demitasse import Span

LINE = 16
"""Parts of a span are multiples of this many elements, so that each cache line of float32 belongs to
only one domain."""

SMALL = 1024
"""A span with fewer elements per domain than this (a page of float32) is not divided, because handing
over would take longer than adding."""


@dataclass(frozen=True)
class Tree:
    """``size`` domains in an ``arity``-ary heap, turned so that ``root`` is the root."""

    size: int
    arity: int
    root: int = 0

    def parent(self, index: int) -> int | None:
        """Return the domain that adds this one's gradients to its own; None for the root."""
        place = (index - self.root) % self.size
        return None if place == 0 else ((place - 1) // self.arity + self.root) % self.size

    def children(self, index: int) -> tuple[int, ...]:
        """Return the domains whose gradients this one adds to its own, in that order."""
        first = ((index - self.root) % self.size) * self.arity + 1
        last = min(first + self.arity, self.size)
        return tuple((place + self.root) % self.size for place in range(first, last))

    def height(self, index: int) -> int:
        """Return the number of steps down to the furthest domain below."""
        return max((1 + self.height(child) for child in self.children(index)), default=0)


def parts(span: Span, size: int, spread: bool) -> Sequence[Span]:
    """Return the part of a span that each domain owns: nearly equal parts, or the whole span for the
    first domain."""
    if not spread or len(span) < size * SMALL:
        empty = Span(span.start, span.start)
        return (span, *(empty for _ in range(size - 1)))
    lines = -(-len(span) // LINE)
    edges = [min(span.start + lines * i // size * LINE, span.stop) for i in range(size)] + [span.stop]
    return tuple(Span(a, b) for a, b in pairwise(edges))
