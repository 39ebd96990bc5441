"""The hooks of the sw26010 plugin."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from demitasse import hookimpl

if TYPE_CHECKING:
    from demitasse import Allocator, Candidate, GradientSync, Group, Request


@hookimpl
def kernels(request: Request) -> Iterable[Candidate]:
    """Return kernels for a core group's mesh, with their cost, for tensors in ``ddr3``."""
    from demitasse_sw26010.kernels import candidates

    return candidates(request)


@hookimpl
def allocator(space: str, options: Mapping[str, Any]) -> Allocator | None:
    """Return an allocator of a core group's DDR3. Raises PlanError for ``ldm``, which kernels allocate
    themselves."""
    from demitasse_sw26010.allocator import allocate_space

    return allocate_space(space)


@hookimpl
def gradient_sync(group: Group) -> GradientSync:
    """Return the sum of four core groups' gradients on core group 0, by handshake."""
    from demitasse_sw26010.gradient_sync import HandshakeSum

    return HandshakeSum(group)


@hookimpl
def reproductions(paper: str) -> Any:
    """Return swCaffe's Tables II and III, each cell next to what the kernels' counts predict."""
    from demitasse_sw26010.reproduction import reproduce

    return reproduce(paper)
