"""This plugin's DataSource: samples in a global order, and the streams that read them."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Mapping

from demitasse import DataError
from demitasse_datasets.generated import GeneratedSamples, SteadyStream
from demitasse_datasets.order import Order
from demitasse_datasets.samples import ArraySamples, OwnShapes, Samples
from demitasse_datasets.stream import ArrayStream, ReadAheadStream, SizedStream


class Source:
    """Samples of any kind, in the global order. Implements ``demitasse.DataSource``."""

    def __init__(self, samples: Samples, shuffle: bool, seed: int, skip: int = 0) -> None:
        self.fields, self.size, self.name = samples.fields, samples.size, samples.name
        self.absent: Mapping[str, str] = getattr(samples, "absent", {})
        self.stands_in: bool = getattr(samples, "stands_in", False)
        """Whether the samples are random stand-ins, of which only the shapes matter."""

        self.varies: bool = isinstance(samples, OwnShapes) and samples.varies
        """Whether samples may vary in shape; streams of single samples then report the next shapes."""

        self._samples: Samples | None = samples
        groups = getattr(samples, "groups", ())
        self._order = Order(samples.size, shuffle, seed, skip, groups)
        self._streams: weakref.WeakSet[ReadAheadStream | ArrayStream] = weakref.WeakSet()

    def __repr__(self) -> str:
        fields = ", ".join(f"{name} {f.shape} {f.dtype}" for name, f in self.fields.items())
        order = f"shuffled by seed {self._order.seed}" if self._order.shuffle else "in file order"
        return f"<{self.size:,} samples of {self.name}, {order}: {fields}>"

    def stream(self, first: int, count: int, step: int) -> ReadAheadStream | ArrayStream | SteadyStream:
        """Return a stream from sample number ``first`` on. Raises ValueError if ``first`` is negative or
        ``count`` or ``step`` is below 1, DataError if the source is closed."""
        first, count, step = map(operator.index, (first, count, step))
        if first < 0 or count < 1 or step < 1:
            raise ValueError(
                f"a stream needs first >= 0, count >= 1 and step >= 1, not {first}, {count}, {step}"
            )
        if self._samples is None:
            raise DataError(f"{self.name}: the source is closed")
        if isinstance(self._samples, GeneratedSamples) and self._samples.steady:
            return SteadyStream(self._samples, first, count, step)
        about = self._order, first, count, step
        stream: ReadAheadStream | ArrayStream
        if isinstance(self._samples, ArraySamples) and not self._samples.mapped:
            stream = ArrayStream(self._samples, *about)
        elif count == 1 and isinstance(self._samples, OwnShapes) and self.varies:
            stream = SizedStream(self._samples, self._order, first, step)
        else:
            stream = ReadAheadStream(self._samples, *about)
        self._streams.add(stream)
        return stream

    def origin(self, number: int) -> str:
        """Say where the sample of this number in the global order comes from, for messages: a line of a
        list, a database's key, or else its number in the file."""
        sample = int(self._order.numbers(number, 1)[0])
        where = getattr(self._samples, "where", None)
        return str(where(sample)) if where is not None else f"{self.name}: number {sample:,}"

    def close(self) -> None:
        """Close all streams of the source and release its samples."""
        for stream in list(self._streams):
            stream.close()
        self._samples = None
