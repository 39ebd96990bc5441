"""A driver whose device is the host: kernels run when they are launched, copies when they are
requested."""

from __future__ import annotations

import ctypes
import functools
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from cuda_on_cpu.compilation import EmulatedFunction, compiled
from demitasse import WorkerError
from demitasse_gpu.driver import Properties

_BLOCKS = threading.Lock()
"""Blocks keep their threads' stacks and indices in one place, so one kernel runs at a time."""

_GARBAGE = 0xFF
"""New memory is filled with it: NaN, if it is read as real numbers."""


class EmulatedDriver:
    """Implements ``demitasse_gpu.driver.Driver``. Addresses are those of host memory. The device's
    ``memory`` bytes are known, and launches accept only addresses in them. ``launches`` counts the
    kernels that ran, by name.

    A device may run blocks and warps in any order, and copies asynchronously at any time. Here either
    the first thread begins and copies are made at once, or, if ``backward``, the last one begins and
    copies are made when they are waited for. If ``backward`` is None, the launch's name and extents
    decide."""

    def __init__(
        self,
        number: int = 0,
        memory: int = 2**32,
        multiprocessors: int = 2,
        backward: bool | None = None,
    ) -> None:
        self.number, self.backward = number, backward
        self.properties = Properties(
            "CUDA on this CPU", (9, 0), memory, multiprocessors, 48 * 2**10, 13000
        )
        self.launches: dict[str, int] = {}
        self._device: dict[int, np.ndarray] = {}
        self._pinned: dict[int, np.ndarray] = {}
        self._next, self._streams = 1, set[int]()
        self._times: dict[int, float] = {}
        self._captured: dict[int, list[Callable[[], None]]] = {}
        self._graphs: dict[int, list[Callable[[], None]]] = {}
        self._over: deque[tuple[Callable[[Any], object], Any]] = deque()

    def enter(self) -> None:
        """Do nothing, as there is only one device."""

    def memory(self) -> tuple[int, int]:
        whole = self.properties.memory
        return whole - sum(block.nbytes for block in self._device.values()), whole

    def allocate(self, nbytes: int) -> int:
        free, whole = self.memory()
        if nbytes > free:
            raise MemoryError(f"{nbytes} bytes asked for, {free} of {whole} are free")
        return self._take(self._device, nbytes)

    def free(self, address: int) -> None:
        self._give(self._device, address)

    def allocate_pinned(self, nbytes: int) -> int:
        return self._take(self._pinned, nbytes)

    def free_pinned(self, address: int) -> None:
        self._give(self._pinned, address)

    def copy(self, target: int, source: int, nbytes: int, kind: str, stream: int) -> None:
        for address, where in ((source, kind[0]), (target, kind[2])):
            if (self._holds(address, nbytes)) != (where == "d"):
                raise ValueError(
                    f"a copy {kind}: {address:#x} is not such memory, or not {nbytes} of it"
                )
        self._do(stream, functools.partial(ctypes.memmove, target, source, nbytes))

    def clear(self, target: int, nbytes: int, stream: int) -> None:
        if not self._holds(target, nbytes):
            raise ValueError(f"{nbytes} bytes at {target:#x} to clear are not the device's memory")
        self._do(stream, functools.partial(ctypes.memset, target, 0, nbytes))

    def stream(self) -> int:
        self._streams.add(handle := self._handle())
        return handle

    def end_stream(self, stream: int) -> None:
        self._streams.remove(stream)

    def synchronise(self, stream: int) -> None:
        self._known(stream)
        self._forget()

    def event(self) -> int:
        self._times[handle := self._handle()] = 0.0
        return handle

    def end_event(self, event: int) -> None:
        del self._times[event]

    def record(self, event: int, stream: int) -> None:
        self._do(stream, lambda: self._times.__setitem__(event, time.perf_counter()))

    def reached(self, event: int) -> bool:
        return event in self._times

    def wait(self, event: int) -> None:
        self._times[event]
        self._forget()

    def wait_in_stream(self, stream: int, event: int) -> None:
        self._known(stream)
        self._times[event]

    def seconds_between(self, first: int, last: int) -> float:
        return self._times[last] - self._times[first]

    def call(self, stream: int, work: Callable[[], None]) -> None:
        self._do(stream, work)

    def function(self, source: str, name: str, options: Sequence[str] = ()) -> EmulatedFunction:
        return compiled().function(source, name, options)

    def launch(
        self,
        function: EmulatedFunction,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        arguments: Sequence[Any],
        shared: int,
        stream: int,
    ) -> None:
        if shared:
            raise ValueError(f"{function.name}: dynamic shared memory is not emulated")
        if not 0 < block[0] * block[1] * block[2] <= 1024 or min(grid) < 1 or max(grid[1:]) > 65535:
            raise ValueError(f"{function.name}: no device runs a grid {grid} of blocks {block}")
        values = self._values(function, arguments)
        self._do(stream, functools.partial(self._run, function, grid, block, values))

    def begin_capture(self, stream: int) -> None:
        self._known(stream)
        if stream in self._captured:
            raise RuntimeError(f"stream {stream} is captured already")
        self._captured[stream] = []

    def end_capture(self, stream: int) -> int:
        if stream not in self._captured:
            raise WorkerError(f"stream {stream} is not captured")
        self._graphs[handle := self._handle()] = self._captured.pop(stream)
        return handle

    def launch_graph(self, graph: int, stream: int) -> None:
        if stream in self._captured:
            raise WorkerError("launch graph: cudaErrorStreamCaptureUnsupported: not permitted")
        for work in self._graphs[graph]:
            self._do(stream, work)

    def end_graph(self, graph: int) -> None:
        del self._graphs[graph]

    def later(self, end: Callable[[Any], object], handle: Any) -> None:
        self._over.append((end, handle))

    def _forget(self) -> None:
        with suppress(IndexError):
            while True:
                end, handle = self._over.popleft()
                end(handle)

    def _run(
        self,
        function: EmulatedFunction,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        values: Sequence[np.ndarray],
    ) -> None:
        places = (ctypes.c_void_p * max(1, len(values)))(*[value.ctypes.data for value in values])
        extents = [(ctypes.c_uint * 3)(*extent) for extent in (grid, block)]
        backward = self.backward
        if backward is None:
            backward = bool(zlib.crc32(f"{function.name}{grid}{block}".encode()) & 1)
        with _BLOCKS:
            wrong = function.run(*extents, places, ctypes.c_int(backward))
        if wrong:
            raise RuntimeError(f"{function.name}: some threads of a block ended while others waited")
        self.launches[function.name] = self.launches.get(function.name, 0) + 1

    def _values(self, function: EmulatedFunction, arguments: Sequence[Any]) -> list[np.ndarray]:
        """Return arguments as memory that a kernel's parameters are read from, each in its parameter's
        type."""
        if len(arguments) != len(function.kinds):
            raise TypeError(
                f"{function.name} takes {len(function.kinds)} arguments, not {len(arguments)}"
            )
        values = []
        for i, (argument, kind, size) in enumerate(
            zip(arguments, function.kinds, function.sizes, strict=True)
        ):
            if kind == "p":
                if not isinstance(argument, int) or (argument and not self._holds(argument, 1)):
                    raise TypeError(f"{function.name}: argument {i}, {argument!r}, is no device address")
                values.append(np.array([argument], np.uint64))
                continue
            letter = {"V": "s"}.get(getattr(argument, "dtype", np.dtype("O")).kind, "")
            letter = letter or getattr(argument, "dtype", np.dtype("O")).kind
            if letter != kind or argument.dtype.itemsize != size:
                raise TypeError(
                    f"{function.name}: argument {i} is {type(argument).__name__}, the parameter is of "
                    f"kind {kind!r} and {size} bytes"
                )
            values.append(np.array([argument], argument.dtype))
        return values

    def _do(self, stream: int, work: Callable[[], object]) -> None:
        self._known(stream)
        if stream in self._captured:
            self._captured[stream].append(work)
        else:
            work()

    def _known(self, stream: int) -> None:
        if stream not in self._streams:
            raise ValueError(f"there is no stream {stream}")

    def _handle(self) -> int:
        self._next += 1
        return self._next

    def _holds(self, address: int, nbytes: int) -> bool:
        return any(
            start <= address and address + nbytes <= start + b.nbytes
            for start, b in self._device.items()
        )

    def _take(self, blocks: dict[int, np.ndarray], nbytes: int) -> int:
        room = np.full(nbytes + 256, _GARBAGE, np.uint8)
        address = -(-room.ctypes.data // 256) * 256
        block = room[address - room.ctypes.data :][:nbytes]
        blocks[address] = block
        return address

    def _give(self, blocks: dict[int, np.ndarray], address: int) -> None:
        if address not in blocks:
            raise ValueError(f"{address:#x} was never allocated, or is free already")
        del blocks[address]
