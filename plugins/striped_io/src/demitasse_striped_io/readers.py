"""S-Caffe's two ways to feed several workers from any source (S-Caffe, 3.2 and 4.1): one reader that
distributes samples, or a reader with its own queue for each worker.

The paper chose the second, because reading image files in parallel was faster than passing images on,
and found that LMDB does not scale beyond 64 such readers. Here you can choose either,
``imagenet_lmdb?reader=one``, and measure both, ``demitasse data measure --readers``.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Mapping
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

import numpy as np

import demitasse
from demitasse import DataError, DataSource, DataSpec, Stream, unknown
from demitasse_striped_io.buffers import batch
from demitasse_striped_io.stream import check_batch

READERS = ("own", "one")
AHEAD = 3


def readers(runtime: Any, source: Any, reader: str = "own", **spec: Any) -> DataSource:
    """The program ``readers``: open what ``runtime`` reads from ``source`` (``spec`` as for a DataSpec),
    with one reader for all streams or one for each. Raises DataError."""
    return with_readers(runtime.open_source(DataSpec(source, **spec)), reader)


def with_readers(opened: DataSource, reader: str) -> DataSource:
    """Make an open source's streams share a reader (``one``) or have their own (``own``). Raises
    DataError."""
    if reader not in READERS:
        raise DataError(unknown("reader", reader, READERS))
    return OneReader(opened) if reader == "one" else opened


def open_with_readers(spec: DataSpec, plain: str, query: Mapping[str, str]) -> DataSource:
    """Open the source of ``path?reader=one`` with whichever installed plugin reads it. Raises
    DataError."""
    rest = dict(query)
    reader = rest.pop("reader", "own")
    kind = rest.pop("kind", None)
    left = "&".join(f"{name}={value}" for name, value in rest.items())
    serving = [
        manifest
        for manifest in demitasse.discover()
        if "data_source" in manifest.roles and manifest.automatic and not manifest.problem
    ]
    serving.sort(key=lambda manifest: -int(manifest.roles["data_source"].get("priority", 0)))
    # A hook gets no runtime, and other plugins' formats are available only through one.
    runtime = demitasse.compose(plugins=[manifest.name for manifest in serving])
    inner = replace(spec, source=f"{plain}?{left}" if left else plain, kind=kind)
    try:
        opened = with_readers(runtime.open_source(inner), reader)
    except BaseException:
        runtime.close()
        raise
    return _Owning(opened, runtime)


class _Owning:
    """A source that also closes the runtime from which it came."""

    def __init__(self, opened: DataSource, runtime: Any) -> None:
        self._opened, self._runtime = opened, runtime
        self.fields, self.size = opened.fields, opened.size

    def stream(self, first: int, count: int, step: int) -> Stream:
        return self._opened.stream(first, count, step)

    def close(self) -> None:
        self._opened.close()
        self._runtime.close()


class OneReader:
    """A source whose streams share one reader if they read parts of the same batches: shares of
    ``count`` samples within the same ``step`` samples."""

    def __init__(self, opened: DataSource) -> None:
        self._opened = opened
        self.fields, self.size = opened.fields, opened.size
        self._hubs: list[Hub] = []
        self._lock = threading.Lock()

    def stream(self, first: int, count: int, step: int) -> Stream:
        """Return a stream from sample ``first`` on. If its shares cross batches, it has a reader of its
        own."""
        number, offset = divmod(first, step)
        if first < 0 or count < 1 or offset + count > step:
            return self._opened.stream(first, count, step)
        return Share(self, number, offset, count, step)

    def joined(self, share: Share, number: int, step: int) -> Hub:
        """Return a reader that has yet to read batch ``number``; from then on it also reads for this
        share."""
        with self._lock:
            self._hubs = [hub for hub in self._hubs if not hub.ended]
            for hub in self._hubs:
                if hub.step == step and hub.takes(share, number):
                    return hub
            hub = Hub(self._opened, number, step)
            hub.takes(share, number)
            self._hubs.append(hub)
            return hub

    def close(self) -> None:
        """End the readers and close the source."""
        with self._lock:
            for hub in self._hubs:
                hub.end()
        self._opened.close()


class _Batch:
    """A batch that has been read; ``left`` shares have not been copied out of it yet."""

    def __init__(self, run: dict[str, np.ndarray]) -> None:
        self.run, self.left, self.number = run, 0, -1


class Hub:
    """One reader: a thread that reads whole batches and puts them in the queues of all shares. It starts
    when the first share asks for samples."""

    def __init__(self, opened: DataSource, number: int, step: int) -> None:
        self._opened, self.fields = opened, opened.fields
        self.number, self.step = number, step
        self.ended = False
        self.name = getattr(opened, "name", "source")
        self._shares: weakref.WeakSet[Share] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._free: SimpleQueue[_Batch | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def takes(self, share: Share, number: int) -> bool:
        """Whether batch ``number`` has yet to be read; if so, it will also be read for this share."""
        with self._lock:
            if self.ended or number < self.number:
                return False
            self._shares.add(share)
            return True

    def start(self) -> None:
        with self._lock:
            if self._thread is not None or self.ended:
                return
            self._thread = threading.Thread(
                target=self._work, name=f"one reader of {self.name}", daemon=True
            )
            for _ in range(AHEAD):
                self._free.put(_Batch(batch(self.fields, self.step)))
            self._thread.start()

    def _work(self) -> None:
        stream: Stream | None = None
        try:
            stream = self._opened.stream(self.number * self.step, self.step, self.step)
            while (made := self._free.get()) is not None and not self.ended:
                stream.read(made.run)
                with self._lock:
                    takers = [share for share in self._shares if share.wants(self.number)]
                    made.left, made.number = len(takers), self.number
                    self.number += 1
                    for share in takers:  # under the lock, so that none of them can leave
                        share.queue.put(made)
                if not takers:
                    self._free.put(made)
        except Exception as error:  # noqa: BLE001  raised where samples are read
            self.ended = True
            for share in list(self._shares):
                share.queue.put(error)
        finally:
            if stream is not None:
                stream.close()

    def done_with(self, made: _Batch) -> None:
        """Note that a share was copied out of a batch; after the last one, its memory is reused."""
        with self._lock:
            made.left -= 1
            if made.left == 0:
                self._free.put(made)

    def leave(self, share: Share) -> None:
        """Stop reading for a share, and release the batches in its queue."""
        with self._lock:
            self._shares.discard(share)
            last = not self._shares
        while not share.queue.empty():
            if isinstance(made := share.queue.get(), _Batch):
                self.done_with(made)
        if last:
            self.end()

    def end(self) -> None:
        self.ended = True
        self._free.put(None)
        for share in list(self._shares):
            share.queue.put(None)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()


class Share:
    """A worker's share of what one reader reads. Implements ``demitasse.Stream``."""

    def __init__(self, source: OneReader, number: int, offset: int, count: int, step: int) -> None:
        self.waited = 0.0
        self._source, self._offset, self._count, self._step = source, offset, count, step
        self._closed = False
        self._begin(number)

    def _begin(self, number: int) -> None:
        self.queue: SimpleQueue[_Batch | Exception | None] = SimpleQueue()
        self._number = self._first = number
        self._hub = self._source.joined(self, number, self._step)

    @property
    def cursor(self) -> int:
        """The number of the next share's first sample. Setting it leaves the reader for one that begins
        there, or has not yet passed it. Raises ValueError if this worker's share of no batch begins at
        that number."""
        return self._number * self._step + self._offset

    @cursor.setter
    def cursor(self, first: int) -> None:
        number, offset = divmod(first, self._step)
        if first < 0 or offset != self._offset:
            raise ValueError(f"sample {first} is not the first of this worker's share of a batch")
        self.close()
        self._closed = False
        self._begin(number)

    def wants(self, number: int) -> bool:
        """Whether a batch that was read is for this worker."""
        return not self._closed and number >= self._first

    def read(self, out: Mapping[str, np.ndarray]) -> None:
        """Write the next share into ``out``. Raises DataError, also for errors of the common reader."""
        if self._closed:
            raise DataError(f"{self._hub.name}: the stream is closed")
        check_batch(self._hub.name, self._hub.fields, self._count, out)
        self._hub.start()
        start = time.perf_counter()
        made = self.queue.get()
        self.waited += time.perf_counter() - start
        if isinstance(made, Exception):
            self.queue.put(made)
            raise DataError(str(made)) from made
        if made is None:
            raise DataError(f"{self._hub.name}: the stream is closed")
        for name, array in out.items():
            part = made.run[name][self._offset : self._offset + self._count]
            np.copyto(array, part, casting="unsafe")
        self._hub.done_with(made)
        self._number += 1

    def close(self) -> None:
        """Take no more; after the last share, the reader ends."""
        if self._closed:
            return
        self._closed = True
        self._hub.leave(self)
