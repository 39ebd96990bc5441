"""Collectives by messages: which schedule runs on which communicator, and why."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from demitasse import Machine, Schedule, StreamEngine
from demitasse_allreduce import library
from demitasse_allreduce.algorithms import algorithm
from demitasse_allreduce.choice import AUTO, Chooser, Way, bucket, fit
from demitasse_allreduce.executor import Collective, wait_for
from demitasse_allreduce.stages.base import InLine
from demitasse_allreduce.stages.candidates import candidates, steady
from demitasse_allreduce.stages.device import collective, on_device
from demitasse_allreduce.stages.lane import Task
from demitasse_allreduce.stages.links import described, joined, per_node
from demitasse_allreduce.stages.options import CHAIN, Options
from demitasse_allreduce.trials import measured

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

TRIED, ROUNDS = (64, 512 * 1024), (20, 3)
"""Bytes of the messages by which a network without a description is measured, and how often each is
sent."""

DEVICE = (
    "a device's memory: staged through pinned memory of the host",
    "a device's memory: messages from and to it, as this MPI library can",
)

LARGEST = 8 * 2**20
"""The most bytes of a trial run; times of larger sizes are extrapolated in proportion."""


@dataclass(frozen=True)
class Lines:
    """A rank's communicators for a two-level collective: that of its own group, and that of the leaders
    of groups (None if it leads no group). In both, the leader or root is the first rank."""

    lower: Any
    upper: Any


class Network:
    """Makes collectives on ``comm`` as ``options`` say; rank 0 is the root. ``check`` is called while a
    collective is waited for. ``homes`` has the number of each rank's node, and ``engine`` the streams
    for arrays in a device's memory. ``beside``: another thread than the worker's runs the collectives.

    "auto" selects the cheapest algorithm by the ``machine``'s links or, if these are not described for
    so many ranks, by the time of a few messages between neighbours, measured when the first collective
    is made. When a collective of a new size is made, the cheapest algorithms are run ``trials`` times,
    and the fastest is taken; with 0 trials, cost alone decides.

    With ``lower`` and ``upper`` a collective has two levels of communicators (S-Caffe, section 5).
    Ranks are grouped into chains of ``chain`` consecutive ranks, which may span nodes (figure 7), or by
    node. A reduction goes to the first rank of each group, and then from these ranks to the root.
    """

    def __init__(
        self,
        comm: Any,
        options: Options,
        machine: Machine | None,
        check: Callable[[], None],
        homes: list[int],
        item: int,
        engine: StreamEngine | None = None,
        beside: bool = False,
    ) -> None:
        self._engine, self._beside = engine, beside
        self.comm, self._options, self._check, self._item = comm, options, check, item
        self._homes = homes
        self.ranks = comm.Get_size()
        self.notes: list[str] = []
        self._network, self.lacking = described(machine, self.ranks)
        self._known = options.known
        self._gamma = 0.0
        self._copies: dict[int, list[Any]] = {}
        self._choosers: dict[tuple[int, str], Chooser] = {}
        self._tried: set[tuple[int, str, int]] = set()
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
        """Return the number of each rank's group."""
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
        """Prepare the collective ``goal`` (allreduce, reduce to rank 0, or broadcast from rank 0), in
        place on a contiguous one-dimensional array, which has the same size on all ranks. Collectives
        that may be under way at the same time need different numbers ``line``. Collective."""
        if self._lines is None:
            return self._on(self.comm, line, goal, array, self._options.algorithm)
        lower, upper = self._lines.lower, self._lines.upper
        return InLine(
            [
                self._on(comm, line, each, array, name)
                for below, each, name in self._turns(goal)
                if (comm := lower if below else upper) is not None and comm.Get_size() > 1
            ]
        )

    def _turns(self, goal: str) -> list[tuple[bool, str, str]]:
        """Return what two levels of communicators do for a goal, as (whether the lower level does it,
        its goal, its algorithm)."""
        reduces = [(True, "reduce", self._lower), (False, "reduce", self._upper)]
        casts = [(False, "broadcast", self._upper), (True, "broadcast", self._lower)]
        whole = [reduces[0], (False, "allreduce", self._upper), casts[1]]
        return {"reduce": reduces, "broadcast": casts, "allreduce": whole}[goal]

    def levels(self, goal: str) -> list[tuple[str, int, str]]:
        """Return the parts of a collective, as (goal, ranks, requested algorithm)."""
        if self._lines is None:
            return [(goal, self.ranks, self._options.algorithm)]
        sizes = {True: self._largest(), False: len({*self._groups()})}
        return [(each, sizes[low], name) for low, each, name in self._turns(goal) if sizes[low] > 1]

    @property
    def described(self) -> bool:
        """Whether costs are known: the links are described, or they have been measured."""
        return self._network is not None

    @property
    def trials(self) -> int:
        """How often the cheapest few algorithms are tried."""
        return self._options.trials

    def _on(self, comm: Any, line: int, goal: str, array: Array, name: str) -> Task:
        (way, made), told = self._schedule(comm, goal, array, name)
        note = f"{goal} of {array.nbytes:,} bytes: {way}, {told}"
        if note not in self.notes:
            self.notes.append(note)
        aware = on_device(array) and library.device_aware(library.start())
        if on_device(array) and DEVICE[aware] not in self.notes:
            self.notes.append(DEVICE[aware])
        own = self._copy(comm, line)
        return collective(made, own, array, self._check, self._engine, self._beside, aware)

    def _copy(self, comm: Any, line: int) -> Any:
        """Return a communicator like ``comm`` for one line of messages."""
        if line == 0:
            return comm
        copies = self._copies.setdefault(id(comm), [])
        while len(copies) < line:
            copies.append(comm.Dup())
        return copies[line - 1]

    def _schedule(
        self, comm: Any, goal: str, array: Array, name: str
    ) -> tuple[tuple[Way, Schedule], str]:
        """Return the best way of an algorithm (or of all), its schedule, and its seconds as text."""
        if self._network is None:
            self._measure()
        assert self._network is not None
        ranks, size = comm.Get_size(), array.size
        chooser = self.chooser(ranks, name)
        if name == AUTO and self._options.trials and size:
            self._try(comm, chooser, goal, array)
        offers = steady(chooser.offers(size * self._item, goal))
        # A two-level algorithm is not offered to ranks that are one group, but it was asked for.
        way = offers[0].way if offers else Way(name, group=min(CHAIN, ranks))
        if way.algorithm in self._known and "groups" in self._known[way.algorithm].options:
            found, seconds = self._grouped(chooser, way, goal, size)
        else:
            found = way, way.schedule(size, self._network, ranks, goal, known=self._known)
            seconds = chooser.predict(way, size, goal)
        told = f"predicted {seconds * 1e3:.3g} ms"
        if offers and offers[0].measured is not None:
            told = f"measured {offers[0].measured * 1e3:.3g} ms, {told}"
        return found, told

    def chooser(self, ranks: int, name: str) -> Chooser:
        """Return the chooser for an algorithm (or all) and so many ranks. The network must be described
        or measured."""
        assert self._network is not None
        key = ranks, name
        if key not in self._choosers:
            only = () if name == AUTO else (name,)
            # Where a subset of the ranks lies is not known: a rank map applies only to all of them.
            order = self._options.ranks if ranks == self.ranks else "natural"
            if only and "groups" in algorithm(name, known=self._known).options:
                order = AUTO
            self._choosers[key] = Chooser(
                self._network,
                ranks,
                item=self._item,
                gamma=self._gamma,
                only=only,
                order=order,
                known=self._known,
            )
        return self._choosers[key]

    def _try(self, comm: Any, chooser: Chooser, goal: str, array: Array) -> None:
        """Try the cheapest ways for a size, once for all sizes of its bucket. Collective."""
        key = chooser.ranks, goal, bucket(array.size * self._item)
        if key in self._tried:
            return
        self._tried.add(key)
        offers = chooser.offers(array.size * self._item, goal)
        ways = [offer.way for offer in candidates(offers, self._known)]
        if len(ways) < 2:
            return
        assert self._network is not None
        size = min(array.size, LARGEST // self._item)
        trial = np.zeros(size, array.dtype)
        about = self._network, chooser.ranks, goal, 0, self._known
        made = [way.schedule(size, *about) for way in ways]
        runs = [Collective(each, comm, trial, check=self._check).run for each in made]
        for way, seconds in zip(
            ways, measured(comm, runs, self._options.trials, check=self._check), strict=True
        ):
            whole = seconds * array.size / size
            chooser.measured.record(way, array.size * self._item, chooser.ranks, whole, goal)

    def _grouped(
        self, chooser: Chooser, way: Way, goal: str, size: int
    ) -> tuple[tuple[Way, Schedule], float]:
        """Return the way and schedule of a two-level algorithm, with the groups of the options, if these
        name any, and its predicted seconds."""
        assert self._network is not None
        if self._options.members == "node" and chooser.ranks == self.ranks:
            members = [
                [rank for rank, home in enumerate(self._homes) if home == each]
                for each in dict.fromkeys(self._homes)
            ]
            chunks = way.chunks or None
            made = algorithm(way.algorithm, known=self._known).schedule(
                chooser.ranks, size, goal, groups=members, chunks=chunks
            )
            return (way, made), chooser.predict(way, size, goal)
        if self._options.chain is not None:
            way = replace(way, group=self._options.chain)
        made = way.schedule(size, self._network, chooser.ranks, goal, known=self._known)
        return (way, made), chooser.predict(way, size, goal)

    def _measure(self) -> None:
        """Measure messages between neighbours, all at the same time, and additions; the slowest rank's
        times count. If each node has several consecutive ranks, messages inside nodes are measured
        separately from those between nodes."""
        lane, rank = self.comm.Dup(), self.comm.Get_rank()
        each = per_node(self._homes)
        near = rank // each * each
        steps = [(near + (rank - near + 1) % each, near + (rank - near - 1) % each)] if each > 1 else []
        if each < self.ranks:
            steps.append(((rank + each) % self.ranks, (rank - each) % self.ranks))
        messages = [
            min(self._exchange(lane, to, source, size) for _ in range(rounds))
            for to, source in steps
            for size, rounds in zip(TRIED, ROUNDS, strict=True)
        ]
        one, other = np.ones(TRIED[1] // 8), np.ones(TRIED[1] // 8)
        start = time.perf_counter()
        np.add(one, other, out=one)
        mine = np.array([*messages, time.perf_counter() - start])
        slowest = np.empty_like(mine)
        from mpi4py import MPI

        lane.Allreduce(mine, slowest, MPI.MAX)
        lane.Free()
        self._gamma = float(slowest[-1]) / TRIED[1]
        pairs = slowest[:-1].reshape(-1, 2).tolist()
        fits = [replace(fit(zip(TRIED, pair, strict=True)), gamma=self._gamma) for pair in pairs]
        self._network = joined(fits, each, self.ranks)
        where = ["in a node", "between nodes"] if len(fits) > 1 else ["between neighbours"]
        for found, what in zip(fits, where, strict=True):
            self.notes.append(f"the network: {found} (measured {what}, all at once)")

    def _exchange(self, lane: Any, to: int, source: int, size: int) -> float:
        """Return the seconds of a message to one rank while a message from another rank arrives."""
        here, there = np.empty(size, np.uint8), np.ones(size, np.uint8)
        lane.Barrier()
        start = time.perf_counter()
        came, gone = lane.Irecv(here, source), lane.Isend(there, to)
        for request in (came, gone):
            wait_for(request, self._check)
        return time.perf_counter() - start
