"""A worker's input: a stream of samples for each of its net's feeds, read into a plan's memory."""

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
    """Return the buffers that a plan's samples are read into."""
    return [plan.buffers[f"{feed.layer}.{key}"] for feed in graph.feeds for key in feed.tensors]


class Reading:
    """The streams of a graph's feeds and their destinations. An iteration reads ``passes`` batches;
    ``array`` returns the memory of a buffer. Holds no reference to the worker that reads."""

    def __init__(
        self,
        graph: Graph,
        plan: Plan,
        passes: int,
        array: Callable[[Buffer], Any],
        engine: StreamEngine | None,
        allocator: Allocator,
    ) -> None:
        self.unread: Exception | None = None  # the last error from reading samples
        self.goes_on = False  # whether an iteration of the same stretch follows this one
        self._graph, self._plan, self._passes, self._allocator = graph, plan, passes, allocator
        self._make = partial(destinations, graph, plan, array, engine, allocator)
        self._streams: list[Stream] = []
        self._ahead = set[int]()  # feeds whose samples for the next iteration have been read
        self._first: list[int] = []  # for each feed, the number of the next run's first sample

    @property
    def is_open(self) -> bool:
        """Whether the streams are open."""
        return len(self._streams) == len(self._graph.feeds)

    def open(self, iteration: int) -> None:
        """Open the streams at ``iteration``, unless they are open."""
        if self._streams:
            return
        with ExitStack() as stack:  # open all or, upon an interrupt, none
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
        """Close the streams; they are opened again at the next iteration."""
        self._ahead.clear()
        if not self._streams:
            return
        while self._streams:
            close_stream(self._streams.pop())  # first: a thread that reads ahead may be waiting
        for out in self._outs:
            out.forget()

    def works(self) -> list[Work]:
        """Return the works that read the next samples, one for each feed."""
        return [self._work(number, out) for number, out in enumerate(self._outs)]

    def ahead(self, bucket: Bucket) -> None:
        """Read the next iteration's samples while others are waited for: called when ``bucket`` is
        final, it reads once nothing needs this iteration's samples any more. If reading fails, it is
        repeated, and its error raised, when those samples' turn comes."""
        if not self.goes_on or self._plan.final[bucket.index] < self._last_look:
            return
        with suppress(DataError):
            for number, out in enumerate(self._outs):
                if number not in self._ahead:
                    out.take(self._streams[number], ahead=True)
                    self._ahead.add(number)

    def peek(self, iteration: int) -> None:
        """Read the iteration's first samples without moving the streams."""
        if self._ahead or any(out.expects for out in self._outs):  # other samples are on their way
            self.close()
        for feed, out in zip(self._graph.feeds, self._outs, strict=True):
            stream = self._stream(feed, iteration)
            try:
                out.take(stream)
            finally:
                close_stream(stream)

    def origins(self, error: SampleError) -> list[str]:
        """Say where the samples of the last batch read come from, for each source that knows."""
        feeds = zip(self._graph.feeds, self._first, strict=False)
        return origins(error, ((feed, first - feed.batch) for feed, first in feeds))

    def _stream(self, feed: Feed, iteration: int) -> Stream:
        return open_stream(feed, self._number(feed, iteration), feed.batch)

    def _number(self, feed: Feed, iteration: int) -> int:
        """The number of the first sample that this worker reads in an iteration."""
        return iteration * self._passes * feed.batch + feed.offset

    @cached_property
    def _outs(self) -> list[Destination]:
        return self._make()

    @cached_property
    def _last_look(self) -> int:
        """The number of the last entry that reads samples."""
        fed = {(buffer.region, buffer.offset) for buffer in fed_buffers(self._graph, self._plan)}
        read = [
            i
            for i, entry in enumerate(self._plan.entries)
            if any(buffer and (buffer.region, buffer.offset) in fed for buffer in entry.inputs)
        ]
        return max(read, default=-1)

    def _work(self, number: int, out: Destination) -> Work:
        reading = weakref.proxy(self)  # the step holds this work; memory is freed with both

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
