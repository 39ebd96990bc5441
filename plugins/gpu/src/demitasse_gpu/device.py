"""The devices of this process, each with its driver, its default stream, and its memory pool."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from demitasse import CompositionError, local_rank, process_lock
from demitasse_gpu.in_turn import InTurn
from demitasse_gpu.options import Options
from demitasse_gpu.pool import PinnedPool, Pool

if TYPE_CHECKING:
    from demitasse_gpu.driver import Driver, Function, Handle
    from demitasse_gpu.launch import Row

SPACE = "gpu"
_MAKING = process_lock()


class Device:
    """One device. All kernels and library calls of its worker go to ``stream``. ``graphs`` says whether
    consecutive works become graphs; ``remember``, whether the choices among libraries' engines are kept
    on disk. ``opened`` has the libraries that were opened for the device, by name."""

    def __init__(self, driver: Driver, graphs: bool = True, remember: bool = True) -> None:
        self.graphs, self.remember = graphs, remember
        self.number, self.space = driver.number, f"{SPACE}:{driver.number}"
        self.stream: Handle = driver.stream()
        self.turn = threading.RLock()
        """Held by the thread, of several, that may enqueue in the stream or capture works."""

        self.driver = cast("Driver", InTurn(driver, self.stream, self.turn))
        self.pool, self.pinned = Pool(self.driver, self.stream), PinnedPool(driver)
        self.opened: dict[str, Any] = {}
        self.functions: dict[str, Function] = {}
        self.capturing = False
        """Whether what is enqueued in the stream goes into a graph instead of being executed."""

        self._rows: weakref.WeakSet[Row] = weakref.WeakSet()
        self._lock = threading.Lock()

    def function(self, source: str, name: str, options: tuple[str, ...] = ()) -> Function:
        """Return a kernel of CUDA source text."""
        return self.driver.function(source, name, options)

    def synchronise(self) -> None:
        """Wait until everything in the default stream is done."""
        self.driver.synchronise(self.stream)

    def keep_row(self, row: Row) -> None:
        """Register a row of works that has run, for as long as it may run again."""
        with self._lock:
            self._rows.add(row)

    def is_shared(self) -> bool:
        """Return whether another thread that is still alive has run a row of works on this device."""
        with self._lock:
            threads = {row.thread for row in self._rows} - {None, threading.current_thread()}
        return any(thread is not None and thread.is_alive() for thread in threads)

    def keep_graph(self, owner: object, graph: Handle) -> None:
        """Destroy ``graph`` when its owner is gone."""
        weakref.finalize(owner, self.driver.end_graph, graph).atexit = False

    def __repr__(self) -> str:
        return f"<{self.space}, {self.driver.properties.name}>"


def device(space: str, options: Mapping[str, Any]) -> Device | None:
    """Return the device of a memory space, the same object for every caller, or None for a space of
    another plugin. ``gpu`` is the process's own device: devices are assigned in turn, by the process's
    number on its host."""
    kind, _, number = space.partition(":")
    if kind != SPACE:
        return None
    asked = Options.read(options)
    if number and not number.isdecimal():
        raise CompositionError(
            f"memory space {space!r}: give the device's number after the colon, as in gpu:0"
        )
    make = asked.driver or _cupy
    with _MAKING:  # otherwise threads that come at once would each get a device object of their own
        return _device(make, int(number) if number else _mine(), asked.graphs, asked.remember)


def _cupy(number: int) -> Driver:
    from demitasse_gpu.cupy_driver import CupyDriver

    return CupyDriver(number)


@lru_cache(maxsize=64)
def _device(make: Callable[[int], Driver], number: int, graphs: bool, remember: bool) -> Device:
    return Device(make(number), graphs, remember)


def _mine() -> int:
    from demitasse_gpu.machine import device_count

    return (local_rank() or 0) % max(1, device_count())
