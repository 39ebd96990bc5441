"""Collectives that a description may name: as schedules that run and are proved, and in closed steps.

A schedule lists every move of every rank. For tens of thousands of ranks the same moves are given as
rounds: arrays over ranks of who sends how much to whom, equal rounds once with their number. Tests hold
the two together.

Sources: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH"
(2005), for recursive halving and doubling, doubling, binomial trees and ranks that are no power of two;
Patarasuk and Yuan (2009) for the ring; Awan et al. (S-Caffe, section 5) for the chunked chain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from demitasse import CompositionError, Move, Schedule, unknown

Array = np.ndarray[Any, np.dtype[Any]]

CHUNKS = 16
"""Pieces of the chunked chain: enough that filling the pipeline is a small part, few enough that their
latencies are."""


class Round(NamedTuple):
    """Messages that go at once, ``times`` in turn: source[i] sends elements[i] to target[i], who adds
    them if ``reduces``."""

    source: Array
    target: Array
    elements: Array
    reduces: bool | Array
    times: int = 1


@dataclass(frozen=True)
class Algorithm:
    """An allreduce: every rank's moves, and the same in rounds; both are functions of (ranks, size)."""

    name: str
    program: Callable[[Schedule, int], Iterable[Move]]
    rounds: Callable[[int, int], Iterable[Round]]

    def schedule(self, ranks: int, size: int) -> Schedule:
        """The schedule for ``size`` elements on so many ranks."""
        return Schedule(self.name, ranks, size, self.program)


def algorithm(name: str, where: object = None) -> Algorithm:
    """The algorithm of that name. Raises CompositionError that lists them."""
    if name not in ALGORITHMS:
        raise CompositionError(unknown("algorithm", name, ALGORITHMS, where))
    return ALGORITHMS[name]


def _cut(size: int, index: Any, parts: int) -> Any:
    """Where one of ``parts`` even parts of ``size`` elements begins."""
    return size * index // parts


def _power(ranks: int) -> int:
    """The largest power of two that is not more."""
    return 1 << (ranks.bit_length() - 1)


def _ring(schedule: Schedule, rank: int) -> Iterator[Move]:
    ranks = schedule.ranks
    after, before = (rank + 1) % ranks, (rank - 1) % ranks
    for kind, turn in (("reduce", 0), ("receive", 1)):
        for step in range(ranks - 1):
            yield Move("send", after, *schedule.part((rank + turn - step) % ranks))
            yield Move(kind, before, *schedule.part((rank + turn - step - 1) % ranks))


def _ring_rounds(ranks: int, size: int) -> Iterator[Round]:
    source = np.arange(ranks)
    if ranks > 1:
        for reduces in (True, False):
            # The largest part is under way somewhere in every round.
            most = np.full(ranks, -(-size // ranks))
            yield Round(source, (source + 1) % ranks, most, reduces, ranks - 1)


def _folded(rank: int, ranks: int) -> int | None:
    """A rank's number among a power of two; None for one that gave its data to its neighbour."""
    extra = ranks - _power(ranks)
    if rank >= 2 * extra:
        return rank - extra
    return rank // 2 if rank % 2 else None


def _unfolded(number: Any, ranks: int) -> Any:
    extra = ranks - _power(ranks)
    return np.where(number < extra, 2 * number + 1, number + extra)


def _fold(schedule: Schedule, rank: int, inner: Callable[[int, int], Iterator[Move]]) -> Iterator[Move]:
    """Where ranks are no power of two, the first ones give their data to a neighbour, and get the
    result from him; ``inner(number, ranks)`` is what the others do."""
    whole, number = (0, schedule.size), _folded(rank, schedule.ranks)
    partner = rank + 1 if number is None else rank - 1
    if number is None:
        yield Move("send", partner, *whole)
        yield Move("receive", partner, *whole)
        return
    gives = rank < 2 * (schedule.ranks - _power(schedule.ranks))
    if gives:
        yield Move("reduce", partner, *whole)
    yield from inner(number, _power(schedule.ranks))
    if gives:
        yield Move("send", partner, *whole)


def _fold_rounds(ranks: int, size: int, inner: Iterable[Round]) -> Iterator[Round]:
    extra = ranks - _power(ranks)
    idle, busy, all_of_it = 2 * np.arange(extra), 2 * np.arange(extra) + 1, np.full(extra, size)
    if extra:
        yield Round(idle, busy, all_of_it, True)
    for each in inner:
        source, target = _unfolded(each.source, ranks), _unfolded(each.target, ranks)
        yield each._replace(source=source, target=target)
    if extra:
        yield Round(busy, idle, all_of_it, False)


def _halving_doubling(schedule: Schedule, rank: int) -> Iterator[Move]:
    def inner(number: int, ranks: int) -> Iterator[Move]:
        def part(first: int, count: int) -> tuple[int, int]:
            return _cut(schedule.size, first, ranks), _cut(schedule.size, first + count, ranks)

        def peer(other: int) -> int:
            return int(_unfolded(other, schedule.ranks))

        distance = ranks // 2
        while distance:
            mine = number // distance * distance
            yield Move("send", peer(number ^ distance), *part(mine ^ distance, distance))
            yield Move("reduce", peer(number ^ distance), *part(mine, distance))
            distance //= 2
        distance = 1
        while distance < ranks:
            mine = number // distance * distance
            yield Move("send", peer(number ^ distance), *part(mine, distance))
            yield Move("receive", peer(number ^ distance), *part(mine ^ distance, distance))
            distance *= 2

    return _fold(schedule, rank, inner)


def _halving_doubling_rounds(ranks: int, size: int) -> Iterator[Round]:
    power = _power(ranks)
    number = np.arange(power)
    distances = [power >> step for step in range(1, power.bit_length())]

    def inner() -> Iterator[Round]:
        for reduces, line in ((True, distances), (False, distances[::-1])):
            for distance in line:
                block = number // distance * distance
                first = block ^ distance if reduces else block
                elements = _cut(size, first + distance, power) - _cut(size, first, power)
                yield Round(number, number ^ distance, elements, reduces)

    return _fold_rounds(ranks, size, inner())


def _doubling(schedule: Schedule, rank: int) -> Iterator[Move]:
    def inner(number: int, ranks: int) -> Iterator[Move]:
        distance = 1
        while distance < ranks:
            peer = int(_unfolded(number ^ distance, schedule.ranks))
            yield Move("send", peer, 0, schedule.size)
            yield Move("reduce", peer, 0, schedule.size)
            distance *= 2

    return _fold(schedule, rank, inner)


def _doubling_rounds(ranks: int, size: int) -> Iterator[Round]:
    number = np.arange(_power(ranks))
    steps = (number ^ (1 << bit) for bit in range(_power(ranks).bit_length() - 1))
    whole = np.full(len(number), size)
    return _fold_rounds(ranks, size, (Round(number, peer, whole, True) for peer in steps))


def _binomial(schedule: Schedule, rank: int) -> Iterator[Move]:
    whole, distance, ranks = (0, schedule.size), 1, schedule.ranks
    while distance < ranks and not rank & distance:
        if rank + distance < ranks:
            yield Move("reduce", rank + distance, *whole)
        distance *= 2
    if rank:
        yield Move("send", rank - distance, *whole)
        yield Move("receive", rank - distance, *whole)
    while (distance := distance // 2) > 0:
        if rank + distance < ranks:
            yield Move("send", rank + distance, *whole)


def _binomial_rounds(ranks: int, size: int) -> Iterator[Round]:
    distances = [1 << bit for bit in range((ranks - 1).bit_length())]
    for distance in distances:
        source = np.arange(distance, ranks, 2 * distance)
        yield Round(source, source - distance, np.full(len(source), size), True)
    for distance in distances[::-1]:
        target = np.arange(distance, ranks, 2 * distance)
        yield Round(target - distance, target, np.full(len(target), size), False)


def _chain(schedule: Schedule, rank: int) -> Iterator[Move]:
    chunks = [
        (_cut(schedule.size, i, CHUNKS), _cut(schedule.size, i + 1, CHUNKS)) for i in range(CHUNKS)
    ]
    first, last = rank == 0, rank == schedule.ranks - 1
    for chunk in chunks if schedule.ranks > 1 else ():
        if not last:
            yield Move("reduce", rank + 1, *chunk)
        if not first:
            yield Move("send", rank - 1, *chunk)
    for chunk in chunks if schedule.ranks > 1 else ():
        if not first:
            yield Move("receive", rank - 1, *chunk)
        if not last:
            yield Move("send", rank + 1, *chunk)


def _chain_rounds(ranks: int, size: int) -> Iterator[Round]:
    up, chunk = np.arange(1, ranks), -(-size // CHUNKS)
    # Filling the pipeline and the chunks: both ways as many rounds as there are links and chunks.
    if ranks > 1:
        elements = np.full(ranks - 1, chunk)
        yield Round(up, up - 1, elements, True, ranks - 2 + CHUNKS)
        yield Round(up - 1, up, elements, False, ranks - 2 + CHUNKS)


_HALVING = "recursive-halving-doubling"

ALGORITHMS: Mapping[str, Algorithm] = {
    made.name: made
    for made in (
        Algorithm("ring", _ring, _ring_rounds),
        Algorithm(_HALVING, _halving_doubling, _halving_doubling_rounds),
        Algorithm("rabenseifner", _halving_doubling, _halving_doubling_rounds),
        Algorithm("recursive-doubling", _doubling, _doubling_rounds),
        Algorithm("binomial", _binomial, _binomial_rounds),
        Algorithm("chain", _chain, _chain_rounds),
    )
}
"""By name. Rabenseifner's is another name of recursive halving and doubling."""


def rounds_of(schedule: Schedule) -> Iterator[Round]:
    """The rounds of any schedule, from its every move: for algorithms without closed steps."""
    found: dict[int, list[tuple[int, int, int, bool]]] = {}
    clock, port = [0] * schedule.ranks, [0] * schedule.ranks
    for rank, _, move, letter in schedule.walk():
        if move.peer == rank:
            letter.put(None) if move.kind == "send" else letter.get()
        elif move.kind == "send":
            letter.put(clock[rank])
            clock[rank] += 1
        else:  # one message a round at its target, too
            number = max(letter.get(), port[rank])
            port[rank] = number + 1
            clock[rank] = max(clock[rank], number + 1)
            message = move.peer, rank, move.stop - move.start, move.kind == "reduce"
            found.setdefault(number, []).append(message)
    for number in sorted(found):
        source, target, elements, reduces = map(np.array, zip(*found[number], strict=True))
        yield Round(source, target, elements, reduces)
