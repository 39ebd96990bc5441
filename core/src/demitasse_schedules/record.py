"""The record of a collective: what each rank sends, receives and adds, rank by rank or in rounds."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np

from demitasse import PlanError, PluginError, unknown, whose

GOALS = ("allreduce", "reduce", "broadcast", "reduce_scatter", "allgather")

Array = np.ndarray[Any, np.dtype[Any]]
Groups = tuple[tuple[int, ...], ...]


class Move(NamedTuple):
    """A rank's step on elements ``start`` up to ``stop``: ``send`` them to the peer, ``receive`` the
    peer's, or ``reduce`` (add the peer's). What a rank sends to itself is a copy kept for later."""

    kind: str
    peer: int
    start: int
    stop: int

    def __repr__(self) -> str:
        return f"{self.kind}({self.peer}, {self.start}:{self.stop})"


class Round(NamedTuple):
    """Messages that go at the same time, repeated ``times`` times: source[i] sends its elements start[i]
    up to stop[i] to target[i], which adds them to its own if ``reduces``, and otherwise replaces its
    own. A rank first posts what it sends, then takes what it receives, each in the order of the
    arrays."""

    source: Array
    target: Array
    start: Array
    stop: Array
    reduces: bool | Array
    times: int = 1

    @property
    def elements(self) -> Array:
        """The number of elements of each message."""
        return self.stop - self.start

    def mirrored(self) -> Round:
        """Return a round that sends every message back, to replace elements: the last round of a
        reduce-scatter becomes the first of an allgather, and that of a reduction the first of a
        broadcast."""
        return self._replace(source=self.target, target=self.source, reduces=False)

    def kept(self, which: Array) -> Round:
        """Return a round with only the messages that a mask or an index selects."""
        reduces = self.reduces[which] if isinstance(self.reduces, np.ndarray) else self.reduces
        source, target, start, stop = (column[which] for column in self[:4])
        return Round(source, target, start, stop, reduces, self.times)


def joined(rounds: Sequence[Round]) -> Round:
    """Return one round with the messages of several rounds, in that order."""
    reduces = [np.broadcast_to(each.reduces, each.source.shape) for each in rounds]
    columns = [np.concatenate(column) for column in zip(*(each[:4] for each in rounds), strict=True)]
    return Round(columns[0], columns[1], columns[2], columns[3], np.concatenate(reduces))


@dataclass(frozen=True)
class InRounds:
    """A program made from rounds of all ranks. ``make(schedule, program)`` returns the rounds; it reads
    the options ``chunks`` (pieces of a pipeline) and ``groups`` (ranks that are near each other). With
    an ``order``, rank order[i] takes the part of the algorithm's rank i (a rank map)."""

    make: Callable[[Schedule, InRounds], Iterable[Round]]
    chunks: int = 1
    groups: Groups = ()
    order: tuple[int, ...] = ()

    def rounds(self, schedule: Schedule) -> Iterator[Round]:
        """Yield every round, without empty messages and without rounds that have none. Raises
        PluginError if something is not a round of arrays."""
        order = np.array(self.order)
        if self.order:
            schedule = replace(schedule, root=self.order.index(schedule.root))
        for each in self.make(schedule, self):
            if not isinstance(each, Round) or not all(isinstance(c, np.ndarray) for c in each[:4]):
                valid = "valid: a demitasse.Round of NumPy arrays source, target, start and stop"
                raise PluginError(f"{whose(self.make)}: a round is {each!r:.99} ({valid})")
            if np.any(empty := each.start >= each.stop):
                each = each.kept(~empty)
            if len(each.source):
                if self.order:
                    each = each._replace(source=order[each.source], target=order[each.target])
                yield each

    def __call__(self, schedule: Schedule, rank: int) -> Iterator[Move]:
        for _, move in self.numbered(schedule, rank):
            yield move

    def numbered(self, schedule: Schedule, rank: int) -> Iterator[tuple[int, Move]]:
        """Yield a rank's moves, each with the number of its round."""
        for number, each in enumerate(self.rounds(schedule)):
            for i in np.flatnonzero(each.source == rank):
                yield number, Move("send", int(each.target[i]), int(each.start[i]), int(each.stop[i]))
            for i in np.flatnonzero(each.target == rank):
                adds = each.reduces[i] if isinstance(each.reduces, np.ndarray) else each.reduces
                peer, start, stop = (int(column[i]) for column in (each.source, each.start, each.stop))
                yield number, Move("reduce" if adds else "receive", peer, start, stop)


@dataclass(frozen=True)
class Schedule:
    """A collective on ``size`` elements. ``program(schedule, rank)`` returns a rank's moves,
    ``owner(schedule, rank)`` its (start, stop) in a reduce_scatter or allgather. Schedules are equal if
    their fields are, so both should be functions of a module, or frozen records with ``__call__``."""

    def part(self, index: int) -> tuple[int, int]:
        """Return (start, stop) of part ``index`` of the vector, which has an even part for each rank."""
        return self.size * index // self.ranks, self.size * (index + 1) // self.ranks

    algorithm: str
    ranks: int
    size: int
    program: Callable[[Schedule, int], Iterable[Move]]
    goal: str = "allreduce"
    root: int = 0
    owner: Callable[[Schedule, int], tuple[int, int]] = part

    def messages(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield (round, source, destination, elements). A rank sends one a round, in its own order."""
        clock = [0] * self.ranks
        for rank, _, move, letter in self.walk():
            if move.kind == "send":
                letter.put(clock[rank])
                clock[rank] += move.peer != rank
            elif move.peer != rank:
                clock[rank] = max(clock[rank], 1 + (began := letter.get()))
                yield began, move.peer, rank, move.stop - move.start

    def walk(self, buffered: bool = True) -> Iterator[tuple[int, int, Move, Any]]:
        """Yield (rank, step, move, letter) in an order in which the ranks can move. A send and its
        receive share a queue, their letter. Raises PlanError if a rank cannot reach its end."""
        ranks, mail = range(self.ranks), defaultdict[tuple[int, int], deque[Any]](deque)
        programs, ready = [enumerate(moves) for moves in self.programs()], list(ranks)
        waiting: dict[int, tuple[int, Move]] = {}
        while ready:
            rank = ready.pop()
            while turn := waiting.pop(rank, None) or next(programs[rank], None):
                (step, move), letter = turn, SimpleQueue[Any]()
                peer, sends, facing = move.peer, move.kind == "send", waiting.get(move.peer, turn)[1]
                if peer not in ranks or not 0 <= move.start <= move.stop <= self.size:
                    raise self.fault("no such peer or elements", rank, step, move)
                meets = facing.peer == rank and sends != (facing.kind == "send")
                if sends and (buffered or peer == rank or (meets and not mail[rank, peer])):
                    mail[rank, peer].append((step, move, letter))
                    ready.append(peer)
                elif sends or not mail[peer, rank]:
                    waiting[rank] = turn
                    ready += [peer] * meets
                    break
                else:
                    at, sent, letter = mail[peer, rank].popleft()
                    if sent[2:] != move[2:]:
                        raise self.fault(
                            f"does not match step {at} of its peer, {sent}", rank, step, move
                        )
                yield rank, step, move, letter
        for rank in sorted(waiting, key=lambda r: (waiting[r][1].peer in waiting, waiting[r][0], r)):
            other = waiting.get(waiting[rank][1].peer, "its end and sends nothing more")
            raise self.fault(f"deadlock; its peer is at {other}", rank, *waiting[rank])
        for rank, peer in filter(mail.get, mail):
            raise self.fault("the peer never receives it", rank, *mail[rank, peer][0][:2])

    def programs(self) -> list[Iterable[Move]]:
        """Return the moves of every rank, made together if the program is in rounds."""
        if not isinstance(self.program, InRounds):
            return [self.program(self, rank) for rank in range(self.ranks)]
        moves: list[list[Move]] = [[] for _ in range(self.ranks)]
        for each in self.program.rounds(self):
            adds = np.broadcast_to(each.reduces, each.source.shape).tolist()
            letters = list(zip(*(column.tolist() for column in each[:4]), strict=True))
            for source, target, start, stop in letters:
                moves[source].append(Move("send", target, start, stop))
            for (source, target, start, stop), reduces in zip(letters, adds, strict=True):
                moves[target].append(Move("reduce" if reduces else "receive", source, start, stop))
        return list(moves)

    def fault(self, problem: str, rank: int, step: object, move: object) -> PlanError:
        """Return the error for a move, for the caller to raise."""
        return PlanError(f"{self.algorithm}: rank {rank}, step {step}, {move}: {problem}")

    def __str__(self) -> str:
        rows = (f"{r:4}  " + " ".join(map(str, moves)) for r, moves in enumerate(self.programs()))
        return "\n".join((f"{self.algorithm}: {self.goal} of {self.size} by {self.ranks}", *rows))


@dataclass(frozen=True)
class Dealt:
    """The owner of a schedule with a rank map: rank order[i] owns what the algorithm's rank i owns."""

    owner: Callable[[Schedule, int], tuple[int, int]]
    order: tuple[int, ...]

    def __call__(self, schedule: Schedule, rank: int) -> tuple[int, int]:
        return self.owner(schedule, self.order.index(rank))


@dataclass(frozen=True)
class Algorithm:
    """A collective for any number of ranks and elements. ``make`` returns a schedule's rounds for each
    of the ``goals``. ``options`` names the further options that it accepts (``chunks``, ``groups``).
    ``owner`` is that of its schedules. ``in_turn`` returns the same rounds for costs, with equal rounds
    in a row only once."""

    name: str
    summary: str
    make: Callable[[Schedule, InRounds], Iterable[Round]]
    goals: tuple[str, ...] = ("allreduce",)
    options: tuple[str, ...] = ()
    owner: Callable[[Schedule, int], tuple[int, int]] = Schedule.part
    in_turn: Callable[[Schedule, InRounds], Iterable[Round]] | None = None
    most_ranks: int = 1 << 20
    """The number of ranks up to which listing its rounds takes only seconds."""
    chunks: Callable[[int, int], int] = field(default=lambda ranks, size: 1)
    """The default number of pieces, as a function of ranks and size."""

    def schedule(
        self,
        ranks: int,
        size: int,
        goal: str = "allreduce",
        root: int = 0,
        groups: int | Iterable[Iterable[int]] | None = None,
        chunks: int | None = None,
        order: Iterable[int] | None = None,
    ) -> Schedule:
        """Return the schedule for ``size`` elements. ``groups`` are ranks near each other, each rank in
        exactly one (an int: groups of so many consecutive ranks). ``order[i]`` is the rank that takes
        the part of the algorithm's rank i (a rank map). Raises PlanError if a goal, rank, group or order
        is not valid."""
        if goal not in self.goals:
            raise PlanError(unknown("goal", goal, self.goals, self.name))
        if ranks < 1 or size < 0 or not 0 <= root < ranks or (chunks is not None and chunks < 1):
            raise PlanError(
                f"{self.name}: ranks {ranks}, size {size}, root {root}, chunks {chunks} (valid: 1 or "
                f"more ranks, a size of 0 or more, a root among the ranks, 1 or more chunks)"
            )
        taken = self.chunks(ranks, size) if chunks is None else chunks
        program = InRounds(
            self.make,
            taken if "chunks" in self.options else 1,
            self._groups(ranks, groups) if "groups" in self.options else (),
            self._order(ranks, order),
        )
        owner = Dealt(self.owner, program.order) if program.order else self.owner
        return Schedule(self.name, ranks, size, program, goal, root, owner)

    def rounds(self, ranks: int, size: int, **options: Any) -> Iterable[Round]:
        """Return the rounds of ``schedule(ranks, size, **options)`` for costs: if the algorithm supports
        it, equal rounds in a row appear once, with their number."""
        made = self.schedule(ranks, size, **options)
        program = made.program
        assert isinstance(program, InRounds)
        if self.in_turn is None:
            return program.rounds(made)
        return replace(program, make=self.in_turn).rounds(made)

    def _groups(self, ranks: int, groups: int | Iterable[Iterable[int]] | None) -> Groups:
        """Return the given groups, or groups of so many consecutive ranks; by default of about the
        square root of ``ranks``."""
        if groups is None:
            groups = max(1, round(ranks**0.5))
        if isinstance(groups, int):
            if groups < 1:
                raise PlanError(f"{self.name}: groups of {groups} ranks (valid: 1 or more)")
            return tuple(
                tuple(range(first, min(first + groups, ranks))) for first in range(0, ranks, groups)
            )
        made = tuple(tuple(map(int, group)) for group in groups if group)
        if sorted(rank for group in made for rank in group) != list(range(ranks)):
            raise PlanError(f"{self.name}: groups {made} (valid: each of {ranks} ranks in exactly one)")
        return made

    def _order(self, ranks: int, order: Iterable[int] | None) -> tuple[int, ...]:
        made = () if order is None else tuple(map(int, order))
        if made and sorted(made) != list(range(ranks)):
            raise PlanError(f"{self.name}: order {made} (valid: each of {ranks} ranks once)")
        if made and "groups" in self.options:
            raise PlanError(f"{self.name}: its groups map the ranks; leave the order out")
        return () if made == tuple(range(ranks)) else made
