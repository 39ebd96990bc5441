"""What the synchronisation of one bucket costs: among threads of a process, and over the network."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from demitasse import Bucket, CompositionError, GradientSync, Machine, Span, unknown
from demitasse_simulator.algorithms import algorithm
from demitasse_simulator.collectives import Cost, cost
from demitasse_simulator.planning import Beyond, Chain
from demitasse_simulator.topology import RANK_MAPS, Topology, missing, topology

NETWORK_OPTIONS = ("algorithm", "ranks", "packed", "overlap", "gamma")
"""Keys of ``sync`` that say how its part beyond one process is done."""

DEFAULT = "recursive-halving-doubling"


@dataclass
class Link:
    """One chain's synchronisation, costed: ``item`` bytes an element."""

    chain: Chain
    machine: Machine
    item: int
    bandwidth: float | None
    network: Topology | None = None
    algorithm: str = DEFAULT
    ranks: str = "natural"
    packed: bool = True
    overlaps: bool = False
    gamma: float = 0.0
    lines: list[str] = field(default_factory=list)
    _costs: dict[int, Cost] = field(default_factory=dict)

    @property
    def inner(self) -> GradientSync | None:
        """The composed plugin's own synchronisation among threads; None where there is one thread."""
        sync = self.chain.sync
        own = sync.inner if isinstance(sync, Beyond) else sync
        return own if own is not None and own.size > 1 else None

    @property
    def waits_before_forward(self) -> bool:
        """Whether the next iteration waits for a bucket only where it reads its parameters."""
        inner = self.inner
        return inner is not None and type(inner).before_forward is not GradientSync.before_forward

    def among_threads(self, bucket: Bucket, span: Span) -> tuple[float, float]:
        """Seconds to reduce and to distribute a span among this process's threads: what the plugin's
        ``costs(bucket, span)`` says, or else the bytes that a sum and copies move through the memory
        that the threads share. Raises DescriptionError where its bandwidth is not given."""
        inner = self.inner
        if inner is None or not span:
            return 0.0, 0.0
        if (says := getattr(inner, "costs", None)) is not None:
            reduce, distribute = says(bucket, span)
            return float(reduce), float(distribute)
        if self.bandwidth is None:
            level = self.chain.levels[-1]
            raise missing(self.machine, level, "memory.bandwidth", "a sum over its threads needs")
        moved = len(span) * self.item
        reads = (inner.size + 1) * moved / self.bandwidth
        return reads, 2 * (inner.size - 1) * moved / self.bandwidth

    def over_network(self, elements: int) -> Cost | None:
        """The collective among nodes; None where there is one node."""
        if self.network is None or self.chain.nodes == 1 or not elements:
            return None
        if elements not in self._costs:
            rounds = algorithm(self.algorithm).rounds(self.chain.nodes, elements)
            place = self.network.place(self.chain.nodes, self.ranks)
            self._costs[elements] = cost(rounds, self.network, place, self.item, self.gamma)
        return self._costs[elements]


def link(machine: Machine, chain: Chain, item: int, bandwidth: float | None, alike: int) -> Link:
    """A chain with its costs. ``bandwidth`` is that of the memory in which workers add; a node has
    ``alike`` such memories. Raises DescriptionError or CompositionError for what the
    description lacks, or an option that is none."""
    made = Link(chain, machine, item, bandwidth)
    inner = made.inner
    if inner is not None:
        made.overlaps = type(inner).schedule is not GradientSync.schedule
        for level in chain.levels:
            if (
                level.link is not None
                and level.link.bandwidth is not None
                and level not in chain.network
            ):
                # What siblings read of each other comes over what joins them.
                made.bandwidth = min(bandwidth or math.inf, level.link.bandwidth.value)
                made.lines.append(f"{level.name} link: bandwidth {level.link.bandwidth}")
    if chain.nodes == 1:
        return made
    where = chain.levels[-1].sync.location if chain.levels[-1].sync else machine.origin
    given: Mapping[str, Any] = chain.options
    made.network = topology(machine, chain.network)
    made.algorithm = str(given.get("algorithm", DEFAULT))
    algorithm(made.algorithm, where)
    made.ranks = str(given.get("ranks", "natural"))
    if made.ranks not in RANK_MAPS:
        raise CompositionError(unknown("ranks", made.ranks, RANK_MAPS, where))
    made.overlaps |= bool(given.get("overlap", False))
    made.packed = bool(given.get("packed", not made.overlaps))
    made.lines += made.network.sources
    taken = "" if "algorithm" in given else " (assumed: the description's sync names none)"
    how = "all gradients at once" if made.packed else "a bucket at a time"
    made.lines.append(
        f"{chain.nodes:,} nodes agree by {made.algorithm}{taken}, ranks {made.ranks}, {how}, "
        f"{'beside the computation' if made.overlaps else 'after it'}"
    )
    if bandwidth is None:
        raise missing(
            machine, chain.levels[-1], "memory.bandwidth", "adding what other nodes send needs"
        )
    # An addition reads two numbers and writes one.
    made.gamma = 3 / (bandwidth * alike)
    rate = 1 / made.gamma / 1e9 if math.isfinite(1 / made.gamma) else 0.0
    made.lines.append(f"additions {rate:.3g} GB/s: three passes over {alike} memory(s) of a node")
    return made
