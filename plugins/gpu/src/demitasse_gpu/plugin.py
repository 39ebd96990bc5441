"""The hooks of the gpu plugin."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from demitasse import hookimpl

if TYPE_CHECKING:
    from demitasse import Allocator, Candidate, Finding, Level, Machine, Request, StreamEngine


@hookimpl
def probe(levels: Iterable[Level] = ()) -> Iterable[Level]:
    """Return the levels found so far, the outermost with the attached GPUs. They are used only if a
    description says so."""
    from demitasse_gpu.machine import with_devices

    return with_devices(levels)


@hookimpl
def kernels(request: Request, options: Mapping[str, Any]) -> Iterable[Candidate]:
    """Return candidates: cuDNN's and cuBLAS's if they are installed, and CUDA kernels for everything
    that the nets need."""
    from demitasse_gpu.kernels import candidates
    from demitasse_gpu.libraries import library_candidates

    return [*library_candidates(request, options), *candidates(request)]


@hookimpl
def allocator(space: str, options: Mapping[str, Any]) -> Allocator | None:
    """Return the allocator of a device's memory: ``gpu:N``, or ``gpu``, the process's own device."""
    if space.partition(":")[0] != "gpu":
        return None
    from demitasse_gpu.allocator import DeviceAllocator
    from demitasse_gpu.device import device

    found = device(space, options)
    return None if found is None else DeviceAllocator(found)


@hookimpl
def stream_engine(space: str, machine: Machine, options: Mapping[str, Any]) -> StreamEngine | None:
    """Return the streams of a device."""
    if space.partition(":")[0] != "gpu":
        return None
    from demitasse_gpu.device import device
    from demitasse_gpu.engine import DeviceEngine

    found = device(space, options)
    engine: StreamEngine | None = None if found is None else DeviceEngine(found)
    return engine


@hookimpl
def diagnose() -> Iterable[Finding]:
    """Report the driver, the GPUs and their memory, CuPy, cuDNN and cuBLAS, and how to install what is
    missing."""
    from demitasse_gpu.diagnosis import findings

    return findings()
