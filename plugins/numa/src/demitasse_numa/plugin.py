"""The hooks of the numa plugin."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from demitasse import hookimpl

if TYPE_CHECKING:
    from demitasse import Allocator, Event, Finding, GradientSync, Group, Level


@hookimpl
def probe(levels: Iterable[Level] = ()) -> Iterable[Level]:
    """The levels that were found, with a solver in each memory domain where there are several."""
    from demitasse_numa.machine import this_machine
    from demitasse_numa.pages import available
    from demitasse_numa.probe import refined

    return refined(levels, this_machine()) if available() else ()


@hookimpl
def allocator(space: str, options: Mapping[str, Any]) -> Allocator | None:
    """Memory of one domain: ``numa:N``, or ``numa``, the one that the caller runs in."""
    if space.partition(":")[0] != "numa":
        return None
    from demitasse_numa.allocator import allocate_space

    return allocate_space(space, options)


@hookimpl
def gradient_sync(group: Group) -> GradientSync:
    """Gradients summed along a tree of domains, and parameters copied back the same way."""
    from demitasse_numa.gradient_sync import DomainTree

    return DomainTree(group)


@hookimpl
def observe() -> Callable[[Event], None]:
    """At the end of a training in several domains, a line that says where its pages lie."""
    from demitasse_numa.listener import Listener

    return Listener()


@hookimpl
def diagnose(topics: Collection[str] = ()) -> Iterable[Finding]:
    """The memory domains, what keeps memory or threads from them, and on request their bandwidth."""
    from demitasse_numa.diagnosis import findings

    return findings(measure="numa" in topics)


@hookimpl
def commands() -> Mapping[str, Callable[..., Any]]:
    """``numa``."""
    from demitasse_numa.commands import numa

    return {"numa": numa}


@hookimpl
def reproductions(paper: str) -> Any:
    """The speedups of NUMA-Caffe, each beside what the four servers' descriptions predict."""
    from demitasse_numa.reproduction import reproduce

    return reproduce(paper)
