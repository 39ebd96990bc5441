"""Common to the tests of striped_io: samples, sets made from them, and a check that no thread is
left."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demitasse import DataSpec, Field
from demitasse_striped_io.inputs import SourceInput
from demitasse_striped_io.source import Source
from demitasse_striped_io.writer import Making, Writer


@pytest.fixture(autouse=True)
def no_thread_is_left(threads_end: None) -> None:
    """No test may leave a thread."""


class ArrayStream:
    def __init__(self, columns: Mapping[str, np.ndarray], first: int, count: int, step: int) -> None:
        self.columns, self.cursor, self.count, self.step = columns, first, count, step

    def read(self, out: Mapping[str, np.ndarray]) -> None:
        size = len(next(iter(self.columns.values())))
        rows = np.arange(self.cursor, self.cursor + self.count) % size
        for name, array in out.items():
            array[...] = self.columns[name][rows]
        self.cursor += self.step

    def close(self) -> None:
        """Do nothing: nothing is open."""


class ArraySource:
    """A DataSource of arrays, in their order."""

    def __init__(self, columns: Mapping[str, np.ndarray]) -> None:
        self.columns = columns
        self.fields = {name: Field(a.shape[1:], a.dtype.name) for name, a in columns.items()}
        self.size = len(next(iter(columns.values())))

    def stream(self, first: int, count: int, step: int) -> ArrayStream:
        return ArrayStream(self.columns, first, count, step)

    def close(self) -> None:
        """Do nothing: nothing is open."""


@pytest.fixture
def columns() -> Callable[..., dict[str, np.ndarray]]:
    """Random images and labels; a sample's label is its number."""

    def make(count: int, shape: tuple[int, ...] = (3, 16, 16)) -> dict[str, np.ndarray]:
        random = np.random.default_rng(count)
        data = random.integers(0, 256, (count, *shape), np.uint8)
        return {"data": data, "label": np.arange(count, dtype=np.int32)}

    return make


@pytest.fixture
def write() -> Callable[..., Any]:
    """Write arrays as a striped set; return its index."""

    def make(target: Path, columns: Mapping[str, np.ndarray], force: bool = False, **making: Any) -> Any:
        source = SourceInput(ArraySource(columns), "made up")
        return Writer(target, source, Making(**making), force).write()

    return make


@dataclass
class Made:
    """A set of 101 samples on 4 stripes, with 6 samples per block, and its contents."""

    path: Path
    columns: dict[str, np.ndarray]
    index: Any

    def stripe(self, number: int) -> Path:
        path: Path = self.index.stripes[number]
        return path


@pytest.fixture
def made(tmp_path: Path, columns: Callable[..., Any], write: Callable[..., Any]) -> Made:
    given = columns(101)
    index = write(tmp_path / "set", given, stripes=4, block=6 * 768 + 100, run=3)
    return Made(tmp_path / "set", given, index)


@pytest.fixture
def opened() -> Iterator[Callable[..., Source]]:
    """Open a set with options; it is closed after the test."""
    sources: list[Source] = []

    def open_one(path: Path, shuffle: bool = False, seed: int = 5, **options: Any) -> Source:
        sources.append(Source(path, DataSpec(str(path), None, shuffle, seed, options), {}))
        return sources[-1]

    yield open_one
    for each in sources:
        each.close()


def batch(source: Any, count: int) -> dict[str, np.ndarray]:
    """Return arrays for ``count`` samples of a source."""
    return {name: np.zeros((count, *f.shape), f.dtype) for name, f in source.fields.items()}


@pytest.fixture
def read() -> Callable[..., dict[str, np.ndarray]]:
    """Return the samples of a source from a number in its order on."""

    def some(source: Any, first: int, count: int) -> dict[str, np.ndarray]:
        out = batch(source, count)
        stream = source.stream(first, count, count)
        stream.read(out)
        stream.close()
        return out

    return some
