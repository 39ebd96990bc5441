"""Works in a device's default stream: launches of kernels, library calls, and graphs of both."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from demitasse import DemitasseError
from demitasse_gpu.array import DeviceArray

if TYPE_CHECKING:
    from demitasse import Work
    from demitasse_gpu.device import Device
    from demitasse_gpu.driver import Function, Handle

log = logging.getLogger("demitasse.gpu")

_WARM = 1
"""The number of times that a row of works is called one by one before it is captured: in their first
call, libraries load code and set up what cannot be captured."""


class Launch:
    """One launch of a kernel. ``arguments`` are DeviceArrays (passed by address; None is a null
    address), addresses, or NumPy scalars of the parameters' types. What they hold in memory is read when
    the kernel runs. This work keeps their memory alive."""

    def __init__(
        self,
        device: Device,
        function: Function,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        arguments: Sequence[Any],
        shared: int = 0,
    ) -> None:
        self.join, self.device = _join, device
        self._function, self._shared, self._held = function, shared, tuple(arguments)
        self._grid, self._block = _extent(grid), _extent(block)
        self._arguments = tuple(
            each.address if isinstance(each, DeviceArray) else 0 if each is None else each
            for each in arguments
        )
        self._launch, self._stream = device.driver.launch, device.stream
        self.told: object = None
        """What a preceding launch may use to do this launch's work too (see united.py)."""

        self.with_next: Callable[[Launch], Launch | Sequence[Launch] | None] | None = None
        """Given the next launch, returns what does the work of both, or None if nothing does."""

    def __call__(self) -> None:
        self._launch(
            self._function, self._grid, self._block, self._arguments, self._shared, self._stream
        )


class Call:
    """A call into a library, ``call(stream)``. It only enqueues work, so it can be captured. ``held`` is
    kept alive as long as it may be called."""

    def __init__(self, device: Device, call: Callable[[int], object], held: object = None) -> None:
        self.join, self.device = _join, device
        self._call, self._held, self._stream = call, held, device.stream

    def __call__(self) -> None:
        with self.device.turn:
            self.device.driver.enter()
            self._call(self._stream)


class Row:
    """Consecutive works as one. They are first called one by one, then captured into a graph, which is
    launched from then on. If no graph can be made (too little memory, a library call that cannot be
    captured), they are always called one by one. Numbers that change from step to step are in device
    memory, so the graph stays valid.

    If another thread drives the device too (two workers that a description puts on one device), nothing
    is captured: what that thread enqueues meanwhile would go into the graph, and not be executed."""

    def __init__(self, device: Device, works: Sequence[Launch | Call]) -> None:
        self.join, self.device, self.works = _join, device, tuple(_united(works))
        self._calls, self._graph, self._ungraphed = 0, 0, False
        self.thread: threading.Thread | None = None

    def __call__(self) -> None:
        with self.device.turn:
            self._run()

    def _run(self) -> None:
        driver, stream = self.device.driver, self.device.stream
        if self._graph:
            driver.launch_graph(self._graph, stream)
            return
        if not self._calls:
            self.device.keep_row(self)
        self.thread = threading.current_thread()  # the thread object: an ended thread's number is reused
        self._calls += 1
        ready = self._calls > _WARM and self.device.graphs and not self._ungraphed
        if not ready or self.device.is_shared():
            self._enqueue()
            return
        try:
            graph = captured(self.device, self._enqueue)
        except (DemitasseError, MemoryError) as error:
            # Nothing was executed yet. If the works themselves are wrong, this call raises their error.
            self._enqueue()
            self._ungraphed = True
            log.warning(
                "%d launches go one by one, as they could not become a graph: %s", len(self.works), error
            )
            return
        self._graph = graph
        self.device.keep_graph(self, graph)
        driver.launch_graph(graph, stream)

    def _enqueue(self) -> None:
        for work in self.works:
            work()


class Checked(Row):
    """A row of works with a check. If the row is called alone, as the search for an error does,
    ``check`` follows: it may read the results, and raises an error if they are wrong. In a step, the
    works are part of a longer row, which does not check."""

    def __init__(
        self, device: Device, works: Sequence[Launch | Call], check: Callable[[], None]
    ) -> None:
        super().__init__(device, works)
        self._check = check

    def __call__(self) -> None:
        super().__call__()
        self._check()


def captured(device: Device, enqueue: Callable[[], None]) -> Handle:
    """Return the graph of what ``enqueue`` enqueues in the device's stream. Its errors are raised after
    the capture has ended."""
    driver, stream = device.driver, device.stream
    device.capturing = True
    try:
        driver.begin_capture(stream)
        enqueue()
    except BaseException:
        # A capture that failed, or never began, has no graph.
        with contextlib.suppress(DemitasseError, MemoryError):
            driver.end_graph(driver.end_capture(stream))
        raise
    finally:
        device.capturing = False
    return driver.end_capture(stream)


def _united(works: Sequence[Launch | Call]) -> list[Launch | Call]:
    """Return the works, with two consecutive launches replaced by what does both, if that exists."""
    found: list[Launch | Call] = []
    for work in works:
        before = found[-1] if found else None
        if isinstance(before, Launch) and isinstance(work, Launch) and before.with_next is not None:
            both = before.with_next(work)
            if both is not None:
                found[-1:] = [both] if isinstance(both, Launch) else both
                continue
        found.append(work)
    return found


def in_order(works: Sequence[Work]) -> Work:
    """Return a work that does ``works`` (possibly none) one after the other."""
    if len(works) == 1:
        return works[0]
    if works and all(isinstance(work, Launch | Call | Row) for work in works):
        return _join(works)  # type: ignore[arg-type]

    def run() -> None:
        for work in works:
            work()

    return run


def _join(works: Sequence[Launch | Call | Row]) -> Work:
    """Return consecutive works as one. All works of a step are on one device."""
    if len(works) == 1 and not isinstance(works[0], Checked):
        return works[0]
    parts = [part for work in works for part in (work.works if isinstance(work, Row) else [work])]
    return Row(works[0].device, parts)


def _extent(extent: int | Sequence[int]) -> tuple[int, int, int]:
    sizes = (extent,) if isinstance(extent, int) else tuple(extent)
    x, y, z = (*sizes, 1, 1, 1)[:3]
    return x, y, z
