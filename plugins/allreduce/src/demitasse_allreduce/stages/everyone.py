"""Allreduce: every rank updates, all of the parameters or, where ranks share memory, a slice of them.

Sources: swCaffe, section V.A, for gradients packed into one buffer; S-Caffe, section 4.3, for the helper
thread.
"""

from __future__ import annotations

import sys
from typing import Any

from demitasse import Bucket, FlatMemory, Group, PlanError, Span, Work
from demitasse_allreduce.node import Node
from demitasse_allreduce.stages.base import InLine, ProcessSync
from demitasse_allreduce.stages.forecast import forecast
from demitasse_allreduce.stages.lane import Task
from demitasse_allreduce.stages.network import Network
from demitasse_allreduce.stages.options import PACKED, Options
from demitasse_allreduce.stages.parcels import Parcel, inside, merged, shares

LINE = 64
"""Bytes of a cache line: slices of two ranks share none."""

UNDER_WAY = 2
"""Parcels that a helper thread sums at once: while one waits for the thread, which has no core of its
own, the other's messages keep the link busy."""

WHOLE = sys.maxsize
"""Bytes of a bucket for everything."""


class EveryoneSync(ProcessSync):
    """Sums gradients over all ranks and lets all update.

    Ranks of a ``node`` have their memory in ``shared:node``: each adds the slice that it owns of all
    their gradients, updates that, and copies the others' slices of the parameters; nothing is sent. The
    slice is one of all flat memory where everything is summed at once, else one of each bucket. Those
    who own the same slices on different nodes sum them over their ``network`` between the two (by
    "slices"); or the first rank of each node owns all (by "leaders"). Without a node each rank owns all.
    """

    def __init__(
        self,
        group: Group,
        options: Options,
        stage: str,
        at_once: bool,
        node: Node | None,
        network: Network | None,
        leaders: bool = False,
    ) -> None:
        super().__init__(group, options, stage, at_once)
        self._network, self._leaders = network, leaders
        if network is not None:
            self.told = network.notes  # to which each sum adds when it is chosen
        self._flat = stage == PACKED and not at_once
        self.space = "shared:node" if node is not None else None
        # What is summed at once may as well be one bucket.
        self.bucket_bytes = WHOLE if stage == PACKED else options.bucket
        self._line = LINE // self.dtype.itemsize
        # The helper thread's calls and the worker's own are each in one order on all ranks, but not
        # in the same with each other.
        self._adding = node.channel() if node is not None else None
        self._node = node.channel() if node is not None else None

    @property
    def depth(self) -> int:
        """Where nothing is added in shared memory, in which all ranks must do the same in one order."""
        return UNDER_WAY if self._adding is None and self.overlaps else 1

    def bind(self, memory: FlatMemory) -> None:
        """Take a worker's memory. Raises PlanError where ranks that share memory have it elsewhere."""
        super().bind(memory)
        for array in (memory.gradients, memory.parameters):
            if self._node is not None and array.size and self._node.find(array) is None:
                raise PlanError(
                    f"rank {self.index}: gradients and parameters must lie in memory of the space "
                    f"{self.space!r}, for ranks of a node to sum them there"
                )
        self._total = memory.gradients.size

    def _slices(self, span: Span) -> list[Span]:
        """Who owns what of a span, by rank of the node."""
        assert self._node is not None
        if self._leaders:
            return [span] + [Span(span.stop, span.stop)] * (self._node.size - 1)
        if not self._flat:
            return shares(span, self._node.size, self._line)
        whole = shares(Span(0, self._total), self._node.size, self._line)
        return [inside(span, each) for each in whole]

    def owned(self, span: Span) -> Span:
        """This rank's slice; all of it without a node."""
        return span if self._node is None else self._slices(span)[self._node.rank]

    def _pieces(self, parcel: Parcel) -> list[Span]:
        """The spans of which each is cut in slices."""
        return parcel.pieces if self._flat else [part.span for part in parcel.parts]

    def sum_of(self, parcel: Parcel) -> Task:
        """The sum over the node into slices, and then of slices over the nodes."""
        pieces, gradients, tasks = self._pieces(parcel), self.memory.gradients, list[Task]()
        if self._adding is not None:
            for piece in pieces:
                owners = [(each.start, each.stop) for each in self._slices(piece)]
                tasks.append(self._adding.reduce_scatter(gradients, owners, self.processes.check))
        if self._network is not None:
            own = merged(self.owned(piece) for piece in pieces)
            if self._node is None:
                own = parcel.pieces
            line = parcel.index % self.depth
            tasks += [self._network.task("allreduce", gradients[s.start : s.stop], line) for s in own]
        return InLine(tasks)

    def distribute(self, bucket: Bucket, span: Span) -> Work | None:
        """Where ranks own slices: each one's to all ranks of the node."""
        return None if self._node is None else super().distribute(bucket, span)

    def forecast(self) -> list[str]:
        """Algorithms of messages, each with its predicted time."""
        return [] if self._network is None else forecast(self._network, ("allreduce",))

    def share_of(self, parcel: Parcel) -> Task:
        """The copies of the other ranks' slices of the parameters."""
        return self._gather(self.memory.parameters, self._pieces(parcel))

    def _gather(self, array: Any, pieces: list[Span]) -> Task:
        assert self._node is not None
        check, tasks = self.processes.check, list[Task]()
        for piece in pieces:
            owners = [(each.start, each.stop) for each in self._slices(piece)]
            tasks.append(self._node.allgather(array, owners, check))
        return InLine(tasks)

    def total(self, mine: Any, total: Any) -> Work | None:
        """The sum over the ranks of a node, in their order, of what each has of its slices."""
        if self._node is None:
            return None
        adding = self._node.allreduce(total, self.processes.check)

        def work() -> None:
            total[...] = mine
            adding.run()

        return work

    def complete(self) -> None:
        """The solver's state of all slices, on all ranks."""
        if self._node is None:
            return
        parts = merged(part.span for part in self._parts.values())
        pieces = parts if self._flat else [part.span for part in self._parts.values()]
        for array in self.memory.state.values():
            if self._node.find(array) is not None:
                self._gather(array, pieces).run()
                continue
            kept = [(own, array[own.start : own.stop].copy()) for own in map(self.owned, pieces)]
            for piece in pieces:  # what others own adds nothing to it
                array[piece.start : piece.stop] = 0
            for own, values in kept:
                array[own.start : own.stop] = values
            for piece in pieces:
                self._node.allreduce(array[piece.start : piece.stop], self.processes.check).run()

    def close(self) -> None:
        """End the helper thread, and give back what the node's calls take."""
        super().close()
        for each in (self._adding, self._node):
            if each is not None:
                each.close()
