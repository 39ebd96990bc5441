"""SSP and ASP across processes: each worker pushes and pulls at its own pace, and the run survives the
loss of workers."""

from __future__ import annotations

from typing import Any

import numpy as np

from demitasse import Bucket, CompositionError, FlatMemory, Group, Span, Work, WorkerError
from demitasse_parameter_server.keeper import PULLED, RESTED, Keeper
from demitasse_parameter_server.messages import END, PULL, PUSH, REST
from demitasse_parameter_server.options import Options
from demitasse_parameter_server.pace import Pace
from demitasse_parameter_server.peers import Expendable
from demitasse_parameter_server.shards import Sharded

BUCKET_BYTES = 1 << 20


class ApartServer(Sharded):
    """Each process has a worker. Each of the first ``servers`` processes also has a thread that keeps a
    shard of the parameters. A worker pushes its gradients of a bucket to all servers when they are
    final. It requests all parameters at the start of an iteration, a server answers when the model lets
    the worker begin, and the worker waits for a bucket before the first layer that reads it. Computing
    and messages overlap.

    A process without a server that dies, fails, falls silent or stalls is dropped: nobody waits for it,
    and its share of each batch is no longer trained on. If a process with a server ends, the run ends
    with an error that names it, because its shard is lost. Raises CompositionError for processes of a
    kind that does not survive a loss, WorkerError if one is lost already.
    """

    asynchronous = True

    def __init__(self, group: Group, options: Options, where: str) -> None:
        peers = group.processes
        if not isinstance(peers, Expendable):
            raise CompositionError(
                f"{where}: model = {options.model!r} needs processes that a run can lose, not those of "
                f"{type(peers).__name__}; add the plugin 'allreduce', or set "
                f'model = "bsp"'
            )
        if peers.lost:
            raise WorkerError(
                f"{where}: {'; '.join(peers.lost.values())}: nobody would train a share of each batch; "
                f"start as many processes again and resume from the last snapshot"
            )
        super().__init__(group, options, where, BUCKET_BYTES)
        self._peers: Expendable = peers
        self.options, self._where = options, where
        self.pace = Pace(options.delay_of(self.index), self.check)
        self.keeper: Keeper | None = None
        self._spans: dict[int, Span] = {}
        self._pulls: dict[int, dict[int, Any]] = {}
        self._pulling: dict[int, list[Work]] = {}
        self._begun = self._tolerant = False

    @property
    def notes(self) -> list[str]:  # type: ignore[override]
        """What was chosen, the bytes of each shard, and who was dropped."""
        dropped = list(self._peers.lost.values())
        return [
            self.options.told(self.size, "process"),
            *self.told_of_shards(),
            *([self.keeper.told()] if self.keeper is not None else []),
            *(f"{words}: dropped" for words in dropped),
        ]

    def moved(self, shard: int) -> tuple[int, int]:
        """Return the bytes of a shard that this process has sent and received. For its own shard its
        server counts them, for others its worker."""
        if self.keeper is not None and shard == self.index:
            return self.keeper.sent, self.keeper.received
        return super().moved(shard)

    def check(self) -> None:
        """Raise the error of this process's server, if any, and WorkerError once the run cannot
        continue."""
        if self.keeper is not None and self.keeper.error is not None:
            raise self.keeper.error
        self.processes.check()

    def bind(self, memory: FlatMemory) -> None:
        """Use a worker's memory, to push from and to pull into."""
        super().bind(memory)
        if self.index < self.servers:
            self.keeper = Keeper(self.comm, memory, self.options.bound, self._peers.lost)

    def update_memory(self, memory: FlatMemory) -> FlatMemory:
        """Return the memory to update: a server updates its shard with the gradients in its inbox."""
        if self.keeper is None:
            return memory
        self.keeper.read_numbers()
        return self.keeper.memory

    def begin(self) -> Work:
        """Return work that requests the shards of all servers, and permission to begin."""
        nothing = self.memory.gradients[:0]

        def work() -> None:
            self.pace.begun()
            self._open()
            self._iteration += 1
            for bucket, parts in self._pulls.items():
                self._pulling[bucket] = [
                    self.post.expect(s, self._iteration, s, part, bucket, PULLED + 2 * bucket)
                    for s, part in parts.items()
                ]
            for server in range(self.servers):
                self.post.send(server, self._iteration, server, nothing, PULL)

        return work

    def before_forward(self, bucket: Bucket) -> Work | None:
        """Return work that waits for the bucket's parameters."""
        if bucket.span.start >= self.memory.gradients.size:
            return None  # parameters without a gradient never change
        self._spans[bucket.index] = bucket.span
        self._pulls[bucket.index] = self.parts_of(self.memory.parameters, bucket.span)

        def work() -> None:
            start = self.pace.now()
            for wait in self._pulling.pop(bucket.index, ()):
                wait()
            self.pace.waited(start)

        return work

    def reduce(self, bucket: Bucket, span: Span) -> Work | None:
        """Return work that pushes, if this process updates no part of the bucket. Otherwise
        ``schedule`` does so, because it then has the update as a separate work."""
        return None if self.owned(span) else self._push(bucket)

    def schedule(self, bucket: Bucket, chain: Work) -> Work:
        """Return work that pushes. If this process owns a part of the bucket, the chain is its update,
        which the server makes at each push."""
        part = self.owned(bucket.span)
        if not part:
            return chain
        assert self.keeper is not None
        self.keeper.keep(bucket.index, part, chain)
        return self._push(bucket)

    def total(self, mine: Any, total: Any) -> Work | None:
        """Raise CompositionError, because no server has whole gradients."""
        raise CompositionError(
            f"{self._where}: clipping and LARS need the size of whole gradients, but with model = "
            f"{self.options.model!r} across processes each server has only its shard's; set "
            f'model = "bsp"'
        )

    def end(self) -> Work:
        """Return work that tells the servers that the iteration is done, once all gradients have
        left."""
        nothing = self.memory.gradients[:0]

        def work() -> None:
            self.post.finish()
            self.pace.ended()
            for server in range(self.servers):
                self.post.send(server, self._iteration, server, nothing, END)

        return work

    def quiesce(self) -> None:
        """Wait until all remaining processes have come here. Process 0 then has all parameters and the
        whole solver state."""
        if not self._begun:
            return
        self._begun = False
        nothing = self.memory.gradients[:0]
        for server in range(self.servers):
            self.post.send(server, self._iteration, server, nothing, REST)
        for server in range(self.servers):
            if self.index == 0 != server:
                self._take_over(server)
            self.post.receive(server, 0, server, nothing.copy(), 0, RESTED)
        self.post.finish()
        if self.keeper is not None:
            self.keeper.settle()

    def close(self) -> None:
        """End this process's server."""
        if self.keeper is not None:
            self.keeper.close()
        super().close()

    def _open(self) -> None:
        if not self._tolerant:
            others = range(self.servers, self.size)
            self._peers.tolerate(others)
            self._tolerant = True
        if not self._begun and self.keeper is not None:
            self.keeper.open()
        self._begun = True

    def _push(self, bucket: Bucket) -> Work:
        parts = self.parts_of(self.memory.gradients, bucket.span)

        def work() -> None:
            mine = {name: float(np.asarray(n)[0]) for name, n in self.memory.numbers.items()}
            for server, part in parts.items():
                self.post.send(server, self._iteration, server, part, PUSH, bucket.index, mine)

        return work

    def _take_over(self, server: int) -> None:
        """Receive a server's shard, and the solver's state for it."""
        for bucket, span in sorted(self._spans.items()):
            for array in (self.memory.parameters, *self.memory.state.values()):
                part = self.parts_of(array, span).get(server)
                if part is not None:
                    self.post.receive(server, 0, server, part, bucket, RESTED)
