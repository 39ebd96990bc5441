"""The DataSource of a striped set."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Mapping
from pathlib import Path

from demitasse import DataError, DataSpec, RandomStream
from demitasse_striped_io.faults import Faults
from demitasse_striped_io.index import read_index
from demitasse_striped_io.listener import OPENED
from demitasse_striped_io.options import Options, check_system, options_of
from demitasse_striped_io.order import FileOrder, Order, Runs, ShuffledOrder
from demitasse_striped_io.reading import Reading
from demitasse_striped_io.records import EncodedRecords, RawRecords, Records
from demitasse_striped_io.store import Store
from demitasse_striped_io.stream import RingStream, ThroughStream


class Source:
    """Samples of a striped set in the global order. Implements ``demitasse.DataSource``.

    ``faults`` has the samples that could not be read (``found``, ``skipped``); ``store.tally`` counts
    the requests to each stripe.
    """

    def __init__(self, path: Path, spec: DataSpec, query: Mapping[str, str]) -> None:
        """Raises DataError for anything but a set, and for a set that is damaged or cannot be read as
        requested."""
        check_system(str(path))
        index = read_index(path)
        self.options = options = options_of(spec, query, index.decoding or {})
        self.name, self.size = str(path), index.samples
        self.store = Store(path, options, index)
        try:
            self.faults = Faults(self.name, options.on_error == "skip")
            if self.store.missing and not self.faults.skipping:
                raise DataError(self._missing())
            made = RawRecords if index.form == "raw" else EncodedRecords
            self.records: Records = made(self.store, spec.seed)
        except BaseException:
            self.store.close()
            raise
        self.fields = self.records.fields
        self.order = self._order(spec, options, index.run)
        skip = 0
        if options.skip > 0:
            skip = int(RandomStream(spec.seed, options.stream).integers(1, options.skip)[0])
        self._reading = Reading(self.records, self.order, self.faults, skip)
        self._streams: weakref.WeakSet[RingStream | ThroughStream] = weakref.WeakSet()
        self._closed = False
        OPENED.add(self)

    def __repr__(self) -> str:
        fields = ", ".join(f"{name} {f.shape} {f.dtype}" for name, f in self.fields.items())
        return f"<{self.size:,} samples of {self.name} on {self.store.layout.stripes} stripes: {fields}>"

    @property
    def waited(self) -> float:
        """How many seconds its streams were waited for."""
        return sum(stream.waited for stream in self._streams)

    def origin(self, number: int) -> str:
        """Say where the sample of this number in the global order comes from, for messages."""
        record = int(self._reading.numbers(number, 1)[0])
        return f"{self.name}: {self.store.layout.where(record)}"

    def _missing(self) -> str:
        layout = self.store.layout
        stripe, why = next(iter(self.store.missing.items()))
        blocks = list(range(stripe, layout.blocks, layout.stripes))
        samples = sum(int(layout.bounds[b + 1] - layout.bounds[b]) for b in blocks)
        more = f" (and {len(self.store.missing) - 1} more)" if len(self.store.missing) > 1 else ""
        index, moved = self.store.index, ""
        if index.stripes[stripe].parent != self.store.folder:
            moved = f"if it was moved, put a link to it into {self.store.folder}; "
        return (
            f"{self.name}: stripe {stripe} of {layout.stripes} is missing{more}: {why}; it has blocks "
            f"{', '.join(map(str, blocks[:4]))}{' ...' if len(blocks) > 4 else ''} with {samples:,} "
            f"samples, the first of them {layout.bounds[stripe]}; {moved}on_error=skip continues "
            f"without them"
        )

    def _order(self, spec: DataSpec, options: Options, run: int) -> Order:
        kind = options.order or ("sample" if spec.shuffle else "file")
        if kind == "file":
            return FileOrder(self.size)
        layout = self.store.layout
        runs = Runs(layout.bounds, layout.stripes, options.run or run) if kind == "block" else None
        return ShuffledOrder(self.size, spec.seed, runs)

    def stream(self, first: int, count: int, step: int) -> RingStream | ThroughStream:
        """Return a stream from sample number ``first`` on. Raises ValueError if ``first`` is negative or
        ``count`` or ``step`` is below 1, DataError if the source is closed."""
        first, count, step = map(operator.index, (first, count, step))
        if first < 0 or count < 1 or step < 1:
            raise ValueError(
                f"a stream needs first >= 0, count >= 1 and step >= 1, not {first}, {count}, {step}"
            )
        if self._closed:
            raise DataError(f"{self.name}: the source is closed")
        if self.records.direct:
            # Do one-time work now, rather than while a worker waits for its first samples.
            self.store.prepare()
            self._reading.numbers(first, 1)
        about = self._reading, self.name, first, count, step, self.options.ahead
        made: RingStream | ThroughStream = (
            ThroughStream(*about, self.store) if self.records.direct else RingStream(*about)
        )
        self._streams.add(made)
        return made

    def close(self) -> None:
        """Close all streams of the source, and the stripes."""
        self._closed = True
        OPENED.discard(self)
        for stream in list(self._streams):
            stream.close()
        self.order.close()
        self.store.close()
