"""The cost of synchronising one bucket: between threads of a process, and over the network."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from demitasse import (
    RANK_MAPS,
    Algorithm,
    Bucket,
    Composition,
    CompositionError,
    Cost,
    GradientSync,
    Level,
    Machine,
    PluginError,
    Span,
    Tier,
    Topology,
    cost,
    discover,
    missing_number,
    topology,
    uninstalled,
    unknown,
)
from demitasse_simulator import statements
from demitasse_simulator.planning import Beyond, Chain, endpoints
from demitasse_simulator.roofline import around

AUTO = "auto"
"""Selects the algorithm, or the order of ranks, with the lowest cost."""

DEFAULT = "recursive-halving-doubling"

CHUNKS, LEAST_CHUNK, FEW = (1, 2, 4, 8, 16, 32), 1024, 256
"""If a plugin chooses: the numbers of pipeline chunks that are tried, the fewest elements in a chunk,
and the most nodes for which several numbers are tried."""

Way = tuple[Algorithm, str, int]
"""An algorithm, an order of ranks, and a number of chunks (0: the algorithm's own)."""


@dataclass
class Link:
    """The costs of one chain's synchronisation; an element has ``item`` bytes."""

    chain: Chain
    machine: Machine
    item: int
    bandwidth: float | None
    network: Topology | None = None
    algorithms: tuple[Algorithm, ...] = ()
    ranks: tuple[str, ...] = RANK_MAPS
    group: int | None = None
    packed: bool = True
    overlaps: bool = False
    gamma: float = 0.0
    lines: list[str] = field(default_factory=list)
    pieces: tuple[int, ...] = ()
    near: int = 1
    """The number of ranks of a node that add in its memory, each its slice, without messages."""
    leads: bool = False
    """Whether the first of these ranks holds everything, instead of each its slice."""
    levels: tuple[Algorithm, ...] = ()
    """The algorithms of the lower and the upper communicators, if these take turns instead of one
    algorithm."""
    _costs: dict[tuple[str, int], tuple[Cost, str]] = field(default_factory=dict)
    _tried: dict[tuple[str, int], tuple[int, dict[Way, Cost]]] = field(default_factory=dict)

    @property
    def algorithm(self) -> str:
        """The algorithm's name, or the names of two levels; "auto" if the cheapest of several is
        used."""
        if self.levels:
            return " and ".join(each.name for each in self.levels)
        return self.algorithms[0].name if len(self.algorithms) == 1 else AUTO

    @property
    def inner(self) -> GradientSync | None:
        """The composed plugin's own synchronisation between threads; None if there is only one
        thread."""
        return _inner(self.chain.sync)

    @property
    def staged(self) -> GradientSync | None:
        """The plugin's own synchronisation, if it describes its stages (``stages(buckets, ready)``)."""
        return self.inner if hasattr(self.inner, "stages") else None

    @property
    def spoken(self) -> Any:
        """The plugin's object for a node among others, which itself states which messages are sent when
        (``messages(buckets, reads)``); None if the plugin has none."""
        outer = getattr(self.chain.sync, "outer", None)
        return outer if outer is not None and self.chain.nodes > 1 else None

    def describe(self) -> list[str]:
        """Return lines about the sources of the numbers."""
        largest: dict[str, int] = {}
        for goal, elements in self._costs:
            largest[goal] = max(elements, largest.get(goal, 0))
        taken = [self._told(*each) for each in largest.items()] if self.spoken is not None else []
        said = (*statements.sources(self.inner), *statements.sources(self.spoken))
        return [*self.lines, *said, *taken]

    def _told(self, goal: str, elements: int) -> str:
        """Return a line about what was chosen for the largest message with a goal."""
        found, how = self._costs[goal, elements]
        return (
            f"{goal} of {elements * self.item:,} bytes: {how}, {found.seconds * 1e3:.3g} ms (simulated)"
        )

    @property
    def waits_before_forward(self) -> bool:
        """Whether the next iteration waits for a bucket only when it reads the bucket's parameters."""
        inner = self.inner
        return inner is not None and type(inner).before_forward is not GradientSync.before_forward

    def among_threads(self, bucket: Bucket, span: Span) -> tuple[float, float]:
        """Return the seconds to reduce and to distribute a span between this process's threads. They
        come from the plugin's ``costs(bucket, span)`` or, without one, from the bytes that a sum and
        copies move through the memory that the threads share. Raises DescriptionError if the bandwidth
        of this memory is not described."""
        if self.near > 1 and self.bandwidth is not None:
            return self._in_memory(len(span), self.near, self.near * self.bandwidth)
        inner = self.inner
        if inner is None or not span:
            return 0.0, 0.0
        if hasattr(inner, "costs"):
            return statements.costs(inner, bucket, span)
        if self.bandwidth is None:
            level = self.chain.levels[-1]
            raise missing_number(self.machine, level, "memory.bandwidth", "a sum over its threads needs")
        return self._in_memory(len(span), inner.size, self.bandwidth)

    def _in_memory(self, elements: int, siblings: int, bandwidth: float) -> tuple[float, float]:
        """Return the seconds to reduce and distribute in memory: a sum reads all siblings' gradients and
        writes one; then all siblings but the owner read and write the parameters."""
        moved = elements * self.item
        return (siblings + 1) * moved / bandwidth, 2 * (siblings - 1) * moved / bandwidth

    def kept(self, span: Span, worker: int = 0) -> Span:
        """Return the part of a span that a worker of the process, by default the first, holds once it is
        summed."""
        if self.near > 1:
            return span if self.leads else Span(span.start, span.start - -len(span) // self.near)
        inner, spoken = _inner(self.chain.syncs[worker]), self.spoken
        span = inner.owned(span) if inner is not None else span
        return spoken.owned(span) if spoken is not None else span

    @property
    def endpoints(self) -> int:
        """How many endpoints the network joins: nodes, if the ranks of a node need no messages."""
        return -(-self.chain.nodes // self.near)

    def over_network(self, elements: int, goal: str = "allreduce") -> Cost | None:
        """Return the cost of the collective ``goal`` between nodes; None if there is only one node.
        Raises CompositionError if no algorithm supports the goal."""
        if self.network is None or self.endpoints == 1 or not elements:
            return None
        if (goal, elements) not in self._costs:
            if self.levels:
                self._costs[goal, elements] = self._in_turn(elements, goal)
            else:
                found, way = self._way(elements, goal)
                self._costs[goal, elements] = found, _words(*way)
        return self._costs[goal, elements][0]

    def _in_turn(self, elements: int, goal: str) -> tuple[Cost, str]:
        """Return the cost of two levels of communicators that take turns: consecutive ranks, and the
        first rank of each such group."""
        assert self.network is not None
        lower, upper = self.levels
        nodes, places = self.endpoints, self.network.place(self.endpoints)
        row = min(self.group or len(self.network.groups(nodes)[0]), nodes)
        low, up = (lower, places[:row]), (upper, places[::row])
        turns = {
            "reduce": [(low, "reduce"), (up, "reduce")],
            "broadcast": [(up, "broadcast"), (low, "broadcast")],
            "allreduce": [(low, "reduce"), (up, "allreduce"), (low, "broadcast")],
        }[goal]
        costs = [self._cheapest(*who, elements, what) for who, what in turns if len(who[1]) > 1]
        parts = (
            sum(getattr(each, part) for each in costs)
            for part in ("seconds", "latency", "transfer", "reduction", "rounds")
        )
        return Cost(*parts), f"{lower.name} by {row} ranks and {upper.name} by {len(up[1])}"

    def _cheapest(self, algorithm: Algorithm, place: Any, elements: int, goal: str) -> Cost:
        """Return the cost of an algorithm at the given endpoints, with the fastest number of chunks."""
        assert self.network is not None
        if goal not in algorithm.goals:
            raise self._lacks(goal, algorithm)
        counts = [
            n for n in self.pieces if "chunks" in algorithm.options and elements // n >= LEAST_CHUNK
        ]
        tried: list[dict[str, Any]] = [{}, *({"chunks": count} for count in counts)]
        rounds = (algorithm.rounds(len(place), elements, goal=goal, **each) for each in tried)
        costs = [cost(each, self.network, place, self.item, self.gamma) for each in rounds]
        return min(costs, key=lambda made: made.seconds)

    def _lacks(self, goal: str, *algorithms: Algorithm) -> CompositionError:
        names = ", ".join(each.name for each in algorithms)
        return CompositionError(
            f"{self.machine.origin}: no algorithm of {names} has the goal {goal!r}, which "
            f"{self.chain.plugin} needs"
        )

    def _way(self, elements: int, goal: str) -> tuple[Cost, Way]:
        """Return the cheapest way for so many elements, and its cost. If a plugin chooses, all ways are
        costed for one size up to the next power of 2 or, with many nodes, of 16: this takes seconds. For
        other sizes, only those are costed that are cheapest if all but latencies is proportional to the
        size."""
        coarse = elements.bit_length() if self.endpoints <= FEW else elements.bit_length() // 4
        key = goal, coarse if self.spoken is not None else -elements
        if key not in self._tried:
            self._tried[key] = elements, self._all_ways(elements, goal)
        size, tried = self._tried[key]
        expected = {
            way: each.latency + (each.seconds - each.latency) * elements / size
            for way, each in tried.items()
        }
        found: dict[Way, Cost] = {}
        best = math.inf
        for way in sorted(tried, key=expected.__getitem__):
            if best <= expected[way]:
                break
            found[way] = tried[way] if size == elements else self._cost(way, elements, goal)
            best = min(best, found[way].seconds)
        taken = min(found, key=lambda way: found[way].seconds)
        return found[taken], taken

    def _all_ways(self, elements: int, goal: str) -> dict[Way, Cost]:
        """Return the costs of all algorithms and orders of ranks, and of the better ones also with other
        numbers of chunks."""
        ways = [
            (each, order, 0)
            for each in self.algorithms
            if goal in each.goals
            for order in (("natural",) if "groups" in each.options else self.ranks)
        ]
        if not ways:
            raise self._lacks(goal, *self.algorithms)
        costs = {way: self._cost(way, elements, goal) for way in ways}
        near = 2 * min(each.seconds for each in costs.values())
        for each, order, _ in [way for way in ways if costs[way].seconds <= near]:
            for count in self.pieces if "chunks" in each.options else ():
                if elements // count >= LEAST_CHUNK:
                    way = each, order, count
                    costs[way] = self._cost(way, elements, goal)
        return costs

    def _cost(self, way: Way, elements: int, goal: str) -> Cost:
        assert self.network is not None
        algorithm, order, pieces = way
        nodes, options = self.endpoints, dict[str, Any](goal=goal)
        if "groups" in algorithm.options:
            options["groups"] = self.group or self.network.groups(nodes)
        if pieces:
            options["chunks"] = pieces
        rounds = algorithm.rounds(nodes, elements, **options)
        return cost(rounds, self.network, self.network.place(nodes, order), self.item, self.gamma)


def _inner(sync: GradientSync) -> GradientSync | None:
    own = sync.inner if isinstance(sync, Beyond) else sync
    return own if own is not None and own.size > 1 else None


def link_of_statistics(
    links: Sequence[Link], machine: Machine, bandwidth: float | None, composition: Composition
) -> Link | None:
    """Return the link over which processes add up statistics within a pass: that of their gradients or,
    if its algorithm does not give the sum to all, one of the same network with the algorithms that do.
    None if there is only one process."""
    made = next((each for each in links if each.chain.nodes > 1), None)
    if made is None or any("allreduce" in each.goals for each in made.algorithms if not made.levels):
        return made
    chain = made.chain
    network = topology(machine, _joined(machine, chain.network))
    able = [each for each in offered(composition).values() if "allreduce" in each.goals]
    fitting = tuple(each for each in able if chain.nodes <= each.most_ranks)
    gamma = 3 / bandwidth if bandwidth is not None else 0.0
    return Link(chain, machine, made.item, bandwidth, network, fitting, ("natural",), gamma=gamma)


def _near(made: Link) -> tuple[int, bool]:
    """Return how many ranks of a node add in its memory, and whether the first of them holds
    everything, as the plugin's own object states."""
    said = made.spoken
    return int(getattr(said, "node_ranks", 1)), bool(getattr(said, "leaders", False))


def _around(levels: Sequence[Level], ranks: int) -> Sequence[Level]:
    """Return the levels around a node of so many ranks."""
    count = len(levels)
    while count and math.prod(level.count for level in levels[count:]) < ranks:
        count -= 1
    return levels[:count]


def _joined(machine: Machine, levels: Sequence[Level]) -> Sequence[Level]:
    """Return the given levels and the levels of one sibling between them, whose links messages pass
    too."""
    path = around(machine, levels[-1])[::-1] if levels else []
    between = path[path.index(levels[0]) :] if levels else []
    return [each for each in between if each in levels or each.count == 1]


def _of_nodes(network: Topology, inside: int, leads: bool) -> Topology:
    """Return the network of nodes with ``inside`` ranks each, from tiers whose numbers are per rank.
    All ranks of a node send their slices at the same time, or (``leads``) one of them sends
    everything."""
    tiers, joined = network.tiers, list[Tier]()
    for number, tier in enumerate(tiers):
        trunk = inside * tier.bandwidth / tier.oversubscription  # of all ranks of a node together
        if number == len(tiers) - 1:
            joined.append(
                Tier(tier.name, tier.count, tier.latency, min(trunk, tier.bandwidth) if leads else trunk)
            )
        elif leads:
            shared = max(1.0, tier.oversubscription / inside)
            joined.append(Tier(tier.name, tier.count, tier.latency, tier.bandwidth, shared))
        else:
            rate = inside * tier.bandwidth
            joined.append(Tier(tier.name, tier.count, tier.latency, rate, tier.oversubscription))
    return Topology(tuple(joined), network.sources)


def _words(algorithm: Algorithm, order: str, pieces: int) -> str:
    about = [order] if order != RANK_MAPS[0] else []
    about += [f"{pieces} chunks"] if pieces else []
    return f"{algorithm.name} ({', '.join(about)})" if about else algorithm.name


def offered(composition: Composition, where: object = None) -> Mapping[str, Algorithm]:
    """Return the algorithms of all composed plugins; if two have the same name, the preferred plugin's.
    If none has any, raises PluginError, which names plugins to compose."""
    found = composition.offered("collectives")
    if not found:
        there = [m.name for m in discover() if "collectives" in m.roles and not m.problem]
        remedy = f"; compose {' or '.join(there)} (--plugins +{there[0]})" if there else ""
        remedy = remedy or uninstalled("collectives")
        raise PluginError(f"{where}: no composed plugin has algorithms of collectives{remedy}")
    return found


def _named(given: Mapping[str, Any], known: Mapping[str, Algorithm], nodes: int, where: object) -> Any:
    """Return the algorithms that a ``sync`` names: one, or all among which the cheapest is chosen."""
    name = str(given.get("algorithm", DEFAULT))
    if "lower" in given or "upper" in given:
        name = f"{given.get('lower', 'chain')}-{given.get('upper', 'binomial')}"
    if name == AUTO:
        most = max(each.most_ranks for each in known.values())
        if nodes > most:
            told = f"{nodes:,} ranks are more than any algorithm's rounds are made for"
            raise CompositionError(f"{where}: {told} (valid: 1 to {most:,}, by --nodes)")
        return tuple(each for each in known.values() if nodes <= each.most_ranks)
    if name not in known:
        raise CompositionError(unknown("algorithm", name, (*known, AUTO), where))
    return (known[name],)


def _check_values(given: Mapping[str, Any], where: object) -> None:
    for key in ("overlap", "packed"):
        if type(given.get(key, True)) is not bool:
            raise CompositionError(f"{where}: {key} = {given[key]!r} (valid: true or false)")
    if type(chain := given.get("chain", 1)) is not int or chain < 1:
        raise CompositionError(f"{where}: chain = {chain!r} (valid: a whole number, 1 or more)")


def link(
    machine: Machine,
    chain: Chain,
    item: int,
    bandwidth: float | None,
    alike: int,
    measuring: bool,
    composition: Composition,
) -> Link:
    """Return a chain's costs. ``bandwidth`` is that of the memory in which workers add; a node has
    ``alike`` such memories. If gradients are measured before updates (``measuring``), nothing overlaps.
    Raises DescriptionError or CompositionError for what the description lacks, or for an unknown
    option."""
    made = Link(chain, machine, item, bandwidth)
    inner = made.inner
    if inner is not None:
        made.overlaps = made.staged is None and type(inner).schedule is not GradientSync.schedule
        for level in chain.levels:
            if level.link is not None and level not in chain.network:
                # Siblings read each other's data over the link that joins them.
                why = "what siblings read of each other needs"
                own = made.staged is not None or hasattr(inner, "costs")  # these may read the latency
                if level.link.latency is None and own:
                    raise missing_number(machine, level, "link.latency", why)
                if level.link.bandwidth is None:
                    raise missing_number(machine, level, "link.bandwidth", why)
                made.bandwidth = min(bandwidth or math.inf, level.link.bandwidth.value)
                made.lines.append(f"{level.name} link: bandwidth {level.link.bandwidth}")
    if chain.nodes == 1:
        return made
    where = chain.levels[-1].sync.location if chain.levels[-1].sync else machine.origin
    if bandwidth is None:
        raise missing_number(
            machine, chain.levels[-1], "memory.bandwidth", "adding what other nodes send needs"
        )
    made.near, made.leads = _near(made)
    if made.near > 1:
        rate = made.near * bandwidth / 1e9
        made.lines.append(
            f"sums in a node: all that they read and write, over its memory's {rate:.3g} GB/s"
        )
    if made.endpoints == 1:
        return made
    made.network = topology(machine, _joined(machine, _around(chain.network, made.near)))
    if made.near > 1:
        made.network = _of_nodes(made.network, made.near, made.leads)
    given: Mapping[str, Any] = chain.options
    if made.spoken is not None:
        given = getattr(made.spoken, "collective", given)
        if given is None:  # no collective: the plugin states the seconds of its messages itself
            made.network, made.packed = None, False
            return made
        made.pieces = CHUNKS if made.endpoints <= FEW else ()
    known = offered(composition, where)
    if made.spoken is not None and "lower" in given:
        made.levels = made.algorithms = tuple(known[given[key]] for key in ("lower", "upper"))
    else:
        made.algorithms = _named(given, known, made.endpoints, where)
    order = str(given.get("ranks", "natural"))
    if order not in (*RANK_MAPS, AUTO):
        raise CompositionError(unknown("ranks", order, (*RANK_MAPS, AUTO), where))
    made.ranks = RANK_MAPS if order == AUTO else (order,)
    _check_values(given, where)
    made.group = given.get("chain")
    made.overlaps |= bool(given.get("overlap", False))
    made.packed = made.spoken is None and bool(given.get("packed", not made.overlaps))
    made.lines += made.network.sources
    lacks = "the description's sync names none"
    if made.spoken is None and chain.plugin != "simulator":
        lacks = f"plugin {chain.plugin!r} does not state what it sends"
    taken = "" if "algorithm" in given else f" (assumed: {lacks})"
    how = "all gradients at once" if made.packed else "a bucket at a time"
    who = endpoints(chain.network, chain.nodes)
    if made.near > 1:
        who = f"{made.endpoints:,} nodes of {who}"
    beside = "beside the computation" if made.overlaps and not measuring else "after it"
    when = "" if made.spoken is not None else f", {how}, {beside}"
    made.lines.append(f"{who} agree by {made.algorithm}{taken}, ranks {order}{when}")
    # An addition reads two numbers and writes one.
    made.gamma = 3 / (bandwidth * alike * made.near)
    rate = 1 / made.gamma / 1e9 if math.isfinite(1 / made.gamma) else 0.0
    memories = "the memory" if alike == 1 else f"the {alike} memories"
    made.lines.append(f"additions {rate:.3g} GB/s: three passes over {memories} of a node")
    return made
