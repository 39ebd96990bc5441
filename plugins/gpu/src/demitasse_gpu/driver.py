"""The protocol between this plugin and an accelerator's run-time: few calls, so that tests can
substitute it.

``cupy_driver.CupyDriver`` implements it for GPUs. Every call may raise the error that
``problems.explained`` makes of the run-time's: MemoryError if there is not enough device memory,
otherwise a DemitasseError.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

Handle: TypeAlias = int
"""A stream, an event or a graph, by the run-time's number."""

Address: TypeAlias = int
"""The address of a byte in device memory or in pinned host memory."""

Function: TypeAlias = Any
"""A kernel compiled for the device: returned by ``Driver.function``, passed to ``Driver.launch``."""

Argument: TypeAlias = Any
"""An argument of a kernel: an address (int), or a NumPy scalar of the parameter's type."""

Extent: TypeAlias = tuple[int, int, int]


@dataclass(frozen=True)
class Properties:
    """The properties of a device: its name, compute capability, bytes of memory, number of
    multiprocessors, the largest shared memory of a block (in bytes, requested when a kernel is
    launched), and the version of its driver (13000 is 13.0)."""

    name: str
    capability: tuple[int, int]
    memory: int
    multiprocessors: int
    shared_memory: int
    driver: int


class Driver(Protocol):
    """The driver of one device. Calls go to that device, whichever thread makes them. None of them
    waits, except ``synchronise``, ``wait`` and (because run-times do) ``allocate`` and ``free``."""

    number: int
    properties: Properties

    def enter(self) -> None:
        """Make this device current for this thread's calls of libraries, which do not name a device."""

    def memory(self) -> tuple[int, int]:
        """Return the bytes of device memory that are free, and the total."""

    def allocate(self, nbytes: int) -> Address:
        """Allocate device memory, aligned to 256 bytes and uninitialised."""

    def free(self, address: Address) -> None:
        """Free device memory, once all work on the device is done."""

    def allocate_pinned(self, nbytes: int) -> Address:
        """Allocate page-locked host memory, which every device may copy from and to."""

    def free_pinned(self, address: Address) -> None:
        """Free pinned memory."""

    def copy(self, target: Address, source: Address, nbytes: int, kind: str, stream: Handle) -> None:
        """Copy bytes in a stream. ``kind`` is ``h2d``, ``d2h``, ``d2d`` (also to another device) or
        ``h2h``. Host memory that is not pinned is copied before the call returns."""

    def clear(self, target: Address, nbytes: int, stream: Handle) -> None:
        """Set bytes of device memory to zero, in a stream."""

    def stream(self) -> Handle:
        """Create a stream that does not synchronise with any other."""

    def end_stream(self, stream: Handle) -> None:
        """Destroy a stream in which nothing is left to do."""

    def synchronise(self, stream: Handle) -> None:
        """Wait until everything in the stream is done. Does not hold the GIL."""

    def event(self) -> Handle:
        """Create an event that records times."""

    def end_event(self, event: Handle) -> None:
        """Destroy an event."""

    def record(self, event: Handle, stream: Handle) -> None:
        """Record the event at this point in the stream."""

    def reached(self, event: Handle) -> bool:
        """Return whether everything before the event is done."""

    def wait(self, event: Handle) -> None:
        """Wait until the event is reached. Does not hold the GIL."""

    def wait_in_stream(self, stream: Handle, event: Handle) -> None:
        """Make everything enqueued in the stream from now on wait for the event."""

    def seconds_between(self, first: Handle, last: Handle) -> float:
        """Return the seconds between two events that were reached, by the device's clock."""

    def call(self, stream: Handle, work: Callable[[], None]) -> None:
        """Call ``work``, which must not raise, in a host thread once everything before it in the stream
        is done. What follows waits until it returns. It must not call the driver."""

    def function(self, source: str, name: str, options: Sequence[str] = ()) -> Function:
        """Return the kernel ``name`` (``extern "C"``) of CUDA source text, compiled for this device.
        ``options`` may only be ``-Dname=value`` and ``-Ifolder``. The same source with the same options
        is compiled once. Raises PlanError with the compiler's message."""

    def launch(
        self,
        function: Function,
        grid: Extent,
        block: Extent,
        arguments: Sequence[Argument],
        shared: int,
        stream: Handle,
    ) -> None:
        """Launch a kernel in a stream, with ``shared`` bytes of dynamic shared memory."""

    def begin_capture(self, stream: Handle) -> None:
        """Capture what this thread enqueues in the stream into a graph, instead of executing it."""

    def end_capture(self, stream: Handle) -> Handle:
        """Return the graph of what was captured, ready to be launched."""

    def launch_graph(self, graph: Handle, stream: Handle) -> None:
        """Launch a graph in a stream, with the arguments that it was captured with."""

    def end_graph(self, graph: Handle) -> None:
        """Destroy a graph."""

    def later(self, end: Callable[[Any], object], handle: Any) -> None:
        """Have ``end(handle)``, which may call CUDA, called by a thread that waits for the device, after
        everything that was put off earlier."""
