"""The hooks of the gpu plugin."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from demitasse import hookimpl

if TYPE_CHECKING:
    from demitasse import Allocator, Candidate, Finding, Level, Machine, Request, StreamEngine


@hookimpl
def probe(levels: Iterable[Level] = ()) -> Iterable[Level]:
    """The levels that were found, the outermost with the GPUs attached to it; nobody works in them
    unless a description says so."""
    from demitasse_gpu.machine import with_devices

    return with_devices(levels)


@hookimpl
def kernels(request: Request, options: Mapping[str, Any]) -> Iterable[Candidate]:
    """What cuDNN and cuBLAS compute where they are, and CUDA kernels for all that the nets need."""
    from demitasse_gpu.kernels import candidates
    from demitasse_gpu.libraries import library_candidates

    return [*library_candidates(request, options), *candidates(request)]


@hookimpl
def allocator(space: str, options: Mapping[str, Any]) -> Allocator | None:
    """Memory of a device: ``gpu:N``, or ``gpu``, the process's own."""
    if space.partition(":")[0] != "gpu":
        return None
    from demitasse_gpu.allocator import DeviceAllocator
    from demitasse_gpu.device import device

    found = device(space, options)
    return None if found is None else DeviceAllocator(found)


@hookimpl
def stream_engine(space: str, machine: Machine, options: Mapping[str, Any]) -> StreamEngine | None:
    """The streams of a device."""
    if space.partition(":")[0] != "gpu":
        return None
    from demitasse_gpu.device import device
    from demitasse_gpu.engine import DeviceEngine

    found = device(space, options)
    engine: StreamEngine | None = None if found is None else DeviceEngine(found)
    return engine


@hookimpl
def diagnose() -> Iterable[Finding]:
    """The driver, the GPUs and their memory, CuPy, cuDNN and cuBLAS, and what to do about what is
    missing."""
    from demitasse_gpu.diagnosis import findings

    return findings()
