"""Servers across processes: some processes each hold a shard of the parameters, to which all push; and
BSP."""

from __future__ import annotations

from typing import Any

import numpy as np

from demitasse import (
    Bucket,
    CompositionError,
    FlatMemory,
    GradientSync,
    Group,
    Span,
    Work,
    check_host_memory,
)
from demitasse_parameter_server.bulk import slices
from demitasse_parameter_server.messages import Post
from demitasse_parameter_server.options import Options
from demitasse_parameter_server.peers import Expendable, Joined

BUCKET_BYTES = 1 << 22


class AloneServer(GradientSync):
    """The server of a single process: it does nothing. In a simulation, ``described`` represents the
    first of several processes."""

    notes = ("one process: nothing is synchronised",)

    def __init__(self, group: Group, options: Options) -> None:
        self._group, self._options = group, options

    def described(self) -> GradientSync:
        """Return a synchronisation that predicts the time of the messages of several processes."""
        from demitasse_parameter_server.foreseen import ForeseenServer

        return ForeseenServer(self._group, self._options)


class Sharded(GradientSync):
    """A process among others, of which each of the first ``servers`` holds a slice of every bucket, its
    shard. Making one is collective. Raises CompositionError if the processes are not joined by MPI."""

    def __init__(self, group: Group, options: Options, where: str, bucket_bytes: int) -> None:
        self.processes, self.index, self.size = (
            group.processes,
            group.processes.rank,
            group.processes.size,
        )
        if not isinstance(self.processes, Joined):
            raise CompositionError(
                f"{where}: plugin 'parameter_server' needs processes that MPI connects, not those of "
                f"{type(self.processes).__name__}; add the plugin 'allreduce', which serves them"
            )
        self._group, self.servers = group, options.servers
        self.bucket_bytes = options.bucket_bytes or bucket_bytes
        self._item = np.dtype(group.dtype).itemsize
        self.processes.gather(None)  # wait for all here, because what follows cannot be polled
        self.comm = self.processes.communicator.Dup()
        peers = group.processes
        lost = peers.lost if isinstance(peers, Expendable) else None
        self.post = Post(self.comm, self.check, self.index, lost)
        self._memory: FlatMemory | None = None
        self._iteration = 0

    def check(self) -> None:
        """Raise WorkerError once the run cannot continue."""
        self.processes.check()

    @property
    def memory(self) -> FlatMemory:
        """The flat memory of this process's worker."""
        assert self._memory is not None
        return self._memory

    def bind(self, memory: FlatMemory) -> None:
        """Use a worker's memory, to push from and to pull into. Raises CompositionError unless it is
        host memory."""
        check_host_memory(self._group, memory, "parameter_server")
        self._memory = memory

    def owned(self, span: Span) -> Span:
        """Return this process's shard of the span; an empty span if it is not a server."""
        shards = slices(span, self.servers, self._item)
        return shards[self.index] if self.index < self.servers else Span(span.start, span.start)

    def parts_of(self, array: Any, span: Span) -> dict[int, Any]:
        """Return the servers' parts of a span of an array, by server, without empty ones."""
        parts = slices(span, self.servers, self._item)
        return {server: array[part.start : part.stop] for server, part in enumerate(parts) if part}

    def moved(self, shard: int) -> tuple[int, int]:
        """Return the bytes of a shard that this process has sent to others, and received from them."""
        return self.post.sent.get(shard, 0), self.post.received.get(shard, 0)

    def told_of_shards(self) -> list[str]:
        """Return lines about the number of shards, and the bytes of each that this process has sent and
        received, if any."""
        bytes_of = map(self.moved, range(self.servers))
        return [
            f"{self.servers} of {self.size} processes hold a shard of the parameters each",
            *(
                f"shard {s}: {out:,} bytes sent, {in_:,} received"
                for s, (out, in_) in enumerate(bytes_of)
                if out or in_
            ),
        ]

    def close(self) -> None:
        """Forget the memory. The communicator is not freed: this would be collective, and other
        processes may have failed."""
        self._memory = None


class ShardServer(Sharded):
    """BSP: all processes push their gradients to the servers. Each server adds those of its shard in
    the order of ranks (the same bits in every run) and updates; then all pull the parameters. Only the
    server has its shard's solver state, until ``quiesce`` gathers it in process 0.

    A process that dies ends the run: processes that wait for it raise a WorkerError that names it.
    """

    def __init__(self, group: Group, options: Options, where: str) -> None:
        super().__init__(group, options, where, BUCKET_BYTES)
        self._spans = list[Span]()

    @property
    def notes(self) -> list[str]:  # type: ignore[override]
        """What was chosen, and the bytes of each shard that this process has sent and received."""
        return self.told_of_shards()

    def begin(self) -> Work:
        """Return work that counts iterations, for headers."""

        def work() -> None:
            self._iteration += 1

        return work

    def reduce(self, bucket: Bucket, span: Span) -> Work:
        """Return work that pushes to all servers; in a server it also adds what others push to its
        shard."""
        parts = self.parts_of(self.memory.gradients, span)
        none = self.memory.gradients[:0]
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
        """Return work that pulls from all servers."""
        parts = self.parts_of(self.memory.parameters, span)

        def work() -> None:
            self._share(parts)

        return work

    def total(self, mine: Any, total: Any) -> Work:
        """Return work that sums numbers over the servers, with the same bits in each process. It uses
        this worker's own communicator, because its siblings in the process, which have slices of their
        own, do the same at the same time."""
        own, rows = np.zeros(int(np.size(mine))), np.zeros((self.size, int(np.size(mine))))

        def add() -> None:
            if self.index < self.servers:
                own[:] = np.ravel(mine)
            self.post.wait(self.comm.Iallgather(own, rows))
            total[...] = np.add.accumulate(rows, axis=0)[-1].reshape(np.shape(total))

        return add

    def quiesce(self) -> None:
        """Gather the whole solver state in process 0."""
        if self._memory is None:
            return
        for span in self._spans:
            for state in self._memory.state.values():
                for server, values in self.parts_of(state, span).items():
                    if server and self.index == server:
                        self.post.send(0, self._iteration, server, values)
                    elif server and self.index == 0:
                        self.post.receive(server, self._iteration, server, values)
        self.post.finish()

    def _share(self, parts: dict[int, Any]) -> None:
        """Send each server's part to all processes."""
        if (mine := parts.get(self.index)) is not None:
            for rank in range(self.size):
                if rank != self.index:
                    self.post.send(rank, self._iteration, self.index, mine)
        for server, part in parts.items():
            if server != self.index:
                self.post.receive(server, self._iteration, server, part)
        self.post.finish()
