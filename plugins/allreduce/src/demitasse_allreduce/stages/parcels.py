"""Parcels: buckets whose gradients travel together, after they are final and before the update."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from demitasse import Bucket, Span, Work


@dataclass(eq=False)
class Part:
    """The part of a bucket that this worker has at this level."""

    bucket: Bucket
    span: Span
    chain: Work | None = None
    """Reduce, update and distribute, if they are deferred; None if they run when called."""


@dataclass(eq=False)
class Parcel:
    """Consecutive parts that are summed together."""

    index: int
    parts: list[Part]
    pending: int = 0
    summed: bool = False
    distributed: int = 0
    name: str = field(init=False)

    def __post_init__(self) -> None:
        layers = [layer for part in self.parts for layer in part.bucket.layers]
        first, last = layers[0], layers[-1]
        self.name = first if first == last else f"{first} to {last}"

    def reset(self) -> None:
        """Prepare for an iteration."""
        self.pending, self.summed, self.distributed = len(self.parts), False, 0

    @property
    def pieces(self) -> list[Span]:
        """The parts' elements, as the fewest spans."""
        return merged(part.span for part in self.parts)

    @property
    def elements(self) -> int:
        """The number of elements in all parts."""
        return sum(len(part.span) for part in self.parts)


def merged(spans: Iterable[Span]) -> list[Span]:
    """Return spans in the order of memory, with adjacent ones joined."""
    made: list[Span] = []
    for span in sorted((span for span in spans if span), key=lambda each: each.start):
        if made and made[-1].stop == span.start:
            made[-1] = Span(made[-1].start, span.stop)
        else:
            made.append(span)
    return made


def parcels(parts: Iterable[Part], elements: int | None) -> list[Parcel]:
    """Join parts into parcels, in the order of their buckets: a parcel takes further parts until it has
    ``elements`` elements; all parts form one parcel if this is None. A part that has as many elements by
    itself begins a new parcel, so that small parts before it need not wait until it is final."""
    made: list[list[Part]] = []
    for part in sorted(parts, key=lambda each: each.bucket.index):
        last = sum(len(each.span) for each in made[-1]) if made else 0
        full = elements is not None and (last >= elements or len(part.span) >= elements)
        if not made or full:
            made.append([part])
        else:
            made[-1].append(part)
    return [Parcel(number, group) for number, group in enumerate(made)]


def shares(span: Span, size: int, line: int) -> list[Span]:
    """Cut a span into ``size`` parts of about the same size, at multiples of ``line`` elements."""
    first, last = span.start // line, -(-span.stop // line)
    cuts = [(first + (last - first) * i // size) * line for i in range(size + 1)]
    edges = [min(max(cut, span.start), span.stop) for cut in cuts]
    return [Span(start, stop) for start, stop in pairwise(edges)]


def inside(span: Span, other: Span) -> Span:
    """Return the intersection of two spans; an empty span inside the first if they do not overlap."""
    start = min(max(span.start, other.start), span.stop)
    return Span(start, max(start, min(span.stop, other.stop)))
