"""A team's gradients on the host: each replica's part, their sum, and the chunks of an iteration."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from demitasse import (
    Bucket,
    DemitasseError,
    FlatMemory,
    Span,
    StreamEngine,
    Team,
    WorkerError,
    raised,
    whose,
)
from demitasse_cgdp.accumulation import Adder, compiled_for
from demitasse_cgdp.board import Board
from demitasse_cgdp.chunks import ChunkSearch, chunks
from demitasse_cgdp.options import Options

D2H, H2D = "d2h", "h2d"
"""The names of the streams from an accelerator to the host, and from the host to it."""


class Chunk:
    """The gradients of some layers in one iteration. ``arrived`` has the replicas whose gradients have
    come to the host; ``returned``, by replica, the points in its H2D stream before and behind the copy
    of the sum."""

    def __init__(self, buckets: Sequence[Bucket], spans: Sequence[Span]) -> None:
        self.buckets, self.spans = buckets, spans
        first, last = buckets[0].layers[0], buckets[-1].layers[-1]
        self.name = first if first == last else f"{first} to {last}"
        self.arrived = set[int]()
        self.added = 0.0, 0.0
        self.returned: list[tuple[Any, Any]] | None = None
        self.error: Exception | None = None


class Iteration:
    """The chunks of one iteration, each bucket's chunk number, and how many chunks came back. An
    iteration becomes ``complete`` for all replicas once one of them has seen all chunks come back, or
    ``given_up`` for all once one has seen a sibling fail before that."""

    def __init__(self, number: int, made: Sequence[Chunk]) -> None:
        self.number, self.chunks = number, made
        self.of = {bucket.index: i for i, chunk in enumerate(made) for bucket in chunk.buckets}
        self.returned = 0
        self.complete = self.given_up = False


class Exchange(Board):
    """The board of a team under the scheme ``cgdp``.

    On the host, each replica's gradients have an array in pinned memory, and their sums have another. So
    contributions to the next iteration never overwrite a sum that is on its way to the accelerators.
    They replace the previous contributions only when the sum of these is back, because a replica
    contributes again only after that.
    """

    def __init__(self, team: Team, options: Options, threads: int) -> None:
        super().__init__(team)
        self.options, self.threads = options, threads
        self.search = (
            None if options.chunk else ChunkSearch(options.step, options.reach, options.interval)
        )
        self.engines: dict[int, StreamEngine] = {}
        self.gradients: dict[int, Any] = {}
        self.parts: dict[int, np.ndarray] = {}
        self.summed: np.ndarray = np.empty(0)
        self._adder: Adder | None = None
        self._iteration = Iteration(-1, ())
        self._left = 0

    def join(self, index: int, engine: StreamEngine, memory: FlatMemory, dtype: str) -> None:
        """Register the streams and memory of replica ``index``."""
        shape = memory.gradients.shape
        self.engines[index], self.gradients[index] = engine, memory.gradients
        self.parts[index] = engine.pinned(shape, dtype)
        if index == 0:
            self.summed = engine.pinned(shape, dtype)
            compiled_for(self.size, dtype)

    @property
    def chunk(self) -> int:
        """The current number of layers per chunk."""
        return self.options.chunk or (self.search.chunk if self.search is not None else 1)

    def open(self, number: int, buckets: Sequence[Bucket], spans: dict[int, Span], size: int) -> None:
        """Begin iteration ``number``, for replica 0. ``buckets`` are in the order in which backward
        finishes them and are grouped into chunks of ``size``; ``spans`` has the exchanged part of each
        bucket."""
        made = [Chunk(some, merged([spans[b.index] for b in some])) for some in chunks(buckets, size)]
        with self.changed:
            self._iteration = Iteration(number, made)
            self.changed.notify_all()

    def iteration(self, number: int) -> Iteration:
        """Return an iteration once replica 0 has begun it. From then on nobody begins another one before
        all have contributed all of their gradients."""
        if self._iteration.number != number:
            self.wait(lambda: self._iteration.number == number)
        return self._iteration

    def wait_for(self, chunk: Chunk, of: Iteration, idle: Callable[[], None]) -> None:
        """Wait, by ``wait``, until a chunk's sum is on its way back. The replicas agree on whether an
        iteration is given up, so that none updates itself in an iteration that another has given up."""
        try:
            self.wait(lambda: chunk.returned is not None or of.given_up, idle)
        except threading.BrokenBarrierError:
            with self.changed:
                of.given_up = not of.complete
        with self.changed:
            if of.given_up:
                self.changed.notify_all()
                raise threading.BrokenBarrierError
            of.complete = of.returned == len(of.chunks)

    def arrived(self, of: Iteration, chunk: Chunk, index: int) -> None:
        """Note that the gradients of replica ``index`` for a chunk are on the host: the callback of step
        B-4-2. The last replica's starts the addition. Neither waits nor enqueues."""
        with self.changed:
            chunk.arrived.add(index)
            complete = len(chunk.arrived) == self.size
        if complete and self._adder is not None:
            self._adder.post(lambda: self._return(of, chunk))

    def start(self) -> None:
        """Start the thread that adds, before the first contribution."""
        with self.changed:
            if self._adder is None:
                self._adder = Adder(self.threads)

    def _return(self, of: Iteration, chunk: Chunk) -> None:
        """Add up a chunk's gradients, and enqueue a copy of the sum in each H2D stream (step B-4-3)."""
        ways: list[tuple[Any, Any]] = []
        try:
            start, total = time.perf_counter(), self.summed
            assert self._adder is not None
            self._adder.add([self.parts[i] for i in range(self.size)], total, chunk.spans)
            chunk.added = start, time.perf_counter()
            for index in range(self.size):
                ways.append(self._send(index, chunk, total))
        except Exception as error:  # noqa: BLE001  replicas wait for this; they raise it
            chunk.error = error
        with self.changed:
            chunk.returned = ways
            of.returned += 1
            self.changed.notify_all()

    def _send(self, index: int, chunk: Chunk, total: np.ndarray) -> tuple[Any, Any]:
        stream, gradients = self.engines[index].stream(H2D), self.gradients[index]
        try:
            before = stream.record()
            for span in chunk.spans:
                stream.copy(gradients[span.start : span.stop], total[span.start : span.stop])
            return before, stream.record()
        except Exception as error:
            raise lost(index, chunk, "back to the accelerator", error, self.engines[index]) from error

    def settle_sums(self) -> None:
        """Wait until everything that has arrived is added up and on its way back."""
        if self._adder is not None:
            self._adder.settle()

    def settle(self) -> None:
        """Forget an iteration that failed, once no contribution is on its way any more."""
        self.settle_sums()
        self._iteration = Iteration(-1, ())

    def leave(self) -> None:
        """Called when a replica closes. The last one ends the threads."""
        with self.changed:
            self._left += 1
            adder = self._adder if self._left == self.size else None
            self._adder = None if adder is not None else self._adder
        if adder is not None:
            adder.close()


def merged(spans: Sequence[Span]) -> list[Span]:
    """Merge adjacent spans."""
    found = list[Span]()
    for span in spans:
        if found and found[-1].stop == span.start:
            found[-1] = Span(found[-1].start, span.stop)
        else:
            found.append(span)
    return found


def told_of(error: BaseException, engine: StreamEngine) -> str:
    """Return the text of a copy's error: its own message if it is one of Demitasse's errors or a
    MemoryError, otherwise with the name of the engine that raised it."""
    if isinstance(error, DemitasseError | MemoryError):
        return str(error)
    return f"{whose(engine)}: raised {raised(error)}"


def lost(index: int, chunk: Chunk, way: str, error: BaseException, engine: StreamEngine) -> WorkerError:
    """Return the error of a replica whose copy failed."""
    told = told_of(error, engine)
    return WorkerError(
        f"replica {index}: the gradients of layer {chunk.name} could not be copied {way}: {told}"
    )
