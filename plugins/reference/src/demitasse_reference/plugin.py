"""The hooks of the reference plugin: kernels, host memory, and the plain sum over threads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from demitasse import hookimpl

if TYPE_CHECKING:
    from demitasse import Allocator, Candidate, GradientSync, Group, Request


@hookimpl
def kernels(request: Request) -> Iterable[Candidate]:
    """Return one candidate for each operation that this plugin computes, and none for any other."""
    from demitasse_reference.kernels import candidates

    return candidates(request)


@hookimpl
def allocator(space: str, options: Mapping[str, Any]) -> Allocator | None:
    """Return an allocator of plain NumPy memory, for the space ``host`` only."""
    from demitasse_reference.allocator import PlainAllocator

    return PlainAllocator() if space == "host" else None


@hookimpl
def gradient_sync(group: Group) -> GradientSync:
    """Return the sum over sibling threads, in their order. Raises CompositionError if siblings are
    processes."""
    from demitasse_reference.gradient_sync import OrderedSum

    return OrderedSum(group)
