"""What a collective costs on a topology, and the closed forms of the papers that check it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from demitasse import Schedule
from demitasse_simulator.algorithms import Round
from demitasse_simulator.topology import Topology

Array = np.ndarray[Any, np.dtype[Any]]


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
    its peer's message comes; a rank sends and receives at once. Messages of one round share trunks."""
    clock = np.zeros((len(place), 4))  # seconds in all; of latency, transfer and reduction on the way
    count = 0
    for each in rounds:
        count += each.times
        latency, beta = network.flows(place[each.source], place[each.target])
        moved = each.elements * float(item)
        parts = np.stack([latency, beta * moved, gamma * moved * each.reduces], axis=1)
        if each.times > 1:  # equal rounds in a row: each waits for the slowest message of the one before
            slowest = parts[np.argmax(parts.sum(axis=1))] * each.times
            clock = np.broadcast_to(clock[np.argmax(clock[:, 0])], clock.shape).copy()
            clock += [slowest.sum(), *slowest]
            continue
        step = np.concatenate([parts.sum(axis=1, keepdims=True), parts], axis=1)
        late = clock[each.source, 0] > clock[each.target, 0]
        begun = np.where(late[:, None], clock[each.source], clock[each.target])
        # Who sends in this round is busy as long as its message is under way, without the addition.
        sends = clock[each.source] + step * [1, 1, 1, 0]
        sends[:, 0] -= step[:, 3]
        arrived = clock.copy()
        arrived[each.source] = sends
        better = begun[:, 0] + step[:, 0] > arrived[each.target, 0]
        arrived[each.target] = np.where(better[:, None], begun + step, arrived[each.target])
        clock = arrived
    last = clock[np.argmax(clock[:, 0])]
    whole, waits, wire, added = map(float, last)
    return Cost(whole, waits, wire, added, count)


def play(
    schedule: Schedule, network: Topology, place: Array, item: int = 4, gamma: float = 0.0
) -> float:
    """Seconds of a schedule, every move an event: a check of ``cost`` for few ranks. What is sent in
    one round of the schedule shares trunks."""
    together: dict[int, list[tuple[int, int]]] = {}
    for number, source, target, _ in schedule.messages():
        together.setdefault(number, []).append((source, target))
    rates: dict[tuple[int, int, int], tuple[float, float]] = {}
    for number, pairs in together.items():
        ends = np.array(pairs)
        latency, beta = network.flows(place[ends[:, 0]], place[ends[:, 1]])
        for pair, a, b in zip(pairs, latency, beta, strict=True):
            rates[(number, *pair)] = float(a), float(b)
    clock, port = [0.0] * schedule.ranks, [0.0] * schedule.ranks
    turn = [0] * schedule.ranks
    for rank, _, move, letter in schedule.walk():
        if move.peer == rank:  # a copy: no message
            letter.put(None) if move.kind == "send" else letter.get()
            continue
        size = (move.stop - move.start) * item
        if move.kind == "send":
            alpha, beta_byte = rates[turn[rank], rank, move.peer]
            start = max(clock[rank], port[rank])
            port[rank] = start + alpha + beta_byte * size
            letter.put((turn[rank], start, port[rank] - start))
            turn[rank] += 1
        else:
            number, start, took = letter.get()
            turn[rank] = max(turn[rank], number + 1)
            added = gamma * size if move.kind == "reduce" else 0.0
            clock[rank] = max(clock[rank], start) + took + added
    return max(*clock, *port)


@dataclass(frozen=True)
class Exchange:
    """The numbers of swCaffe's equations: ``p`` nodes in supernodes of ``q``, ``n`` bytes; ``alpha``
    seconds a message, ``beta1`` seconds a byte inside and ``beta2`` between supernodes, ``gamma`` a
    byte that is added."""

    p: int
    q: int
    n: float
    alpha: float
    beta1: float
    beta2: float
    gamma: float

    def reduce_scatter(self) -> float:
        """Equation 3: ranks numbered supernode by supernode."""
        return self.allgather() + (self.p - 1) / self.p * self.n * self.gamma

    def allgather(self) -> float:
        """Equation 4."""
        q, part = min(self.p, self.q), self.n / self.p
        return (
            math.log2(self.p) * self.alpha
            + (q - 1) * self.beta1 * part
            + (self.p - q) * self.beta2 * part
        )

    def new_reduce_scatter(self) -> float:
        """Equation 5: ranks dealt out to the supernodes in turn."""
        return self.new_allgather() + (self.p - 1) / self.p * self.n * self.gamma

    def new_allgather(self) -> float:
        """Equation 6."""
        groups, part = self.p / min(self.p, self.q), self.n / self.p
        return (
            math.log2(self.p) * self.alpha
            + (self.p - groups) * self.beta1 * part
            + (groups - 1) * self.beta2 * part
        )

    def allreduce(self, order: str = "natural") -> float:
        """Equation 2."""
        if order == "natural":
            return self.reduce_scatter() + self.allgather()
        return self.new_reduce_scatter() + self.new_allgather()
