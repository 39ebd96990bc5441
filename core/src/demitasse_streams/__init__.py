"""Streams: the protocol of an engine that runs work concurrently with its caller, on whatever device. A
package beside the kernel, which does not need it.

An engine belongs to one worker and its accelerator. Work in one stream runs in order. Streams run
concurrently, though functions passed to ``call`` in several streams may run one after the other. Only an
event's ``wait`` and a stream's ``synchronise`` make the caller wait. ``conformance.py`` checks that an
engine does what is said here.

An engine whose kernels run in its caller's thread does the work of its ``default`` stream at once in
that thread: there, copies, calls and ``wait`` are done when they return, and that ``wait`` raises as an
event's does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from demitasse_streams.conformance import check_engine as check_engine


class EngineEvent(Protocol):
    """A point in a stream, reached when everything that was enqueued before it is done."""

    @property
    def done(self) -> bool:
        """Whether the event was reached. Does not wait."""

    @property
    def seconds(self) -> float:
        """When the event was reached, by the clock of ``time.perf_counter``; read it only after that."""

    def wait(self) -> None:
        """Block the calling thread until the event is reached. Raises the exception of any earlier work
        in its stream."""


class EngineStream(Protocol):
    """Work that runs in order, concurrently with the caller."""

    if TYPE_CHECKING:  # read-only, so that a narrower type fits; subclasses may assign them

        @property
        def name(self) -> str:
            """The name by which the stream was requested."""

    def copy(self, target: Any, source: Any) -> None:
        """Copy ``source`` to ``target``: contiguous arrays of equal size and element type, each in the
        engine's memory, in another accelerator's, or in the host's. Both must stay alive, and ``source``
        unchanged, until the copy is done. The copy is certain to run concurrently with the caller only
        from ``pinned`` memory. If the arrays disagree, raises ValueError that names both shapes and
        types, before anything is enqueued."""

    def call(self, work: Callable[[], None]) -> None:
        """Call ``work`` on a thread of the host, in order with everything else in the stream. It must
        not enqueue anything in an engine or wait for one. If it raises an error, the stream's
        ``synchronise`` and the ``wait`` of its later events raise that error, and so do streams that
        wait for such an event. Later calls are not made, and nothing that is enqueued after the error is
        done; a copy that was enqueued before it may be."""

    def record(self) -> EngineEvent:
        """Return an event for the present end of the stream."""

    def wait(self, event: EngineEvent) -> None:
        """Make everything that is enqueued from now on wait for an event of another stream. The caller
        does not wait."""

    def synchronise(self) -> None:
        """Block the caller until everything enqueued is done. Raises the first error that occurred."""


class StreamEngine(Protocol):
    """The streams of one accelerator. The default stream belongs to one worker; in the others, any
    thread may enqueue and wait for events, several at a time."""

    if TYPE_CHECKING:  # read-only, so that a narrower type fits; subclasses may assign them

        @property
        def place(self) -> str:
            """The memory space of the place whose kernels run in the streams (``gpu:0``)."""

        @property
        def default(self) -> EngineStream:
            """The stream in which kernels at its place run."""

    def stream(self, name: str) -> EngineStream:
        """Return the stream of that name, which is made at the first request."""

    def pinned(self, shape: Sequence[int], dtype: str) -> np.ndarray:
        """Return host memory, zeroed, to and from which the accelerator copies at the link's full
        speed."""

    def close(self) -> None:
        """End the streams, after everything enqueued is done. Later use raises ``RuntimeError``."""
