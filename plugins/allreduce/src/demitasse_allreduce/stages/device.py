"""Sums of arrays in a device's memory, on the same schedules: by messages from and to that memory where
the MPI library reaches it, else through pinned memory of the host.

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
"""The engine's streams for copies to the host, and from it."""


def on_device(array: Any) -> bool:
    """Whether an array lies where NumPy does not reach it."""
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
    """A collective on an array of a device, or of the host. ``beside``: a helper thread runs it while
    the worker's own enqueues kernels; additions on the device are kernels too, in the worker's own
    stream, so that then the host adds. ``aware``: MPI reads and writes the device's memory. Raises
    PlanError for a device's array without its streams."""
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
    """Whether an array is added to on its device, and can be had a second time there."""
    return hasattr(type(array), "__iadd__") and hasattr(array, "copy")


class Staged:
    """A collective on the host's copy of a device's array: all of it there, added on the host, and back.
    ``mark`` is called by the worker's own thread when what fills the array is enqueued; all else may be
    done by another one."""

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
        """What fills the array was enqueued before."""
        self._filled = self._engine.default.record()

    def run(self) -> None:
        """All of it."""
        self.mark()
        self.start()
        patiently(self.progress, self._on_host.check)

    def start(self) -> None:
        """Begin with the copy to the host."""
        self._course = self._run()
        self.progress()

    def progress(self) -> bool:
        """Go on; whether all is done."""
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
    """A device's array with pinned memory of the host beside it: what is sent is copied there first,
    what is received from there, and added on the device. Used by the worker's own thread alone."""

    def __init__(self, array: Any, engine: StreamEngine) -> None:
        self._engine, self._device = engine, array
        super().__init__(engine.pinned(array.shape, np.dtype(array.dtype).name))
        self._fresh = np.zeros(array.shape, bool)  # where the mirror has what the device has
        self._second: Any = None
        self._kept: list[Any] = []

    def spare(self, elements: int) -> Any:
        """Pinned memory."""
        return self._engine.pinned((elements,), self.dtype.name)

    def begin(self) -> None:
        """The device has all of it."""
        self._fresh[:] = False

    def sendable(self, start: int, stop: int) -> Iterator[None]:
        """Until the mirror has these elements."""
        if self._fresh[start:stop].all():
            return
        come = self._engine.stream(IN)
        come.wait(self._engine.default.record())
        come.copy(self.array[start:stop], self._device[start:stop])
        yield from _reached(come.record())
        self._fresh[start:stop] = True

    def reduce(self, start: int, stop: int, other: Any) -> None:
        """Copied to a second place of the device, and added by its kernel."""
        default, go = self._engine.default, self._engine.stream(OUT)
        if self._second is None or self._second.shape[0] < stop - start:
            self._second = self._device[start:stop].copy()
        second, mine = self._second[: stop - start], self._device[start:stop]
        go.wait(default.record())  # the last addition has read that place
        go.copy(second, other)
        default.wait(go.record())
        mine += second
        self._fresh[start:stop] = False
        self._kept.append(other)

    def store(self, start: int, stop: int, other: Any) -> None:
        """Copied to the device."""
        super().store(start, stop, other)
        default, go = self._engine.default, self._engine.stream(OUT)
        go.wait(default.record())
        go.copy(self._device[start:stop], self.array[start:stop])
        default.wait(go.record())
        self._fresh[start:stop] = True

    def finish(self) -> Iterator[None]:
        """Until the device has read what was received, which the next run overwrites."""
        yield from _reached(self._engine.stream(OUT).record())
        self._kept.clear()


class Reached(Memory):
    """A device's array that MPI itself reads and writes. Used by the worker's own thread alone."""

    def __init__(self, array: Any, engine: StreamEngine) -> None:
        super().__init__(array)
        self._engine, self._changed, self._enqueued = engine, True, engine.default.record()

    def spare(self, elements: int) -> Any:
        """Memory of the device, as MPI may write to it: what makes it may be in a stream, where MPI is
        not, and come after what was received."""
        made = self.array[:elements].copy()
        self._engine.default.record().wait()
        return made

    def begin(self) -> None:
        """Kernels may still be at it."""
        self._changed = True

    def sendable(self, start: int, stop: int) -> Iterator[None]:
        """Until the device has done what was enqueued for it."""
        if self._changed:
            self._enqueued, self._changed = self._engine.default.record(), False
        yield from _reached(self._enqueued)

    def reduce(self, start: int, stop: int, other: Any) -> None:
        """Added by the device's kernel."""
        mine = self.array[start:stop]
        mine += other
        self._changed = True

    def store(self, start: int, stop: int, other: Any) -> None:
        """Copied on the device, where it lies elsewhere."""
        if other is not None:
            self.array[start:stop] = other
            self._changed = True

    def finish(self) -> Iterator[None]:
        """Until spare memory has been read, which the next run overwrites."""
        yield from self.sendable(0, 0)


def _reached(event: Any) -> Iterator[None]:
    """Until an event is reached; raises what went wrong before it."""
    while not event.done:
        yield
    event.wait()
