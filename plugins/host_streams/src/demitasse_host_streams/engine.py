"""The streams of a stand-in accelerator: each a thread, the default one the caller's own."""

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
"""What a stream does: given when it could begin, it says until when the stream was busy, and when it was
really over (``link.transfer`` says how they differ), all by ``time.perf_counter``."""


class Item:
    """One thing enqueued in a stream: what to do and when it was enqueued; once it is ``over``, when it
    ended and the error that ended its stream by then."""

    def __init__(self, action: Action | None = None) -> None:
        self.action, self.enqueued = action, time.perf_counter()
        self.over, self.ended = False, 0.0
        self.error: BaseException | None = None
        # Held until it is over. Measured: 0.1 us to make, where a threading.Event takes 1.5.
        self._gate = threading.Lock()
        self._gate.acquire()

    def wait(self) -> None:
        """Let the caller wait until it is over. Raises the error that ended its stream."""
        if not self.over:
            with self._gate:
                pass
        if self.error is not None:
            raise self.error

    def end(self, ended: float, error: BaseException | None) -> None:
        """It is over: let go who waits for it, and the arrays that it held."""
        self.action, self.ended, self.error, self.over = None, ended, error, True
        self._gate.release()


def at(moment: float) -> tuple[float, float]:
    """What an action returns that was over when the stream was free again."""
    return moment, moment


class Progress:
    """How far a stream is: busy until when by the links' reckoning, its last item over when, and the
    error that ended it."""

    def __init__(self) -> None:
        self.busy = self.ended = 0.0
        self.error: BaseException | None = None

    def do(self, item: Item) -> None:
        """Do the next item, unless one before it failed."""
        if self.error is None and item.action is not None:
            try:
                self.busy, ended = item.action(max(self.busy, item.enqueued))
                self.ended = max(self.ended, ended)
            except BaseException as raised:  # noqa: BLE001  whoever waits gets it, whatever it is
                self.error, self.ended = raised, time.perf_counter()
        item.end(self.ended, self.error)


class HostEvent:
    """A point in a stream: behind ``item``, the last one enqueued before it."""

    def __init__(self, item: Item) -> None:
        self._item, self._recorded = item, time.perf_counter()

    @property
    def done(self) -> bool:
        """Whether it was reached."""
        return self._item.over

    @property
    def seconds(self) -> float:
        """When it was reached, by the link's reckoning where that was a copy's end: not when a thread
        woke to see it. Raises RuntimeError before it was."""
        if not self._item.over:
            raise RuntimeError("the time of an event was asked for before the event was reached")
        return max(self._item.ended, self._recorded)

    def wait(self) -> None:
        """Let the calling thread wait until it is reached. Raises the error that ended its stream
        before that."""
        self._item.wait()


class HostStream:
    """Work that is done in order by a thread of its own. One that failed does nothing more; so does one
    that waits for an event behind that failure."""

    def __init__(self, name: str, engine: HostEngine) -> None:
        self.name, self._engine = name, engine
        self._lock, self._closed, self._progress = threading.Lock(), False, Progress()
        self._last = Item()
        self._last.end(0.0, None)

    def copy(self, target: Any, source: Any) -> None:
        """Copy ``source`` to ``target`` at the pace of the links between them. Raises ValueError for two
        that are not contiguous arrays of one size and element type, TypeError for anything but an
        array."""
        self._enqueue(self._engine.copying(target, source, self.name))

    def call(self, work: Callable[[], None]) -> None:
        """Call ``work`` in the stream's thread."""

        def action(ready: float) -> tuple[float, float]:
            work()
            return at(time.perf_counter())

        self._enqueue(action)

    def wait(self, event: EngineEvent) -> None:
        """Let what is enqueued from now on wait for an event; the caller goes on."""

        def action(ready: float) -> tuple[float, float]:
            event.wait()
            return at(max(ready, event.seconds))

        self._enqueue(action)

    def record(self) -> HostEvent:
        """The point in the stream that is here now. Costs no entry of the queue."""
        self._open()
        return HostEvent(self._last)

    def synchronise(self) -> None:
        """Let the caller wait until all that was enqueued is done. Raises the error that ended it."""
        self._open()
        self._last.wait()

    def close(self) -> None:
        """Take nothing more."""
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
    """A stream with a thread of its own, which sleeps while there is nothing to do."""

    def __init__(self, name: str, engine: HostEngine) -> None:
        super().__init__(name, engine)
        self._queue = SimpleQueue[Item | None]()
        title = f"demitasse-{engine.place}-{name}"
        # A daemon: whoever forgets to close an engine can still leave.
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
        """Take nothing more, do what was enqueued, and end the thread."""
        with self._lock:
            if not self._closed:
                self._queue.put(None)
            self._closed = True
        self._thread.join()


class CallersStream(HostStream):
    """The default stream: work is done at once in the caller's thread, as kernels on the host are, and
    so is waiting."""

    def wait(self, event: EngineEvent) -> None:
        """Let the caller wait: kernels that run here next run in its thread. Raises the error that
        ended the event's stream."""
        self._open()
        event.wait()

    def _take(self, item: Item) -> None:
        self._progress.do(item)
        if item.error is not None and not isinstance(item.error, Exception):
            raise item.error  # an interrupt is the caller's, now


class HostEngine:
    """The streams of the stand-in whose memory is ``place``: a StreamEngine. ``d2h`` and ``h2d`` are
    the rates of its link, which all stand-ins of a machine have alike."""

    def __init__(self, place: str, d2h: Rate | None = None, h2d: Rate | None = None) -> None:
        self.place = place
        self.rates = {"d2h": d2h or Rate(), "h2d": h2d or Rate()}
        default = CallersStream("default", self)
        self.default: EngineStream = default
        self._lock = threading.Lock()
        self._streams: dict[str, HostStream] = {"default": default}
        self._closed = False

    def stream(self, name: str) -> HostStream:
        """The stream of that name, made when it is first asked for."""
        with self._lock:
            self._open()
            if name not in self._streams:
                self._streams[name] = ThreadStream(name, self)
            return self._streams[name]

    def pinned(self, shape: Sequence[int], dtype: str) -> np.ndarray:
        """Zeroed host memory, begun at a page, all of its pages taken."""
        self._open()
        return pinned(shape, dtype)

    def close(self) -> None:
        """End the streams once what is enqueued is done."""
        with self._lock:
            self._closed = True
            streams = list(self._streams.values())
        for stream in streams:
            stream.close()

    def _open(self) -> None:
        if self._closed:
            raise RuntimeError(f"the streams of {self.place} were closed")

    def copying(self, target: Any, source: Any, name: str) -> Action:
        """What copies ``source`` to ``target``; ``name`` is the stream's, for messages. Raises
        ValueError for two that do not fit each other, TypeError for anything but an array."""
        to, of = fitting(target, source, f"{self.place}, stream {name!r}")
        rate, directions = self._way(target, source)
        if rate.limited:
            return lambda ready: transfer(to, of, rate, directions, ready)

        def action(ready: float) -> tuple[float, float]:
            np.copyto(to, of)
            return at(time.perf_counter())

        return action

    def _way(self, target: np.ndarray, source: np.ndarray) -> tuple[Rate, list[Direction]]:
        """The rate of a copy, and the directions of links that it goes over: from an accelerator to
        the host, from the host to one, from one to another over both. Memory that nobody noted is this
        accelerator's beside pinned memory, the host's beside an accelerator's."""
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
    """The bytes of a copy's target and source. Raises ValueError for two that are not contiguous arrays
    of one size and element type, TypeError for anything but an array."""
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
