"""Collectives in which all ranks exchange parts: ring, halving and doubling, and their kin.

Sources: Patarasuk and Yuan (2009) for the ring; Thakur, Rabenseifner and Gropp, "Optimization of
collective communication operations in MPICH" (2005), for halving, doubling and folds; swCaffe, section
V.A, for halving that begins with the farthest rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from demitasse import InRounds, Round, Schedule

Array = np.ndarray[Any, np.dtype[Any]]


def cut(size: int, index: Any, parts: int) -> Any:
    """Where one of ``parts`` even parts of ``size`` elements begins."""
    return size * index // parts


def ring(schedule: Schedule, program: InRounds) -> Iterator[Round]:
    """Each rank passes a part on to the next, who adds its own: n - 1 rounds, after which rank r has
    part r of the sum; then, or to gather only, the same backwards. Least bytes, most rounds."""
    n, size, rank = schedule.ranks, schedule.size, np.arange(schedule.ranks)

    def scatter(step: int) -> Round:
        part = (rank - 1 - step) % n
        return Round(rank, (rank + 1) % n, cut(size, part, n), cut(size, part + 1, n), True)

    if schedule.goal != "allgather":
        yield from map(scatter, range(n - 1))
    if schedule.goal != "reduce_scatter":
        yield from (scatter(step).mirrored() for step in reversed(range(n - 1)))


def ring_in_turn(schedule: Schedule, program: InRounds) -> Iterator[Round]:
    """The ring's rounds with their number: the largest part is under way somewhere in each."""
    n, rank = schedule.ranks, np.arange(schedule.ranks)
    part, none = np.full(n, -(-schedule.size // n)), np.zeros(n, int)
    way = Round(rank, (rank + 1) % n, none, part, True, n - 1)
    if n > 1 and schedule.goal != "allgather":
        yield way
    if n > 1 and schedule.goal != "reduce_scatter":
        yield way.mirrored()


def power(ranks: int) -> int:
    """The largest power of two that is not more."""
    return 1 << (ranks.bit_length() - 1)


def folded(rank: int, ranks: int) -> int | None:
    """A rank's number among a power of two; None for one whose data its neighbour sums."""
    extra = ranks - power(ranks)
    if rank >= 2 * extra:
        return rank - extra
    return rank // 2 if rank % 2 else None


def unfolded(number: Any, ranks: int) -> Any:
    """The rank that has a number."""
    extra = ranks - power(ranks)
    return np.where(number < extra, 2 * number + 1, number + extra)


def _bits(ranks: int, near_first: bool) -> list[int]:
    """Distances in the order in which ranks exchange."""
    distances = [1 << bit for bit in range(power(ranks).bit_length() - 1)]
    return distances if near_first else distances[::-1]


def _halved(ranks: int, number: Any, near_first: bool) -> list[tuple[Any, Any, Any]]:
    """Of each exchange: (the first unit that a number keeps, that it sends, units in either), in as many
    units as there are numbers."""
    made, first, units = [], number * 0, power(ranks)
    for distance in _bits(ranks, near_first):
        units //= 2
        upper = (number & distance) != 0
        kept, sent = first + units * upper, first + units * (1 - upper)
        made.append((kept, sent, units))
        first = kept
    return made


def _halving(schedule: Schedule, near_first: bool) -> list[Round]:
    """Numbers exchange half of what they hold, a quarter, and so on: a reduce-scatter."""
    n, size, number = power(schedule.ranks), schedule.size, np.arange(power(schedule.ranks))
    rank, rounds = unfolded(number, schedule.ranks), []
    halves = _halved(schedule.ranks, number, near_first)
    for distance, (_, sent, units) in zip(_bits(schedule.ranks, near_first), halves, strict=True):
        start, stop = cut(size, sent, n), cut(size, sent + units, n)
        rounds.append(Round(rank, unfolded(number ^ distance, schedule.ranks), start, stop, True))
    return rounds


def _towards_root(schedule: Schedule, rounds: list[Round], near_first: bool) -> Iterator[Round]:
    """Of the rounds of an allgather, only the messages whose content ends at the root's number."""
    away = np.arange(power(schedule.ranks)) ^ _number_of_root(schedule)
    done = 0
    for distance, each in zip(reversed(_bits(schedule.ranks, near_first)), rounds, strict=True):
        # A mirrored round lists who gets first: who sends is the one at that distance from it.
        sends = away ^ distance
        yield each.kept((sends & done == 0) & (sends & distance != 0))
        done |= distance


def _number_of_root(schedule: Schedule) -> int:
    number = folded(schedule.root, schedule.ranks)
    return schedule.root // 2 if number is None else number


def _by_halves(schedule: Schedule, near_first: bool, fold: list[Round]) -> Iterator[Round]:
    """A fold, a reduce-scatter by halving, its mirror image, the unfolding: as the goal needs them."""
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
    """The whole vector from each source to each target."""
    return Round(source, target, source * 0, source * 0 + schedule.size, reduces)


def _fold(schedule: Schedule) -> Round:
    """Where ranks are no power of two, the first even ones give their data to a neighbour."""
    idle = 2 * np.arange(schedule.ranks - power(schedule.ranks))
    return _whole(schedule, idle, idle + 1, True)


def _unfold(schedule: Schedule) -> Round:
    """They get the result from him."""
    return _fold(schedule).mirrored()


def _shared_fold(schedule: Schedule) -> list[Round]:
    """Rabenseifner's fold: both neighbours add a half, and one gives the other its own."""
    even = 2 * np.arange(schedule.ranks - power(schedule.ranks))
    half, size = even * 0 + schedule.size // 2, schedule.size
    source, target = np.concatenate([even, even + 1]), np.concatenate([even + 1, even])
    start, stop = np.concatenate([even * 0, half]), np.concatenate([half, even * 0 + size])
    return [
        Round(source, target, start, stop, True),
        Round(even, even + 1, half, even * 0 + size, False),
    ]


def halving_doubling(schedule: Schedule, program: InRounds) -> Iterable[Round]:
    """swCaffe's: the farthest ranks exchange halves, nearer ones quarters, and so on, and back."""
    return _by_halves(schedule, near_first=False, fold=[_fold(schedule)])


def rabenseifner(schedule: Schedule, program: InRounds) -> Iterable[Round]:
    """Rabenseifner's, as MPICH has it: neighbours exchange the halves, the farthest ranks the least;
    where ranks are no power of two, both of a folded pair add one half."""
    return _by_halves(schedule, near_first=True, fold=_shared_fold(schedule))


def halving_owner(schedule: Schedule, rank: int) -> tuple[int, int]:
    """What a rank has after halving from far to near: its number's part; nothing if it was folded."""
    return _kept(schedule, rank, near_first=False)


def rabenseifner_owner(schedule: Schedule, rank: int) -> tuple[int, int]:
    """What a rank has after halving from near to far."""
    return _kept(schedule, rank, near_first=True)


def _kept(schedule: Schedule, rank: int, near_first: bool) -> tuple[int, int]:
    number = folded(rank, schedule.ranks)
    if number is None:
        return 0, 0
    unit = next((kept for kept, *_ in reversed(_halved(schedule.ranks, number, near_first))), 0)
    n = power(schedule.ranks)
    return cut(schedule.size, unit, n), cut(schedule.size, unit + 1, n)


def doubling(schedule: Schedule, program: InRounds) -> Iterator[Round]:
    """Everyone exchanges all it has with ranks at distances 1, 2, 4: the fewest rounds. Both add the
    same two numbers, so that both have the same bits."""
    number = np.arange(power(schedule.ranks))
    yield _fold(schedule)
    for distance in _bits(schedule.ranks, near_first=True):
        source, target = (unfolded(each, schedule.ranks) for each in (number, number ^ distance))
        yield _whole(schedule, source, target, True)
    yield _unfold(schedule)
