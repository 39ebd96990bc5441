"""The cost of the exchange between domains on a described machine."""

from __future__ import annotations

from demitasse import DescriptionError, Level
from demitasse_numa.tree import Tree

THREADS = 1
"""Threads of a domain that add and copy: the solver's own."""


def exchange(
    level: Level, size: float, domains: int, arity: int = 2, spread: bool = True
) -> tuple[float, float]:
    """Return the seconds to sum ``size`` bytes of gradients along the tree, and the seconds to copy the
    same amount of parameters back.

    Each hand-over costs the link's latency. Reading another domain's bytes takes their time on the
    link, which is no faster than the domain's memory. An addition reads one operand there; in its own
    memory it reads one and writes one. A parent serves its children one after the other, and the levels
    of the tree follow each other. With ``spread`` roots, all domains do this at the same time, each for
    its part. Raises DescriptionError for a level without link or memory bandwidth.
    """
    if domains == 1:
        return 0.0, 0.0
    memory = next((each.bandwidth for each in level.memory if each.bandwidth), None)
    link = level.link
    if memory is None or link is None or link.bandwidth is None:
        raise DescriptionError(
            f"{level.location or level.name}: level {level.name!r} needs memory.bandwidth and "
            f"link.bandwidth to predict the time of an exchange between its domains"
        )
    latency = link.latency.value if link.latency else 0.0
    remote = min(link.bandwidth.value, memory.value)
    part = size / domains if spread else size
    if spread:
        # Each domain adds and copies the parts of all other roots, once each.
        reads, hops = domains - 1, _depth(domains, arity)
    else:
        reads, hops = _chain(domains, arity), _depth(domains, arity)
    reduce = reads * part * (1 / remote + 2 / memory.value) + hops * latency
    copies = (domains - 1) if spread else _served(domains, arity)
    distribute = copies * part * (1 / remote + 1 / memory.value) + hops * latency
    return reduce, distribute


def _depth(domains: int, arity: int) -> int:
    return Tree(domains, arity).height(0)


def _chain(domains: int, arity: int) -> int:
    """Return the most additions that follow each other on a path from a leaf to the root."""
    tree = Tree(domains, arity)

    def below(index: int) -> int:
        children = tree.children(index)
        return max((below(c) for c in children), default=0) + len(children)

    return below(0)


def _served(domains: int, arity: int) -> int:
    """Return the most copies that follow each other from the root to a leaf. The copies of one parent's
    children share the port of its memory."""
    tree = Tree(domains, arity)

    def below(index: int) -> int:
        children = tree.children(index)
        return len(children) + max((below(c) for c in children), default=0)

    return below(0)
