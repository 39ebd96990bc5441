"""The streams of a stand-in accelerator. Each is a thread; the default one is the caller's own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, TypeAlias

import numpy as np

from demitasse import EngineEvent, EngineStream
from demitasse_host_streams.link import Bytes, Direction, Rate, direction, transfer, wake_precisely
from demitasse_host_streams.memory import PINNED, REGISTRY, pinned

Action: TypeAlias = Callable[[float], tuple[float, float]]
"""What a stream executes. It gets the time at which it may begin, and returns the time until which the
stream was busy and the time at which the work had really ended (``link.transfer`` says how the two
differ). All are times of ``time.perf_counter``."""


class Item:
    """One enqueued action, and when it was enqueued. Once it is ``over``, also when it ended and the
    error, if any, that had ended its stream by then."""

    def __init__(self, action: Action | None = None) -> None:
        self.action, self.enqueued = action, time.perf_counter()
        self.over, self.ended = False, 0.0
        self.error: BaseException | None = None
        # Held until the item is over. Measured: a lock takes 0.1 us to make, a threading.Event 1.5 us.
        self._gate = threading.Lock()
        self._gate.acquire()

    def wait(self) -> None:
        """Block the caller until the item is over. Raises the error that ended its stream."""
        if not self.over:
            with self._gate:
                pass
        if self.error is not None:
            raise self.error

    def end(self, ended: float, error: BaseException | None) -> None:
        """Mark the item as over: release whoever waits for it, and the arrays that it held."""
        self.action, self.ended, self.error, self.over = None, ended, error, True
        self._gate.release()


def at(moment: float) -> tuple[float, float]:
    """Return the result of an action that ended at the moment when its stream became free again."""
    return moment, moment


class Progress:
    """How far a stream has come: until when it is busy by the links' accounting, when its last item was
    over, and the error that ended it."""

    def __init__(self) -> None:
        self.busy = self.ended = 0.0
        self.error: BaseException | None = None

    def do(self, item: Item) -> None:
        """Do the next item, unless an earlier one failed."""
        if self.error is None and item.action is not None:
            try:
                self.busy, ended = item.action(max(self.busy, item.enqueued))
                self.ended = max(self.ended, ended)
            except BaseException as raised:  # noqa: BLE001  whoever waits gets it, whatever it is
                self.error, self.ended = raised, time.perf_counter()
        item.end(self.ended, self.error)


class HostEvent:
    """A point in a stream: right behind ``item``, the last item enqueued before it."""

    def __init__(self, item: Item) -> None:
        self._item, self._recorded = item, time.perf_counter()

    @property
    def done(self) -> bool:
        """Whether the event was reached."""
        return self._item.over

    @property
    def seconds(self) -> float:
        """When the event was reached. For the end of a copy, this is the time by the link's accounting,
        not the time when a thread woke to see it. Raises RuntimeError if the event was not reached
        yet."""
        if not self._item.over:
            raise RuntimeError("the time of an event was asked for before the event was reached")
        return max(self._item.ended, self._recorded)

    def wait(self) -> None:
        """Block the calling thread until the event is reached. Raises the error that ended its stream
        before that."""
        self._item.wait()


class HostStream:
    """Work that is done in order, by a thread of its own. After a failure a stream does nothing more,
    and neither does a stream that waits for an event behind that failure."""

    def __init__(self, name: str, engine: HostEngine) -> None:
        self.name, self._engine = name, engine
        self._lock, self._closed, self._progress = threading.Lock(), False, Progress()
        self._last = Item()
        self._last.end(0.0, None)

    def copy(self, target: Any, source: Any) -> None:
        """Enqueue a copy of ``source`` to ``target``, at the pace of the links between them. Raises
        ValueError unless both are contiguous and have the same size and element type, and TypeError for
        anything but an array."""
        self._enqueue(self._engine.copying(target, source, self.name))

    def call(self, work: Callable[[], None]) -> None:
        """Enqueue a call of ``work`` in the stream's thread."""

        def action(ready: float) -> tuple[float, float]:
            work()
            return at(time.perf_counter())

        self._enqueue(action)

    def wait(self, event: EngineEvent) -> None:
        """Let everything enqueued from now on wait for an event. The caller continues at once."""

        def action(ready: float) -> tuple[float, float]:
            event.wait()
            return at(max(ready, event.seconds))

        self._enqueue(action)

    def record(self) -> HostEvent:
        """Return an event at this point in the stream. It takes no entry in the queue."""
        self._open()
        return HostEvent(self._last)

    def synchronise(self) -> None:
        """Block the caller until everything enqueued is done. Raises the error that ended the stream."""
        self._open()
        self._last.wait()

    def close(self) -> None:
        """Accept no more work."""
        with self._lock:
            self._closed = True

    def _open(self) -> None:
        if self._closed:
            raise RuntimeError(f"stream {self.name!r} of {self._engine.place} was closed")

    def _enqueue(self, action: Action) -> None:
        with self._lock:
            self._open()
            item = Item(action)
            self._take(item)
            self._last = item

    def _take(self, item: Item) -> None:
        raise NotImplementedError


class ThreadStream(HostStream):
    """A stream with a thread of its own, which sleeps while it has nothing to do."""

    def __init__(self, name: str, engine: HostEngine) -> None:
        super().__init__(name, engine)
        self._queue = SimpleQueue[Item | None]()
        title = f"demitasse-{engine.place}-{name}"
        # A daemon, so that a process can exit even if somebody forgot to close the engine.
        self._thread = threading.Thread(target=self._work, name=title, daemon=True)
        self._thread.start()

    def _take(self, item: Item) -> None:
        self._queue.put(item)

    def _work(self) -> None:
        wake_precisely()
        while (item := self._queue.get()) is not None:
            self._progress.do(item)
            del item  # an idle stream holds no arrays

    def close(self) -> None:
        """Accept no more work, do what was enqueued, and end the thread."""
        with self._lock:
            if not self._closed:
                self._queue.put(None)
            self._closed = True
        self._thread.join()


class CallersStream(HostStream):
    """The default stream. It works, and waits, in its caller's thread, as the host's kernels do."""

    def wait(self, event: EngineEvent) -> None:
        """Block the caller, because the kernels that come next run in its thread. Raises the error that
        ended the event's stream."""
        self._open()
        event.wait()

    def _take(self, item: Item) -> None:
        self._progress.do(item)
        if item.error is not None and not isinstance(item.error, Exception):
            raise item.error  # an interrupt goes to the caller, now


class HostEngine:
    """A StreamEngine: the streams of the stand-in whose memory is ``place``. ``d2h`` and ``h2d`` are the
    rates of its link, the same for all stand-ins of a machine."""

    def __init__(self, place: str, d2h: Rate | None = None, h2d: Rate | None = None) -> None:
        self.place = place
        self.rates = {"d2h": d2h or Rate(), "h2d": h2d or Rate()}
        default = CallersStream("default", self)
        self.default: EngineStream = default
        self._lock = threading.Lock()
        self._streams: dict[str, HostStream] = {"default": default}
        self._closed = False

    def stream(self, name: str) -> HostStream:
        """Return the stream of that name, making it at the first request."""
        with self._lock:
            self._open()
            if name not in self._streams:
                self._streams[name] = ThreadStream(name, self)
            return self._streams[name]

    def pinned(self, shape: Sequence[int], dtype: str) -> np.ndarray:
        """Return zeroed, page-aligned host memory whose pages are all allocated."""
        self._open()
        return pinned(shape, dtype)

    def close(self) -> None:
        """End the streams once everything enqueued is done."""
        with self._lock:
            self._closed = True
            streams = list(self._streams.values())
        for stream in streams:
            stream.close()

    def _open(self) -> None:
        if self._closed:
            raise RuntimeError(f"the streams of {self.place} were closed")

    def copying(self, target: Any, source: Any, name: str) -> Action:
        """Return the action that copies ``source`` to ``target``. ``name`` is the stream's, for error
        messages. Raises ValueError if the two do not fit each other, and TypeError for anything but an
        array."""
        to, of = fitting(target, source, f"{self.place}, stream {name!r}")
        rate, directions = self._way(target, source)
        if rate.limited:
            return lambda ready: transfer(to, of, rate, directions, ready)

        def action(ready: float) -> tuple[float, float]:
            np.copyto(to, of)
            return at(time.perf_counter())

        return action

    def _way(self, target: np.ndarray, source: np.ndarray) -> tuple[Rate, list[Direction]]:
        """Return the rate of a copy and the directions of links that it occupies: one for a copy between
        an accelerator and the host, two for a copy between accelerators. Memory that is not registered
        counts as this accelerator's in a copy with pinned memory, and as the host's in a copy with an
        accelerator's memory."""
        rate, directions = Rate(), list[Direction]()
        if not any(each.limited for each in self.rates.values()):
            return rate, directions
        of, to = REGISTRY.space(source), REGISTRY.space(target)
        if of is None:
            of = self.place if to == PINNED else PINNED if to else None
        if to is None:
            to = self.place if of == PINNED else PINNED if of else None
        for way, space in (("d2h", of), ("h2d", to)) if of != to else ():
            if space is not None and space != PINNED:
                rate = rate.then(self.rates[way])
                directions.append(direction(space, way))
        return rate, directions


def fitting(target: Any, source: Any, where: str) -> tuple[Bytes, Bytes]:
    """Return the bytes of a copy's target and source. Raises ValueError unless both are contiguous and
    have the same size and element type, and TypeError for anything but an array."""
    for role, array in (("target", target), ("source", source)):
        if not isinstance(array, np.ndarray):
            kind = type(array).__name__
            raise TypeError(f"{where}: a copy's {role} is a {kind} (valid: a NumPy array)")
        if not array.flags.c_contiguous:
            strides = f"shape {array.shape}, strides {array.strides}"
            raise ValueError(f"{where}: a copy's {role} is not contiguous ({strides}); copy whole rows")
    if target.size != source.size or target.dtype != source.dtype:
        both = f"{source.shape} of {source.dtype} to {target.shape} of {target.dtype}"
        raise ValueError(f"{where}: a copy from {both} (valid: as many elements, of the same type)")
    if not target.flags.writeable:
        raise ValueError(f"{where}: a copy's target, {target.shape} of {target.dtype}, is read-only")
    return target.reshape(-1).view(np.uint8), source.reshape(-1).view(np.uint8)
