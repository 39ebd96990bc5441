"""Streams: what an engine that runs work beside its caller offers, whatever it runs it on. A package beside
the kernel, which does not need it.

An engine belongs to one worker and its accelerator. Work in one stream is done in order; streams run beside
each other. Everything but ``wait`` and ``synchronise`` on a host returns at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np


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

    name: str

    def copy(self, target: Any, source: Any) -> None:
        """Copy ``source`` to ``target``: contiguous arrays of equal size and element type, each in the
        engine's memory, in another accelerator's, or the host's. Both must live, and ``source`` stay as it
        is, until the copy is done. Only from ``pinned`` memory is it sure to run beside the caller."""

    def call(self, work: Callable[[], None]) -> None:
        """Call ``work`` on a thread of the host, in order with what else is in the stream. It must not
        enqueue or wait for anything of an engine. An error that it raises is raised by the next ``wait`` or
        ``synchronise``; what follows in the stream is not done."""

    def record(self) -> EngineEvent:
        """The point in the stream that is here now."""

    def wait(self, event: EngineEvent) -> None:
        """Let what is enqueued from now on wait for an event of another stream; the caller goes on."""

    def synchronise(self) -> None:
        """Let the caller wait until all that was enqueued is done. Raises the first error of it."""


class StreamEngine(Protocol):
    """The streams of one accelerator. ``default`` is the one in which kernels at its place run, and
    ``place`` the memory space of that place (``gpu:0``). What threads of several workers call at the same
    time are different engines."""

    place: str
    default: EngineStream

    def stream(self, name: str) -> EngineStream:
        """The stream of that name, made when it is first asked for."""

    def pinned(self, shape: Sequence[int], dtype: str) -> np.ndarray:
        """Host memory, zero at first, that the accelerator copies to and from at the link's full speed."""

    def close(self) -> None:
        """End the streams once what is enqueued is done. Later use raises ``RuntimeError``."""
