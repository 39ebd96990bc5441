"""Streams: batches of samples for one worker.

There are two kinds. Records that are copied unchanged go straight into the caller's batch, from memory
or from the page cache, into which a thread has the system read the next batches: one copy in all. What
has to be decoded or transformed, or bypasses the page cache, is prepared by a thread in rotating
buffers.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Mapping
from operator import is_
from queue import Empty, SimpleQueue

import numpy as np

from demitasse import Allocator, DataError, Field, unknown
from demitasse_striped_io.buffers import batch
from demitasse_striped_io.reading import Reading
from demitasse_striped_io.records import Fill
from demitasse_striped_io.store import Store

Run = dict[str, np.ndarray]


def check_batch(
    name: str, fields: Mapping[str, Field], count: int, out: Mapping[str, np.ndarray]
) -> None:
    """Raise DataError for a field that the source does not have, and for an array whose shape is not
    that of ``count`` samples."""
    for field, array in out.items():
        if field not in fields:
            raise DataError(unknown("field", field, fields, name))
        shape = (count, *fields[field].shape)
        if array.shape != shape:
            raise DataError(
                f"{name}: field {field!r} of a run has shape {shape}, but the array to read it into has "
                f"{array.shape}"
            )


def _same(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> bool:
    """Whether both have the same array objects under the same names."""
    return len(one) == len(other) and all(map(is_, map(one.get, other), other.values()))


class _Thread:
    """A thread that prepares something for batches from a first one on. It refers to this record, never
    to the stream, so that a stream that nobody closes can be collected; its thread then ends."""

    def __init__(self, reading: Reading, name: str, first: int, count: int, step: int) -> None:
        self.reading, self.name = reading, name
        self.first, self.count, self.step = first, count, step
        self.stopped = False
        self.free: SimpleQueue[Run | None] = SimpleQueue()
        self.ready: SimpleQueue[Run | Exception | None] = SimpleQueue()
        self.thread = threading.Thread(target=self.work, name=f"read-ahead of {name}", daemon=True)
        _running.add(self)

    def work(self) -> None:
        try:
            while (run := self.free.get()) is not None and not self.stopped:
                self.prepare(run)
                self.first += self.step
                self.ready.put(run)
        except Exception as error:  # noqa: BLE001  raised where the batch is read
            self.ready.put(error)
        finally:
            self.ready.put(None)

    def prepare(self, run: Run) -> None:
        self.reading.fill(self.first, self.count, self.reading.records.into(run))

    def stop(self) -> None:
        self.stopped = True
        self.free.put(None)
        self.ready.put(None)

    def join(self) -> None:
        if self.thread is not threading.current_thread():
            self.thread.join()


_running: weakref.WeakSet[_Thread] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """Wait for threads of streams that nobody closed: a thread that is in a decoder, which is C++, when
    the interpreter ends would abort the process."""
    left = [each for each in _running if each.thread.is_alive()]
    for each in left:
        each.stop()
    for each in left:
        each.join()


class _Announcer(_Thread):
    """Tells the system which records will be needed."""

    def __init__(
        self, reading: Reading, name: str, first: int, count: int, step: int, store: Store
    ) -> None:
        super().__init__(reading, name, first, count, step)
        self.store = store

    def prepare(self, run: Run) -> None:
        self.store.soon(self.reading.numbers(self.first, self.count))


class _Stream:
    """The common part of both kinds of stream. ``waited`` is the number of seconds that ``read`` and
    ``take`` waited for samples that were not ready."""

    def __init__(
        self, reading: Reading, name: str, first: int, count: int, step: int, ahead: int
    ) -> None:
        self.waited = 0.0
        self._reading, self._name = reading, name
        self._count, self._step, self._ahead = count, step, ahead
        self._allocator: Allocator | None = None
        self._closed = False
        self._cursor = first

    @property
    def cursor(self) -> int:
        """The number of the next batch's first sample; setting it makes reading continue there."""
        return self._cursor

    @cursor.setter
    def cursor(self, first: int) -> None:
        self._check_open()
        self._end()
        self._cursor = first

    def close(self) -> None:
        """End the read-ahead and wait for its thread; a waiting ``read`` raises DataError."""
        self._closed = True
        self._end()

    def _end(self) -> None:
        """Stop reading ahead."""

    def lend(self, allocator: Allocator) -> None:
        """Take the buffers of this stream from a worker's own allocator. Must be called before the first
        batch is read."""
        self._allocator = allocator

    def _check_open(self) -> None:
        if self._closed:
            raise DataError(f"{self._name}: the stream is closed")


class ThroughStream(_Stream):
    """Reads each batch straight into the caller's arrays. Implements ``demitasse.Stream``."""

    def __init__(
        self,
        reading: Reading,
        name: str,
        first: int,
        count: int,
        step: int,
        ahead: int,
        store: Store,
    ) -> None:
        super().__init__(reading, name, first, count, step, ahead)
        self._store = store
        self._announcer: _Announcer | None = None
        self._collected: weakref.finalize[..., _Stream] | None = None
        self._own: list[Run] = []
        self._out: Mapping[str, np.ndarray] = {}
        self._fill: Fill = reading.records.into({})

    def read(self, out: Mapping[str, np.ndarray]) -> None:
        """Write the next batch into ``out`` (some or all fields; values are cast) and advance the cursor
        by the step. Raises DataError, and leaves the cursor in place, if a sample cannot be read."""
        start = time.perf_counter()
        self._check_open()
        if not _same(out, self._out):
            self._aim(out)
        if self._store.announced:
            self._announce()
        self._reading.fill(self._cursor, self._count, self._fill)
        self._cursor += self._step
        self.waited += time.perf_counter() - start

    def _aim(self, out: Mapping[str, np.ndarray]) -> None:
        """Read into ``out`` from now on."""
        check_batch(self._name, self._reading.records.fields, self._count, out)
        self._out, self._fill = dict(out), self._reading.records.into(out)

    def take(self) -> Mapping[str, np.ndarray]:
        """Return the next batch in a buffer of the stream's own, valid until the next but one is
        taken."""
        if not self._own:
            make = self._reading.records.fields, self._count, self._allocator
            self._own = [batch(*make), batch(*make)]
        self._own.reverse()
        self.read(self._own[0])
        return self._own[0]

    def _announce(self) -> None:
        if self._announcer is None:
            # The batch that is read now need not be announced any more.
            first = self._cursor + self._step
            self._announcer = _Announcer(
                self._reading, self._name, first, self._count, self._step, self._store
            )
            self._collected = weakref.finalize(self, self._announcer.stop)
            for _ in range(self._ahead):
                self._announcer.free.put({})
            self._announcer.thread.start()
        else:
            self._announcer.free.put({})

    def _end(self) -> None:
        if self._announcer is not None:
            self._announcer.stop()
            self._announcer.join()
            self._announcer = None


class RingStream(_Stream):
    """Lets a thread prepare batches in rotating buffers. Implements ``demitasse.Stream``."""

    def __init__(
        self, reading: Reading, name: str, first: int, count: int, step: int, ahead: int
    ) -> None:
        super().__init__(reading, name, first, count, step, ahead)
        self._thread: _Thread | None = None
        self._pending: Run | Exception | None = None
        self._taken: Run | None = None
        self._runs: list[Run] = []

    def read(self, out: Mapping[str, np.ndarray]) -> None:
        """As in ThroughStream."""
        self._check_open()
        check_batch(self._name, self._reading.records.fields, self._count, out)
        run = self._next()
        for name, array in out.items():
            np.copyto(array, run[name], casting="unsafe")
        self._pending = None
        self._give_back(run)
        self._cursor += self._step

    def take(self) -> Mapping[str, np.ndarray]:
        """Return the next batch where it was prepared, without copying; it is valid until the next one
        is taken or read."""
        self._check_open()
        if self._taken is not None:
            self._give_back(self._taken)
            self._taken = None
        self._taken = self._next()
        self._pending = None
        self._cursor += self._step
        return self._taken

    def _give_back(self, run: Run) -> None:
        if self._thread is not None:
            self._thread.free.put(run)

    def _next(self) -> Run:
        thread = self._thread or self._start()
        if self._pending is None:
            try:
                self._pending = thread.ready.get_nowait()
            except Empty:
                start = time.perf_counter()
                self._pending = thread.ready.get()
                self.waited += time.perf_counter() - start
        if self._pending is None or self._closed:
            raise DataError(f"{self._name}: the stream is closed")
        if isinstance(self._pending, DataError):
            raise DataError(str(self._pending)) from self._pending
        if isinstance(self._pending, Exception):
            kind = type(self._pending).__name__
            raise DataError(f"{self._name}: {kind}: {self._pending}") from self._pending
        return self._pending

    def _start(self) -> _Thread:
        if not self._runs:
            fields = self._reading.records.fields
            # The caller reads one, one is being prepared, and the others are ready.
            self._runs = [batch(fields, self._count, self._allocator) for _ in range(self._ahead + 1)]
        self._thread = _Thread(self._reading, self._name, self._cursor, self._count, self._step)
        self._collected = weakref.finalize(self, self._thread.stop)
        for run in self._runs:
            self._thread.free.put(run)
        self._thread.thread.start()
        return self._thread

    def _end(self) -> None:
        if self._thread is not None:
            self._thread.stop()
            self._thread.join()
        self._thread = self._pending = self._taken = None
