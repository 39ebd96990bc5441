"""A driver for GPUs, through CuPy's bindings of CUDA's run-time, driver and compiler.

It needs CuPy 14.1 or newer (``problems.OLDEST_CUPY`` says why).
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from typing import Any, TypeVar

import numpy as np

from demitasse import process_lock
from demitasse_gpu.compiled import CompiledKernels
from demitasse_gpu.driver import Address, Argument, Extent, Function, Handle, Properties
from demitasse_gpu.problems import does_not_compile, explained, no_compiler, no_cupy, old_cupy

F = TypeVar("F", bound=Callable[..., Any])

NOT_READY = 600
DYNAMIC_SHARED_MEMORY = 8
"""CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES."""
USUAL_SHARED_MEMORY = 48 * 2**10
KINDS = {"h2h": 0, "h2d": 1, "d2h": 2, "d2d": 4}
"""cudaMemcpyKind. For ``d2d``, the addresses tell which devices."""

THROUGH_THE_HOST = (46, 217, 704, 711)
"""Errors of enabling peer access that are ignored: the peer belongs to another process, access is not
supported, it is enabled already, or there are too many peers."""

_LOCK = process_lock()
_DRIVEN: set[int] = set()
"""The devices that this process drives."""


def _here(method: F) -> F:
    """Wrap a method: make the driver's device current first, and raise CUDA's errors as ``explained``
    words them."""
    doing = method.__name__.replace("_", " ").strip()

    @wraps(method)
    def call(self: CupyDriver, *arguments: Any) -> Any:
        try:
            # Set it at every call. Other code in this process may have selected another device in this
            # thread. And a new thread reports device 0 while it has no context yet, without which calls
            # of the driver API, about modules and kernels, fail.
            self._runtime.setDevice(self.number)
            return method(self, *arguments)
        except RuntimeError as error:
            code = getattr(error, "status", None)
            if code is None:
                raise
            raise explained(int(code), str(error), doing, f"gpu:{self.number}") from error

    return call  # type: ignore[return-value]


class CupyDriver:
    """The driver of one device, by CUDA's number. Raises CompositionError if CuPy or the device is
    missing, or if CuPy or CUDA's driver is too old."""

    def __init__(self, number: int = 0) -> None:
        try:
            import cupy
            from cupy.cuda import driver, runtime
        except ImportError as error:
            raise no_cupy(str(error)) from error
        if reason := old_cupy(cupy.__version__):
            raise no_cupy(reason)
        self.number, self._runtime, self._driver = number, runtime, driver
        self._kernels: dict[tuple[str, str, tuple[str, ...]], Function] = {}
        self._modules: dict[tuple[str, tuple[str, ...]], int] = {}
        self._lock = threading.Lock()
        self._over: deque[tuple[Callable[[Any], object], Any]] = deque()
        self.properties = self._properties()
        self._reach_peers()

    @_here
    def _properties(self) -> Properties:
        runtime = self._runtime
        told = runtime.getDeviceProperties(self.number)
        return Properties(
            name=told["name"].decode(),
            capability=(int(told["major"]), int(told["minor"])),
            memory=int(told["totalGlobalMem"]),
            multiprocessors=int(told["multiProcessorCount"]),
            shared_memory=int(
                runtime.deviceGetAttribute(runtime.cudaDevAttrMaxSharedMemoryPerBlockOptin, self.number)
            ),
            driver=int(runtime.driverGetVersion()),
        )

    @_here
    def _reach_peers(self) -> None:
        """Let copies between the devices that this process drives go over their link rather than through
        the host. Access to other devices is not enabled: it takes hundreds of megabytes on each."""
        runtime = self._runtime
        with _LOCK:
            others = sorted(_DRIVEN - {self.number})
            _DRIVEN.add(self.number)
        pairs = [pair for other in others for pair in ((self.number, other), (other, self.number))]
        for here, there in pairs:
            if not runtime.deviceCanAccessPeer(here, there):
                continue
            runtime.setDevice(here)
            try:
                runtime.deviceEnablePeerAccess(there)
            except RuntimeError as error:
                if getattr(error, "status", None) not in THROUGH_THE_HOST:
                    raise
        runtime.setDevice(self.number)

    @_here
    def enter(self) -> None:
        """Do nothing: the wrapper has made the device current."""

    @_here
    def memory(self) -> tuple[int, int]:
        free, total = self._runtime.memGetInfo()
        return int(free), int(total)

    @_here
    def allocate(self, nbytes: int) -> Address:
        return int(self._runtime.malloc(nbytes))

    @_here
    def free(self, address: Address) -> None:
        self._runtime.free(address)

    @_here
    def allocate_pinned(self, nbytes: int) -> Address:
        return int(self._runtime.hostAlloc(nbytes, self._runtime.hostAllocPortable))

    @_here
    def free_pinned(self, address: Address) -> None:
        self._runtime.freeHost(address)

    @_here
    def copy(self, target: Address, source: Address, nbytes: int, kind: str, stream: Handle) -> None:
        self._runtime.memcpyAsync(target, source, nbytes, KINDS[kind], stream)

    @_here
    def clear(self, target: Address, nbytes: int, stream: Handle) -> None:
        self._runtime.memsetAsync(target, 0, nbytes, stream)

    @_here
    def stream(self) -> Handle:
        return int(self._runtime.streamCreateWithFlags(self._runtime.streamNonBlocking))

    @_here
    def end_stream(self, stream: Handle) -> None:
        self._runtime.streamDestroy(stream)

    @_here
    def synchronise(self, stream: Handle) -> None:
        self._runtime.streamSynchronize(stream)
        self._forget()

    def _forget(self) -> None:
        """Release what other threads have put off."""
        with suppress(IndexError):  # another thread may have taken the last one
            while True:
                end, handle = self._over.popleft()
                end(handle)

    @_here
    def event(self) -> Handle:
        return int(self._runtime.eventCreateWithFlags(self._runtime.eventDefault))

    def end_event(self, event: Handle) -> None:
        self.later(self._runtime.eventDestroy, event)

    @_here
    def record(self, event: Handle, stream: Handle) -> None:
        self._runtime.eventRecord(event, stream)

    @_here
    def reached(self, event: Handle) -> bool:
        code = int(self._runtime.eventQuery(event))
        if code not in (0, NOT_READY):
            self._runtime.check_status(code)
        return code == 0

    @_here
    def wait(self, event: Handle) -> None:
        self._runtime.eventSynchronize(event)
        self._forget()

    @_here
    def wait_in_stream(self, stream: Handle, event: Handle) -> None:
        self._runtime.streamWaitEvent(stream, event)

    @_here
    def seconds_between(self, first: Handle, last: Handle) -> float:
        return float(self._runtime.eventElapsedTime(first, last)) / 1e3

    @_here
    def call(self, stream: Handle, work: Callable[[], None]) -> None:
        self._runtime.launchHostFunc(stream, lambda _: work(), 0)

    @_here
    def function(self, source: str, name: str, options: Sequence[str] = ()) -> Function:
        key = source, name, tuple(options)
        with self._lock:
            if key not in self._kernels:
                module = self._module(source, name, key[2])
                self._kernels[key] = int(self._driver.moduleGetFunction(module, name))
            return self._kernels[key]

    def _module(self, source: str, name: str, options: tuple[str, ...]) -> int:
        if (source, options) not in self._modules:
            kept = CompiledKernels(self.properties.capability, self._compile, self._compiler())
            image = kept.image(source, name, options)
            self._modules[source, options] = int(self._driver.moduleLoadData(image))
        return self._modules[source, options]

    def _compiler(self) -> str:
        """Return the version of NVRTC. CuPy finds it, but does not bring it along."""
        from cupy_backends.cuda.libs import nvrtc

        try:
            return ".".join(map(str, nvrtc.getVersion()))
        except RuntimeError as error:
            raise no_compiler(f"gpu:{self.number}", str(error)) from error

    def _compile(self, source: str, name: str, options: Sequence[str]) -> bytes:
        """Compile with NVRTC; return machine code."""
        from cupy_backends.cuda.libs import nvrtc

        program = nvrtc.createProgram(source, f"{name}.cu", [], [])
        try:
            nvrtc.compileProgram(program, options)
            return bytes(nvrtc.getCUBIN(program))
        except nvrtc.NVRTCError as error:
            log = nvrtc.getProgramLog(program) or str(error)
            major, minor = self.properties.capability
            raise does_not_compile(name, f"gpu:{self.number}", log, 10 * major + minor) from error
        finally:
            nvrtc.destroyProgram(program)

    @_here
    def launch(
        self,
        function: Function,
        grid: Extent,
        block: Extent,
        arguments: Sequence[Argument],
        shared: int,
        stream: Handle,
    ) -> None:
        if shared > USUAL_SHARED_MEMORY:
            self._driver.funcSetAttribute(function, DYNAMIC_SHARED_MEMORY, shared)
        # Arguments are passed by address, and are read before the call returns.
        values = [np.asarray(np.uint64(a) if isinstance(a, int) else a) for a in arguments]
        addresses = (ctypes.c_void_p * max(1, len(values)))(*(value.ctypes.data for value in values))
        parameters = ctypes.addressof(addresses)
        self._driver.launchKernel(function, *grid, *block, shared, stream, parameters, 0)

    @_here
    def begin_capture(self, stream: Handle) -> None:
        self._runtime.streamBeginCapture(stream, self._runtime.streamCaptureModeThreadLocal)

    @_here
    def end_capture(self, stream: Handle) -> Handle:
        graph = self._runtime.streamEndCapture(stream)
        try:
            return int(self._runtime.graphInstantiate(graph))
        finally:
            self._runtime.graphDestroy(graph)

    @_here
    def launch_graph(self, graph: Handle, stream: Handle) -> None:
        self._runtime.graphLaunch(graph, stream)

    def end_graph(self, graph: Handle) -> None:
        self.later(self._runtime.graphExecDestroy, graph)

    def later(self, end: Callable[[Any], object], handle: Any) -> None:
        """Put off ``end(handle)``. An owner may be dropped in any thread, even in one of CUDA's that
        calls back, where CUDA must not be called, or between two works that are being captured."""
        self._over.append((end, handle))
