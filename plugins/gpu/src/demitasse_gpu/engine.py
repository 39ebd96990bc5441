"""The streams of a device: copies, events and host calls, beside the thread that drives the device."""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from demitasse_gpu.array import DeviceArray, host_array

if TYPE_CHECKING:
    from demitasse import EngineEvent, EngineStream
    from demitasse_gpu.device import Device
    from demitasse_gpu.driver import Handle

ANCHOR_SECONDS = 4.0
"""The device reports the time between two events in milliseconds, as float32. 4 s after the first event,
this has steps of a quarter of a microsecond, so a new first event is recorded by then."""

TRIES, SURE_ENOUGH = 16, 50e-6
"""The most measurements of the first event's time, and the uncertainty, in seconds, that suffices."""


@dataclass(frozen=True)
class Failure:
    """An error that a call raised, and the call's position among the calls and waits of its stream."""

    position: int
    error: BaseException


class Anchor:
    """An event whose time by the host's clock is known. It is recorded in a stream of its own, because
    the default stream may be under capture, and an event in it would become part of the graph."""

    def __init__(self, device: Device, stream: Handle, before: Anchor | None) -> None:
        self.device, self.stream, self.before = device, stream, before
        self._seconds: float | None = None
        self._record()
        if before is None:
            self._find_time()

    def _record(self) -> None:
        self.event = _event(self, self.device)
        self.recorded = time.perf_counter()
        self.device.driver.record(self.event, self.stream)

    def _find_time(self) -> None:
        """Measure when the event was reached. That was between its recording and the end of the wait,
        and a waiting thread may wake late, so the try with the shortest interval is kept."""
        surest = math.inf
        for _ in range(TRIES):
            self._record()
            self.device.driver.wait(self.event)
            passed = time.perf_counter() - self.recorded
            if passed < surest:
                kept = self.event, self.recorded, self.recorded + passed / 2
                surest = passed
            if surest < SURE_ENOUGH:
                break
        self.event, self.recorded, self._seconds = kept

    @property
    def seconds(self) -> float:
        """When the event was reached: the previous anchor's time plus the device's difference."""
        if self._seconds is None:
            assert self.before is not None
            passed = self.device.driver.seconds_between(self.before.event, self.event)
            self._seconds, self.before = self.before.seconds + passed, None
        return self._seconds


class DeviceEvent:
    """A point in a device's stream."""

    def __init__(self, stream: DeviceStream, anchor: Anchor) -> None:
        self.stream, self._anchor = stream, anchor
        self._driver, self.position = stream.device.driver, stream.position
        self.device, self.event = stream.device, _event(self, stream.device)
        self._driver.record(self.event, stream.handle)

    @property
    def done(self) -> bool:
        """Whether the event was reached. Does not wait."""
        return self._driver.reached(self.event)

    @property
    def seconds(self) -> float:
        """When the event was reached, by the clock of ``time.perf_counter``."""
        self._driver.wait(self._anchor.event)
        return self._anchor.seconds + self._driver.seconds_between(self._anchor.event, self.event)

    def wait(self) -> None:
        """Wait until the event is reached. Raises the error of a call before it in its stream."""
        self._driver.wait(self.event)
        self.stream.check(self.position)


class DeviceStream:
    """Work that a device does in order. After a call has failed, no later call is made; but copies that
    were enqueued behind it before it failed are executed."""

    def __init__(self, engine: DeviceEngine, name: str, handle: Handle) -> None:
        self.name, self.handle, self.device = name, handle, engine.device
        self._engine, self.position = engine, 0
        self._lock = threading.Lock()  # so that positions follow the order of what the device gets
        self._failure: Failure | None = None
        self._behind: dict[DeviceStream, tuple[int, int]] = {}

    def copy(self, target: Any, source: Any) -> None:
        """Enqueue a copy of ``source`` to ``target``: contiguous arrays of the same size and type, each
        in a device's or the host's memory. Raises ValueError for any others."""
        self._engine.check_open()
        (to, target_kind), (at, source_kind) = _place(target), _place(source)
        if target.size != source.size or target.dtype != source.dtype:
            both = f"{source.shape} of {source.dtype} to {target.shape} of {target.dtype}"
            where = f"{self.device.space}, stream {self.name!r}"
            raise ValueError(f"{where}: a copy from {both} (valid: as many elements, of the same type)")
        if target.size and self.failure(self.position) is None:
            kind = f"{source_kind}2{target_kind}"
            self.device.driver.copy(to, at, target.nbytes, kind, self.handle)

    def call(self, work: Callable[[], None]) -> None:
        """Enqueue a call of ``work`` on a host thread, in order with everything else in the stream."""
        self._engine.check_open()
        with self._lock:
            self.position += 1
            number = self.position

            def guarded() -> None:
                if self.failure(number) is not None:
                    return
                try:
                    work()
                except BaseException as error:  # noqa: BLE001 - raised by the next wait
                    self._failure = Failure(number, error)

            self.device.driver.call(self.handle, guarded)

    def record(self) -> DeviceEvent:
        """Return an event at this point in the stream."""
        self._engine.check_open()
        anchor = self._engine.anchor()
        with self._lock:
            return DeviceEvent(self, anchor)

    def wait(self, event: EngineEvent) -> None:
        """Make everything enqueued from now on wait for an event, which may be another engine's."""
        self._engine.check_open()
        if isinstance(event, DeviceEvent):
            with self._lock:
                self.device.driver.wait_in_stream(self.handle, event.event)
                if event.stream is not self:
                    self.position += 1
                    self._behind[event.stream] = event.position, self.position
        else:
            event.wait()  # an engine unknown to this device: the caller waits instead

    def synchronise(self) -> None:
        """Wait until everything enqueued is done. Raises the first error."""
        self._engine.check_open()
        self.device.driver.synchronise(self.handle)
        self.check(self.position)

    def check(self, position: int) -> None:
        """Raise the error of a call up to a position, or of one that was waited for up to there."""
        if (error := self.failure(position)) is not None:
            raise error

    def failure(self, position: int, asking: tuple[DeviceStream, ...] = ()) -> BaseException | None:
        """Return the error that ended the stream up to a position: its own, or that of a stream that it
        waited for. Streams may have waited for each other in turn."""
        if self._failure is not None and self._failure.position <= position:
            return self._failure.error
        asking = (*asking, self)
        for stream, (theirs, since) in list(self._behind.items()):
            if since > position or stream in asking:
                continue
            if (error := stream.failure(theirs, asking)) is not None:
                return error
        return None


class DeviceEngine:
    """The streams of one device. Its kernels run in ``default``."""

    def __init__(self, device: Device) -> None:
        self.device, self.place = device, device.space
        self._open, self._lock = True, threading.Lock()
        default = DeviceStream(self, "default", device.stream)
        self.default: EngineStream = default
        self._streams = {"default": default}
        self._clock = device.driver.stream()
        self._anchor = Anchor(device, self._clock, None)

    def stream(self, name: str) -> DeviceStream:
        """Return the stream of that name, making it at the first request."""
        self.check_open()
        with self._lock:
            if name not in self._streams:
                self._streams[name] = DeviceStream(self, name, self.device.driver.stream())
            return self._streams[name]

    def pinned(self, shape: Sequence[int], dtype: str) -> np.ndarray:
        """Return zeroed host memory that devices copy to and from at the link's full speed. It is
        released with its last view."""
        self.check_open()
        return pinned(self.device, shape, dtype)

    def anchor(self) -> Anchor:
        """Return the anchor that times new events."""
        with self._lock:
            if time.perf_counter() - self._anchor.recorded > ANCHOR_SECONDS:
                # Resolve its time, so that it no longer refers to its predecessor: a long run would keep
                # all of them.
                self._anchor.device.driver.wait(self._anchor.event)
                _ = self._anchor.seconds
                self._anchor = Anchor(self.device, self._clock, self._anchor)
            return self._anchor

    def check_open(self) -> None:
        """Raise RuntimeError if the engine was closed."""
        if not self._open:
            raise RuntimeError(f"the streams of {self.place} were closed")

    def close(self) -> None:
        """End the streams once everything enqueued is done."""
        if not self._open:
            return
        self._open = False
        driver = self.device.driver
        for stream in self._streams.values():
            driver.synchronise(stream.handle)
            if stream is not self.default:
                driver.end_stream(stream.handle)
        driver.synchronise(self._clock)
        driver.end_stream(self._clock)


def pinned(device: Device, shape: Sequence[int], dtype: str) -> np.ndarray:
    """Return zeroed page-locked host memory, which is released with its last view."""
    owner = device.pinned.take(prod(shape) * np.dtype(dtype).itemsize)
    array = host_array(owner.address, shape, dtype, owner)
    array[...] = 0
    return array


def _event(owner: object, device: Device) -> Handle:
    """Create an event that is destroyed with its owner."""
    event = device.driver.event()
    weakref.finalize(owner, device.driver.end_event, event).atexit = False
    return event


def _place(array: Any) -> tuple[int, str]:
    """Return an array's address, and "d" for device memory or "h" for host memory."""
    if isinstance(array, DeviceArray):
        return array.address, "d"
    if not isinstance(array, np.ndarray) or not array.flags.c_contiguous:
        raise ValueError(
            f"a copy of {type(array).__name__} (valid: contiguous arrays of host or device)"
        )
    return array.ctypes.data, "h"
