"""Common to the tests of the datasets plugin: opening, reading, and a check that no thread is left."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demitasse import DataSpec
from demitasse_datasets.plugin import data_source
from demitasse_datasets.source import Source

PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
}


@pytest.fixture(autouse=True)
def no_thread_is_left(threads_end: None) -> None:
    """No test may leave a thread."""


@pytest.fixture
def opened() -> Iterator[Callable[..., Source]]:
    """Open a source by its specification; it is closed after the test."""
    sources: list[Source] = []

    def open_one(source: Any, kind: str | None = None, **rest: Any) -> Source:
        found = data_source(spec=DataSpec(source, kind, **rest))
        assert isinstance(found, Source)
        sources.append(found)
        return found

    yield open_one
    for each in sources:
        each.close()


@pytest.fixture
def some() -> Callable[[Source, int, int], dict[str, np.ndarray]]:
    """Read so many samples of a source, from a number in the global order on, in their stored types."""

    def read(source: Source, first: int, count: int) -> dict[str, np.ndarray]:
        out = {
            name: np.empty((count, *field.shape), field.dtype) for name, field in source.fields.items()
        }
        stream = source.stream(first, count, count)
        stream.read(out)
        stream.close()
        return out

    return read


@pytest.fixture
def everything(some: Callable[..., dict[str, np.ndarray]]) -> Callable[[Source], dict[str, np.ndarray]]:
    """Read all samples of the first epoch of a source's global order, in their stored types."""
    return lambda source: some(source, 0, source.size)


@pytest.fixture
def pack() -> Callable[[Path, bytes], Path]:
    """Write bytes to a path, compressed as its suffix says."""

    def write(path: Path, data: bytes) -> Path:
        path.write_bytes(PACKERS.get(path.suffix, bytes)(data))
        return path

    return write
