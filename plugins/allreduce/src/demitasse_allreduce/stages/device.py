"""Sums of arrays in a device's memory, by the same schedules: with messages directly from and to that
memory if the MPI library can access it, otherwise through pinned memory of the host.

Source: S-Caffe, section 5 (reductions by kernels, from device memory) and section 4.3 (beside backward).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from demitasse import PlanError, Schedule, StreamEngine
from demitasse_allreduce.executor import Collective, Memory, patiently
from demitasse_allreduce.stages.lane import Task

IN, OUT = "d2h", "h2d"
"""The engine's streams for copies to the host (IN) and from the host (OUT)."""


def on_device(array: Any) -> bool:
    """Return whether an array lies in memory that NumPy cannot access."""
    return not isinstance(array, np.ndarray)


def collective(
    schedule: Schedule,
    comm: Any,
    array: Any,
    check: Callable[[], object],
    engine: StreamEngine | None,
    beside: bool,
    aware: bool,
) -> Task:
    """Return a collective on an array in a device's memory, or in the host's. ``beside``: a helper
    thread runs it while the worker's own thread enqueues kernels. Since additions on the device are
    kernels in the worker's own stream too, the host adds in this case. ``aware``: MPI can read and
    write the device's memory. Raises PlanError for a device's array if the worker has no streams."""
    if not on_device(array):
        return Collective(schedule, comm, array, check=check)
    if engine is None:
        raise PlanError(
            f"gradients of type {type(array).__name__} lie in a device's memory, which plugin "
            f"'allreduce' reaches by the streams of its worker, but there are none"
        )
    if beside or not adds(array):
        return Staged(schedule, comm, array, check, engine)
    if aware and hasattr(array, "__cuda_array_interface__"):
        return Collective(schedule, comm, Reached(array, engine), check=check)
    return Collective(schedule, comm, Mirrored(array, engine), check=check)


def adds(array: Any) -> bool:
    """Return whether an array supports addition and copies on its device."""
    return hasattr(type(array), "__iadd__") and hasattr(array, "copy")


class Staged:
    """A collective on a host copy of a device's array: the whole array is copied to the host, summed
    there, and copied back. The worker's own thread calls ``mark`` once the kernels that fill the array
    are enqueued; any thread may call all other methods."""

    def __init__(
        self,
        schedule: Schedule,
        comm: Any,
        array: Any,
        check: Callable[[], object],
        engine: StreamEngine,
    ) -> None:
        self._array, self._engine = array, engine
        self._host = engine.pinned(array.shape, np.dtype(array.dtype).name)
        self._on_host = Collective(schedule, comm, self._host, check=check)
        self._filled: Any = None
        self._course: Iterator[None] | None = None

    def mark(self) -> None:
        """Note that all work that fills the array has been enqueued."""
        self._filled = self._engine.default.record()

    def run(self) -> None:
        """Make the whole collective."""
        self.mark()
        self.start()
        patiently(self.progress, self._on_host.check)

    def start(self) -> None:
        """Begin the collective with the copy to the host."""
        self._course = self._run()
        self.progress()

    def progress(self) -> bool:
        """Continue without waiting; return whether all is done."""
        if self._course is not None:
            for _ in self._course:
                return False
            self._course = None
        return True

    def _run(self) -> Iterator[None]:
        come, go = self._engine.stream(IN), self._engine.stream(OUT)
        come.wait(self._filled)
        come.copy(self._host, self._array)
        yield from _reached(come.record())
        self._on_host.start()
        while not self._on_host.progress():
            yield
        go.copy(self._array, self._host)
        yield from _reached(go.record())


class Mirrored(Memory):
    """A device's array with a mirror in pinned memory of the host. Elements are copied to the mirror
    before they are sent; received elements are copied from the host and added on the device. Only the
    worker's own thread may use it."""

    def __init__(self, array: Any, engine: StreamEngine) -> None:
        self._engine, self._device = engine, array
        super().__init__(engine.pinned(array.shape, np.dtype(array.dtype).name))
        self._fresh = np.zeros(array.shape, bool)  # elements for which mirror and device agree
        self._second: Any = None
        self._kept: list[Any] = []

    def spare(self, elements: int) -> Any:
        """Return pinned memory of the host."""
        return self._engine.pinned((elements,), self.dtype.name)

    def begin(self) -> None:
        """Note that the mirror is out of date."""
        self._fresh[:] = False

    def sendable(self, start: int, stop: int) -> Iterator[None]:
        """Wait until the mirror has these elements."""
        if self._fresh[start:stop].all():
            return
        come = self._engine.stream(IN)
        come.wait(self._engine.default.record())
        come.copy(self.array[start:stop], self._device[start:stop])
        yield from _reached(come.record())
        self._fresh[start:stop] = True

    def reduce(self, start: int, stop: int, other: Any) -> None:
        """Copy the received elements to a second array on the device, and add that by a kernel."""
        default, go = self._engine.default, self._engine.stream(OUT)
        if self._second is None or self._second.shape[0] < stop - start:
            self._second = self._device[start:stop].copy()
        second, mine = self._second[: stop - start], self._device[start:stop]
        go.wait(default.record())  # until the last addition has read the second array
        go.copy(second, other)
        default.wait(go.record())
        mine += second
        self._fresh[start:stop] = False
        self._kept.append(other)

    def store(self, start: int, stop: int, other: Any) -> None:
        """Copy the received elements to the mirror and to the device."""
        super().store(start, stop, other)
        default, go = self._engine.default, self._engine.stream(OUT)
        go.wait(default.record())
        go.copy(self._device[start:stop], self.array[start:stop])
        default.wait(go.record())
        self._fresh[start:stop] = True

    def finish(self) -> Iterator[None]:
        """Wait until the device has read what was received, since the next run overwrites it."""
        yield from _reached(self._engine.stream(OUT).record())
        self._kept.clear()


class Reached(Memory):
    """A device's array that MPI itself reads and writes. Only the worker's own thread may use it."""

    def __init__(self, array: Any, engine: StreamEngine) -> None:
        super().__init__(array)
        self._engine, self._changed, self._enqueued = engine, True, engine.default.record()

    def spare(self, elements: int) -> Any:
        """Return memory of the device that MPI may write to. Waits until it has been made: this happens
        in a stream, of which MPI does not know, and might come after MPI's writes."""
        made = self.array[:elements].copy()
        self._engine.default.record().wait()
        return made

    def begin(self) -> None:
        """Note that kernels may still be writing the array."""
        self._changed = True

    def sendable(self, start: int, stop: int) -> Iterator[None]:
        """Wait until the device has done what was enqueued."""
        if self._changed:
            self._enqueued, self._changed = self._engine.default.record(), False
        yield from _reached(self._enqueued)

    def reduce(self, start: int, stop: int, other: Any) -> None:
        """Add the received elements by a kernel of the device."""
        mine = self.array[start:stop]
        mine += other
        self._changed = True

    def store(self, start: int, stop: int, other: Any) -> None:
        """Copy the received elements on the device, unless they were received in their place."""
        if other is not None:
            self.array[start:stop] = other
            self._changed = True

    def finish(self) -> Iterator[None]:
        """Wait until spare memory has been read, since the next run overwrites it."""
        yield from self.sendable(0, 0)


def _reached(event: Any) -> Iterator[None]:
    """Wait until an event is reached; yields meanwhile, and raises the error of earlier work, if any."""
    while not event.done:
        yield
    event.wait()
