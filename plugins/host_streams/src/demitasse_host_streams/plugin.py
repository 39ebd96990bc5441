"""The hooks of the host_streams plugin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from demitasse import hookimpl

if TYPE_CHECKING:
    from demitasse import Allocator, Machine, StreamEngine


@hookimpl
def stream_engine(space: str, machine: Machine, options: Mapping[str, Any]) -> StreamEngine:
    """Return the streams, threads of the host, of the stand-in whose memory is ``space``."""
    from demitasse_host_streams.description import engine_of

    return engine_of(space, machine, options)


@hookimpl
def allocator(space: str, options: Mapping[str, Any]) -> Allocator | None:
    """Return the allocator of a stand-in's memory, ``accelerator:N``; None for other spaces."""
    if space.partition(":")[0] != "accelerator":
        return None
    from demitasse_host_streams.memory import StandInAllocator

    return StandInAllocator(space)
