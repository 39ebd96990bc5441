"""A parameter server across processes that a description has but that do not run: the time of its
messages."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TypeAlias

import numpy as np

from demitasse import (
    Bucket,
    CompositionError,
    DescriptionError,
    FlatMemory,
    GradientSync,
    Group,
    Level,
    Machine,
    Span,
    Topology,
    missing_number,
    sync_place,
    topology,
)
from demitasse_parameter_server.apart import BUCKET_BYTES as BYTES_APART
from demitasse_parameter_server.bulk import slices
from demitasse_parameter_server.options import Options
from demitasse_parameter_server.shards import BUCKET_BYTES

Moment: TypeAlias = "str | tuple[str, int]"
"""A moment of an iteration: ``begin``, ``end`` or, with a bucket's index, ``final``, when its gradients
are final."""

Message: TypeAlias = tuple[float, tuple[int, ...], Moment, Moment]
"""A message: its seconds, the indices of its buckets, when it may begin, and when the worker waits for
it."""

ADDITION = 3
"""Passes over memory by an addition, which reads two numbers and writes one."""


class ForeseenServer(GradientSync):
    """The first of several processes, a server, in a simulation. Under BSP each bucket is pushed,
    summed and pulled when it is final. Under SSP and ASP messages run beside the computation, but no
    iteration takes less time than the servers' endpoints need for all pushes and pulls."""

    collective = None
    """None: there is no collective, and ``messages`` state seconds."""

    def __init__(self, group: Group, options: Options) -> None:
        assert group.machine is not None
        self.index, self.options = group.index, options
        self._machine: Machine = group.machine
        self._names, self._where = group.levels, sync_place(group)
        self._item = np.dtype(group.dtype).itemsize
        self._pushed: dict[int, float] = {}
        self.bucket_bytes = options.bucket_bytes or (BUCKET_BYTES if self._bulk else BYTES_APART)
        self.ranks = 1

    @property
    def _bulk(self) -> bool:
        return self.options.model == "bsp"

    def taking_part(self, ranks: int) -> None:
        """Set how many processes take part. Raises DescriptionError if there are more servers than
        that."""
        if self.options.servers > ranks > 1:
            raise DescriptionError(
                f"{self._where}: sync: servers = {self.options.servers}, but the run has {ranks} "
                f"processes; each server is one of them"
            )
        self.ranks = ranks

    @property
    def sources(self) -> list[str]:
        """Lines about what is sent, and about the sources of the numbers."""
        servers, model = self.options.servers, self.options.model
        how = "each bucket is pushed, added and pulled when it is final"
        if model != "bsp":
            how = "beside the computation, as much as the servers' endpoints carry"
        return [
            *self._network.sources,
            f"{servers} of {self.ranks:,} processes hold a shard of the parameters each; {model}: {how}",
        ]

    def bind(self, memory: FlatMemory) -> None:
        """Raise CompositionError, because the other processes do not exist."""
        raise CompositionError(
            "plugin 'parameter_server' only predicts the time here: its processes are described"
        )

    def owned(self, span: Span) -> Span:
        """Return the first server's shard of a span; the whole span if one process is alone."""
        if self.ranks == 1:
            return span
        return slices(span, self.options.servers, self._item)[0]

    def messages(self, buckets: Sequence[Bucket], reads: Sequence[int]) -> list[Message]:
        """Return the messages in the order in which they are sent. ``buckets`` are in the order in which
        backward finishes them."""
        if self.ranks == 1:
            return []
        if self._bulk:
            return [
                (self._exchanged(len(each.span)), (each.index,), *(("final", each.index),) * 2)
                for each in buckets
            ]
        every = tuple(bucket.index for bucket in buckets)
        whole = self._exchanged(sum(len(bucket.span) for bucket in buckets))
        return [(whole, every, "begin", "end")]

    def _exchanged(self, elements: int) -> float:
        """Return the seconds in which all processes push so many elements, the servers add them, and all
        pull."""
        if elements not in self._pushed:
            servers = np.arange(self.options.servers)
            shards = slices(Span(0, elements), self.options.servers, self._item)
            source, target = (
                each.ravel() for each in np.meshgrid(np.arange(self.ranks), servers, indexing="ij")
            )
            apart = source != target
            source, target = source[apart], target[apart]
            moved = np.array([len(shard) for shard in shards], float)[target] * self._item
            place = self._network.place(self.ranks)
            ways = (place[source], place[target]), (place[target], place[source])
            push, pull = (
                float(np.add(*self._network.messages(*way, moved)).max(initial=0.0)) for way in ways
            )
            added = (self.ranks - 1) * len(shards[0]) * self._item * ADDITION / self._bandwidth
            # Under BSP these follow each other; otherwise an endpoint sends and receives at the same
            # time.
            self._pushed[elements] = push + added + pull if self._bulk else max(push, pull, added)
        return self._pushed[elements]

    @cached_property
    def _network(self) -> Topology:
        """The network that joins the processes."""
        around, at = list[Level](), self._machine.level(self._names[-1])
        while True:
            around.append(at)
            if at.parent is None:
                return topology(self._machine, around[::-1])
            at = self._machine.level(at.parent)

    @cached_property
    def _bandwidth(self) -> float:
        """The bytes per second of the memory in which a server adds: the memory of its level or of the
        nearest level around it, which the processes there share, or else all memories of a level
        below."""
        level, sharing = self._machine.level(self._names[-1]), 1
        home = level
        while not home.memory and home.parent is not None:
            sharing *= home.count if home.workers == "mpi" else 1
            home = self._machine.level(home.parent)
        below = {level.name: 1}  # how many siblings of each level below one of this level has
        for inner in self._machine.levels:
            if inner.parent in below:
                below[inner.name] = below[inner.parent] * inner.count
        if not home.memory:  # none is shared
            within = (self._machine.level(name) for name in below)
            home, sharing = next((each for each in within if each.memory), level), 1
        bandwidth = home.memory[0].bandwidth if home.memory else None
        if bandwidth is None:
            why = "adding what others push needs"
            raise missing_number(self._machine, home, "memory.bandwidth", why)
        return bandwidth.value * home.memory[0].count * below.get(home.name, 1) / sharing
