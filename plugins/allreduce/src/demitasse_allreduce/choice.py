"""Which algorithm, rank map, chunks and groups: the cheapest by the network's description, corrected by
what was measured.

A message of n bytes costs alpha + beta n, an addition gamma n (Thakur, Rabenseifner and Gropp, 2005);
messages that share a trunk or an end's link share its bandwidth.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import permutations
from statistics import median
from typing import Any

import numpy as np

from demitasse import (
    RANK_MAPS,
    Algorithm,
    CompositionError,
    DataError,
    Level,
    Machine,
    Schedule,
    Tier,
    Topology,
    cost,
    topology,
    unknown,
)
from demitasse_allreduce.algorithms import ALGORITHMS, algorithm

AUTO = "auto"

CHUNKS = (1, 2, 4, 8, 16, 32)
"""Pieces of a pipeline that are tried."""

LEAST_CHUNK = 1024
"""Elements below which no smaller chunk is tried."""

FEW, NEAR = 256, 2.0
"""Several numbers of chunks are tried for so few ranks, and for what takes with its own number no more
than so many times the least: to try them for all would take seconds."""

CHAINS = (4, 8)
"""Sizes of lower communicators that are tried where no level of the network says one (S-Caffe, section
5: "eight is the ideal P" of its chunked chain)."""


@dataclass(frozen=True, order=True)
class Way:
    """How to do it: an algorithm with its rank map (``ranks``), so many chunks (0: its own number), and
    groups of so many ranks in a row (0: those of the network's outermost tier)."""

    algorithm: str
    ranks: str = "natural"
    chunks: int = 0
    group: int = 0

    def schedule(
        self,
        size: int,
        network: Topology,
        ranks: int,
        goal: str = "allreduce",
        root: int = 0,
        known: Mapping[str, Algorithm] = ALGORITHMS,
    ) -> Schedule:
        """The schedule of ``size`` elements for ranks at the network's first endpoints, in that order,
        by an algorithm that is ``known``. Raises CompositionError for another one, or for a rank map
        that is none."""
        made = algorithm(self.algorithm, known=known)
        options: dict[str, Any] = {}
        if "groups" in made.options:
            options["groups"] = self.group or network.groups(ranks)
        elif self.ranks != "natural":
            options["order"] = maps(network, ranks, self.ranks)[self.ranks].tolist()
        if self.chunks:
            options["chunks"] = self.chunks
        return made.schedule(ranks, size, goal, root, **options)

    def __str__(self) -> str:
        parts = [self.ranks] if self.ranks != "natural" else []
        parts += [f"{self.chunks} chunk{'s' * (self.chunks > 1)}"] if self.chunks else []
        parts += [f"groups of {self.group}"] if self.group else []
        return self.algorithm + (f" ({', '.join(parts)})" if parts else "")


@dataclass(frozen=True)
class Offer:
    """A way with its seconds: ``predicted`` by the network (None: nothing predicts it), ``measured``
    (None: not yet), and ``seconds``, by which it is compared: measured, or predicted as much off as
    predictions of this size were where they could be compared."""

    way: Way
    predicted: float | None
    measured: float | None
    seconds: float


@dataclass(frozen=True)
class Fit:
    """``alpha`` seconds a message, ``beta`` a byte that is sent, ``gamma`` a byte that is added."""

    alpha: float
    beta: float
    gamma: float = 0.0

    def __str__(self) -> str:
        rate = f"{1 / self.beta / 1e9:.3g} GB/s" if self.beta else "no limit"
        adds = f", adds {1 / self.gamma / 1e9:.3g} GB/s" if self.gamma else ""
        return f"latency {self.alpha * 1e6:.3g} us, bandwidth {rate}{adds}"

    def network(self, ranks: int) -> Topology:
        """So many endpoints, each joined to each other one alike."""
        bandwidth = 1 / self.beta if self.beta else math.inf
        return Topology((Tier("network", ranks, self.alpha, bandwidth),), (f"{self} (measured)",))


def fit(messages: Iterable[tuple[float, float]], additions: Iterable[tuple[float, float]] = ()) -> Fit:
    """Alpha and beta from measured (bytes, seconds) of messages one way, gamma from those of additions.
    Each pair weighs by its relative error, so that small messages tell alpha and large ones beta.
    Raises DataError for fewer than two sizes, or seconds that are not above 0."""
    alpha, beta = _line(messages, "messages")
    given = list(additions)
    return Fit(alpha, beta, _line(given, "additions")[1] if given else 0.0)


def _line(pairs: Iterable[tuple[float, float]], what: str) -> tuple[float, float]:
    table = np.array(list(pairs), float).reshape(-1, 2)
    sizes, seconds = table.T
    if len(np.unique(sizes)) < 2 or (seconds <= 0).any():
        raise DataError(
            f"a fit of {what}: {len(np.unique(sizes))} sizes, least time "
            f"{seconds.min(initial=math.inf):g} s (valid: two sizes or more, times above 0)"
        )
    # Neither may be negative: where one would be, the other alone is fitted.
    columns = np.stack([1 / seconds, sizes / seconds], axis=1)
    one = np.ones(len(sizes))
    alpha, beta = np.linalg.lstsq(columns, one, rcond=None)[0]
    if alpha < 0:
        alpha, beta = 0.0, np.linalg.lstsq(columns[:, 1:], one, rcond=None)[0][0]
    elif beta < 0:
        alpha, beta = np.linalg.lstsq(columns[:, :1], one, rcond=None)[0][0], 0.0
    return float(alpha), float(beta)


def bucket(nbytes: int) -> int:
    """The sizes that one choice is made for: up to the next power of two."""
    return max(0, nbytes - 1).bit_length()


@dataclass
class Measurements:
    """Measured seconds by goal, ranks, way and bucket of sizes; of several the median counts."""

    seconds: dict[tuple[str, int, Way, int], list[float]] = field(default_factory=dict)

    def record(self, way: Way, nbytes: int, ranks: int, seconds: float, goal: str = "allreduce") -> None:
        """Remember a time of a way, also of one that is not ours (MPI's own)."""
        self.seconds.setdefault((goal, ranks, way, bucket(nbytes)), []).append(float(seconds))

    def of(self, nbytes: int, ranks: int, goal: str = "allreduce") -> dict[Way, float]:
        """The measured seconds of each way for a size like that."""
        return {
            way: median(times)
            for (its_goal, its_ranks, way, its_bucket), times in self.seconds.items()
            if (its_goal, its_ranks, its_bucket) == (goal, ranks, bucket(nbytes))
        }

    def to_list(self) -> list[dict[str, Any]]:
        """Plain data, for a cache."""
        return [
            {"goal": goal, "ranks": ranks, "way": asdict(way), "bucket": size, "seconds": times}
            for (goal, ranks, way, size), times in self.seconds.items()
        ]

    @classmethod
    def from_list(cls, given: Sequence[Mapping[str, Any]]) -> Measurements:
        """What ``to_list`` gave. Raises DataError for anything else."""
        made = cls()
        try:
            for each in given:
                key = str(each["goal"]), int(each["ranks"]), Way(**each["way"]), int(each["bucket"])
                made.seconds[key] = [float(seconds) for seconds in each["seconds"]]
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"measured times of collectives: {error!r} in {given!r:.200}") from error
        return made


def mpi_levels(machine: Machine) -> tuple[Level, ...]:
    """The levels whose siblings are processes, and those around them; outermost first."""
    inner = [i for i, level in enumerate(machine.levels) if level.workers == "mpi"]
    if not inner:
        return ()
    around, at = [], machine.levels[inner[-1]]
    while True:
        around.append(at)
        if at.parent is None:
            return tuple(reversed(around))
        at = machine.level(at.parent)


def network_of(machine: Machine) -> Topology:
    """The network that joins a machine's processes. Raises CompositionError for one without any,
    DescriptionError for a link or number that is not there."""
    levels = mpi_levels(machine)
    if all(level.count == 1 for level in levels):
        raise CompositionError(
            f"{machine.origin}: no level with workers = 'mpi' and a count above 1, so no network to cost"
        )
    return topology(machine, levels)


def maps(network: Topology, ranks: int, only: str = AUTO) -> dict[str, np.ndarray[Any, Any]]:
    """Rank maps by name: which rank has number i. The numbers run through the tiers' coordinates:
    natural in the tiers' own order, round-robin with the outermost one fastest, the others named after
    their order of tiers. Raises CompositionError for an unknown map."""
    found: dict[str, np.ndarray[Any, Any]] = {}
    for name in RANK_MAPS:
        order = network.place(ranks, name)
        if not any(np.array_equal(order, other) for other in found.values()) or name == only:
            found[name] = order
    tiers = [i for i, tier in enumerate(network.tiers) if tier.count > 1]
    if 2 < len(tiers) < 5:
        rank = np.arange(ranks)
        digits = [rank // network.inside(i) % network.tiers[i].count for i in tiers]
        for turn in permutations(range(len(tiers))):
            order = np.lexsort([digits[i] for i in reversed(turn)])
            if not any(np.array_equal(order, other) for other in found.values()):
                found["by " + ", ".join(network.tiers[tiers[i]].name for i in turn)] = order
    if only not in (AUTO, *found):
        raise CompositionError(unknown("rank map", only, (*RANK_MAPS, *found, AUTO)))
    return found if only == AUTO else {only: found[only]}


class Chooser:
    """Chooses for ``ranks`` at the first endpoints of a network. ``item`` bytes are an element,
    ``gamma`` seconds a byte that is added; ``only`` restricts the algorithms that are ``known``, and
    ``order`` rank maps ("auto": any). Choices are remembered by bucket of sizes; all ranks come to the
    same ones from the same numbers."""

    def __init__(
        self,
        network: Topology,
        ranks: int,
        *,
        item: int = 4,
        gamma: float = 0.0,
        only: Sequence[str] = (),
        order: str = AUTO,
        measured: Measurements | None = None,
        known: Mapping[str, Algorithm] = ALGORITHMS,
    ) -> None:
        self.known = known
        self.network, self.ranks, self.item, self.gamma = network, ranks, item, gamma
        self.measured = Measurements() if measured is None else measured
        self._algorithms = tuple(algorithm(name, known=known) for name in only) or tuple(known.values())
        self._maps = maps(network, ranks, order)
        self._predicted: dict[tuple[str, int], dict[Way, float]] = {}

    def offers(self, nbytes: int, goal: str = "allreduce") -> list[Offer]:
        """All ways for about so many bytes, the cheapest first."""
        predicted, measured = self.predictions(nbytes, goal), self.measured.of(nbytes, self.ranks, goal)
        both = [measured[way] / predicted[way] for way in measured if predicted.get(way)]
        off = median(both) if both else 1.0
        found = [Offer(way, predicted.get(way), took, took) for way, took in measured.items()]
        found += [
            Offer(way, took, None, took * off) for way, took in predicted.items() if way not in measured
        ]
        return sorted(found, key=lambda offer: (offer.seconds, offer.way))

    def best(self, nbytes: int, goal: str = "allreduce") -> Way:
        """The cheapest way. Raises CompositionError where no algorithm has the goal."""
        offers = self.offers(nbytes, goal)
        if not offers:
            names = ", ".join(each.name for each in self._algorithms)
            raise CompositionError(
                f"no algorithm for goal {goal!r} and {self.ranks} ranks among {names}"
            )
        return offers[0].way

    def schedule(self, size: int, goal: str = "allreduce", root: int = 0) -> Schedule:
        """The best way's schedule for ``size`` elements. Raises CompositionError where that is a way
        without one: MPI's own."""
        way = self.best(size * self.item, goal)
        return way.schedule(size, self.network, self.ranks, goal, root, self.known)

    def predictions(self, nbytes: int, goal: str = "allreduce") -> dict[Way, float]:
        """Predicted seconds of every way for the largest size of the bucket."""
        key = goal, bucket(nbytes)
        if key not in self._predicted:
            size = -(-(1 << key[1]) // self.item)
            ways = [way for made in self._algorithms for way in self._ways(made, goal)]
            found = {way: self.predict(way, size, goal) for way in ways}
            near = NEAR * min(found.values(), default=0.0)
            tried = [
                each for way, took in found.items() if took <= near for each in self._cut(way, size)
            ]
            self._predicted[key] = found | {way: self.predict(way, size, goal) for way in tried}
        return self._predicted[key]

    def predict(self, way: Way, size: int, goal: str = "allreduce") -> float:
        """Seconds of one way for exactly ``size`` elements."""
        made = algorithm(way.algorithm, known=self.known)
        options: dict[str, Any] = {"goal": goal}
        if way.chunks:
            options["chunks"] = way.chunks
        place = self.network.place(self.ranks)
        if "groups" in made.options:
            options["groups"] = way.group or self.network.groups(self.ranks)
        else:
            place = maps(self.network, self.ranks, way.ranks)[way.ranks]
        rounds = made.rounds(self.ranks, size, **options)
        return cost(rounds, self.network, place, self.item, self.gamma).seconds

    def _ways(self, made: Algorithm, goal: str) -> Iterator[Way]:
        """An algorithm with each rank map or size of groups, and its own number of chunks."""
        if goal not in made.goals or self.ranks > made.most_ranks:
            return
        if "groups" not in made.options:
            yield from (Way(made.name, order) for order in self._maps)
            return
        many = 1 < len(self.network.groups(self.ranks)) < self.ranks
        groups = [0] if many else []
        if made.name.startswith("chain-") or not many:  # lower communicators may span nodes
            groups += [each for each in CHAINS if each < self.ranks]
        yield from (Way(made.name, "natural", 0, group) for group in groups)

    def _cut(self, way: Way, size: int) -> Iterator[Way]:
        """The same with other numbers of chunks."""
        made = algorithm(way.algorithm, known=self.known)
        if "chunks" in made.options and self.ranks <= FEW:
            for chunks in CHUNKS:
                if chunks != made.chunks(self.ranks, size) and size // chunks >= LEAST_CHUNK:
                    yield replace(way, chunks=chunks)

    def table(self, nbytes: int, goal: str = "allreduce", most: int = 12) -> str:
        """The offers as lines: seconds, whether measured or simulated, and the way."""
        offers = self.offers(nbytes, goal)
        title = f"{goal} of {nbytes:,} bytes by {self.ranks} ranks (sizes to {1 << bucket(nbytes):,})"
        lines = [title, *(f"  {source}" for source in self.network.sources)]
        for place, offer in enumerate(offers[:most]):
            mark = "->" if place == 0 else "  "
            source = "measured " if offer.measured is not None else "simulated"
            lines.append(f"{mark} {human(offer.seconds):>11} {source} {offer.way}")
        if len(offers) > most:
            lines.append(f"   and {len(offers) - most} more, to {human(offers[-1].seconds)}")
        return "\n".join(lines)


def human(seconds: float) -> str:
    """Seconds for people."""
    scale, unit = next(((s, u) for s, u in ((1, "s"), (1e3, "ms")) if seconds * s >= 1), (1e6, "us"))
    return f"{seconds * scale:.3f} {unit}"
