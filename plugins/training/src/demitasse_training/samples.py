"""Opening sources of samples, and bringing their samples into a net's memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from numbers import Integral
from operator import index
from typing import Any

import numpy as np

from demitasse import (
    Allocator,
    Buffer,
    DataError,
    DataSource,
    DataSpec,
    Feed,
    Graph,
    Plan,
    PluginError,
    Runtime,
    Stream,
    StreamEngine,
    blamed,
    whose,
)
from demitasse_training.arguments import check_data

WAY = "samples"
"""The stream that copies samples to a device."""


def opener(
    runtime: Runtime, data: Mapping[str, Mapping[str, Any] | DataSpec] | None, phase: str
) -> Callable[[DataSpec], DataSource]:
    """Return the function with which a graph opens its sources. It opens each specification once, or
    uses the arrays (or the specification) in ``data`` for the phase instead."""
    check_data(data)
    opened: dict[str, DataSource] = {}
    arrays = (data or {}).get(phase)

    def open_source(spec: DataSpec) -> DataSource:
        if data and arrays is None and isinstance(spec.source, str):
            try:
                return _once(spec)
            except DataError as error:
                given = ", ".join(map(repr, data))
                raise DataError(
                    f"{error}; data has arrays for {given}, but none for {phase!r}"
                ) from error
        return _once(spec)

    def _once(spec: DataSpec) -> DataSource:
        key = str(spec)
        if arrays is not None and spec.kind != "fillers":  # a layer that makes its samples keeps them
            key = "given"
            if isinstance(arrays, DataSpec):
                key = f"given for {spec.kind}"  # stand-ins for classes differ from those for boxes
                spec = replace(arrays, location=arrays.location or spec.location, instead_of=spec)
            else:
                spec = DataSpec(arrays, "arrays", spec.shuffle, spec.seed, {}, spec.location)
        if key not in opened:
            try:
                opened[key] = runtime.open_source(spec)
            except PluginError as error:  # name the layer that asked for them
                where = f"{spec.location}: " if spec.location else ""
                asked = repr(spec.source) if isinstance(spec.source, str) else "arrays"
                raise PluginError(f"{where}samples from {asked}: {error}") from error
        return opened[key]

    return open_source


class Destination:
    """Where a feed puts its samples: ``arrays`` by field, in host memory or not.

    If they are not in host memory, samples pass through host memory. With an ``engine``, they are
    buffered twice on the way: they are read into pinned memory, and then copied in a stream of their own
    to memory from ``allocator``. A thread may do this ahead, while a step computes with the samples
    before. A step then begins with a copy within the device."""

    def __init__(
        self,
        arrays: Mapping[str, Any],
        engine: StreamEngine | None = None,
        allocator: Allocator | None = None,
        layer: str = "",
    ) -> None:
        self.arrays, self._where = dict(arrays), f"layer {layer!r}"
        self.near = all(isinstance(array, np.ndarray) for array in arrays.values())
        self._engine = None if self.near else engine
        self._host: dict[str, Any] = {}
        self._waiting: dict[str, Any] = {}
        self._coming: Future[None] | None = None
        self._thread: ThreadPoolExecutor | None = None
        if self.near:
            return
        make = np.empty if engine is None else engine.pinned
        about = {key: (tuple(array.shape), str(array.dtype)) for key, array in arrays.items()}
        self._host = {key: make(*each) for key, each in about.items()}
        if engine is not None:
            assert allocator is not None
            for key, each in about.items():
                self._waiting[key] = allocator.allocate(arrays[key].nbytes).view(0, *each)
            self._taken = engine.default.record()

    def take(self, stream: Stream, ahead: bool = False) -> None:
        """Take the stream's next samples. With ``ahead``, a thread starts to bring those after them,
        unless they are read directly into host memory. It may use the stream until the next call or
        ``forget``."""
        if self.near:
            self._read(stream, self.arrays)
            return
        if self._engine is None:
            self._read(stream, self._host)
            for field, array in self.arrays.items():
                array[...] = self._host[field]
            return
        coming, self._coming = self._coming, None
        if coming is not None:
            coming.result()
        else:
            self._bring(stream)
        for field, array in self.arrays.items():
            self._engine.default.copy(array, self._waiting[field])
        self._taken = self._engine.default.record()
        if ahead:
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, "samples")
            self._coming = self._thread.submit(self._bring, stream)

    def _read(self, stream: Stream, arrays: Mapping[str, Any]) -> None:
        with blamed(stream, "reading samples", self._where):
            stream.read(arrays)

    @property
    def expects(self) -> bool:
        """Whether samples are on their way or already waiting."""
        return self._coming is not None

    def forget(self) -> None:
        """Drop samples that are on their way, even if bringing them failed, and end the thread: the next
        samples may be different ones."""
        self._coming = None
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None

    def _bring(self, stream: Stream) -> None:
        """Bring samples to the waiting memory, once the samples before them were copied from there."""
        assert self._engine is not None
        self._read(stream, self._host)
        way = self._engine.stream(WAY)
        way.wait(self._taken)
        for field, array in self._waiting.items():
            way.copy(array, self._host[field])
        way.record().wait()


def check_fields(source: DataSource, where: str) -> None:
    """Raise PluginError if the source's size is not a number of samples, or its fields are not a mapping
    of names to ``demitasse.Field``."""
    size: object = source.size
    if not isinstance(size, Integral) or int(size) < 1:
        raise PluginError(
            f"{where}: {whose(source)}: size = {size!r:.99} (valid: how many samples it has, 1 or more)"
        )
    fields: object = source.fields
    if not isinstance(fields, Mapping):
        valid = "valid: a table of demitasse.Field by name"
        raise PluginError(f"{where}: {whose(source)}: fields = {fields!r:.99} ({valid})")
    for name, field in fields.items():
        shape, dtype = getattr(field, "shape", None), getattr(field, "dtype", None)
        try:
            right = isinstance(shape, tuple) and all(extent >= 0 for extent in map(index, shape))
            np.dtype(dtype)
        except TypeError:
            right = False
        if not right or not isinstance(dtype, str):
            valid = "valid: a demitasse.Field, like Field((3, 32, 32), 'uint8')"
            raise PluginError(f"{where}: {whose(source)}: field {name!r} is {field!r} ({valid})")


def open_stream(feed: Feed, first: int, step: int) -> Stream:
    """Open a feed's samples from number ``first`` on: this worker's part of every ``step`` samples.
    Raises PluginError if the source returns something that is not a stream."""
    where, source = f"layer {feed.layer!r}", feed.source
    with blamed(source, "opening a stream", where):
        stream: Stream = source.stream(first, feed.count, step)
    lacking = [part for part in ("read", "cursor", "close") if not hasattr(stream, part)]
    if lacking:
        told = f"stream returned {stream!r:.99}, without {' and '.join(lacking)}"
        raise PluginError(
            f"{where}: {whose(source)}: {told} (valid: an object with read, cursor and close)"
        )
    return stream


def destinations(
    graph: Graph,
    plan: Plan,
    array: Callable[[Buffer], Any],
    engine: StreamEngine | None,
    allocator: Allocator,
) -> list[Destination]:
    """Return a destination for each of a graph's feeds; ``array`` returns the memory of a buffer."""
    fed = [{key: plan.buffers[f"{feed.layer}.{key}"] for key in feed.tensors} for feed in graph.feeds]
    return [
        Destination({key: array(buffer) for key, buffer in each.items()}, engine, allocator, feed.layer)
        for feed, each in zip(graph.feeds, fed, strict=True)
    ]


def close_stream(stream: Stream) -> None:
    """Close a stream of samples. If that fails, raises PluginError that names the plugin that made
    it."""
    with blamed(stream, "in close"):
        stream.close()
