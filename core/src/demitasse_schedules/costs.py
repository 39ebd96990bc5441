"""What a collective costs on a network, by rounds of all ranks at once or move by move."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from demitasse_schedules.network import Topology
from demitasse_schedules.record import Array, InRounds, Round, Schedule


@dataclass(frozen=True)
class Cost:
    """The time of a collective in seconds: in total, and for the last rank to end, the parts spent on
    latencies, on bytes on the wire and on additions."""

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
    parts: bool = True,
) -> Cost:
    """Return the cost of rounds whose ranks are at the endpoints ``place``, with ``item`` bytes per
    element and ``gamma`` seconds per byte that is added. A rank begins a round when it has ended the
    previous one and its peers' messages arrive; it sends and receives at the same time. Messages of one
    round share trunks, and those of one rank its link. Without ``parts``, which take most of the time,
    only the total is computed, and the parts are NaN."""
    rows = 4 if parts else 1  # seconds: total, and latency, transfer and reduction on the way
    clock = np.zeros((rows, len(place)))
    count = 0
    for each in rounds:
        count += each.times
        moved = each.elements * float(item)
        latency, wire = network.messages(place[each.source], place[each.target], moved)
        adds = np.broadcast_to(gamma * moved * each.reduces, moved.shape)
        if each.times > 1:  # equal rounds in a row: each waits for the slowest message of the one before
            messages = np.stack([latency, wire, adds])
            slowest = messages[:, np.argmax(messages.sum(axis=0))] * each.times
            clock = np.repeat(clock[:, [np.argmax(clock[0])]], len(place), axis=1)
            clock += np.array([slowest.sum(), *slowest])[:rows, None]
            continue
        step = np.stack([latency + wire, latency, wire, 0 * wire][:rows])
        senders, receivers = clock[:, each.source], clock[:, each.target]
        # A sender is busy as long as its messages are under way; a receiver waits for its sender.
        arrived = _latest(clock, each.source, senders + step)
        begun = np.where(senders[0] > receivers[0], senders, receivers)
        got = _latest(np.zeros_like(clock), each.target, begun + step)
        added = np.bincount(each.target, adds, len(place))
        got[0] += added
        got[3:] += added
        clock = np.where(got[0] > arrived[0], got, arrived)
    last = clock[:, np.argmax(clock[0])].tolist()
    whole, waits, carried, adding = last + [math.nan] * (4 - rows)
    return Cost(whole, waits, carried, adding, count)


def _latest(clock: Array, rank: Array, times: Array) -> Array:
    """Return the clock, in which the latest of a rank's times replaces an earlier time of its own."""
    met = np.zeros(clock.shape[1], bool)
    met[rank] = True
    if np.count_nonzero(met) < len(rank):  # a rank has several times; of those put, the last stays
        order = np.argsort(times[0], kind="stable")
        rank, times = rank[order], times[:, order]
    latest = clock.copy()
    latest[:, rank] = np.where(times[0] > clock[0, rank], times, clock[:, rank])
    return latest


def rounds_of(schedule: Schedule) -> Iterator[Round]:
    """Yield the rounds of any schedule: its program's own or, for a program of moves, rounds in which
    the moves can go, each rank sending one message at a time."""
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
        else:  # the target, too, has one message a round
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
    """Return the time of a schedule in seconds, with every move as an event and a rank's sends one after
    the other: a check of ``cost`` for few ranks. Messages sent in one round of the schedule share
    trunks."""
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
