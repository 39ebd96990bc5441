"""The network of a machine: endpoints in nested groups, and the cost of messages between them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from demitasse import CompositionError, DescriptionError, Level, Machine, Quantity, unknown

RANK_MAPS = ("natural", "round-robin")

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Tier:
    """One level of the network: ``count`` siblings in each group of the tier around it. A message
    between two of them takes ``latency`` seconds and then goes at ``bandwidth`` bytes per second. All
    messages that leave a sibling share the bandwidth of all endpoints in it, divided by
    ``oversubscription``."""

    name: str
    count: int
    latency: float
    bandwidth: float
    oversubscription: float = 1.0


@dataclass(frozen=True)
class Topology:
    """Tiers, outermost first; an endpoint is one sibling of the innermost. ``sources`` says where the
    numbers come from."""

    tiers: tuple[Tier, ...]
    sources: tuple[str, ...] = ()

    @property
    def endpoints(self) -> int:
        """The total number of endpoints."""
        return math.prod(tier.count for tier in self.tiers)

    def inside(self, tier: int) -> int:
        """Return the number of endpoints in one sibling of a tier."""
        return math.prod(each.count for each in self.tiers[tier + 1 :])

    def place(self, ranks: int, order: str = "natural") -> Array:
        """Return the endpoint of each rank: the first ``ranks`` endpoints in their own order, or dealt
        out in turn to the groups of the outermost tier (swCaffe, section V.A). Raises CompositionError
        if there are more ranks than endpoints, or for an unknown order."""
        if not 0 < ranks <= self.endpoints:
            raise CompositionError(
                f"{ranks} ranks (valid: 1 to {self.endpoints}, as many as the machine has)"
            )
        if order not in RANK_MAPS:
            raise CompositionError(unknown("order of ranks", order, RANK_MAPS))
        natural = np.arange(ranks)
        if order == "natural" or not self.tiers:
            return natural
        group, within = np.divmod(natural, self.inside(0))
        return np.lexsort((group, within))

    def groups(self, ranks: int) -> tuple[tuple[int, ...], ...]:
        """Return the ranks, in natural order, grouped by their sibling of the outermost tier."""
        group = self.place(ranks) // max(1, self.inside(0)) if self.tiers else np.zeros(ranks, int)
        return tuple(tuple(np.flatnonzero(group == each).tolist()) for each in np.unique(group))

    def messages(self, source: Array, target: Array, moved: Array) -> tuple[Array, Array]:
        """Return (latency, seconds on the wire) for each of the messages of ``moved[i]`` bytes from
        endpoint source[i] to target[i] that go at the same time.

        A message has the latency of the outermost tier in which its ends differ, and passes the links of
        that tier and of all tiers within. It takes as long as all the messages with which it shares
        something: the trunks out of and into the siblings of each such tier with ``oversubscription``,
        or one of its ends (an end sends and receives at the same time). The latencies of an end's
        messages add up, too."""
        latency, bandwidth = np.zeros(len(source)), np.full(len(source), np.inf)
        seconds = np.zeros(len(source))
        found = np.zeros(len(source), bool)
        for number, tier in enumerate(self.tiers):
            size = self.inside(number)
            ours, theirs = source // size, target // size
            # A message passes this tier's links if it leaves one of its siblings.
            passes = ours != theirs
            latency = np.where(passes & ~found, tier.latency, latency)
            found |= passes
            bandwidth = np.where(passes, np.minimum(bandwidth, tier.bandwidth), bandwidth)
            if tier.oversubscription > 1 and passes.any():
                room = size * tier.bandwidth / tier.oversubscription
                if size == 1:  # the siblings share the link that joins them
                    ours, theirs = source // tier.count, target // tier.count
                    room *= tier.count
                for side in (ours, theirs):
                    total = np.bincount(side[passes], moved[passes], int(side.max()) + 1)
                    seconds = np.where(passes, np.maximum(seconds, total[side] / room), seconds)
        own = moved / bandwidth
        waits = latency
        for end in (source, target):
            seconds = np.maximum(seconds, np.bincount(end, own)[end])
            waits = np.maximum(waits, np.bincount(end, latency)[end])
        return waits, seconds


def missing_number(machine: Machine, level: Level, key: str, why: str) -> DescriptionError:
    """Return the error for a number that a prediction needs and a description lacks."""
    where = level.location or machine.origin
    return DescriptionError(
        f"{where}: level {level.name!r} has no {key}, which {why}; add it with its source"
    )


def _needed(machine: Machine, level: Level, key: str, value: Quantity | None, why: str) -> float:
    """Return a number of a level. Raises DescriptionError that names file, line, level and key."""
    if value is None:
        raise missing_number(machine, level, key, why)
    return value.value


def topology(machine: Machine, levels: Sequence[Level]) -> Topology:
    """Return the network that joins the siblings of some of a machine's levels, outermost first. A level
    with one sibling is not a tier, unless it is within another level and has a link, through which its
    messages leave. Raises DescriptionError if a link or a number is missing."""
    tiers, sources = list[Tier](), list[str]()
    for level in levels:
        link = level.link
        if level.count == 1 and not (tiers and link and link.latency and link.bandwidth):
            continue
        if link is None:
            raise missing_number(
                machine, level, "link", "the cost of messages between its siblings needs"
            )
        why = "the cost of messages between its siblings needs"
        latency = _needed(machine, level, "link.latency", link.latency, why)
        bandwidth = _needed(machine, level, "link.bandwidth", link.bandwidth, why)
        tiers.append(Tier(level.name, level.count, latency, bandwidth, link.oversubscription))
        sources.append(
            f"{level.name} link: latency {link.latency}, bandwidth {link.bandwidth}, "
            f"oversubscription {link.oversubscription:g}"
        )
    inside = 1  # endpoints: a link's bandwidth is that of one, so say what all of a sibling have
    for number, tier in reversed([*enumerate(tiers)]):
        if inside > 1:
            trunk = inside * tier.bandwidth / tier.oversubscription / 1e9
            whole = f"for all {inside:,} of level {tiers[-1].name!r} in a {tier.name}"
            sources[number] += f": {trunk:.4g} GB/s {whole}"
        inside *= tier.count
    return Topology(tuple(tiers), tuple(sources))
