"""What this plugin asks of an accelerator's run-time: few calls, so that a test can stand in for them.

``cupy_driver.CupyDriver`` asks a GPU. Every call may raise what ``problems.explained`` makes of the
run-time's error: ``MemoryError`` for device memory that is not there, else a DemitasseError.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

Handle: TypeAlias = int
"""A stream, an event or a graph, as the run-time numbers it."""

Address: TypeAlias = int
"""A byte in the memory of a device, or in pinned memory of the host."""

Function: TypeAlias = Any
"""A kernel compiled for the device: what ``Driver.function`` gives and ``Driver.launch`` takes."""

Argument: TypeAlias = Any
"""What a kernel is given: an address (int), or a NumPy scalar of its parameter's type."""

Extent: TypeAlias = tuple[int, int, int]


@dataclass(frozen=True)
class Properties:
    """What a device is: its name, compute capability, bytes of memory, multiprocessors, the largest
    shared memory of a block (bytes, asked for when a kernel is launched), and the version of its driver
    (13000 is 13.0)."""

    name: str
    capability: tuple[int, int]
    memory: int
    multiprocessors: int
    shared_memory: int
    driver: int


class Driver(Protocol):
    """One device. Its calls go to that device whichever thread makes them; none waits but
    ``synchronise``, ``wait`` and (as run-times do) ``allocate`` and ``free``."""

    number: int
    properties: Properties

    def enter(self) -> None:
        """Have what this thread calls in libraries, which know nothing of devices, go to this one."""

    def memory(self) -> tuple[int, int]:
        """Bytes of the device's memory that are free, and all."""

    def allocate(self, nbytes: int) -> Address:
        """Device memory, aligned to 256 bytes, with anything in it."""

    def free(self, address: Address) -> None:
        """Give device memory back, once all work on the device is done."""

    def allocate_pinned(self, nbytes: int) -> Address:
        """Host memory that is never paged out and that every device may copy from and to."""

    def free_pinned(self, address: Address) -> None:
        """Give pinned memory back."""

    def copy(self, target: Address, source: Address, nbytes: int, kind: str, stream: Handle) -> None:
        """Copy bytes in a stream. ``kind`` is ``h2d``, ``d2h``, ``d2d`` (also to another device) or
        ``h2h``. Host memory that is not pinned is copied before the call returns."""

    def clear(self, target: Address, nbytes: int, stream: Handle) -> None:
        """Make bytes of the device's memory zero."""

    def stream(self) -> Handle:
        """A new stream that waits for no other."""

    def end_stream(self, stream: Handle) -> None:
        """Forget a stream in which nothing is left to do."""

    def synchronise(self, stream: Handle) -> None:
        """Wait until all in the stream is done. Does not hold the GIL."""

    def event(self) -> Handle:
        """A new event that keeps the time."""

    def end_event(self, event: Handle) -> None:
        """Forget an event."""

    def record(self, event: Handle, stream: Handle) -> None:
        """Have the event stand for what is in the stream now."""

    def reached(self, event: Handle) -> bool:
        """Whether all that the event stands for is done."""

    def wait(self, event: Handle) -> None:
        """Wait until it is. Does not hold the GIL."""

    def wait_in_stream(self, stream: Handle, event: Handle) -> None:
        """Have what comes into the stream from now on wait for the event."""

    def seconds_between(self, first: Handle, last: Handle) -> float:
        """The time from one event that was reached to another, by the device's clock."""

    def call(self, stream: Handle, work: Callable[[], None]) -> None:
        """Call ``work``, which raises nothing, in a thread of the host when all before it in the stream
        is done; what follows waits until it returns. It must not call the driver."""

    def function(self, source: str, name: str, options: Sequence[str] = ()) -> Function:
        """The kernel ``name`` (``extern "C"``) of CUDA source text, compiled for this device.
        ``options`` are ``-Dname=value`` and ``-Ifolder`` only. Source and options that were compiled
        before are not compiled again. Raises PlanError with the compiler's words."""

    def launch(
        self,
        function: Function,
        grid: Extent,
        block: Extent,
        arguments: Sequence[Argument],
        shared: int,
        stream: Handle,
    ) -> None:
        """Run a kernel in a stream with ``shared`` bytes of dynamic shared memory."""

    def begin_capture(self, stream: Handle) -> None:
        """Have what comes into the stream, from this thread, become a graph instead of being done."""

    def end_capture(self, stream: Handle) -> Handle:
        """The graph of what came, ready to be launched."""

    def launch_graph(self, graph: Handle, stream: Handle) -> None:
        """Do in a stream what a graph is made of, with the arguments it was captured with."""

    def end_graph(self, graph: Handle) -> None:
        """Forget a graph."""

    def later(self, end: Callable[[Any], object], handle: Any) -> None:
        """Have ``end(handle)``, which may ask CUDA something, called by a thread that waits for the
        device, once what was forgotten before is ended."""
