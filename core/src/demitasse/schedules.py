"""Collectives as data: what each rank sends, receives and adds; printed, proved, costed and run."""

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np

from demitasse.errors import PlanError, WorkerError, unknown

SIGNS = {"send": ">", "receive": "<", "reduce": "+", "copy": "="}
# Who has data before, and who wants every contribution after.
GOALS = {"allreduce": "all all", "reduce": "all root", "broadcast": "root all"}
GOALS |= {"reduce_scatter": "all owner", "allgather": "owner all"}


class Move(NamedTuple):
    """A rank's step on elements start up to stop: ``send`` to the peer, ``receive`` from it, or
    ``reduce`` (add what it sends). Buffer 0 is the vector, others are scratch. Without a peer,
    ``copy`` puts the vector's elements into the buffer, ``reduce`` adds the buffer's to them."""

    kind: str
    peer: int | None
    start: int
    stop: int
    buffer: int = 0

    def __str__(self) -> str:
        peer = f"#{self.buffer}" if self.peer is None else self.peer
        return f"{SIGNS.get(self.kind, self.kind)}{peer}[{self.start}:{self.stop}]"


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
        """(round, source, destination, elements); a round has one send and one receive a rank."""
        sent, taken = [0] * self.ranks, [0] * self.ranks
        for rank, _, move, letter in _walk(self):
            if move.kind == "send":
                letter.append(max(sent[rank], taken[rank]))
                sent[rank] = letter[0] + 1
            elif move.peer is not None:
                taken[rank] = max(letter[0], taken[rank]) + 1
                yield taken[rank] - 1, move.peer, rank, move.stop - move.start

    def __str__(self) -> str:
        rows = [f"{self.algorithm}: {self.goal} of {self.size} elements on {self.ranks} ranks"]
        for rank in range(self.ranks)[:16]:
            rows.append(f"{rank:5} " + " ".join(map(str, self.program(self, rank))))
        return "\n".join(rows)


def _fault(schedule: Schedule, rank: int, step: object, move: object, problem: str) -> PlanError:
    return PlanError(f"{schedule.algorithm}: rank {rank}, step {step} ({move}): {problem}")


def _walk(schedule: Schedule, buffered: bool = True) -> Iterator[tuple[int, int, Move, list[Any]]]:
    """(rank, step, move, letter) in an order in which the ranks can move; a list ``letter`` goes
    from each send to its receive. Raises PlanError where some rank cannot come to its end."""
    mail: Any = defaultdict(deque)
    programs = [enumerate(schedule.program(schedule, rank)) for rank in range(schedule.ranks)]
    waiting: dict[int, tuple[int, Move]] = {}
    ready, ranks = list(range(schedule.ranks)), range(schedule.ranks)
    while ready:
        rank = ready.pop()
        while turn := waiting.pop(rank, None) or next(programs[rank], None):
            step, (kind, peer, start, stop, buffer) = turn
            move, letter = turn[1], list[Any]()
            possible = peer in ranks and kind != "copy" if peer is not None else buffer
            if not possible or kind not in SIGNS or not 0 <= start <= stop <= schedule.size:
                raise _fault(schedule, rank, step, move, "not a possible move")
            if peer is not None:
                other = waiting.get(peer, turn)[1]
                meets = other.peer == rank and (other.kind == "send") != (kind == "send")
                if kind == "send" and (buffered or (meets and not mail[rank, peer])):
                    mail[rank, peer].append((step, move, letter))
                    ready.append(peer)
                elif kind == "send" or not mail[peer, rank]:
                    waiting[rank] = turn
                    ready += [peer] * meets
                    break
                else:
                    before, sent, letter = mail[peer, rank].popleft()
                    if sent[2:4] != move[2:4]:
                        raise _fault(schedule, peer, before, sent, f"meets {move} of rank {rank}")
            yield rank, step, move, letter
    for rank in sorted(waiting, key=lambda rank: waiting[rank][1].peer in waiting):
        step, other = waiting.get(peer := waiting[rank][1].peer, ("none", "its end"))
        raise _fault(schedule, rank, *waiting[rank], f"deadlock: rank {peer} is at {other}")
    for (rank, peer), letters in mail.items():
        for step, move, _ in letters:
            raise _fault(schedule, rank, step, move, f"rank {peer} never receives it")


@lru_cache(maxsize=64)
def check(schedule: Schedule) -> bool:
    """Prove that each send meets one receive, that buffered sends do not deadlock, and that those
    whom the goal names have each contribution exactly once; tell whether this holds for unbuffered
    sends too. Raises PlanError with rank, step, slice, and what is missing or doubled."""
    ranks, program = range(schedule.ranks), schedule.program
    if schedule.goal not in GOALS:
        raise PlanError(unknown("goal", schedule.goal, GOALS, schedule.algorithm))
    owned = [schedule.owner(schedule, rank) for rank in ranks]
    edges = {edge for rank in ranks for move in program(schedule, rank) for edge in move[2:4]}
    cuts = sorted({0, schedule.size, *edges}.union(*owned))
    cell = {cut: number for number, cut in enumerate(cuts)}
    whole = slice(0, len(cuts) - 1)
    spans = {
        "all": [whole] * schedule.ranks,
        "root": [whole if rank == schedule.root else slice(0) for rank in ranks],
        "owner": [slice(cell[start], cell[stop]) for start, stop in owned],
    }
    has, wants = (spans[who] for who in GOALS[schedule.goal].split())
    # Bit r of held[rank, buffer][cell] stands for the contribution of rank r.
    held: Any = defaultdict(lambda: np.zeros(whole.stop, object))
    for rank in ranks:
        held[rank, 0][has[rank]] = 1 << rank
    full = sum(held.values())
    if not np.all(full) or len({i for span in wants for i in range(whole.stop)[span]}) < whole.stop:
        raise PlanError(f"{schedule.algorithm}: root or owners leave elements out")
    for rank, step, move, letter in _walk(schedule):
        where = slice(cell[move.start], cell[move.stop])
        mine = held[rank, 0 if move.kind == "reduce" and move.peer is None else move.buffer][where]
        if move.kind == "send":
            letter.append(mine.copy())
        elif move.peer is None:
            letter.append(held[rank, move.buffer if move.kind == "reduce" else 0][where].copy())
        if not np.all(letter[0]) or (move.kind == "reduce" and not np.all(mine)):
            raise _fault(schedule, rank, step, move, "there is nothing yet in some elements")
        if move.kind == "reduce":
            if np.any(twice := mine & letter[0]):
                raise _fault(schedule, rank, step, move, f"doubles {_named(max(twice))}")
            mine |= letter[0]
        elif move.kind != "send":
            mine[:] = letter[0]
    for rank in ranks:
        for i in np.flatnonzero((held[rank, 0] != full)[wants[rank]])[:1] + (wants[rank].start or 0):
            lacks = _named(full[i] & ~held[rank, 0][i])
            raise _fault(schedule, rank, "after the last", f"[{cuts[i]}:{cuts[i+1]}]", f"lacks {lacks}")
    try:
        deque(_walk(schedule, buffered=False), 0)
    except PlanError:
        return False
    return True


def _named(bits: int) -> str:
    numbers = [str(rank) for rank in range(bits.bit_length()) if bits >> rank & 1]
    return "the contribution of rank " + ", ".join(numbers[:8]) + ", ..." * (len(numbers) > 8)


def run_threads(
    schedule: Schedule, buffers: Sequence[Any], add: Callable[..., Any] = np.add
) -> None:
    """Run a checked schedule in place on one array a rank, each rank on a thread; ``add(a, b, out)``
    sums. Raises WorkerError with the rank and step that failed first, once all have stopped."""
    check(schedule)
    if [len(buffer) for buffer in buffers] != [schedule.size] * schedule.ranks:
        raise PlanError(f"{schedule.algorithm}: wants {schedule.ranks} arrays of {schedule.size}")
    inboxes: list[SimpleQueue[Any]] = [SimpleQueue() for _ in buffers]
    failures: list[tuple[int, object, BaseException]] = []

    def run(rank: int) -> None:
        vectors: Any = defaultdict(lambda: np.empty_like(buffers[rank]), {0: buffers[rank]})
        mail: Any = defaultdict(deque)
        move = None
        try:
            for move in schedule.program(schedule, rank):
                kind, peer, start, stop, buffer = move
                vector, mine = vectors[0][start:stop], vectors[buffer][start:stop]
                if kind == "send":
                    inboxes[peer].put((rank, mine.copy()))
                ...
