"""The hooks of the cpu plugin: kernels, host memory, and diagnosis."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from demitasse import CompositionError, hookimpl

if TYPE_CHECKING:
    from demitasse import Allocator, Candidate, Finding, Request


@hookimpl
def kernels(request: Request, options: Mapping[str, Any] = MappingProxyType({})) -> Iterable[Candidate]:
    """Return compiled kernels for an operation of a training step on images in host memory. Raises
    CompositionError if an environment variable prevents numba from being imported."""
    threads = os.environ.get("NUMBA_NUM_THREADS", "").strip()
    if re.fullmatch(r"0+|-\d+", threads):
        raise CompositionError(
            f"NUMBA_NUM_THREADS is set to {threads}, with which numba cannot be imported: "
            f"unset it, or give it a number of threads"
        )
    from demitasse_cpu.kernels import candidates

    return candidates(request, options.get("winograd", "on") == "on")


@hookimpl
def allocator(space: str, options: Mapping[str, Any]) -> Allocator | None:
    """Return an allocator of host memory, in large pages if the system has them, for the space ``host``
    only."""
    from demitasse_cpu.allocator import PagesAllocator

    return PagesAllocator() if space == "host" else None


@hookimpl
def diagnose() -> Iterable[Finding]:
    """Report the vectors that kernels compute with, and whether compiled kernels are cached."""
    from demitasse_cpu.diagnosis import findings

    return findings()
