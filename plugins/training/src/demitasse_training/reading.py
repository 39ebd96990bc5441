"""What a worker reads: a stream of samples for each of its net's feeds, into the memory of a plan."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import cached_property, partial
from typing import Any

from demitasse import (
    Allocator,
    Bucket,
    Buffer,
    DataError,
    Feed,
    Graph,
    Plan,
    SampleError,
    Stream,
    StreamEngine,
    Work,
)
from demitasse_training.origins import origins
from demitasse_training.samples import Destination, close_stream, destinations, open_stream


def fed_buffers(graph: Graph, plan: Plan) -> list[Buffer]:
    """What a plan's samples are read into."""
    return [plan.buffers[f"{feed.layer}.{key}"] for feed in graph.feeds for key in feed.tensors]


class Reading:
    """The streams of a graph's feeds, of whose batches an iteration reads ``passes``, and where they are
    read to: ``array`` is the memory of a buffer. It holds nothing of who reads."""

    def __init__(
        self,
        graph: Graph,
        plan: Plan,
        passes: int,
        array: Callable[[Buffer], Any],
        engine: StreamEngine | None,
        allocator: Allocator,
    ) -> None:
        self.unread: Exception | None = None  # what reading samples has raised last
        self.goes_on = False  # whether an iteration of the same stretch follows this one
        self._graph, self._plan, self._passes, self._allocator = graph, plan, passes, allocator
        self._make = partial(destinations, graph, plan, array, engine, allocator)
        self._streams: list[Stream] = []
        self._ahead = set[int]()  # the feeds whose samples for the next iteration are there already
        self._first: list[int] = []  # of each feed the number of the next run's first sample

    @property
    def is_open(self) -> bool:
        """Whether there are streams."""
        return len(self._streams) == len(self._graph.feeds)

    def open(self, iteration: int) -> None:
        """Have streams, which go on at ``iteration`` where there were none."""
        if self._streams:
            return
        with ExitStack() as stack:  # all or, where this is interrupted, none
            made = []
            for feed, out in zip(self._graph.feeds, self._outs, strict=True):
                made.append(self._stream(feed, iteration))
                stack.callback(made[-1].close)
                if out.near and (lend := getattr(made[-1], "lend", None)) is not None:
                    lend(self._allocator)
            self._streams = made
            self._first = [self._number(feed, iteration) for feed in self._graph.feeds]
            stack.pop_all()

    def close(self) -> None:
        """Close the streams; they are opened again where the next iteration begins."""
        self._ahead.clear()
        if not self._streams:
            return
        while self._streams:
            close_stream(self._streams.pop())  # first: who reads ahead may be waiting
        for out in self._outs:
            out.forget()

    def works(self) -> list[Work]:
        """What reads the next samples, a feed each."""
        return [self._work(number, out) for number, out in enumerate(self._outs)]

    def ahead(self, bucket: Bucket) -> None:
        """While others are waited for, when ``bucket`` is final: read the next iteration's samples, once
        nothing reads this one's. What cannot be read is read again, and told of, when it is its turn."""
        if not self.goes_on or self._plan.final[bucket.index] < self._last_look:
            return
        with suppress(DataError):
            for number, out in enumerate(self._outs):
                if number not in self._ahead:
                    out.take(self._streams[number], ahead=True)
                    self._ahead.add(number)

    def peek(self, iteration: int) -> None:
        """Read the iteration's first samples without moving the streams."""
        if self._ahead or any(out.expects for out in self._outs):  # not where they are looked for
            self.close()
        for feed, out in zip(self._graph.feeds, self._outs, strict=True):
            stream = self._stream(feed, iteration)
            try:
                out.take(stream)
            finally:
                close_stream(stream)

    def origins(self, error: SampleError) -> list[str]:
        """Where a sample of the batch that was read last is from, by each source that can tell."""
        feeds = zip(self._graph.feeds, self._first, strict=False)
        return origins(error, ((feed, first - feed.batch) for feed, first in feeds))

    def _stream(self, feed: Feed, iteration: int) -> Stream:
        return open_stream(feed, self._number(feed, iteration), feed.batch)

    def _number(self, feed: Feed, iteration: int) -> int:
        """Of the first sample that this worker reads of an iteration."""
        return iteration * self._passes * feed.batch + feed.offset

    @cached_property
    def _outs(self) -> list[Destination]:
        return self._make()

    @cached_property
    def _last_look(self) -> int:
        """The last entry that reads samples."""
        fed = {(buffer.region, buffer.offset) for buffer in fed_buffers(self._graph, self._plan)}
        read = [
            i
            for i, entry in enumerate(self._plan.entries)
            if any(buffer and (buffer.region, buffer.offset) in fed for buffer in entry.inputs)
        ]
        return max(read, default=-1)

    def _work(self, number: int, out: Destination) -> Work:
        reading = weakref.proxy(self)  # whose step has this work: its memory goes with the last of both

        def read() -> None:
            reading._first[number] += reading._graph.feeds[number].batch
            if number in reading._ahead:
                reading._ahead.remove(number)
                return
            try:
                out.take(reading._streams[number], ahead=True)
            except Exception as error:
                reading.unread = error
                raise

        return read
