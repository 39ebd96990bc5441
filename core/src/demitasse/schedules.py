"""Collectives as data: what each rank sends, receives and adds; printed, proved, costed and run."""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np

from demitasse.errors import PlanError, WorkerError, unknown

GOALS = ("allreduce", "reduce", "broadcast", "reduce_scatter", "allgather")


class Move(NamedTuple):
    """A rank's step on elements start up to stop: ``send`` them to the peer, ``receive`` the peer's,
    ``reduce`` (add the peer's). What a rank sends to itself is a copy that it keeps for later."""

    kind: str
    peer: int
    start: int
    stop: int

    def __str__(self) -> str:
        return f"{self.kind}({self.peer}, {self.start}:{self.stop})"


def part(size: int, parts: int, index: int) -> tuple[int, int]:
    """(start, stop) of one of the nearly equal parts of a vector."""
    return size * index // parts, size * (index + 1) // parts


@dataclass(frozen=True)
class Schedule:
    """A collective on vectors of ``size`` elements. ``program(schedule, rank)`` makes a rank's moves
    when asked. ``goal`` is one of GOALS; for reduce_scatter and allgather ``owner(schedule, rank)``
    is the rank's (start, stop). With plain functions, equal schedules compare and hash as equal."""

    algorithm: str
    ranks: int
    size: int
    program: Callable[["Schedule", int], Iterable[Move]]
    goal: str = "allreduce"
    root: int = 0
    topology: Any = None
    owner: Callable[["Schedule", int], tuple[int, int]] = lambda s, rank: part(s.size, s.ranks, rank)

    def messages(self) -> Iterator[tuple[int, int, int, int]]:
        """(round, source, destination, elements); a rank sends and receives one a round at most."""
        sent, taken = [0] * self.ranks, [0] * self.ranks
        for rank, _, move, letter in walk(self):
            if move.kind == "send":
                letter.append(max(sent[rank], taken[rank]))
                sent[rank] = letter[0] + (move.peer != rank)
            elif move.peer != rank:
                taken[rank] = max(letter[0], taken[rank]) + 1
                yield taken[rank] - 1, move.peer, rank, move.stop - move.start

    def __str__(self) -> str:
        rows = [f"{self.algorithm}: {self.goal} of {self.size} elements on {self.ranks} ranks"]
        rows += (f"{r:4}  " + " ".join(map(str, self.program(self, r))) for r in range(self.ranks))
        return "\n".join(rows)

    def fault(self, rank: int, step: object, move: object, problem: str) -> PlanError:
        return PlanError(f"{self.algorithm}: rank {rank}, step {step}, {move}: {problem}")


def walk(schedule: Schedule, buffered: bool = True) -> Iterator[tuple[int, int, Move, list[Any]]]:
    """(rank, step, move, letter) in an order in which ranks can move; what is put into the list
    ``letter`` of a send is there at its receive. PlanError where a rank cannot come to its end."""
    ranks, mail = range(schedule.ranks), defaultdict[tuple[int, int], deque[Any]](deque)
    programs = [enumerate(schedule.program(schedule, rank)) for rank in ranks]
    waiting: dict[int, tuple[int, Move]] = {}
    ready = list(ranks)
    while ready:
        rank = ready.pop()
        while turn := waiting.pop(rank, None) or next(programs[rank], None):
            (step, move), letter = turn, list[Any]()
            peer, sends = move.peer, move.kind == "send"
            if peer not in ranks or not 0 <= move.start <= move.stop <= schedule.size:
                raise schedule.fault(rank, step, move, "no such peer or elements")
            facing = waiting.get(peer, turn)[1]
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
                    raise schedule.fault(rank, step, move, f"meets step {at} of its peer, {sent}")
            yield rank, step, move, letter
    for rank in sorted(waiting, key=lambda rank: waiting[rank][1].peer in waiting):
        at, other = waiting.get(waiting[rank][1].peer, ("none", "its end"))
        raise schedule.fault(rank, *waiting[rank], f"deadlock; the peer is at step {at}, {other}")
    for rank, peer in (pair for pair in mail if mail[pair]):
        raise schedule.fault(rank, *mail[rank, peer][0][:2], "the peer never receives it")


def check(schedule: Schedule, buffered: bool = True) -> None:
    """Prove that each send meets one receive, that nothing deadlocks (with sends that wait for their
    receives, unless ``buffered``), and that those whom the goal names end with each contribution
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
    # Bit r of held[rank][cell] stands for the contribution of rank r.
    held = [np.zeros(len(cell) - 1, object) for rank in ranks]
    for rank, (start, stop) in enumerate(has):
        held[rank][cell[start] : cell[stop]] = 1 << rank
    full = sum(held)
    for rank, step, move, letter in walk(schedule, buffered):
        mine = held[rank][cell[move.start] : cell[move.stop]]
        if move.kind == "send":
            letter.append(mine.copy())
        elif move.kind == "receive":
            mine[:] = letter[0]
        elif np.any(mine & letter[0]):
            twice = max(mine & letter[0]).bit_length() - 1
            raise schedule.fault(rank, step, move, f"doubles the contribution of rank {twice}")
        else:
            mine |= letter[0]
    for rank, (start, stop) in enumerate(wants):
        for cut in (cut for cut, i in cell.items() if start <= cut < stop):
            if lacks := full[cell[cut]] & ~held[rank][cell[cut]]:
                problem = f"lacks the contribution of rank {lacks.bit_length() - 1}"
                raise schedule.fault(rank, "last", f"elements from {cut}", problem)


def run_threads(schedule: Schedule, buffers: Sequence[Any], add: Callable[..., Any] = np.add) -> None:
    """Run a schedule in place on an array for each rank, with a thread each; ``add(a, b, out=a)``
    sums. Raises WorkerError with the rank and move that failed, once all have stopped."""
    check(schedule)
    ranks = range(schedule.ranks)
    if [len(buffer) for buffer in buffers] != [schedule.size for _ in ranks]:
        raise PlanError(f"{schedule.algorithm} wants {schedule.ranks} arrays of {schedule.size}")
    boxes: dict[Any, SimpleQueue[Any]] = {pair: SimpleQueue() for pair in product(ranks, ranks)}

    def run(rank: int) -> None:
        move = None
        try:
            for move in schedule.program(schedule, rank):
                mine = buffers[rank][move.start : move.stop]
                if move.kind == "send":
                    boxes[rank, move.peer].put(mine.copy())
                elif (letter := boxes[move.peer, rank].get()) is None:
                    return
                elif move.kind == "receive":
                    mine[:] = letter
                else:
                    add(mine, letter, out=mine)
        except BaseException as error:
            raise WorkerError(f"{schedule.algorithm}: rank {rank}, {move}: {error}") from error
        finally:
            for peer in ranks:
                boxes[rank, peer].put(None)

    with ThreadPoolExecutor(schedule.ranks) as pool:
        list(pool.map(run, ranks))
