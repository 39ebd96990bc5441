"""Opening the sources of samples, and where in a net's memory their samples go."""

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
"""The stream in which samples go to a device."""


def opener(
    runtime: Runtime, data: Mapping[str, Mapping[str, Any] | DataSpec] | None, phase: str
) -> Callable[[DataSpec], DataSource]:
    """What a graph opens its sources with: each specification once, or the arrays (or the
    specification) given instead."""
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
        if arrays is not None and spec.kind != "fillers":  # what a layer makes up stays made up
            key = "given"
            if isinstance(arrays, DataSpec):
                key = f"given for {spec.kind}"  # stand-ins for classes are not those for boxes
                spec = replace(arrays, location=arrays.location or spec.location, instead_of=spec)
            else:
                spec = DataSpec(arrays, "arrays", spec.shuffle, spec.seed, {}, spec.location)
        if key not in opened:
            try:
                opened[key] = runtime.open_source(spec)
            except PluginError as error:  # which of a net's layers asked for them?
                where = f"{spec.location}: " if spec.location else ""
                asked = repr(spec.source) if isinstance(spec.source, str) else "arrays"
                raise PluginError(f"{where}samples from {asked}: {error}") from error
        return opened[key]

    return open_source


class Destination:
    """Where a feed puts its samples: ``arrays`` by field, in memory that a host writes or not.

    In the latter case they come by way of host memory. With an ``engine`` they wait there twice: samples
    are read into pinned memory and copied, in a stream of their own, to memory of ``allocator``, by a
    thread that may do so ahead, while a step computes with those before; a step begins with a copy
    within the device."""

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
        """The stream's next samples. With ``ahead`` those after them are on their way from then on, if
        they go a way, until the next call or ``forget``."""
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
        """Whether samples are on their way, or wait."""
        return self._coming is not None

    def forget(self) -> None:
        """Have nothing on its way, whatever became of it, and end the thread: the next samples may be
        others."""
        self._coming = None
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None

    def _bring(self, stream: Stream) -> None:
        """Samples to the memory where they wait, once those before them were taken from there."""
        assert self._engine is not None
        self._read(stream, self._host)
        way = self._engine.stream(WAY)
        way.wait(self._taken)
        for field, array in self._waiting.items():
            way.copy(array, self._host[field])
        way.record().wait()


def check_fields(source: DataSource, where: str) -> None:
    """Raise PluginError for a number of samples that is none, and for fields that are not told as
    ``demitasse.Field`` tells them."""
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
    """A feed's samples from number ``first`` on, this worker's of every ``step``. Raises PluginError for
    what a source gives that is no stream."""
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
    """Where each of a graph's feeds puts its samples; ``array`` is the memory of a buffer."""
    fed = [{key: plan.buffers[f"{feed.layer}.{key}"] for key in feed.tensors} for feed in graph.feeds]
    return [
        Destination({key: array(buffer) for key, buffer in each.items()}, engine, allocator, feed.layer)
        for feed, each in zip(graph.feeds, fed, strict=True)
    ]


def close_stream(stream: Stream) -> None:
    """Close a stream of samples. Raises PluginError that names who made it where that fails."""
    with blamed(stream, "in close"):
        stream.close()
