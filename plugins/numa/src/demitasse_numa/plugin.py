"""The hooks of the numa plugin."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from demitasse import hookimpl

if TYPE_CHECKING:
    from demitasse import Allocator, Event, Finding, GradientSync, Group, Level


@hookimpl
def probe(levels: Iterable[Level] = ()) -> Iterable[Level]:
    """Extend the levels that were found by a solver in each memory domain, if there are several."""
    from demitasse_numa.machine import this_machine
    from demitasse_numa.pages import available
    from demitasse_numa.probe import refined

    return refined(levels, this_machine()) if available() else ()


@hookimpl
def allocator(space: str, options: Mapping[str, Any]) -> Allocator | None:
    """Allocate memory of one domain: ``numa:N``, or ``numa``, the domain that the caller runs in."""
    if space.partition(":")[0] != "numa":
        return None
    from demitasse_numa.allocator import allocate_space

    return allocate_space(space, options)


@hookimpl
def gradient_sync(group: Group) -> GradientSync:
    """Sum gradients along a tree of domains, and copy parameters back the same way."""
    from demitasse_numa.gradient_sync import DomainTree

    return DomainTree(group)


@hookimpl
def observe() -> Callable[[Event], None]:
    """Log, at the end of a training in several domains, a line about where its pages are."""
    from demitasse_numa.listener import Listener

    return Listener()


@hookimpl
def diagnose(topics: Collection[str] = ()) -> Iterable[Finding]:
    """Check the memory domains and what keeps memory or threads from them; on request, their
    bandwidth."""
    from demitasse_numa.diagnosis import findings

    return findings(measure="numa" in topics)


@hookimpl
def commands() -> Mapping[str, Callable[..., Any]]:
    """Offer ``numa``, which shows memory domains and where a training's pages are."""
    from demitasse_numa.commands import numa

    return {"numa": numa}


@hookimpl
def reproductions(paper: str) -> Any:
    """Return the speedups of NUMA-Caffe beside predictions from the four servers' descriptions."""
    from demitasse_numa.reproduction import reproduce

    return reproduce(paper)
