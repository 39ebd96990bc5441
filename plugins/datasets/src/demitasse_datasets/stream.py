"""Streams of samples. A thread prepares the next batches, and ``read`` copies a prepared one; if samples
are in memory, ``read`` gathers them itself."""

from __future__ import annotations

import atexit
import math
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from itertools import pairwise
from operator import is_
from queue import Empty, SimpleQueue
from typing import Any, cast

import numpy as np

from demitasse import DataError, unknown
from demitasse_datasets.decoders import decoders, for_each, threads
from demitasse_datasets.order import Order
from demitasse_datasets.samples import ArraySamples, OwnShapes, Samples

RING = 3
"""Batches in circulation: one being copied, one ready, one being prepared."""

PORTION = 1 << 18
"""How many bytes are gathered and then cast while they are in the cache."""

SHARE, MOST_SHARES = 4 << 20, 8
"""How many bytes of a batch each gathering thread gets at least, and the most threads: one core moves
only a fraction of what memory can. (256 images of AlexNet, 158 MB, on two cores: 25 ms with one thread,
18 with two.)"""

Run = dict[str, np.ndarray]


def check_run(samples: Samples, count: int, out: Mapping[str, np.ndarray]) -> None:
    """Raise DataError for a field that samples do not have, and for an array whose shape is not that of
    ``count`` samples."""
    for name, array in out.items():
        if name not in samples.fields:
            raise DataError(unknown("field", name, samples.fields, samples.name))
        shape = (count, *samples.fields[name].shape)
        if array.shape != shape:
            raise DataError(
                f"{samples.name}: field {name!r} of a run has shape {shape}, "
                f"but the array to read it into has {array.shape}"
            )


_RUNNING: weakref.WeakSet[_ReadAhead] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """Wait for the threads of streams that nobody closed: a thread that is in C++ code when the
    interpreter ends would abort the process."""
    left = [each for each in _RUNNING if each.thread.is_alive()]
    for each in left:
        each.stop()
    for each in left:
        each.thread.join()


class _ReadAhead:
    """A stream's thread, and the two queues in which batches circulate.

    The thread refers to this record, never to the stream, so that a stream that nobody closes can be
    collected; its thread then ends. Unlike a lock, SimpleQueue.put may be used in a finalizer.
    """

    def __init__(self, samples: Samples, order: Order, first: int, count: int, step: int) -> None:
        self.samples, self.order = samples, order
        self.first, self.count, self.step = first, count, step
        self.free: SimpleQueue[Run | None] = SimpleQueue()
        self.ready: SimpleQueue[Run | DataError | None] = SimpleQueue()
        self.stopped = False
        for _ in range(RING):
            self.free.put(
                {
                    name: np.empty((count, *field.shape), field.dtype)
                    for name, field in samples.fields.items()
                }
            )
        self.thread = threading.Thread(
            target=self.work, name=f"read-ahead of {samples.name}", daemon=True
        )
        _RUNNING.add(self)
        self.thread.start()

    def work(self) -> None:
        first, numbers = self.first, None
        try:
            while (run := self.free.get()) is not None and not self.stopped:
                numbers = self.order.numbers(first, self.count)
                self.samples.gather(numbers, run, first)
                self.ready.put(run)
                first, numbers = first + self.step, None
        except Exception as error:  # noqa: BLE001  raised where the batch is read
            self.ready.put(self.failure(first, numbers, error))
        finally:
            self.ready.put(None)

    def failure(self, first: int, numbers: np.ndarray | None, error: Exception) -> DataError:
        """Return a batch's error as one that names the sample: the first that fails when read alone."""
        where = self.order.place(first)
        if numbers is not None:
            one = {name: np.empty((1, *f.shape), f.dtype) for name, f in self.samples.fields.items()}
            for i in range(self.count):
                try:
                    self.samples.gather(numbers[i : i + 1], one, first + i)
                except Exception as single:  # noqa: BLE001  becomes the cause of a named error
                    where, error = f"{self.order.place(first + i)}, sample {numbers[i]}", single
                    break
        kind = "" if isinstance(error, DataError) else f"{type(error).__name__}: "
        failure = DataError(f"{self.samples.name}: {where} cannot be read: {kind}{error}")
        failure.__cause__ = error
        return failure

    def stop(self) -> None:
        self.stopped = True
        self.free.put(None)
        self.ready.put(None)


class ReadAheadStream:
    """Reads batches of ``count`` samples, ``step`` apart. Implements ``demitasse.Stream``.

    ``waited`` is the number of seconds that ``read`` has waited for batches that were not ready.
    """

    def __init__(self, samples: Samples, order: Order, first: int, count: int, step: int) -> None:
        self.waited = 0.0
        self._samples, self._order = samples, order
        self._count, self._step = count, step
        self._start(first)

    def _start(self, first: int) -> None:
        self._cursor = first
        self._pending: Run | DataError | None = None
        self._ahead = _ReadAhead(self._samples, self._order, first, self._count, self._step)
        self._collected = weakref.finalize(self, self._ahead.stop)

    @property
    def cursor(self) -> int:
        """The number of the next batch's first sample; setting it makes reading continue there."""
        return self._cursor

    @cursor.setter
    def cursor(self, first: int) -> None:
        self.close()
        self._start(first)

    def read(self, out: Mapping[str, np.ndarray]) -> None:
        """Write the next batch into ``out`` (some or all fields) and advance the cursor by the step.

        Values are cast to the arrays' types. If this raises, the cursor does not move. Raises DataError
        that names the sample that could not be read, or the field and shape that are wrong, or that says
        that the stream is closed.
        """
        self._check(out)
        run = self._next()
        for name, array in out.items():
            np.copyto(array, run[name], casting="unsafe")
        self._pending = None
        self._ahead.free.put(run)
        self._cursor += self._step

    def _check(self, out: Mapping[str, np.ndarray]) -> None:
        check_run(self._samples, self._count, out)

    def _next(self) -> Run:
        ahead = self._ahead
        if self._pending is None and not ahead.stopped:
            try:
                self._pending = ahead.ready.get_nowait()
            except Empty:
                start = time.perf_counter()
                self._pending = ahead.ready.get()
                self.waited += time.perf_counter() - start
        if self._pending is None or ahead.stopped:
            raise DataError(f"{self._samples.name}: the stream is closed")
        if isinstance(self._pending, DataError):
            raise DataError(str(self._pending)) from self._pending.__cause__
        return self._pending

    def close(self) -> None:
        """End the read-ahead and wait for its thread; a waiting ``read`` raises DataError."""
        self._collected()
        if self._ahead.thread is not threading.current_thread():
            self._ahead.thread.join()


class _OneByOne:
    """Prepares single samples in their own sizes: their arrays replace those of a batch."""

    def __init__(self, samples: OwnShapes) -> None:
        self.samples, self.name = samples, samples.name
        self.fields, self.size = samples.fields, samples.size

    def gather(self, numbers: np.ndarray, out: Mapping[str, np.ndarray], first: int) -> None:
        made = self.samples.sample(int(numbers[0]), first)
        cast(Run, out).update({name: array[None] for name, array in made.items()})


class SizedStream(ReadAheadStream):
    """Reads every ``step``-th sample, each in its own shape; ``coming`` gives the next one's shape."""

    def __init__(self, samples: OwnShapes, order: Order, first: int, step: int) -> None:
        self._each = samples
        super().__init__(_OneByOne(samples), order, first, 1, step)

    def coming(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the next sample's fields, without a batch axis. Waits until it has been
        read. Raises DataError that names a sample that cannot be read."""
        return {name: array.shape[1:] for name, array in self._next().items()}

    @property
    def where(self) -> str:
        """Where the next sample comes from, for messages."""
        return self._each.where(int(self._order.numbers(self._cursor, 1)[0]))

    def _check(self, out: Mapping[str, np.ndarray]) -> None:
        run = self._next()
        for name, array in out.items():
            if name not in run:
                raise DataError(unknown("field", name, run, self._samples.name))
            if array.shape != run[name].shape:
                raise DataError(
                    f"{self.where}: field {name!r} has shape {run[name].shape[1:]}, but "
                    f"{array.shape[1:]} is planned; use batches of one for images of several sizes, "
                    f"or resize or crop them"
                )


class ArrayStream:
    """Reads samples that are in memory, and gathers them when asked. That is faster than copying what a
    thread has gathered, and takes no processor time from kernels meanwhile. (100 images of CIFAR-10 as
    float32 on two idle cores: 52 us, and 68 with the help of a thread.) Implements
    ``demitasse.Stream``."""

    def __init__(self, samples: ArraySamples, order: Order, first: int, count: int, step: int) -> None:
        self.waited = 0.0
        self.cursor = first
        self._samples, self._order = samples, order
        self._count, self._step = count, step
        self._out: Run = {}
        self._fills: list[Callable[[np.ndarray], object]] = []
        self._closed = False

    def read(self, out: Mapping[str, np.ndarray]) -> None:
        """As in ReadAheadStream."""
        if self._closed:
            raise DataError(f"{self._samples.name}: the stream is closed")
        # The same arrays are filled batch after batch, so what depends only on them is computed once.
        if len(out) != len(self._out) or not all(map(is_, map(out.get, self._out), self._out.values())):
            self._aim(out)
        numbers = self._order.numbers(self.cursor, self._count)
        for fill in self._fills:
            fill(numbers)
        self.cursor += self._step

    def _aim(self, out: Mapping[str, np.ndarray]) -> None:
        """Read into ``out`` from now on."""
        check_run(self._samples, self._count, out)
        self._out, self._fills = dict(out), [self._fill(*each) for each in out.items()]

    def _fill(self, name: str, out: np.ndarray) -> Callable[[np.ndarray], object]:
        """Return a function that writes the samples of given numbers into ``out``, cast to its type;
        several threads write large ones."""
        shares = min(threads(), MOST_SHARES, out.nbytes // SHARE, len(out))
        if shares < 2:
            return self._share(name, out)
        bounds = [len(out) * i // shares for i in range(shares + 1)]
        ranges = [slice(*pair) for pair in pairwise(bounds)]
        fills, pool = [self._share(name, out[some]) for some in ranges], decoders()

        def fill(numbers: np.ndarray) -> None:
            for_each(pool, shares, lambda i: fills[i](numbers[ranges[i]]))

        return fill

    def _share(self, name: str, out: np.ndarray) -> Callable[[np.ndarray], Any]:
        samples = self._samples  # not self: a reference cycle would delay freeing memory
        field = samples.fields[name]
        if out.dtype == field.dtype and out.flags.c_contiguous:
            return samples.into(name, out)
        kind = np.dtype(field.dtype)
        portion = max(1, PORTION // (kind.itemsize * math.prod(field.shape)))
        scratch = np.empty((min(portion, len(out)), *field.shape), kind)

        def fill(numbers: np.ndarray) -> None:
            for start in range(0, len(out), len(scratch)):
                some = numbers[start : start + len(scratch)]
                part = scratch[: len(some)]
                samples.into(name, part)(some)
                np.copyto(out[start : start + len(scratch)], part, casting="unsafe")

        return fill

    def close(self) -> None:
        """Close the stream; reading then raises DataError."""
        self._closed = True
