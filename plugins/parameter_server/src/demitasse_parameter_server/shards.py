"""BSP across processes: some of them hold a shard of the parameters each, to which all push."""

from __future__ import annotations

from typing import Any

import numpy as np

from demitasse import Bucket, CompositionError, FlatMemory, GradientSync, Group, Span, Work
from demitasse_parameter_server.bulk import slices
from demitasse_parameter_server.messages import Post
from demitasse_parameter_server.options import Options

BUCKET_BYTES = 1 << 22


class AloneServer(GradientSync):
    """One process: nothing to do."""

    notes = ("one process: nothing is synchronised",)


class ShardServer(GradientSync):
    """The first ``servers`` processes are servers too: each owns a slice of every bucket, its shard. All
    push their gradients of it there; it adds them in the order of ranks (the same bits in every run),
    updates, and all pull the parameters. Only it has the shard's solver state, until ``quiesce`` gathers
    that in process 0.

    A process that dies ends the run: whoever waits for it raises the WorkerError that names it. Making
    one is collective. Raises CompositionError where the processes are not joined by MPI.
    """

    def __init__(self, group: Group, options: Options, where: str) -> None:
        self.processes, self.index, self.size = (
            group.processes,
            group.processes.rank,
            group.processes.size,
        )
        base = getattr(self.processes, "communicator", None)
        if base is None:
            raise CompositionError(
                f"{where}: plugin 'parameter_server' needs processes that MPI joins, not those of "
                f"{type(self.processes).__name__}; add the plugin 'allreduce', which serves them"
            )
        self.servers = options.servers
        self.bucket_bytes = options.bucket_bytes or BUCKET_BYTES
        self._item = np.dtype(group.dtype).itemsize
        self.processes.gather(None)  # all have come: what follows cannot be polled
        self._comm = base.Dup()
        self.post = Post(self._comm, self.processes.check)
        self._memory: FlatMemory | None = None
        self._spans = list[Span]()
        self._iteration = 0

    @property
    def notes(self) -> list[str]:  # type: ignore[override]
        """What was chosen, and the bytes of each shard that this process has sent and received."""
        post = self.post
        return [
            f"{self.servers} of {self.size} processes hold a shard of the parameters each",
            *(
                f"shard {s}: {post.sent.get(s, 0):,} bytes sent, {post.received.get(s, 0):,} received"
                for s in range(self.servers)
            ),
        ]

    def bind(self, memory: FlatMemory) -> None:
        """The memory to push from and to pull into."""
        self._memory = memory

    def owned(self, span: Span) -> Span:
        """This process's shard of the span; nothing where it is no server."""
        shards = slices(span, self.servers, self._item)
        return shards[self.index] if self.index < self.servers else Span(span.start, span.start)

    def begin(self) -> Work:
        """Count iterations, for headers."""

        def work() -> None:
            self._iteration += 1

        return work

    def reduce(self, bucket: Bucket, span: Span) -> Work:
        """Push to all servers; a server adds what others push to its shard."""
        assert self._memory is not None
        gradients = self._memory.gradients
        shards = self._shards(span)
        parts = {s: gradients[part.start : part.stop] for s, part in shards.items()}
        none = np.empty(0, gradients.dtype)
        mine: Any = parts.get(self.index, none)
        room, total = np.empty_like(mine), np.empty_like(mine)
        self._spans.append(span)

        def work() -> None:
            for server, part in parts.items():
                if server != self.index:
                    self.post.send(server, self._iteration, server, part)
            if mine.size:
                for rank in range(self.size):
                    pushed = mine
                    if rank != self.index:
                        self.post.receive(rank, self._iteration, self.index, room)
                        pushed = room
                    if rank == 0:
                        np.copyto(total, pushed)
                    else:
                        np.add(total, pushed, out=total)
                np.copyto(mine, total)
            self.post.finish()

        return work

    def distribute(self, bucket: Bucket, span: Span) -> Work:
        """Pull from all servers."""
        assert self._memory is not None
        parameters = self._memory.parameters
        parts = {s: parameters[part.start : part.stop] for s, part in self._shards(span).items()}

        def work() -> None:
            self._share(parts)

        return work

    def total(self, mine: Any, total: Any) -> Work:
        """The sum over servers, the same bits in each process."""

        def add() -> None:
            own = np.ravel(mine) if self.index < self.servers else np.zeros(np.size(mine))
            total[...] = self.processes.total(own).reshape(np.shape(total))

        return add

    def quiesce(self) -> None:
        """Process 0 has all of the solver's state."""
        if self._memory is None:
            return
        for span in self._spans:
            for server, part in self._shards(span).items():
                for state in self._memory.state.values() if server != 0 else ():
                    values = state[part.start : part.stop]
                    if self.index == server:
                        self.post.send(0, self._iteration, server, values)
                    elif self.index == 0:
                        self.post.receive(server, self._iteration, server, values)
        self.post.finish()

    def close(self) -> None:
        """Give the communicator up: freeing it is collective, and others may have failed."""
        self._memory = None

    def _shards(self, span: Span) -> dict[int, Span]:
        """The servers' parts of a span that are not empty."""
        parts = slices(span, self.servers, self._item)
        return {server: part for server, part in enumerate(parts) if part}

    def _share(self, parts: dict[int, Any]) -> None:
        """Each server's part to all processes."""
        if (mine := parts.get(self.index)) is not None:
            for rank in range(self.size):
                if rank != self.index:
                    self.post.send(rank, self._iteration, self.index, mine)
        for server, part in parts.items():
            if server != self.index:
                self.post.receive(server, self._iteration, server, part)
        self.post.finish()
