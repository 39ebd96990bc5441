"""Collectives as data: what each rank sends, receives and adds; printed, proved, costed and run."""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np

from demitasse import PlanError, WorkerError, unknown

GOALS = ("allreduce", "reduce", "broadcast", "reduce_scatter", "allgather")


class Move(NamedTuple):
    """A rank's step on elements start up to stop: ``send`` them to the peer, ``receive`` the peer's,
    ``reduce`` (add the peer's). What a rank sends to itself is a copy that it keeps for later."""

    kind: str
    peer: int
    start: int
    stop: int

    def __repr__(self) -> str:
        return f"{self.kind}({self.peer}, {self.start}:{self.stop})"


@dataclass(frozen=True)
class Schedule:
    """A collective on ``size`` elements: ``program(schedule, rank)`` makes a rank's moves when asked,
    ``owner(schedule, rank)`` its (start, stop) in a reduce_scatter or allgather. Schedules are equal
    when their fields are, so let both be functions of a module, or frozen records with a call."""

    def part(self, index: int) -> tuple[int, int]:
        """(start, stop) of one of as many even parts of the vector as there are ranks."""
        return self.size * index // self.ranks, self.size * (index + 1) // self.ranks

    algorithm: str
    ranks: int
    size: int
    program: Callable[["Schedule", int], Iterable[Move]]
    goal: str = "allreduce"
    root: int = 0
    owner: Callable[["Schedule", int], tuple[int, int]] = part

    def messages(self) -> Iterator[tuple[int, int, int, int]]:
        """(round, source, destination, elements); a rank sends one a round, and keeps its order."""
        clock = [0] * self.ranks
        for rank, _, move, letter in self.walk():
            if move.kind == "send":
                letter.put(clock[rank])
                clock[rank] += move.peer != rank
            elif move.peer != rank:
                clock[rank] = max(clock[rank], 1 + (began := letter.get()))
                yield began, move.peer, rank, move.stop - move.start

    def walk(self, buffered: bool = True) -> Iterator[tuple[int, int, Move, Any]]:
        """(rank, step, move, letter) in an order in which the ranks can move; a send and its receive
        have one queue as their letter. Raises PlanError where a rank cannot come to its end."""
        ranks, mail = range(self.ranks), defaultdict[tuple[int, int], deque[Any]](deque)
        programs, ready = [enumerate(self.program(self, rank)) for rank in ranks], list(ranks)
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
                        raise self.fault(f"meets step {at} of its peer, {sent}", rank, step, move)
                yield rank, step, move, letter
        for rank in sorted(waiting, key=lambda r: (waiting[r][1].peer in waiting, waiting[r][0], r)):
            other = waiting.get(waiting[rank][1].peer, "its end, and sends nothing more")
            raise self.fault(f"deadlock; its peer is at {other}", rank, *waiting[rank])
        for rank, peer in filter(mail.get, mail):
            raise self.fault("the peer never receives it", rank, *mail[rank, peer][0][:2])

    def fault(self, problem: str, rank: int, step: object, move: object) -> PlanError:
        return PlanError(f"{self.algorithm}: rank {rank}, step {step}, {move}: {problem}")

    def __str__(self) -> str:
        rows = (f"{r:4}  " + " ".join(map(str, self.program(self, r))) for r in range(self.ranks))
        return "\n".join((f"{self.algorithm}: {self.goal} of {self.size} by {self.ranks}", *rows))


def check(schedule: Schedule, buffered: bool = True) -> None:
    """Prove that each send meets one receive, that nothing deadlocks (if not ``buffered``, with sends
    that wait for their receives), and that those whom the goal names end with each contribution
    exactly once. Raises PlanError with rank, step, elements, and what is missing or doubled."""
    if schedule.goal not in GOALS:
        raise PlanError(unknown("goal", schedule.goal, GOALS, schedule.algorithm))
    ranks, size = range(schedule.ranks), schedule.size
    owned = [schedule.owner(schedule, rank) for rank in ranks]
    edges = {edge for r in ranks for move in schedule.program(schedule, r) for edge in move[2:]}
    cell = {cut: i for i, cut in enumerate(sorted({0, size, *edges}.union(*owned)))}
    everyone, root = [(0, size)] * len(ranks), [(0, size * (r == schedule.root)) for r in ranks]
    has = {"broadcast": root, "allgather": owned}.get(schedule.goal, everyone)
    wants = {"reduce": root, "reduce_scatter": owned}.get(schedule.goal, everyone)
    held = [np.zeros(len(cell) - 1, object) for rank in ranks]  # bit r: the contribution of rank r
    for rank, (start, stop) in enumerate(has):
        held[rank][cell[start] : cell[stop]] = 1 << rank
    full = sum(held)
    for rank, step, move, letter in schedule.walk(buffered):
        mine = held[rank][cell[move.start] : cell[move.stop]]
        if move.kind == "send":
            letter.put(mine.copy())
            continue
        kept, more = mine * (move.kind == "reduce"), letter.get()
        if np.any(twice := kept & more):
            raise schedule.fault(f"rank {max(twice).bit_length() - 1} is doubled", rank, step, move)
        mine[:] = kept | more
    for rank, (start, stop) in enumerate(wants):
        for cut, gap in zip(cell, full & ~held[rank], strict=False):
            if gap and start <= cut < stop:
                raise schedule.fault(f"rank {gap.bit_length() - 1} is missing", rank, "end", f"[{cut}]")


def run_threads(schedule: Schedule, buffers: Sequence[Any], add: Callable[..., Any] = np.add) -> None:
    """Run a schedule in place on an array for each rank, a thread each; ``add(a, b)`` gives the sum.
    Raises WorkerError with the rank and move that failed, once all have stopped."""
    turns = list(schedule.walk())

    def run(rank: int) -> None:
        for _, step, move, letter in (turn for turn in turns if turn[0] == rank):
            mine = buffers[rank][move.start : move.stop]
            try:
                if move.kind == "send":
                    letter.put(mine.copy())
                elif (other := letter.get()) is not None:  # None: another rank has failed
                    mine[:] = add(mine, other) if move.kind == "reduce" else other
            except BaseException as error:
                for *_, letter in turns:
                    letter.put(None)
                raise WorkerError(str(schedule.fault(repr(error), rank, step, move))) from error

    with ThreadPoolExecutor(schedule.ranks) as pool:
        list(pool.map(run, range(schedule.ranks)))
