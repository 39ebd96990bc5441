"""The kit that checks engines: an honest one passes, and each way of breaking a promise is caught."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest

from demitasse_streams import check_engine

pytestmark = pytest.mark.usefixtures("no_threads_left")


class Event:
    """An event that is reached when ``reached`` is set."""

    def __init__(self) -> None:
        self.reached, self.at, self.error = threading.Event(), 0.0, None

    @property
    def done(self) -> bool:
        return self.reached.is_set()

    @property
    def seconds(self) -> float:
        return self.at

    def wait(self) -> None:
        self.reached.wait()
        if self.error is not None:
            raise self.error

    def reach(self, error: Any) -> None:
        self.at, self.error = time.perf_counter(), error
        self.reached.set()


class Stream:
    """A queue and a thread, as plain as can be."""

    def __init__(self, name: str, engine: Any) -> None:
        self.name, self.engine, self.error, self.closed = name, engine, None, False
        self.queue: Any = SimpleQueue()
        self.thread = threading.Thread(target=self.work, daemon=True)
        self.thread.start()

    def work(self) -> None:
        while (item := self.queue.get()) is not None:
            self.do(item)

    def do(self, item: Any) -> None:
        if isinstance(item, Event):
            item.reach(self.error)
        elif self.error is None:
            try:
                item()
            except Exception as error:  # noqa: BLE001  whoever waits gets it
                self.error = error

    def put(self, item: Any) -> None:
        if self.closed:
            raise RuntimeError("closed")
        self.queue.put(item)

    def fit(self, target: Any, source: Any) -> None:
        if (target.size, target.dtype) != (source.size, source.dtype) or not target.flags.c_contiguous:
            raise ValueError(f"{source.shape} {source.dtype} to {target.shape} {target.dtype}")

    def copy(self, target: Any, source: Any) -> None:
        self.fit(target, source)
        self.put(lambda: np.copyto(target.reshape(-1), source.reshape(-1)))

    def call(self, work: Callable[[], None]) -> None:
        self.put(work)

    def wait(self, event: Event) -> None:
        self.put(event.wait)

    def record(self) -> Event:
        event = Event()
        self.put(event)
        return event

    def synchronise(self) -> None:
        self.record().wait()

    def close(self) -> None:
        self.closed = True
        self.queue.put(None)
        self.thread.join()


class Engine:
    """Streams by name."""

    kind: type[Stream] = Stream
    place = "accelerator:0"

    def __init__(self) -> None:
        self.streams: dict[str, Stream] = {}
        self.closed = False
        self.default = self.stream("default")

    def stream(self, name: str) -> Stream:
        if self.closed:
            raise RuntimeError("closed")
        if name not in self.streams:
            self.streams[name] = self.kind(name, self)
        return self.streams[name]

    def pinned(self, shape: Any, dtype: str) -> np.ndarray:
        if self.closed:
            raise RuntimeError("closed")
        return np.zeros(shape, dtype)

    def close(self) -> None:
        self.closed = True
        for stream in self.streams.values():
            stream.close()


def engine_of(kind: type[Stream]) -> Callable[[], Engine]:
    """Return a function that makes engines with such streams."""

    def make() -> Engine:
        made = type("Engine", (Engine,), {"kind": kind})
        return made()

    return make


def test_an_honest_engine_passes() -> None:
    check_engine(Engine)
    check_engine(Engine, elsewhere=np.array)


class CopiesAtOnce(Stream):
    def copy(self, target: Any, source: Any) -> None:
        self.fit(target, source)
        np.copyto(target.reshape(-1), source.reshape(-1))


class CallsBesideCopies(Stream):
    """Makes each call in a thread of its own."""

    def call(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work)
        self.engine.__dict__.setdefault("others", []).append(thread)
        thread.start()

    def close(self) -> None:
        super().close()
        for thread in self.engine.__dict__.get("others", ()):
            thread.join()


class Backwards(Stream):
    """Does the entries that are there when it looks in reverse order."""

    def work(self) -> None:
        going = True
        while going:
            items = [self.queue.get()]
            while not self.queue.empty():
                items.append(self.queue.get())
            going = None not in items
            for item in reversed([item for item in items if item is not None]):
                self.do(item)


class WaitsInTheCaller(Stream):
    def wait(self, event: Event) -> None:
        event.wait()


class CallsInTheCaller(Stream):
    def call(self, work: Callable[[], None]) -> None:
        super().call(work)
        if self.name != "default":
            self.synchronise()


class DoesNotWait(Stream):
    def wait(self, event: Event) -> None:
        self.put(lambda: None)


class ReachedAtOnce(Stream):
    def record(self) -> Event:
        event = super().record()
        event.reach(None)
        return event

    def synchronise(self) -> None:
        super().record().wait()


class ReachedLate(Stream):
    """Events are reached only when nothing else is left to do."""

    def work(self) -> None:
        super().work()
        while not self.queue.empty():
            super().do(self.queue.get())

    def do(self, item: Any) -> None:
        if isinstance(item, Event) and not self.queue.empty():
            self.queue.put(item)
        else:
            super().do(item)


class NeverReached(Stream):
    """Events of a stream in which nothing was done yet are never reached."""

    used = False

    def put(self, item: Any) -> None:
        self.used |= not isinstance(item, Event)
        if self.used or self.closed:
            super().put(item)

    def synchronise(self) -> None:
        if self.used or self.closed:
            super().synchronise()


class AnotherClock(Stream):
    def do(self, item: Any) -> None:
        super().do(item)
        if isinstance(item, Event):
            item.at += 1e6


class SynchronisesAtOnce(Stream):
    def synchronise(self) -> None:
        if self.closed:
            raise RuntimeError("closed")


class SwallowsErrors(Stream):
    def do(self, item: Any) -> None:
        super().do(item)
        self.error = None


class GoesOn(Stream):
    def do(self, item: Any) -> None:
        error, self.error = self.error, None
        super().do(item)
        self.error = self.error or error
        if isinstance(item, Event):
            item.error = self.error


class BlamesTheInnocent(Stream):
    """Events from before a failure raise it too."""

    def do(self, item: Any) -> None:
        if isinstance(item, Event):
            self.__dict__.setdefault("events", []).append(item)
        super().do(item)
        for event in self.__dict__.get("events", ()):
            event.error = self.error


class TakesAnySize(Stream):
    def copy(self, target: Any, source: Any) -> None:
        count = min(target.size, source.size)
        flat = target.reshape(-1)
        self.put(lambda: np.copyto(flat[:count], source.reshape(-1)[:count], casting="unsafe"))


class SaysLittle(Stream):
    def copy(self, target: Any, source: Any) -> None:
        try:
            super().copy(target, source)
        except ValueError:
            raise ValueError("bad copy") from None


class LosesAByte(Stream):
    def copy(self, target: Any, source: Any) -> None:
        super().copy(target, source)
        if target.size > 60_000:
            self.put(lambda: target.reshape(-1)[-1:].fill(1))


class DropsWork(Stream):
    def close(self) -> None:
        self.do = lambda item: None  # type: ignore[method-assign]
        super().close()


class OneThreadsOwn(Stream):
    """Ignores what is enqueued by any thread other than its first user."""

    owner: Any = None

    def put(self, item: Any) -> None:
        self.owner = self.owner or threading.current_thread()
        if self.owner is threading.current_thread() or isinstance(item, Event):
            super().put(item)


class WorksOn(Stream):
    def put(self, item: Any) -> None:
        self.do(item) if self.closed else super().put(item)


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (LosesAByte, "A copy gives the target the source's bits"),
        (TakesAnySize, "A copy of arrays that disagree in size or type"),
        (SaysLittle, r"the error does not name \(5,\), \(12,\)"),
        (CopiesAtOnce, "Work in one stream is done in order"),
        (CallsBesideCopies, "Work in one stream is done in order"),
        (Backwards, "A copy gives the target|Work in one stream is done in order"),
        (CallsInTheCaller, "Work in one stream is done in order"),
        (WaitsInTheCaller, "nothing but an event's wait and synchronise makes the caller wait"),
        (DoesNotWait, "What is enqueued behind a wait|waits of a stream return at once"),
        (ReachedLate, "what is before the wait is not held up"),
        (NeverReached, "An event of a stream with nothing to do is reached at once"),
        (AnotherClock, "by the clock of time.perf_counter"),
        (SynchronisesAtOnce, "A copy gives the target the source's bits|synchronise"),
        (SwallowsErrors, "An error that a call raises is raised .* But wait raised nothing"),
        (GoesOn, r"calls that follow are not made.*\[1, 2"),
        (BlamesTheInnocent, "not of earlier ones"),
        (DropsWork, "Close ends the streams once what is enqueued is done"),
        (OneThreadsOwn, "Any thread may enqueue in a stream"),
        (WorksOn, "After close all use raises RuntimeError"),
    ],
)
def test_a_stream_that_breaks_a_promise_is_caught(kind: type[Stream], sentence: str) -> None:
    with pytest.raises(AssertionError, match=f"(?s){sentence}"):
        check_engine(engine_of(kind), bound=1.0)


def test_an_event_that_is_there_too_early_is_caught() -> None:
    with pytest.raises(AssertionError, match=r"But work that was held was done|an event was reached"):
        check_engine(engine_of(ReachedAtOnce), bound=1.0)


class OneThread(Engine):
    """All streams share the thread of one."""

    def stream(self, name: str) -> Stream:
        stream = super().stream(name)
        first = self.streams["default"]
        if stream is not first and stream.queue is not first.queue:
            stream.close()
            stream.closed, stream.queue, stream.thread = False, first.queue, threading.Thread()
            stream.close = lambda: setattr(stream, "closed", True)  # type: ignore[method-assign]
        return stream


class Forgets(Engine):
    def stream(self, name: str) -> Stream:
        made = super().stream(name)
        self.streams[f"{name} {len(self.streams)}"] = self.streams.pop(name)
        return made


class Dirty(Engine):
    def pinned(self, shape: Any, dtype: str) -> np.ndarray:
        return np.ones_like(super().pinned(shape, dtype))


class Hangs(Engine):
    """Its ``close`` waits for something that never comes, until it is released."""

    released = threading.Event()

    def close(self) -> None:
        super().close()
        self.released.wait()


class LeavesThreads(Engine):
    left: list[threading.Thread] = []
    enough = threading.Event()

    def close(self) -> None:
        super().close()
        self.left.append(threading.Thread(target=self.enough.wait))
        self.left[-1].start()


@pytest.mark.parametrize(
    ("engine", "sentence"),
    [
        (OneThread, "Streams run beside each other"),
        (Forgets, "is the same when it is asked for again"),
        (Dirty, "Pinned memory .* But it is not zero"),
    ],
)
def test_an_engine_that_breaks_a_promise_is_caught(engine: type[Engine], sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence):
        check_engine(engine, bound=1.0)


def test_an_engine_that_hangs_is_an_error_and_no_hang() -> None:
    with pytest.raises(AssertionError, match=r"But the check did not end within 0\.6 s") as error:
        check_engine(Hangs, bound=0.2)
    assert "its threads are in test_stream_conformance.py:" in str(error.value)
    assert "(close) of bench.py:" in str(error.value)
    Hangs.released.set()
    for thread in threading.enumerate():
        if thread.name.startswith("check_engine"):
            thread.join()


def test_a_thread_that_stays_behind_is_named() -> None:
    with pytest.raises(
        AssertionError, match=r"Close leaves no thread behind.*threads are left: Thread-"
    ):
        check_engine(LeavesThreads)
    LeavesThreads.enough.set()
    for thread in LeavesThreads.left:
        thread.join()


def test_an_error_of_the_engine_is_the_cause() -> None:
    def make() -> Any:
        raise OSError("no such device")

    with pytest.raises(AssertionError, match="But OSError: no such device") as caught:
        check_engine(make)
    assert isinstance(caught.value.__cause__, OSError)
