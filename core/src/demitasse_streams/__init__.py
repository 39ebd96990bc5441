"""Streams: what an engine that runs work beside its caller offers, whatever it runs it on. A package
beside the kernel, which does not need it.

An engine belongs to one worker and its accelerator. Work in one stream is done in order; streams run
beside each other, though what several ``call`` may come one after the other. Nothing but an event's
``wait`` and a stream's ``synchronise`` makes the caller wait. ``conformance.py`` holds an engine to
these words.

An engine whose kernels run in its caller's thread does the work of ``default`` at once in that
thread: there its copies, calls and its ``wait`` are done when they return, and that ``wait`` raises
as an event's does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from demitasse_streams.conformance import check_engine as check_engine


class EngineEvent(Protocol):
    """A point in a stream: reached when all that was enqueued before it is done."""

    @property
    def done(self) -> bool:
        """Whether it was reached. Does not wait."""

    @property
    def seconds(self) -> float:
        """When it was reached, by the clock of ``time.perf_counter``; asked after it was."""

    def wait(self) -> None:
        """Let the calling thread wait until it is reached. Raises what work of its stream before it
        raised."""


class EngineStream(Protocol):
    """Work that is done in order, beside the caller."""

    if TYPE_CHECKING:  # to be read, so that a narrower type serves; whoever inherits may assign them

        @property
        def name(self) -> str:
            """As it was asked for."""

    def copy(self, target: Any, source: Any) -> None:
        """Copy ``source`` to ``target``: contiguous arrays of equal size and element type, each in
        the engine's memory, in another accelerator's, or the host's. Both must live, and ``source``
        stay as it is, until the copy is done. Only from ``pinned`` memory is it sure to run beside
        the caller. Raises ValueError that names both shapes and types where they disagree, before
        anything is enqueued."""

    def call(self, work: Callable[[], None]) -> None:
        """Call ``work`` on a thread of the host, in order with what else is in the stream. It must
        not enqueue or wait for anything of an engine. An error that it raises is raised by the
        ``synchronise`` of the stream and the ``wait`` of its later events, and so in streams that
        wait for one of those. Calls that follow are not made, nor is anything done that is enqueued
        once it was raised; a copy that was enqueued before may be."""

    def record(self) -> EngineEvent:
        """The point in the stream that is here now."""

    def wait(self, event: EngineEvent) -> None:
        """Let what is enqueued from now on wait for an event of another stream; the caller goes on."""

    def synchronise(self) -> None:
        """Let the caller wait until all that was enqueued is done. Raises the first error of it."""


class StreamEngine(Protocol):
    """The streams of one accelerator. The default stream is one worker's; in others any thread may
    enqueue, several at a time, and wait for their events."""

    if TYPE_CHECKING:  # to be read, so that a narrower type serves; whoever inherits may assign them

        @property
        def place(self) -> str:
            """The memory space of the place whose kernels run in its streams (``gpu:0``)."""

        @property
        def default(self) -> EngineStream:
            """The stream in which kernels at its place run."""

    def stream(self, name: str) -> EngineStream:
        """The stream of that name, made when it is first asked for."""

    def pinned(self, shape: Sequence[int], dtype: str) -> np.ndarray:
        """Host memory, zero at first, that the accelerator copies to and from at the link's full
        speed."""

    def close(self) -> None:
        """End the streams once what is enqueued is done. Later use raises ``RuntimeError``."""
