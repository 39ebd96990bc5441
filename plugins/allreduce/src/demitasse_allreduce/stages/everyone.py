"""Allreduce: every rank updates all of the parameters or, if ranks share memory, a slice of them.

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
"""Bytes of a cache line; the slices of two ranks never share a line."""

UNDER_WAY = 2
"""Parcels that a helper thread sums at the same time. While one waits for the thread, which has no core
of its own, the other's messages keep the link busy."""

WHOLE = sys.maxsize
"""Bytes of a bucket that holds all gradients."""


class EveryoneSync(ProcessSync):
    """Sums gradients over all ranks; all ranks update.

    Ranks of a ``node`` have their memory in ``shared:node``. Each rank adds its slice of all their
    gradients, updates that slice, and copies the other ranks' slices of the parameters, without
    messages. If everything is summed at once, a slice is a part of all flat memory, else a part of each
    bucket. Between adding and updating, ranks that own the same slice on different nodes sum it over
    their ``network`` ("slices"), or the first rank of each node owns everything ("leaders"). Without a
    node, each rank owns everything.
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
            self.told = network.notes  # each sum adds a note when it is chosen
        self._flat = stage == PACKED and not at_once
        self.space = "shared:node" if node is not None else None
        # If everything is summed at once, one bucket is enough.
        self.bucket_bytes = WHOLE if stage == PACKED else options.bucket
        self._line = LINE // self.dtype.itemsize
        # The helper thread and the worker's own thread each make their calls in the same order on all
        # ranks, but the two orders are not interleaved in the same way: each thread has a channel.
        self._adding = node.channel() if node is not None else None
        self._node = node.channel() if node is not None else None

    @property
    def depth(self) -> int:
        """UNDER_WAY parcels if a helper thread sends messages only. In shared memory one, because there
        all ranks must make the same calls in the same order."""
        return UNDER_WAY if self._adding is None and self.overlaps else 1

    def bind(self, memory: FlatMemory) -> None:
        """Use a worker's memory. Raises PlanError if ranks add in shared memory but this is
        elsewhere."""
        super().bind(memory)
        for array in (memory.gradients, memory.parameters):
            if self._node is not None and array.size and self._node.find(array) is None:
                raise PlanError(
                    f"rank {self.index}: gradients and parameters must lie in memory of the space "
                    f"{self.space!r}, for ranks of a node to sum them there"
                )
        self._total = memory.gradients.size

    def _slices(self, span: Span) -> list[Span]:
        """Return the part of a span that each rank of the node owns."""
        assert self._node is not None
        if self._leaders:
            return [span] + [Span(span.stop, span.stop)] * (self._node.size - 1)
        if not self._flat:
            return shares(span, self._node.size, self._line)
        whole = shares(Span(0, self._total), self._node.size, self._line)
        return [inside(span, each) for each in whole]

    def owned(self, span: Span) -> Span:
        """Return this rank's slice of a span; the whole span without a node."""
        return span if self._node is None else self._slices(span)[self._node.rank]

    def _pieces(self, parcel: Parcel) -> list[Span]:
        """Return the spans that are each cut into slices."""
        return parcel.pieces if self._flat else [part.span for part in parcel.parts]

    def sum_of(self, parcel: Parcel) -> Task:
        """Return the sum of a parcel: over the node into slices, then of the slices over the nodes."""
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
        """Return work that copies each rank's slice to all ranks of the node; None without a node."""
        return None if self._node is None else super().distribute(bucket, span)

    def forecast(self) -> list[str]:
        """Return the algorithms for messages, with their predicted times."""
        return [] if self._network is None else forecast(self._network, ("allreduce",))

    def share_of(self, parcel: Parcel) -> Task:
        """Return the task that copies the other ranks' slices of a parcel's parameters."""
        return self._gather(self.memory.parameters, self._pieces(parcel))

    def _gather(self, array: Any, pieces: list[Span]) -> Task:
        assert self._node is not None
        check, tasks = self.processes.check, list[Task]()
        for piece in pieces:
            owners = [(each.start, each.stop) for each in self._slices(piece)]
            tasks.append(self._node.allgather(array, owners, check))
        return InLine(tasks)

    def total(self, mine: Any, total: Any) -> Work | None:
        """Return work that sums the ranks' numbers for their slices over the node, in the order of
        ranks."""
        if self._node is None:
            return None
        adding = self._node.allreduce(total, self.processes.check)

        def work() -> None:
            total[...] = mine
            adding.run()

        return work

    def complete(self) -> None:
        """Copy the solver's state of all slices to all ranks of the node."""
        if self._node is None:
            return
        parts = merged(part.span for part in self._parts.values())
        pieces = parts if self._flat else [part.span for part in self._parts.values()]
        for array in self.memory.state.values():
            if self._node.find(array) is not None:
                self._gather(array, pieces).run()
                continue
            kept = [(own, array[own.start : own.stop].copy()) for own in map(self.owned, pieces)]
            for piece in pieces:  # zero what others own, then add all ranks' arrays
                array[piece.start : piece.stop] = 0
            for own, values in kept:
                array[own.start : own.stop] = values
            for piece in pieces:
                self._node.allreduce(array[piece.start : piece.stop], self.processes.check).run()

    def close(self) -> None:
        """End the helper thread, and close the node's channels."""
        super().close()
        for each in (self._adding, self._node):
            if each is not None:
                each.close()
