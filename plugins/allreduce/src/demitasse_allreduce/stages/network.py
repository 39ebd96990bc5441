"""Collectives over messages: which schedule on which communicator, and why."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from demitasse import CompositionError, DescriptionError, Machine, Schedule, Topology
from demitasse_allreduce.algorithms import ALGORITHMS, algorithm
from demitasse_allreduce.choice import AUTO, Chooser, Fit, Way, fit, network_of
from demitasse_allreduce.executor import Collective
from demitasse_allreduce.stages.base import InLine
from demitasse_allreduce.stages.lane import Task
from demitasse_allreduce.stages.options import CHAIN, Options

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

TRIED, ROUNDS = (64, 512 * 1024), (20, 3)
"""Bytes of the messages by which an undescribed network is measured, and how often each."""


@dataclass(frozen=True)
class Lines:
    """A rank's communicators of a two-level collective: of its own group, and of those who lead groups
    (None where it leads none). Both have the root of all first."""

    lower: Any
    upper: Any


class Network:
    """Makes collectives on ``comm`` as ``options`` say; rank 0 is the root. ``check`` is called while
    one is waited for. ``homes`` has a number of the node of each rank.

    What is "auto" is what costs least by the ``machine``'s links or, where it describes none for so many
    ranks, by what a few messages between neighbours take when the first collective is made.

    With ``lower`` and ``upper`` a collective has two levels of communicators (S-Caffe, section 5): ranks
    are grouped in lines of ``chain`` that follow each other, which may span nodes (figure 7), or by
    node; a reduction goes to the first rank of each group, and then among these to the root.
    """

    def __init__(
        self,
        comm: Any,
        options: Options,
        machine: Machine | None,
        check: Callable[[], None],
        homes: list[int],
        item: int,
    ) -> None:
        self.comm, self._options, self._check, self._item = comm, options, check, item
        self._homes = homes
        self.ranks = comm.Get_size()
        self.notes: list[str] = []
        self._network = _described(machine, self.ranks)
        self._gamma = 0.0
        self._copies: dict[int, list[Any]] = {}
        self._choosers: dict[tuple[int, str], Chooser] = {}
        self._lines = self._split() if options.hierarchical else None

    def _split(self) -> Lines:
        rank = self.comm.Get_rank()
        lower = self.comm.Split(self._groups()[rank], rank)
        leads = lower.Get_rank() == 0
        upper = self.comm.Split(0 if leads else 1, rank)
        how = "of a node" if self._options.members == "node" else "in a row"
        self.notes.append(
            f"two levels of communicators: up to {self._largest()} ranks {how} by {self._lower}, the "
            f"first of each by {self._upper}"
        )
        return Lines(lower, upper if leads else None)

    def _groups(self) -> list[int]:
        """The number of each rank's group."""
        if self._options.members == "node":
            return self._homes
        return [rank // (self._options.chain or CHAIN) for rank in range(self.ranks)]

    def _largest(self) -> int:
        groups = self._groups()
        return max(groups.count(each) for each in set(groups))

    @property
    def _lower(self) -> str:
        return self._options.lower or "chain"

    @property
    def _upper(self) -> str:
        return self._options.upper or "binomial"

    def task(self, goal: str, array: Array, line: int = 0) -> Task:
        """The collective ``goal`` (allreduce, or reduce or broadcast from rank 0) in place on a
        contiguous array of one dimension, which has the same size on all ranks. Those that may be under
        way at once need different numbers of ``line``. Collective."""
        if self._lines is None:
            return self._on(self.comm, line, goal, array, self._options.algorithm)
        lower, upper = self._lines.lower, self._lines.upper
        reduces = [(lower, "reduce", self._lower), (upper, "reduce", self._upper)]
        casts = [(upper, "broadcast", self._upper), (lower, "broadcast", self._lower)]
        whole = [reduces[0], (upper, "allreduce", self._upper), casts[1]]
        turns = {"reduce": reduces, "broadcast": casts, "allreduce": whole}[goal]
        return InLine(
            [
                self._on(comm, line, each, array, name)
                for comm, each, name in turns
                if comm is not None and comm.Get_size() > 1
            ]
        )

    def _on(self, comm: Any, line: int, goal: str, array: Array, name: str) -> Task:
        (way, made), seconds = self._schedule(comm.Get_size(), goal, array.size, name)
        note = f"{goal} of {array.nbytes:,} bytes: {way}, predicted {seconds * 1e3:.3g} ms"
        if note not in self.notes:
            self.notes.append(note)
        return Collective(made, self._copy(comm, line), array, check=self._check)

    def _copy(self, comm: Any, line: int) -> Any:
        """A communicator like ``comm`` for one line of messages."""
        if line == 0:
            return comm
        copies = self._copies.setdefault(id(comm), [])
        while len(copies) < line:
            copies.append(comm.Dup())
        return copies[line - 1]

    def _schedule(
        self, ranks: int, goal: str, size: int, name: str
    ) -> tuple[tuple[Way, Schedule], float]:
        """The cheapest way of an algorithm, or of all, its schedule, and its predicted seconds."""
        if self._network is None:
            self._measure()
        assert self._network is not None
        key = ranks, name
        if key not in self._choosers:
            only = () if name == AUTO else (name,)
            # Ranks of a part of them are anywhere: only the whole has a place in the description.
            order = self._options.ranks if ranks == self.ranks else "natural"
            if only and "groups" in algorithm(name).options:
                order = AUTO
            self._choosers[key] = Chooser(
                self._network, ranks, item=self._item, gamma=self._gamma, only=only, order=order
            )
        chooser = self._choosers[key]
        offers = chooser.offers(size * self._item, goal)
        # For so few ranks that they make one group a two-level algorithm is no offer, but asked for.
        way = offers[0].way if offers else Way(name, group=min(CHAIN, ranks))
        if way.algorithm in ALGORITHMS and "groups" in ALGORITHMS[way.algorithm].options:
            return self._grouped(chooser, way, goal, size)
        made = way.schedule(size, self._network, ranks, goal)
        return (way, made), chooser.predict(way, size, goal)

    def _grouped(
        self, chooser: Chooser, way: Way, goal: str, size: int
    ) -> tuple[tuple[Way, Schedule], float]:
        """A two-level algorithm, with the groups that the options say, if they do."""
        assert self._network is not None
        if self._options.members == "node" and chooser.ranks == self.ranks:
            members = [
                [rank for rank, home in enumerate(self._homes) if home == each]
                for each in dict.fromkeys(self._homes)
            ]
            chunks = way.chunks or None
            made = algorithm(way.algorithm).schedule(
                chooser.ranks, size, goal, groups=members, chunks=chunks
            )
            return (way, made), chooser.predict(way, size, goal)
        if self._options.chain is not None:
            way = replace(way, group=self._options.chain)
        made = way.schedule(size, self._network, chooser.ranks, goal)
        return (way, made), chooser.predict(way, size, goal)

    def _measure(self) -> None:
        """What messages between neighbours take, all at once, and additions; the slowest rank's."""
        messages, (lane, rank) = [], (self.comm.Dup(), self.comm.Get_rank())
        for size, rounds in zip(TRIED, ROUNDS, strict=True):
            messages.append(min(self._exchange(lane, rank, size) for _ in range(rounds)))
        one, other = np.ones(TRIED[1] // 8), np.ones(TRIED[1] // 8)
        start = time.perf_counter()
        np.add(one, other, out=one)
        mine = np.array([*messages, time.perf_counter() - start])
        slowest = np.empty_like(mine)
        from mpi4py import MPI

        lane.Allreduce(mine, slowest, MPI.MAX)
        lane.Free()
        found: Fit = fit(zip(TRIED, slowest[:2].tolist(), strict=True))
        found = replace(found, gamma=float(slowest[2]) / TRIED[1])
        self._network, self._gamma = found.network(self.ranks), found.gamma
        self.notes.append(f"the network: {found} (measured between neighbours, all at once)")

    def _exchange(self, lane: Any, rank: int, size: int) -> float:
        """Seconds of a message to the next rank while one comes from that before."""
        here, there = np.empty(size, np.uint8), np.ones(size, np.uint8)
        lane.Barrier()
        start = time.perf_counter()
        came = lane.Irecv(here, (rank - 1) % self.ranks)
        gone = lane.Isend(there, (rank + 1) % self.ranks)
        for request in (came, gone):
            while not request.Test():
                self._check()
                os.sched_yield()
        return time.perf_counter() - start


def _described(machine: Machine | None, ranks: int) -> Topology | None:
    """The network of a machine's processes; None where it describes none for so many."""
    if machine is None:
        return None
    try:
        network = network_of(machine)
    except (CompositionError, DescriptionError):
        return None
    return network if network.endpoints >= ranks else None
