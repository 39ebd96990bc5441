"""What a collective costs on a network: rounds of all ranks at once, or every move as an event."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from demitasse_schedules.network import Topology
from demitasse_schedules.record import Array, InRounds, Round, Schedule


@dataclass(frozen=True)
class Cost:
    """Seconds of a collective: in all, and of the last rank to end how much went to latencies, to
    bytes on the wire and to additions."""

    seconds: float
    latency: float
    transfer: float
    reduction: float
    rounds: int


def cost(
    rounds: Iterable[Round],
    network: Topology,
    place: Array,
    item: int = 4,
    gamma: float = 0.0,
) -> Cost:
    """The cost of rounds whose ranks are at the endpoints ``place``: ``item`` bytes an element,
    ``gamma`` seconds a byte that is added. A rank begins a round when it has ended the one before and
    its peers' messages come; a rank sends and receives at once. Messages of one round share trunks, and
    those of one rank its link."""
    clock = np.zeros((len(place), 4))  # seconds in all; of latency, transfer and reduction on the way
    count = 0
    for each in rounds:
        count += each.times
        moved = each.elements * float(item)
        latency, wire = network.messages(place[each.source], place[each.target], moved)
        adds = np.broadcast_to(gamma * moved * each.reduces, moved.shape)
        if each.times > 1:  # equal rounds in a row: each waits for the slowest message of the one before
            parts = np.stack([latency, wire, adds], axis=1)
            slowest = parts[np.argmax(parts.sum(axis=1))] * each.times
            clock = np.broadcast_to(clock[np.argmax(clock[:, 0])], clock.shape).copy()
            clock += [slowest.sum(), *slowest]
            continue
        step = np.stack([latency + wire, latency, wire, 0 * wire], axis=1)
        # Who sends is busy as long as its messages are under way; who gets one waits for its sender.
        arrived = _latest(clock.copy(), each.source, clock[each.source] + step)
        late = clock[each.source, 0] > clock[each.target, 0]
        begun = np.where(late[:, None], clock[each.source], clock[each.target])
        got = _latest(np.zeros_like(clock), each.target, begun + step)
        added = np.bincount(each.target, adds, len(clock))
        got[:, 0] += added
        got[:, 3] += added
        clock = np.where((got[:, 0] > arrived[:, 0])[:, None], got, arrived)
    last = clock[np.argmax(clock[:, 0])]
    whole, waits, carried, adding = map(float, last)
    return Cost(whole, waits, carried, adding, count)


def _latest(clock: Array, rank: Array, times: Array) -> Array:
    """The clock, with the latest of a rank's times where that is later than its own."""
    order = np.argsort(times[:, 0], kind="stable")  # of several values for one rank the last one stays
    latest = clock.copy()
    latest[rank[order]] = times[order]
    return np.where((latest[:, 0] > clock[:, 0])[:, None], latest, clock)


def rounds_of(schedule: Schedule) -> Iterator[Round]:
    """The rounds of any schedule: its program's own, or those in which its moves can go, one message of
    a rank at a time."""
    if isinstance(schedule.program, InRounds):
        yield from schedule.program.rounds(schedule)
        return
    found: dict[int, list[tuple[int, int, int, int, bool]]] = {}
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
            message = move.peer, rank, move.start, move.stop, move.kind == "reduce"
            found.setdefault(number, []).append(message)
    for number in sorted(found):
        columns = [np.array(column) for column in zip(*found[number], strict=True)]
        yield Round(columns[0], columns[1], columns[2], columns[3], columns[4])


def play(
    schedule: Schedule, network: Topology, place: Array, item: int = 4, gamma: float = 0.0
) -> float:
    """Seconds of a schedule, every move an event and a rank's sends one after another: a check of
    ``cost`` for few ranks. What is sent in one round of the schedule shares trunks."""
    together: dict[int, list[tuple[int, int, int]]] = {}
    for number, source, target, elements in schedule.messages():
        together.setdefault(number, []).append((source, target, elements))
    takes: dict[tuple[int, int, int], float] = {}
    for number, sent in together.items():
        source, target, elements = np.array(sent).T
        latency, wire = network.messages(place[source], place[target], elements * float(item))
        for (one, other, _), seconds in zip(sent, latency + wire, strict=True):
            takes[number, one, other] = float(seconds)
    clock, port, turn = ([0.0] * schedule.ranks for _ in range(3))
    for rank, _, move, letter in schedule.walk():
        if move.peer == rank:  # a copy: no message
            letter.put(None) if move.kind == "send" else letter.get()
        elif move.kind == "send":
            start = max(clock[rank], port[rank])
            port[rank] = start + takes[int(turn[rank]), rank, move.peer]
            letter.put((turn[rank], start, port[rank] - start))
            turn[rank] += 1
        else:
            number, start, took = letter.get()
            turn[rank] = max(turn[rank], number + 1)
            added = gamma * (move.stop - move.start) * item if move.kind == "reduce" else 0.0
            clock[rank] = max(clock[rank], start) + took + added
    return max(*clock, *port)
