"""Collectives in which all ranks exchange parts: ring, halving, doubling, and related algorithms.

Sources: Patarasuk and Yuan (2009) for the ring; Thakur, Rabenseifner and Gropp, "Optimization of
collective communication operations in MPICH" (2005), for halving, doubling and folds; swCaffe, section
V.A, for halving that starts with the farthest rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from demitasse import InRounds, Round, Schedule

Array = np.ndarray[Any, np.dtype[Any]]


def cut(size: int, index: Any, parts: int) -> Any:
    """Return the first element of part ``index`` if ``size`` elements are cut into ``parts`` even
    parts."""
    return size * index // parts


def ring(schedule: Schedule, program: InRounds) -> Iterator[Round]:
    """Each rank passes a part to the next rank, which adds its own. After n - 1 such rounds rank r has
    part r of the sum. An allreduce then runs the same rounds backwards to distribute the parts; an
    allgather is only this second half. Fewest bytes, most rounds."""
    n, size, rank = schedule.ranks, schedule.size, np.arange(schedule.ranks)

    def scatter(step: int) -> Round:
        part = (rank - 1 - step) % n
        return Round(rank, (rank + 1) % n, cut(size, part, n), cut(size, part + 1, n), True)

    if schedule.goal != "allgather":
        yield from map(scatter, range(n - 1))
    if schedule.goal != "reduce_scatter":
        yield from (scatter(step).mirrored() for step in reversed(range(n - 1)))


def ring_in_turn(schedule: Schedule, program: InRounds) -> Iterator[Round]:
    """Yield the ring's rounds for costing: one round that stands for n - 1 equal ones in each direction,
    in which every rank sends a part of the largest size, as some rank does in each real round."""
    n, rank = schedule.ranks, np.arange(schedule.ranks)
    part, none = np.full(n, -(-schedule.size // n)), np.zeros(n, int)
    way = Round(rank, (rank + 1) % n, none, part, True, n - 1)
    if n > 1 and schedule.goal != "allgather":
        yield way
    if n > 1 and schedule.goal != "reduce_scatter":
        yield way.mirrored()


def power(ranks: int) -> int:
    """Return the largest power of two that does not exceed ``ranks``."""
    return 1 << (ranks.bit_length() - 1)


def folded(rank: int, ranks: int) -> int | None:
    """Return a rank's number among the largest power of two of ranks; None for a rank that gives its
    data to its neighbour."""
    extra = ranks - power(ranks)
    if rank >= 2 * extra:
        return rank - extra
    return rank // 2 if rank % 2 else None


def unfolded(number: Any, ranks: int) -> Any:
    """Return the rank that has a number: the inverse of ``folded``."""
    extra = ranks - power(ranks)
    return np.where(number < extra, 2 * number + 1, number + extra)


def _bits(ranks: int, near_first: bool) -> list[int]:
    """Return the distances between exchanging ranks, in the order of the exchanges."""
    distances = [1 << bit for bit in range(power(ranks).bit_length() - 1)]
    return distances if near_first else distances[::-1]


def _halved(ranks: int, number: Any, near_first: bool) -> list[tuple[Any, Any, Any]]:
    """Return for each exchange: (first unit that a number keeps, first unit that it sends, how many
    units each of the two has). The vector is divided into as many units as there are numbers."""
    made, first, units = [], number * 0, power(ranks)
    for distance in _bits(ranks, near_first):
        units //= 2
        upper = (number & distance) != 0
        kept, sent = first + units * upper, first + units * (1 - upper)
        made.append((kept, sent, units))
        first = kept
    return made


def _halving(schedule: Schedule, near_first: bool) -> list[Round]:
    """Return the rounds of a reduce-scatter: pairs exchange half of what they hold, again and again."""
    n, size, number = power(schedule.ranks), schedule.size, np.arange(power(schedule.ranks))
    rank, rounds = unfolded(number, schedule.ranks), []
    halves = _halved(schedule.ranks, number, near_first)
    for distance, (_, sent, units) in zip(_bits(schedule.ranks, near_first), halves, strict=True):
        start, stop = cut(size, sent, n), cut(size, sent + units, n)
        rounds.append(Round(rank, unfolded(number ^ distance, schedule.ranks), start, stop, True))
    return rounds


def _towards_root(schedule: Schedule, rounds: list[Round], near_first: bool) -> Iterator[Round]:
    """Yield the rounds of an allgather, reduced to the messages whose content reaches the root."""
    away = np.arange(power(schedule.ranks)) ^ _number_of_root(schedule)
    done = 0
    for distance, each in zip(reversed(_bits(schedule.ranks, near_first)), rounds, strict=True):
        # A mirrored round lists receivers first: the sender is the number at that distance.
        sends = away ^ distance
        yield each.kept((sends & done == 0) & (sends & distance != 0))
        done |= distance


def _number_of_root(schedule: Schedule) -> int:
    number = folded(schedule.root, schedule.ranks)
    return schedule.root // 2 if number is None else number


def _by_halves(schedule: Schedule, near_first: bool, fold: list[Round]) -> Iterator[Round]:
    """Yield what the goal needs of: the fold, a reduce-scatter by halving, its mirror image (an
    allgather), and the unfolding."""
    goal, ranks, root = schedule.goal, schedule.ranks, schedule.root
    scatter = _halving(schedule, near_first)
    gather = [each.mirrored() for each in reversed(scatter)]
    if goal in ("allreduce", "reduce", "reduce_scatter"):
        yield from fold
        yield from scatter
    by_neighbour = folded(root, ranks) is None
    whole = _whole(schedule, np.array([root + 1]), np.array([root]))
    if goal == "broadcast":
        if by_neighbour:
            yield whole.mirrored()
        to_root = list(_towards_root(schedule, gather, near_first))
        yield from (each.mirrored() for each in reversed(to_root))
    if goal == "reduce":
        yield from _towards_root(schedule, gather, near_first)
        if by_neighbour:
            yield whole
    elif goal != "reduce_scatter":
        yield from gather
        yield _unfold(schedule)


def _whole(schedule: Schedule, source: Array, target: Array, reduces: bool = False) -> Round:
    """Return a round that sends the whole vector from each source to its target."""
    return Round(source, target, source * 0, source * 0 + schedule.size, reduces)


def _fold(schedule: Schedule) -> Round:
    """Return the round in which the surplus ranks give their data to a neighbour, if the number of ranks
    is not a power of two. The surplus ranks are the first even ones."""
    idle = 2 * np.arange(schedule.ranks - power(schedule.ranks))
    return _whole(schedule, idle, idle + 1, True)


def _unfold(schedule: Schedule) -> Round:
    """Return the round in which the surplus ranks get the result from that neighbour."""
    return _fold(schedule).mirrored()


def _shared_fold(schedule: Schedule) -> list[Round]:
    """Return Rabenseifner's fold: both neighbours sum one half, then one gives its half to the other."""
    even = 2 * np.arange(schedule.ranks - power(schedule.ranks))
    half, size = even * 0 + schedule.size // 2, schedule.size
    source, target = np.concatenate([even, even + 1]), np.concatenate([even + 1, even])
    start, stop = np.concatenate([even * 0, half]), np.concatenate([half, even * 0 + size])
    return [
        Round(source, target, start, stop, True),
        Round(even, even + 1, half, even * 0 + size, False),
    ]


def halving_doubling(schedule: Schedule, program: InRounds) -> Iterable[Round]:
    """swCaffe's algorithm: the farthest ranks exchange halves, nearer ones quarters, and so on; then
    the same backwards."""
    return _by_halves(schedule, near_first=False, fold=[_fold(schedule)])


def rabenseifner(schedule: Schedule, program: InRounds) -> Iterable[Round]:
    """Rabenseifner's algorithm, as in MPICH: neighbours exchange halves, and the farthest ranks exchange
    the least. If the number of ranks is not a power of two, both ranks of a folded pair sum one half."""
    return _by_halves(schedule, near_first=True, fold=_shared_fold(schedule))


def halving_owner(schedule: Schedule, rank: int) -> tuple[int, int]:
    """Return the elements (start, stop) that a rank has after halving from far to near: the part of its
    number, or nothing if the rank was folded."""
    return _kept(schedule, rank, near_first=False)


def rabenseifner_owner(schedule: Schedule, rank: int) -> tuple[int, int]:
    """Return the elements (start, stop) that a rank has after halving from near to far."""
    return _kept(schedule, rank, near_first=True)


def _kept(schedule: Schedule, rank: int, near_first: bool) -> tuple[int, int]:
    number = folded(rank, schedule.ranks)
    if number is None:
        return 0, 0
    unit = next((kept for kept, *_ in reversed(_halved(schedule.ranks, number, near_first))), 0)
    n = power(schedule.ranks)
    return cut(schedule.size, unit, n), cut(schedule.size, unit + 1, n)


def doubling(schedule: Schedule, program: InRounds) -> Iterator[Round]:
    """All ranks exchange everything they have with ranks at distances 1, 2, 4, ...: the fewest rounds.
    Both ranks of a pair add the same two numbers, so both get the same bits."""
    number = np.arange(power(schedule.ranks))
    yield _fold(schedule)
    for distance in _bits(schedule.ranks, near_first=True):
        source, target = (unfolded(each, schedule.ranks) for each in (number, number ^ distance))
        yield _whole(schedule, source, target, True)
    yield _unfold(schedule)
