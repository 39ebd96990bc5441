"""A layered drawing of a directed acyclic graph: the positions of its boxes and lines.

Breadth runs across the layers, depth along them; the caller maps the two to x and y. The steps are those
of K. Sugiyama, S. Tagawa and M. Toda, *Methods for Visual Understanding of Hierarchical System
Structures* (1981): ranks by longest paths, a bend at every rank that a line crosses, orders by
barycentres, and positions as near to the neighbours as the orders allow.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

SWEEPS = 12
"""The number of sweeps down and up again; more changed none of the drawings of nets looked at."""

MAX_BENDS = 30_000
"""The maximum number of bends of all lines. Beyond it long lines are drawn straight, without bends:
nobody reads such a drawing, but it still takes only seconds and some megabytes."""

LABELLED = 64.0
"""The distance between the lines of two blobs that leave a box, with room for their labels."""

Point = tuple[float, float]
"""(breadth, depth)."""


@dataclass(frozen=True)
class Line:
    """A line from one box to another. Lines of the same ``bundle`` (a blob) leave together and share
    their path."""

    source: int
    target: int
    bundle: int


@dataclass(frozen=True)
class Layout:
    """The centres of boxes, the points of each line from box to box, and the total
    extent, starting at 0."""

    middles: list[Point]
    routes: list[list[Point]]
    breadth: float
    depth: float


@dataclass(eq=False)
class _Place:
    """A box, or a bend in the lines of a bundle."""

    rank: int
    breadth: float
    depth: float
    bend: bool = False
    position: float = 0.0
    above: list[_Place] = field(default_factory=list)
    below: list[_Place] = field(default_factory=list)


def arrange(
    sizes: Sequence[Point], lines: Sequence[Line], gap: float = 26.0, rank_gap: float = 46.0
) -> Layout:
    """Place boxes of ``sizes`` (breadth, depth), ``gap`` apart within a rank, with ``rank_gap`` between
    ranks.

    A line leads from a box to one with a higher number. Raise ValueError for any other line.
    """
    for line in lines:
        if not 0 <= line.source < line.target < len(sizes):
            raise ValueError(f"a line from box {line.source} to {line.target} of {len(sizes)}")
    boxes = [_Place(rank, *size) for rank, size in zip(_ranks(len(sizes), lines), sizes, strict=True)]
    chains = _bend(boxes, lines)
    rows = _rows(boxes, chains)
    _order(rows)
    _spread(rows, gap)
    return _routed(boxes, rows, lines, chains, rank_gap)


def _ranks(count: int, lines: Sequence[Line]) -> list[int]:
    """Return ranks by the longest path from above; a box that no line leads to is right above
    its first reader."""
    ranks = [0] * count
    for line in sorted(lines, key=lambda line: line.source):
        ranks[line.target] = max(ranks[line.target], ranks[line.source] + 1)
    fed = {line.target for line in lines}
    first: dict[int, int] = {}
    for line in lines:
        first[line.source] = min(first.get(line.source, count), ranks[line.target])
    return [
        first[box] - 1 if box not in fed and box in first else rank for box, rank in enumerate(ranks)
    ]


def _bend(boxes: list[_Place], lines: Sequence[Line]) -> list[list[_Place]]:
    """Return the places that each line passes, both ends included, and create its bends."""
    spans = sum(boxes[line.target].rank - boxes[line.source].rank - 1 for line in lines)
    bends: dict[tuple[int, int], _Place] = {}
    joined: set[tuple[int, int]] = set()
    chains = []
    for line in lines:
        source, target = boxes[line.source], boxes[line.target]
        chain = [source]
        for rank in range(source.rank + 1, target.rank) if spans <= MAX_BENDS else ():
            chain.append(bends.setdefault((line.bundle, rank), _Place(rank, 4.0, 0.0, bend=True)))
        chain.append(target)
        for upper, lower in pairwise(chain):
            if lower.rank == upper.rank + 1 and (id(upper), id(lower)) not in joined:
                joined.add((id(upper), id(lower)))
                upper.below.append(lower)
                lower.above.append(upper)
        chains.append(chain)
    return chains


def _rows(boxes: list[_Place], chains: list[list[_Place]]) -> list[list[_Place]]:
    """Return the places of each rank, in the order in which a walk down from the first
    boxes meets them."""
    rows: list[list[_Place]] = [[] for _ in range(max((box.rank for box in boxes), default=-1) + 1)]
    seen: set[int] = set()
    for place in [*boxes, *(place for chain in chains for place in chain)]:
        if id(place) not in seen:
            seen.add(id(place))
            rows[place.rank].append(place)
    return rows


def _order(rows: list[list[_Place]]) -> None:
    """Sort each rank by the barycentres of the places' neighbours, and keep the order with the
    fewest crossings."""
    best, fewest = [list(row) for row in rows], _crossings(rows)
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        for row in rows if down else rows[::-1]:
            _number(rows, row, down)
            row.sort(key=lambda place: place.position)
        crossings = _crossings(rows)
        if crossings < fewest:
            best, fewest = [list(row) for row in rows], crossings
        if not fewest:
            break
    for row, order in zip(rows, best, strict=True):
        row[:] = order


def _number(rows: list[list[_Place]], row: list[_Place], down: bool) -> None:
    """Set the positions of a rank's places: the mean of their neighbours' numbers in
    the adjacent rank."""
    rank = row[0].rank if row else 0
    before = rank - 1 if down else rank + 1
    if not 0 <= before < len(rows):
        return
    numbers = {id(place): number for number, place in enumerate(rows[before])}
    for number, place in enumerate(row):
        near = [numbers[id(other)] for other in (place.above if down else place.below)]
        place.position = sum(near) / len(near) if near else float(number)


def _crossings(rows: list[list[_Place]]) -> int:
    total = 0
    for upper, lower in pairwise(rows):
        numbers = {id(place): number for number, place in enumerate(lower)}
        ends: list[int] = []
        for place in upper:
            reached = sorted(numbers[id(other)] for other in place.below)
            total += sum(len(ends) - bisect_right(ends, end) for end in reached)
            for end in reached:
                insort(ends, end)
    return total


def _spread(rows: list[list[_Place]], gap: float) -> None:
    """Give each place a position near its neighbours' and ``gap`` from the next place in its rank."""
    for row in rows:
        edge = 0.0
        for place in row:
            place.position = edge + place.breadth / 2
            edge += place.breadth + gap
    for sweep in range(2 * SWEEPS):
        last = sweep >= 2 * SWEEPS - 8
        for row in rows if sweep % 2 == 0 else rows[::-1]:
            wanted, weights = [], []
            for place in row:
                near = (
                    place.above + place.below if last else place.above if sweep % 2 == 0 else place.below
                )
                pulls = [_pull(place, other) for other in near]
                total = sum(pulls)
                middle = sum(p * other.position for p, other in zip(pulls, near, strict=True))
                wanted.append(middle / total if total else place.position)
                weights.append(total or 0.1)
            apart = [(left.breadth + right.breadth) / 2 + gap for left, right in pairwise(row)]
            for place, position in zip(row, nearest_in_order(wanted, weights, apart), strict=True):
                place.position = position


def _pull(place: _Place, other: _Place) -> float:
    """Return how important it is that a line is straight: most for a long line, then for one
    of a plain chain."""
    if place.bend and other.bend:
        return 16.0
    upper, lower = (place, other) if place.rank < other.rank else (other, place)
    return 3.0 if len(upper.below) == 1 == len(lower.above) else 1.0


def nearest_in_order(
    wanted: Sequence[float], weights: Sequence[float], apart: Sequence[float]
) -> list[float]:
    """Return the positions with the least weighted squared distance from the ``wanted`` ones, each
    at least ``apart`` beyond the one before. This is a monotone regression, computed by pooling
    adjacent violators."""
    offsets = [0.0]
    for distance in apart:
        offsets.append(offsets[-1] + distance)
    pools: list[tuple[float, float, int]] = []
    for value, weight, offset in zip(wanted, weights, offsets, strict=False):
        mean, mass, count = value - offset, weight, 1
        while pools and pools[-1][0] > mean:
            other, more, size = pools.pop()
            mean = (mean * mass + other * more) / (mass + more)
            mass, count = mass + more, count + size
        pools.append((mean, mass, count))
    flat = [mean for mean, _, count in pools for _ in range(count)]
    return [mean + offset for mean, offset in zip(flat, offsets, strict=False)]


def _routed(
    boxes: list[_Place],
    rows: list[list[_Place]],
    lines: Sequence[Line],
    chains: list[list[_Place]],
    rank_gap: float,
) -> Layout:
    tops, depth = [], 0.0
    for row in rows:
        tops.append(depth)
        depth += max((place.depth for place in row), default=0.0) + rank_gap
    bottoms = [top - rank_gap for top in tops[1:]] + [depth - rank_gap]
    left = min((place.position - place.breadth / 2 for row in rows for place in row), default=0.0)
    for row in rows:
        for place in row:
            place.position -= left
    middles = [(box.position, (tops[box.rank] + bottoms[box.rank]) / 2) for box in boxes]
    leaving = _ports(boxes, lines, chains, outward=True)
    arriving = _ports(boxes, lines, chains, outward=False)
    routes = []
    for number, (line, chain) in enumerate(zip(lines, chains, strict=True)):
        source, target = boxes[line.source], boxes[line.target]
        points = [
            (leaving[number], middles[line.source][1] + source.depth / 2),
            (leaving[number], bottoms[source.rank]),
        ]
        for bend in chain[1:-1]:
            points += [(bend.position, tops[bend.rank]), (bend.position, bottoms[bend.rank])]
        points += [
            (arriving[number], tops[target.rank]),
            (arriving[number], middles[line.target][1] - target.depth / 2),
        ]
        routes.append(points)
    right = max((place.position + place.breadth / 2 for row in rows for place in row), default=0.0)
    return Layout(middles, routes, right, max(0.0, depth - rank_gap))


def _ports(
    boxes: list[_Place], lines: Sequence[Line], chains: list[list[_Place]], *, outward: bool
) -> list[float]:
    """Return where each line ends on the side of its box, ordered by what it leads to. The lines of a
    bundle leave at one point, but each arrives at its own."""
    ends: dict[int, dict[int, float]] = {}
    for number, (line, chain) in enumerate(zip(lines, chains, strict=True)):
        box, port = (line.source, line.bundle) if outward else (line.target, number)
        leads = chain[1].position if outward else chain[-2].position
        ends.setdefault(box, {}).setdefault(port, leads)
    result = []
    for number, line in enumerate(lines):
        box, port = (line.source, line.bundle) if outward else (line.target, number)
        order = sorted(ends[box], key=lambda each: ends[box][each])
        step = min(LABELLED if outward else 22.0, 0.8 * boxes[box].breadth / len(order))
        result.append(boxes[box].position + (order.index(port) - (len(order) - 1) / 2) * step)
    return result
