"""Opening the sources of samples, and where in a net's memory their samples go."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from demitasse import (
    Buffer,
    DataError,
    DataSource,
    DataSpec,
    EngineEvent,
    Graph,
    Plan,
    PluginError,
    Runtime,
    Stream,
    StreamEngine,
)
from demitasse_training.arguments import check_data


def opener(
    runtime: Runtime, data: Mapping[str, Mapping[str, Any]] | None, phase: str
) -> Callable[[DataSpec], DataSource]:
    """What a graph opens its sources with: each specification once, or the arrays given instead."""
    check_data(data)
    opened: dict[str, DataSource] = {}
    arrays = (data or {}).get(phase)

    def open_source(spec: DataSpec) -> DataSource:
        if data and arrays is None and isinstance(spec.source, str):
            try:
                return _once(spec)
            except DataError as error:
                given = ", ".join(map(repr, data))
                raise DataError(f"{error}; data has arrays for {given}, none for {phase!r}") from error
        return _once(spec)

    def _once(spec: DataSpec) -> DataSource:
        if arrays is not None and spec.kind != "fillers":  # what a layer makes up stays made up
            spec = DataSpec(arrays, "arrays", spec.shuffle, spec.seed, {}, spec.location)
        key = f"{id(arrays) if arrays is not None else spec}"
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
    """Where a feed puts its samples: ``arrays`` by field, in memory that a host writes or not. In the
    latter case they are read into host memory, two sets of it by turns, and copied from there by the
    worker's ``engine``, so that samples are read while those before are still on their way."""

    def __init__(self, arrays: Mapping[str, Any], engine: StreamEngine | None) -> None:
        self.arrays = dict(arrays)
        self.near = all(isinstance(array, np.ndarray) for array in arrays.values())
        self._engine, self._turn = engine, 0
        self._copied: list[EngineEvent | None] = [None, None]
        self._sets = [] if self.near else [self._host_memory() for _ in self._copied]

    def take(self, stream: Stream) -> None:
        """The stream's next samples."""
        if self.near:
            stream.read(self.arrays)
            return
        self._turn = 1 - self._turn
        read, before = self._sets[self._turn], self._copied[self._turn]
        if before is not None:
            before.wait()
        stream.read(read)
        if self._engine is None:
            for field, array in self.arrays.items():
                array[...] = read[field]
            return
        for field, array in self.arrays.items():
            self._engine.default.copy(array, read[field])
        self._copied[self._turn] = self._engine.default.record()

    def _host_memory(self) -> dict[str, Any]:
        make = np.empty if self._engine is None else self._engine.pinned
        return {key: make(tuple(array.shape), str(array.dtype)) for key, array in self.arrays.items()}


def destinations(
    graph: Graph, plan: Plan, array: Callable[[Buffer], Any], engine: StreamEngine | None = None
) -> list[Destination]:
    """Where each of a graph's feeds puts its samples; ``array`` is the memory of a buffer."""
    return [
        Destination({key: array(plan.buffers[f"{feed.layer}.{key}"]) for key in feed.tensors}, engine)
        for feed in graph.feeds
    ]
