"""A driver whose streams are threads: works run beside the caller, as on a GPU, so that a missing wait
is found."""

from __future__ import annotations

import ctypes
import itertools
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from cuda_on_cpu.driver import EmulatedDriver

_NAME = "demitasse-gpu-stand-in"
_HANDLES = itertools.count(1)
_MARKS: dict[int, threading.Event] = {}
"""By event; streams of other devices may wait for them too."""


class ThreadedDriver(EmulatedDriver):
    """An EmulatedDriver in which each stream is a thread. A stream's first error is raised when it is
    waited for. Pageable memory is copied before ``copy`` returns, as by CUDA."""

    def __init__(self, number: int = 0, **about: Any) -> None:
        super().__init__(number, **about)
        self._queues: dict[int, SimpleQueue[Callable[[], None] | None]] = {}
        self._threads: dict[int, threading.Thread] = {}
        self._errors: list[BaseException] = []

    def stream(self) -> int:
        handle = super().stream()
        queue = self._queues[handle] = SimpleQueue()
        name = f"{_NAME}-{self.number}-{handle}"
        thread = threading.Thread(target=self._serve, args=(queue,), name=name, daemon=True)
        self._threads[handle] = thread
        thread.start()
        return handle

    def end_stream(self, stream: int) -> None:
        super().end_stream(stream)
        self._queues.pop(stream).put(None)
        self._threads.pop(stream).join()

    def copy(self, target: int, source: int, nbytes: int, kind: str, stream: int) -> None:
        if kind == "h2d" and not self._is_pinned(source):
            held = ctypes.create_string_buffer(ctypes.string_at(source, nbytes), nbytes)
            if not self._holds(target, nbytes):
                raise ValueError(f"a copy {kind}: {target:#x} is not the device's memory")
            self._do(stream, lambda: ctypes.memmove(target, held, nbytes))
            return
        if kind == "d2d":  # possibly another device's
            self._do(stream, lambda: ctypes.memmove(target, source, nbytes))
            return
        super().copy(target, source, nbytes, kind, stream)
        if not all(k == "d" or self._is_pinned(a) for a, k in ((source, kind[0]), (target, kind[2]))):
            self.synchronise(stream)

    def synchronise(self, stream: int) -> None:
        self._known(stream)
        reached = threading.Event()
        self._queues[stream].put(reached.set)
        reached.wait()
        self._raise()
        self._forget()

    def event(self) -> int:
        handle = super().event()
        _MARKS[handle] = threading.Event()
        _MARKS[handle].set()
        return handle

    def record(self, event: int, stream: int) -> None:
        mark = _MARKS[event] = threading.Event()

        def reach() -> None:
            self._times[event] = time.perf_counter()
            mark.set()

        self._queues[stream].put(reach)

    def reached(self, event: int) -> bool:
        return _MARKS[event].is_set()

    def wait(self, event: int) -> None:
        _MARKS[event].wait()
        self._raise()
        self._forget()

    def wait_in_stream(self, stream: int, event: int) -> None:
        self._known(stream)
        mark = _MARKS[event]
        self._queues[stream].put(lambda: mark.wait() and None)

    def seconds_between(self, first: int, last: int) -> float:
        assert self.reached(first)
        assert self.reached(last)
        return super().seconds_between(first, last)

    def _do(self, stream: int, work: Callable[[], object]) -> None:
        self._known(stream)
        if stream in self._captured:
            self._captured[stream].append(work)
        else:
            self._queues[stream].put(lambda: work() and None)

    def end_event(self, event: int) -> None:
        super().end_event(event)
        del _MARKS[event]

    def _handle(self) -> int:
        return next(_HANDLES)

    def _is_pinned(self, address: int) -> bool:
        return any(start <= address < start + block.nbytes for start, block in self._pinned.items())

    def _raise(self) -> None:
        if self._errors:
            raise self._errors[0]

    def _serve(self, queue: SimpleQueue[Callable[[], None] | None]) -> None:
        while (work := queue.get()) is not None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - raised by who waits
                self._errors.append(error)
