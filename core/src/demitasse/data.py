"""Where samples come from: sources, and streams whose cursor can be saved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from demitasse.errors import Location

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class DataSpec:
    """What a net asks for: ``source`` is a path, pattern or name as the user wrote it, or a mapping of
    arrays; ``kind`` a format when the user named one. Shuffling is by ``seed`` and epoch."""

    source: Any
    kind: str | None = None
    shuffle: bool = False
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    location: Location | None = None


@dataclass(frozen=True)
class Field:
    """One part of a sample (its image, its label): shape without the batch, and element type."""

    shape: tuple[int, ...]
    dtype: str


class Stream(Protocol):
    """Every ``step``-th run of ``count`` samples of the global order, read ahead by who serves it."""

    cursor: int  # the number, in the endless global order, of the next run's first sample

    def read(self, out: Mapping[str, np.ndarray]) -> None:
        """Write the next run into ``out`` (by field name, arrays of count samples, cast to their types)
        and move the cursor by step. Raises DataError that names file and sample."""

    def close(self) -> None:
        """End the read-ahead; no thread is left behind."""


class DataSource(Protocol):
    """Samples in one global order, the same for any number of workers: epoch after epoch, each a
    permutation of all samples when the specification says shuffle."""

    fields: Mapping[str, Field]
    size: int

    def stream(self, first: int, count: int, step: int) -> Stream:
        """A stream that starts at sample number ``first``; count and step are at least 1."""

    def close(self) -> None:
        """Release files."""
