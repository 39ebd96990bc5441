"""CPU-GPU data parallelism (section 3.1): the host's processors add up gradients during backward."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from demitasse import Bucket, FlatMemory, GradientSync, Group, Span, StreamEngine, Team, Work
from demitasse_cgdp.board import board_of, check_all
from demitasse_cgdp.exchange import D2H, H2D, Chunk, Exchange, Iteration, lost
from demitasse_cgdp.gradient_sync import host_threads
from demitasse_cgdp.options import Options


class CpuGpuSync(GradientSync):
    """The replica of one accelerator. When the gradients of a chunk of layers are final:

    - B-4-1: the D2H stream waits until the default stream has reached this point;
    - B-4-2: it copies the gradients to pinned host memory and calls back. The callback that finds the
      contributions of all replicas there has host threads add them, in the order of replicas;
    - B-4-3: the thread that has added them enqueues the copies back in the H2D streams of all replicas.

    After backward, the default stream waits for all copies back (B-5-1, B-5-2), and the chains of all
    buckets run: the replica updates itself (P-3). In the paper, each GPU's thread looks between layers
    for sums to send back. Here the thread that made the sum sends it, so that it does not wait for a
    long layer to end.

    If gradients are measured before any of them is used (clipping, rates by layer), each bucket is
    waited for when it is final, and nothing overlaps.
    """

    joined = False

    def __init__(self, group: Group, team: Team, engine: StreamEngine, options: Options) -> None:
        self.index, self.size, self.team = group.index, team.size, team
        self.engine, self.options, self._dtype = engine, options, group.dtype
        threads = host_threads(group, options)
        self.exchange = board_of(team, lambda: Exchange(team, options, threads))
        self._failures = team.failures
        self._buckets: dict[int, Bucket] = {}
        self._spans: dict[int, Span] = {}
        self._scheduled = set[int]()
        self._chains: list[Work] = []
        self._number, self._size, self._began = -1, 1, 0.0
        self._iteration: Iteration | None = None
        self._missing: dict[int, int] = {}
        self._sent: dict[int, tuple[Any, Any]] = {}
        self._last: list[tuple[Chunk, tuple[Any, Any]]] = []
        self._tell()

    # The hooks of a step.

    def bind(self, memory: FlatMemory) -> None:
        """Take the replica's memory, and pin host memory for its contributions."""
        self.memory = memory
        if self.size > 1:
            self.exchange.join(self.index, self.engine, memory, self._dtype)
            self._tell()

    def begin(self) -> Work | None:
        """Begin an iteration. Replica 0 decides on its chunks."""
        return self._begin if self.size > 1 else None

    def reduce(self, bucket: Bucket, span: Span) -> Work | None:
        """Send a bucket and wait for its sum, unless the bucket was scheduled: then everything is back
        before its chain runs."""
        if self.size == 1:
            return None
        self._buckets[bucket.index], self._spans[bucket.index] = bucket, span

        def work() -> None:
            if bucket.index not in self._scheduled:
                self._final(bucket)
                self._await(self._chunk_of(bucket))

        return work

    def schedule(self, bucket: Bucket, chain: Work) -> Work:
        """Return the work that notes that a bucket is final, and sends its chunk when all of the chunk
        is final. The bucket's chain runs at the end."""
        if bucket.index not in self._buckets:
            return chain
        self._scheduled.add(bucket.index)

        def final() -> None:
            self._chains.append(chain)
            self._final(bucket)

        return final

    def end(self) -> Work | None:
        """Wait for all sums, then run the chains."""
        return self._end if self.size > 1 else None

    def total(self, mine: Any, total: Any) -> Work | None:
        """Return None: every replica has whole gradients, so what it measured is the total."""
        return None

    def spans(self) -> Iterable[tuple[str, float, float]]:
        """Return (name, start, stop) of the last iteration's copies and sums (``time.perf_counter``)."""
        found = list[tuple[str, float, float]]()
        for chunk, sent in self._last:
            assert chunk.returned is not None
            for way, (start, stop) in ((D2H, sent), (H2D, chunk.returned[self.index])):
                stop.wait()
                found.append((f"{way} {chunk.name}", start.seconds, stop.seconds))
            found.append((f"accumulate {chunk.name}", *chunk.added))
        return found

    def close(self) -> None:
        """Leave the exchange. The last replica to leave ends the host's threads."""
        self.exchange.leave()

    # How the hooks do it.

    def _tell(self) -> None:
        """Update ``notes``: how gradients are exchanged, and what the search for chunks has found."""
        if self.size == 1:
            return  # nothing is exchanged
        exchange, threads, search = self.exchange, self.exchange.threads, self.exchange.search
        adding = f"{threads} thread{'s' * (threads > 1)} of the host add"
        notes = [f"cgdp: {adding} the gradients of {self.size} replicas, each updates itself"]
        if self.index in exchange.parts:
            size = exchange.parts[self.index].nbytes
            notes.append(f"{size:,} bytes an iteration to the host, and as many back, for each replica")
        if self._measuring:
            notes.append(
                "gradients are measured before any update: each bucket is waited for, no overlap"
            )
        elif search is None:
            notes.append(f"chunks of {exchange.chunk} layer{'s' * (exchange.chunk > 1)}, as asked")
        else:
            layers = f" of {len(self._buckets)} layers with parameters" if self._buckets else ""
            state = "the best is" if search.done else "the search goes on, now with"
            notes.append(f"chunks by Algorithm 1: {state} {search.chunk}{layers}")
            notes += [
                f"chunks of {size}: {lapse / search.interval * 1e3:.2f} ms an iteration"
                for size, lapse in search.lapses.items()
            ]
        self.notes = notes

    @property
    def _measuring(self) -> bool:
        return bool(self._buckets) and not self._scheduled

    def _begin(self) -> None:
        if self._failures != self.team.failures:
            self._recover()
        self.exchange.start()
        self._number, self._iteration, self._began = self._number + 1, None, time.perf_counter()
        self._chains.clear()
        self._sent.clear()
        if self.index == 0 and self._buckets:
            buckets = [self._buckets[number] for number in sorted(self._buckets)]
            self._size = 1 if self._measuring else self.exchange.chunk
            self.exchange.open(self._number, buckets, self._spans, self._size)
            if self._number == 0:
                self._tell()

    def _now(self) -> Iteration:
        """Return the current iteration."""
        if self._iteration is None:
            self._iteration = self.exchange.iteration(self._number)
            self._missing = {i: len(c.buckets) for i, c in enumerate(self._iteration.chunks)}
        return self._iteration

    def _chunk_of(self, bucket: Bucket) -> int:
        """Return the number of a bucket's chunk."""
        return self._now().of[bucket.index]

    def _final(self, bucket: Bucket) -> None:
        """Note that a bucket's gradients are final. The last bucket of a chunk sends the chunk."""
        number = self._chunk_of(bucket)
        self._missing[number] -= 1
        if self._missing[number] == 0:
            self._send(number)

    def _send(self, number: int) -> None:
        """Send a chunk to the host: steps B-4-1 and B-4-2."""
        stream, index, exchange, now = self.engine.stream(D2H), self.index, self.exchange, self._now()
        chunk = now.chunks[number]
        part, gradients = exchange.parts[index], self.memory.gradients
        try:
            stream.wait(self.engine.default.record())
            before = stream.record()
            for span in chunk.spans:
                stream.copy(part[span.start : span.stop], gradients[span.start : span.stop])
            self._sent[number] = before, stream.record()
            stream.call(lambda: exchange.arrived(now, chunk, index))
        except Exception as error:
            raise lost(index, chunk, "to the host", error, self.engine) from error

    def _await(self, number: int) -> None:
        """Make the default stream wait until a chunk's sum is back: steps B-5-1 and B-5-2."""
        now = self._now()
        chunk = now.chunks[number]
        self.exchange.wait_for(chunk, now, lambda: self._check(number, chunk))
        if chunk.error is not None or chunk.returned is None:
            raise chunk.error or RuntimeError(chunk.name)
        try:
            self.engine.default.wait(chunk.returned[self.index][1])
        except Exception as error:
            raise lost(self.index, chunk, "back to the accelerator", error, self.engine) from error

    def _check(self, number: int, chunk: Chunk) -> None:
        """Raise the error that kept a chunk from the host, if it was this replica's copy that failed."""
        if self.index in chunk.arrived:
            return
        try:
            self._sent[number][1].wait()
        except Exception as error:
            raise lost(self.index, chunk, "to the host", error, self.engine) from error

    def _end(self) -> None:
        check_all(len(self._chains), len(self._scheduled))
        for number in range(len(self._now().chunks) if self._chains else 0):
            self._await(number)
        for chain in self._chains:
            chain()
        self._chains.clear()  # else chains keep this replica, and its memory, alive
        # A sibling that ends this iteration later asks for spans when this replica may have begun the
        # next.
        self._last = [(self._now().chunks[number], sent) for number, sent in self._sent.items()]
        search = self.exchange.search
        if self.index > 0 or search is None or search.done or self._measuring:
            return
        # The first iteration is not counted: in it, kernels are compiled and memory is touched for the
        # first time.
        if self._number > 0 and search.iterated(time.perf_counter() - self._began) != self._size:
            self._tell()

    def _recover(self) -> None:
        """Start afresh after a failed iteration, together with the siblings, once nothing of it is on
        its way."""
        self._failures, self._number = self.team.failures, -1
        self.engine.stream(D2H).synchronise()
        self.team.barrier.wait()
        if self.index == 0:
            self.exchange.settle()
        self.team.barrier.wait()
        self.engine.stream(H2D).synchronise()
