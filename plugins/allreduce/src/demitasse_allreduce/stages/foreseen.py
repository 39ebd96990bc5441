"""A stage for processes that a description has but that do not run: which messages are sent, and
when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from demitasse import Bucket, CompositionError, FlatMemory, GradientSync, Group, Machine
from demitasse_allreduce.stages.everyone import WHOLE
from demitasse_allreduce.stages.options import (
    BUCKETS,
    CHAIN,
    MEMBERS,
    NAIVE,
    OVERLAP,
    PACKED,
    ROOTED,
    SC_B,
    SC_OBR,
    STAGES,
    Options,
)
from demitasse_allreduce.stages.parcels import Part, parcels

Moment: TypeAlias = "str | tuple[str, int]"
"""A moment of an iteration: ``begin``, ``end`` or, with the index of a bucket, ``read`` (before the
first operation that reads its parameters) or ``final`` (when its gradients are final)."""

Message: TypeAlias = tuple[str, tuple[int, ...], Moment, Moment]
"""A collective: its goal, the indices of its buckets, when it may begin, and when the worker waits for
it."""


class ForeseenSync(GradientSync):
    """The first of several processes, the root, in a simulation. ``messages`` returns what it sends and
    when, ``collective`` has the algorithms, and ``sources`` describes the stage. ``at_once``: levels
    inside synchronise too. ``node_ranks`` ranks of the first node add in its shared memory (1: none
    do): each its slice or, with ``leaders``, the first of them everything."""

    def __init__(self, group: Group, options: Options, at_once: bool) -> None:
        self.index = group.index
        self.options, self._at_once = options, at_once
        self._item = np.dtype(group.dtype).itemsize
        machine = group.machine if options.shared and options.stage not in ROOTED else None
        self._of_a_node = 1 if machine is None else in_one_memory(machine, group.levels)
        self.taking_part(self._of_a_node + 1)

    def taking_part(self, ranks: int) -> None:
        """Set how many ranks take part. They fill one node after the other."""
        options, near = self.options, self._of_a_node
        self.node_ranks, several = min(near, ranks), -(-ranks // near)
        unequal = several > 1 and ranks % near > 0
        self.leaders = self.node_ranks > 1 and (options.between == "leaders" or unequal)
        alone = several == 1 and self.node_ranks > 1
        self.stage = options.stage or (PACKED if alone else OVERLAP)
        self.bucket_bytes = GradientSync.bucket_bytes
        if self.stage == PACKED:
            self.bucket_bytes = WHOLE
        elif self.stage not in ROOTED:
            self.bucket_bytes = options.bucket
        self.sources = [f"stage {self.stage}: {STAGES[self.stage]}"]
        if self._at_once and self.stage != PACKED:
            self.sources.append("levels inside synchronise too: each bucket is summed when it is final")
        if self.node_ranks > 1:
            by = f"; {several:,} nodes by {'leaders' if self.leaders else 'slices'}" * (several > 1)
            self.sources.append(
                f"{self.node_ranks} ranks of a node add slices in shared memory, without a message{by}"
            )

    def bind(self, memory: FlatMemory) -> None:
        """Raise CompositionError, because the other processes do not exist."""
        raise CompositionError(
            "plugin 'allreduce' only predicts what this stage takes: its processes are described"
        )

    @property
    def collective(self) -> Mapping[str, Any]:
        """The algorithm of all messages and its rank map; for two levels of communicators also both
        algorithms, and the number of ranks of a lower one."""
        options = self.options
        found: dict[str, Any] = {"algorithm": options.algorithm, "ranks": options.ranks}
        if options.hierarchical:
            found |= {"lower": options.lower or "chain", "upper": options.upper or "binomial"}
        if options.chain is not None or (options.hierarchical and options.members == MEMBERS[0]):
            found["chain"] = options.chain or CHAIN
        return found

    def messages(self, buckets: Sequence[Bucket], reads: Sequence[int]) -> list[Message]:
        """Return the messages in the order in which they are sent. ``buckets`` are in the order in which
        backward finishes them; ``reads`` has their indices in the order in which forward first reads
        them."""
        every = tuple(bucket.index for bucket in buckets)
        if self.stage not in ROOTED:
            return self._sums("allreduce", buckets)
        return self._casts(every, reads) + self._sums("reduce", buckets)

    def _casts(self, every: tuple[int, ...], reads: Sequence[int]) -> list[Message]:
        """Return the broadcasts of parameters, before or beside the forward pass."""
        if self.stage == SC_B:
            return [("broadcast", every, "begin", "begin")]
        before = [None, *reads[:-1]] if self.stage == NAIVE else [None] * len(reads)
        return [
            ("broadcast", (index,), "begin" if last is None else ("read", last), ("read", index))
            for index, last in zip(reads, before, strict=True)
        ]

    def _sums(self, goal: str, buckets: Sequence[Bucket]) -> list[Message]:
        """Return the sums of gradients, after or beside the backward pass."""
        if self._at_once:
            return [
                (goal, (bucket.index,), ("final", bucket.index), ("final", bucket.index))
                for bucket in buckets
            ]
        if self.stage not in (OVERLAP, BUCKETS, SC_OBR):
            return [(goal, tuple(bucket.index for bucket in buckets), "end", "end")] if buckets else []
        least = 1 if self.stage == SC_OBR else self.options.bucket
        found: list[Message] = []
        for parcel in parcels((Part(each, each.span) for each in buckets), least // self._item):
            indices = tuple(part.bucket.index for part in parcel.parts)
            last: Moment = ("final", indices[-1])
            found.append((goal, indices, last, last if self.stage == BUCKETS else "end"))
        return found


def in_one_memory(machine: Machine, names: Sequence[str]) -> int:
    """Return how many siblings of the named levels have their tensors in one memory: the siblings
    inside the level that has this memory. Workers that compute in streams use a device's memory, which
    is not shared."""
    working = [level for level in machine.levels if level.workers in ("threads", "streams", "mpi")]
    if not working or any(level.workers == "streams" for level in working):
        return 1
    level, inside = working[-1], 1
    while not level.memory and level.parent is not None:
        inside *= level.count if level.name in names and level.workers != "threads" else 1
        level = machine.level(level.parent)
    return inside if level.memory else 1
