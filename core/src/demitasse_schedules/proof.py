"""The proof of a schedule: what every rank ends with, as an expression, found by running it on symbols.

Each rank's own contribution is a symbol, and each addition makes an expression from two. Equal
expressions have the same number, so a rank's vector is an array of such numbers. (The two sides of a sum
may be in either order, as a + b and b + a have the same bits; the order of more than two matters.) At
the end the expressions that the goal names are taken apart: each must have every contribution exactly
once. Nothing is sampled: elements that no move ever separates form one cell, and all cells, ranks and
moves are run.

A program in rounds is run one round at a time, for all ranks at once: on a table of ranks and cells or,
if that would be large, on runs of equal cells. Any other program is run move by move.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from demitasse import PlanError, unknown
from demitasse_schedules.expressions import Expressions
from demitasse_schedules.record import GOALS, Array, InRounds, Round, Schedule
from demitasse_schedules.state import Runs, State, Table

_GIVEN = 1

TABLE = 1 << 25
"""Ranks times cells up to which a table is faster; it takes at most 128 MiB."""


@dataclass(frozen=True)
class Proof:
    """What was proved: the numbers of ``messages``, of ``rounds`` (None for a program of moves), of
    ``cells``, which no move separates, and of different ``expressions``. An allreduce is ``identical``
    if all ranks end with the same expression for each element and so, in floating point, with the same
    bits."""

    schedule: str
    messages: int
    rounds: int | None
    cells: int
    expressions: int
    identical: bool

    def __str__(self) -> str:
        within = "" if self.rounds is None else f" in {self.rounds:,} rounds"
        same = ", the same bits on all ranks" if self.identical else ""
        return (
            f"{self.schedule}: proved: {self.messages:,} messages{within}, each contribution exactly "
            f"once{same} ({self.cells:,} cells, {self.expressions:,} sums)"
        )


@dataclass(frozen=True)
class _Goal:
    """Which elements, [start, stop), each rank has at the beginning and must have at the end, and
    whether the latter are sums."""

    has: list[tuple[int, int]]
    wants: list[tuple[int, int]]
    sums: bool


def check(schedule: Schedule, buffered: bool = True) -> Proof:
    """Prove that each send meets one receive, that nothing deadlocks, and that the ranks that the goal
    names end with each contribution exactly once; for an allreduce also that all ranks end with the same
    bits.

    If not ``buffered``, sends have no memory of their own. In a program of moves, a send then waits for
    its receive. In a program in rounds, a rank posts its sends and continues; the proof is that no rank
    waits forever to change elements that it has sent. Either it changes none of them in that round, or
    its message is the first that the receiver takes, beside the receiver's own elements.

    Raises PlanError with the algorithm, rank, step or round, move, and what is missing or doubled."""
    if schedule.goal not in GOALS:
        raise PlanError(unknown("goal", schedule.goal, GOALS, schedule.algorithm))
    size, ranks = schedule.size, range(schedule.ranks)
    owned = [schedule.owner(schedule, rank) for rank in ranks]
    whole, root = [(0, size)] * len(ranks), [(0, size * (r == schedule.root)) for r in ranks]
    goal = _Goal(
        {"broadcast": root, "allgather": owned}.get(schedule.goal, whole),
        {"reduce": root, "reduce_scatter": owned}.get(schedule.goal, whole),
        schedule.goal not in ("broadcast", "allgather"),
    )
    if isinstance(schedule.program, InRounds):
        return _by_rounds(schedule, schedule.program, goal, buffered)
    return _by_moves(schedule, goal, buffered)


def _cells(size: int, *edges: Iterable[int] | Array) -> Array:
    """Return where cells begin and end, which is wherever a move or a part does."""
    return np.unique(np.concatenate([[0, size], *(np.asarray(each, int) for each in edges)]))


def _flat(parts: list[tuple[int, int]]) -> Array:
    return np.array(parts, int).reshape(-1)


def _start(goal: _Goal, cells: Array, make: Callable[[int, int], State]) -> State:
    """Return the state in which every rank has its contribution. If nothing is added, each element comes
    from one rank, and it is enough to know which ranks have it: all elements have the same number."""
    state = make(len(goal.has), len(cells) - 1)
    parts = np.searchsorted(cells, _flat(goal.has)).reshape(-1, 2)
    rank = np.arange(len(goal.has))
    state.begin(parts[:, 0], parts[:, 1], rank + 1 if goal.sums else rank * 0 + _GIVEN)
    return state


def _givers(schedule: Schedule, goal: _Goal, cells: Array) -> Array:
    """Return the rank that has each cell at the beginning of a collective that does not sum. Raises
    PlanError unless it is exactly one."""
    has = np.searchsorted(cells, _flat(goal.has)).reshape(-1, 2)
    givers = np.full(len(cells) - 1, -1)
    for owner in np.flatnonzero(has[:, 1] > has[:, 0]):
        mine = givers[has[owner, 0] : has[owner, 1]]
        if (mine >= 0).any():
            raise schedule.fault(
                f"rank {mine.max()} owns part of it, too", int(owner), "start", goal.has[owner]
            )
        mine[:] = owner
    if (givers < 0).any():
        cell = int(np.argmin(givers))
        raise PlanError(f"{schedule.algorithm}: no rank owns element {cells[cell]}")
    return givers


def _by_rounds(schedule: Schedule, program: InRounds, goal: _Goal, buffered: bool) -> Proof:
    rounds = list(program.rounds(schedule))
    for number, each in enumerate(rounds):
        _valid(schedule, number, each, goal)
        if not buffered:
            _unbuffered(schedule, number, each)
    edges = [column for each in rounds for column in (each.start, each.stop)]
    cells = _cells(schedule.size, _flat(goal.has), _flat(goal.wants), *edges)
    expressions = Expressions(schedule.ranks)
    large = schedule.ranks * (len(cells) - 1) > TABLE
    state = _start(goal, cells, Runs if large else Table)
    for number, each in enumerate(rounds):
        first, last = np.searchsorted(cells, each.start), np.searchsorted(cells, each.stop)

        def fault(problem: str, i: int, number: int = number, each: Round = each) -> PlanError:
            return _fault(schedule, number, each, i, problem)

        expressions.stage = number
        state.apply(each, first, last, expressions, fault)

    def blame(stage: tuple[int, int], problem: str) -> PlanError:
        return _fault(schedule, stage[0], rounds[stage[0]], stage[1], problem)

    identical = _ends(schedule, goal, cells, state, expressions, blame)
    messages = sum(len(each.source) for each in rounds)
    return _proof(schedule, messages, len(rounds), cells, expressions, identical)


def _proof(
    schedule: Schedule,
    messages: int,
    rounds: int | None,
    cells: Array,
    expressions: Expressions,
    identical: bool,
) -> Proof:
    title = f"{schedule.algorithm}: {schedule.goal} of {schedule.size:,} by {schedule.ranks:,}"
    return Proof(title, messages, rounds, len(cells) - 1, len(expressions), identical)


def _fault(schedule: Schedule, number: int, each: Round, i: int, problem: str) -> PlanError:
    """Return the error for a round's message, at its receiving end."""
    adds = np.broadcast_to(each.reduces, each.source.shape)[i]
    source, target, start, stop = (int(column[i]) for column in each[:4])
    move = f"{'reduce' if adds else 'receive'}({source}, {start}:{stop})"
    return PlanError(f"{schedule.algorithm}: rank {target}, round {number}, {move}: {problem}")


def _valid(schedule: Schedule, number: int, each: Round, goal: _Goal) -> None:
    ranks, size = schedule.ranks, schedule.size
    wrong = (np.minimum(each.source, each.target) < 0) | (np.maximum(each.source, each.target) >= ranks)
    wrong |= (each.source == each.target) | (each.start < 0) | (each.stop > size)
    if wrong.any():
        raise _fault(schedule, number, each, int(np.argmax(wrong)), "no such peer or elements")
    if not goal.sums and np.any(each.reduces):
        i = int(np.argmax(np.broadcast_to(each.reduces, each.source.shape)))
        raise _fault(schedule, number, each, i, f"a schedule for {schedule.goal} must not add")


def _unbuffered(schedule: Schedule, number: int, each: Round) -> None:
    """Raise PlanError if ranks may wait for each other: a rank that receives elements that it also sends
    in this round must wait until they are taken."""
    order = np.argsort(each.source, kind="stable")
    sends = each.source[order]
    low, high = np.searchsorted(sends, each.target), np.searchsorted(sends, each.target, "right")
    firsts = np.full(schedule.ranks, -1)
    firsts[each.target[::-1]] = np.arange(len(each.target))[::-1]
    for shift in range(int((high - low).max(initial=0))):
        some = np.flatnonzero(low + shift < high)
        sent = order[low[some] + shift]
        overlaps = (each.start[sent] < each.stop[some]) & (each.start[some] < each.stop[sent])
        waits = overlaps & (firsts[each.target[sent]] != sent)
        if waits.any():
            i, other = int(some[np.argmax(waits)]), int(sent[np.argmax(waits)])
            peer = f"{each.source[other]} to {each.target[other]}"
            raise _fault(schedule, number, each, i, f"deadlock; may wait for the message from {peer}")


def _by_moves(schedule: Schedule, goal: _Goal, buffered: bool) -> Proof:
    edges = {edge for moves in schedule.programs() for move in moves for edge in move[2:]}
    inside = [edge for edge in edges if 0 <= edge <= schedule.size]  # the walk rejects the others
    cells = _cells(schedule.size, _flat(goal.has), _flat(goal.wants), inside)
    cell = {int(cut): i for i, cut in enumerate(cells)}
    expressions = Expressions(schedule.ranks)
    state = _start(goal, cells, Table)
    assert isinstance(state, Table)
    where: list[tuple[int, int, Any]] = []
    messages = 0
    for rank, step, move, letter in schedule.walk(buffered):
        mine = state.held[rank, cell[move.start] : cell[move.stop]]
        if move.kind == "send":
            letter.put(mine.copy())
            continue
        other = letter.get()
        messages += move.peer != rank
        if move.kind == "receive":
            mine[:] = other
            continue
        if not goal.sums:
            raise schedule.fault(f"a schedule for {schedule.goal} must not add", rank, step, move)
        expressions.stage = len(where)
        where.append((rank, step, move))

        def fault(problem: str, i: int, at: tuple[int, int, Any] = where[-1]) -> PlanError:
            return schedule.fault(problem, *at)

        mine[:] = expressions.sums(mine, other, np.zeros(len(mine), int), fault)

    def blame(stage: tuple[int, int], problem: str) -> PlanError:
        return schedule.fault(problem, *where[stage[0]])

    identical = _ends(schedule, goal, cells, state, expressions, blame)
    return _proof(schedule, messages, None, cells, expressions, identical)


def _ends(
    schedule: Schedule,
    goal: _Goal,
    cells: Array,
    state: State,
    expressions: Expressions,
    blame: Callable[[tuple[int, int], str], PlanError],
) -> bool:
    """Return whether all ranks end with the same expressions. Raises PlanError if one is wrong."""
    parts = np.searchsorted(cells, _flat(goal.wants)).reshape(-1, 2)
    rank, first, held = state.final(parts[:, 0], parts[:, 1])

    def lacks(i: int, problem: str) -> PlanError:
        return schedule.fault(problem, int(rank[i]), "end", f"[{cells[first[i]]}]")

    if not goal.sums:
        givers = _givers(schedule, goal, cells)
        if (wrong := held != _GIVEN).any():
            i = int(np.argmax(wrong))
            raise lacks(i, f"rank {givers[first[i]]} is missing")
        return False
    found = expressions.incomplete(np.unique(held))
    if found is not None:
        which, missing, doubled, stage = found
        i = int(np.argmax(held == which))
        if doubled is not None:
            raise blame(stage, f"rank {doubled} is counted twice")
        raise lacks(i, f"rank {missing} is missing")
    if schedule.goal != "allreduce":
        return False
    # Runs of equal cells are as long as possible, so ranks with equal cells have equally many runs.
    runs = np.bincount(rank, minlength=schedule.ranks)
    if np.any(fewer := runs != runs[0]):
        other = int(np.argmax(fewer))
        raise lacks(int(np.argmax(rank == other)), "sums in another order than rank 0: other bits")
    same = np.full(len(cells) - 1, -1)
    same[first[rank == 0]] = held[rank == 0]
    filled = np.maximum.accumulate(np.where(same >= 0, np.arange(len(same)), 0))
    differs = held != same[filled][first]
    if differs.any():
        raise lacks(int(np.argmax(differs)), "sums in another order than rank 0: other bits")
    return True
