"""Choosing the algorithm, rank map, chunks and groups that cost least by the network's description,
corrected by measurements.

A message of n bytes costs alpha + beta n seconds, an addition gamma n (Thakur, Rabenseifner and Gropp,
2005). Messages that share a trunk, or the link of an endpoint, share its bandwidth.
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
"""Numbers of pieces of a pipeline that are tried."""

LEAST_CHUNK = 1024
"""The smallest chunk that is tried, in elements."""

FEW, NEAR = 256, 2.0
"""Other numbers of chunks than an algorithm's own are tried only for up to FEW ranks, and only for ways
whose predicted time is at most NEAR times the least. To try them for all would take seconds."""

CHAINS = (4, 8)
"""Sizes of lower communicators that are tried besides the groups of the network: always for
``chain-chain`` and ``chain-binomial``, and for other two-level algorithms if the network has no groups
(S-Caffe, section 5: "eight is the ideal P" of its chunked chain)."""


@dataclass(frozen=True, order=True)
class Way:
    """A way to run a collective: an algorithm, its rank map (``ranks``), the number of ``chunks`` (0:
    the algorithm's own), and ``group``, the number of consecutive ranks in each group (0: the groups of
    the network's outermost tier)."""

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
        """Return the schedule for ``size`` elements and ``ranks`` ranks, which are the network's first
        endpoints in order. Raises CompositionError if the algorithm is not ``known`` or the rank map
        does not exist."""
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
    """A way with its seconds: ``predicted`` from the network (None: no prediction), ``measured`` (None:
    not yet), and ``seconds``, by which offers are compared. These are the measured seconds or, without
    any, the predicted ones times the median ratio of measured to predicted seconds of other ways for
    this size."""

    way: Way
    predicted: float | None
    measured: float | None
    seconds: float


@dataclass(frozen=True)
class Fit:
    """``alpha`` seconds per message, ``beta`` per byte sent, ``gamma`` per byte added."""

    alpha: float
    beta: float
    gamma: float = 0.0

    def __str__(self) -> str:
        rate = f"{1 / self.beta / 1e9:.3g} GB/s" if self.beta else "no limit"
        adds = f", adds {1 / self.gamma / 1e9:.3g} GB/s" if self.gamma else ""
        return f"latency {self.alpha * 1e6:.3g} us, bandwidth {rate}{adds}"

    def network(self, ranks: int) -> Topology:
        """Return a network of ``ranks`` endpoints, with equal links between all pairs."""
        bandwidth = 1 / self.beta if self.beta else math.inf
        return Topology((Tier("network", ranks, self.alpha, bandwidth),), (f"{self} (measured)",))


def fit(messages: Iterable[tuple[float, float]], additions: Iterable[tuple[float, float]] = ()) -> Fit:
    """Fit alpha and beta to measured (bytes, seconds) of messages one way, and gamma to those of
    additions. The fit minimises relative errors, so small messages determine alpha and large ones beta.
    Raises DataError for fewer than two sizes, or for seconds that are not above 0."""
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
    # Neither may be negative: if one would be, it is set to 0 and only the other is fitted.
    columns = np.stack([1 / seconds, sizes / seconds], axis=1)
    one = np.ones(len(sizes))
    alpha, beta = np.linalg.lstsq(columns, one, rcond=None)[0]
    if alpha < 0:
        alpha, beta = 0.0, np.linalg.lstsq(columns[:, 1:], one, rcond=None)[0][0]
    elif beta < 0:
        alpha, beta = np.linalg.lstsq(columns[:, :1], one, rcond=None)[0][0], 0.0
    return float(alpha), float(beta)


def bucket(nbytes: int) -> int:
    """Return the exponent of the smallest power of two that is at least ``nbytes``. One choice is made
    for all sizes in a bucket."""
    return max(0, nbytes - 1).bit_length()


@dataclass
class Measurements:
    """Measured seconds by goal, ranks, way and bucket of sizes. If there are several, the median
    counts."""

    seconds: dict[tuple[str, int, Way, int], list[float]] = field(default_factory=dict)

    def record(self, way: Way, nbytes: int, ranks: int, seconds: float, goal: str = "allreduce") -> None:
        """Remember a time of a way, which may be one without a schedule here (MPI's own)."""
        self.seconds.setdefault((goal, ranks, way, bucket(nbytes)), []).append(float(seconds))

    def of(self, nbytes: int, ranks: int, goal: str = "allreduce") -> dict[Way, float]:
        """Return the measured seconds of each way for sizes in the bucket of ``nbytes``."""
        return {
            way: median(times)
            for (its_goal, its_ranks, way, its_bucket), times in self.seconds.items()
            if (its_goal, its_ranks, its_bucket) == (goal, ranks, bucket(nbytes))
        }

    def to_list(self) -> list[dict[str, Any]]:
        """Return the measurements as plain data, for a cache."""
        return [
            {"goal": goal, "ranks": ranks, "way": asdict(way), "bucket": size, "seconds": times}
            for (goal, ranks, way, size), times in self.seconds.items()
        ]

    @classmethod
    def from_list(cls, given: Sequence[Mapping[str, Any]]) -> Measurements:
        """Return the measurements that ``to_list`` gave. Raises DataError for anything else."""
        made = cls()
        try:
            for each in given:
                key = str(each["goal"]), int(each["ranks"]), Way(**each["way"]), int(each["bucket"])
                made.seconds[key] = [float(seconds) for seconds in each["seconds"]]
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"measured times of collectives: {error!r} in {given!r:.200}") from error
        return made


def mpi_levels(machine: Machine) -> tuple[Level, ...]:
    """Return the innermost level whose siblings are processes and all levels around it, outermost
    first; empty if there is none."""
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
    """Return the network that joins a machine's processes. Raises CompositionError if the machine has no
    level of several processes, DescriptionError if a link or a number is missing."""
    levels = mpi_levels(machine)
    if all(level.count == 1 for level in levels):
        raise CompositionError(
            f"{machine.origin}: no level with workers = 'mpi' and a count above 1, so no network to cost"
        )
    return topology(machine, levels)


def maps(network: Topology, ranks: int, only: str = AUTO) -> dict[str, np.ndarray[Any, Any]]:
    """Return rank maps by name; a map's element i is the rank that has number i. Numbers run through the
    coordinates of the tiers: "natural" in the tiers' own order, "round-robin" with the outermost tier
    fastest; the others are named after their order of tiers. Raises CompositionError for an unknown
    map."""
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
    """Chooses how to run collectives of ``ranks`` ranks, at the first endpoints of a network. An element
    has ``item`` bytes, and adding a byte takes ``gamma`` seconds. ``only`` restricts the ``known``
    algorithms, and ``order`` the rank maps ("auto": any). Predictions are remembered by bucket of sizes.
    All ranks come to the same choices from the same numbers."""

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
        """Return all ways for about ``nbytes`` bytes, the cheapest first."""
        predicted, measured = self.predictions(nbytes, goal), self.measured.of(nbytes, self.ranks, goal)
        both = [measured[way] / predicted[way] for way in measured if predicted.get(way)]
        off = median(both) if both else 1.0
        found = [Offer(way, predicted.get(way), took, took) for way, took in measured.items()]
        found += [
            Offer(way, took, None, took * off) for way, took in predicted.items() if way not in measured
        ]
        return sorted(found, key=lambda offer: (offer.seconds, offer.way))

    def best(self, nbytes: int, goal: str = "allreduce") -> Way:
        """Return the cheapest way. Raises CompositionError if no algorithm supports the goal."""
        offers = self.offers(nbytes, goal)
        if not offers:
            names = ", ".join(each.name for each in self._algorithms)
            raise CompositionError(
                f"no algorithm for goal {goal!r} and {self.ranks} ranks among {names}"
            )
        return offers[0].way

    def schedule(self, size: int, goal: str = "allreduce", root: int = 0) -> Schedule:
        """Return the best way's schedule for ``size`` elements. Raises CompositionError if the best way
        has no schedule (MPI's own)."""
        way = self.best(size * self.item, goal)
        return way.schedule(size, self.network, self.ranks, goal, root, self.known)

    def predictions(self, nbytes: int, goal: str = "allreduce") -> dict[Way, float]:
        """Return the predicted seconds of every way, for the largest size of the bucket."""
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
        """Return the predicted seconds of one way for exactly ``size`` elements."""
        made = algorithm(way.algorithm, known=self.known)
        options: dict[str, Any] = {"goal": goal}
        if way.chunks:
            options["chunks"] = way.chunks
        if "groups" in made.options:
            options["groups"] = way.group or self.network.groups(self.ranks)
            place = self.network.place(self.ranks)
        elif way.ranks in self._maps:
            place = self._maps[way.ranks]
        else:
            place = maps(self.network, self.ranks, way.ranks)[way.ranks]
        rounds = made.rounds(self.ranks, size, **options)
        return cost(rounds, self.network, place, self.item, self.gamma, parts=False).seconds

    def _ways(self, made: Algorithm, goal: str) -> Iterator[Way]:
        """Yield an algorithm with each rank map, or each size of groups, and its own number of
        chunks."""
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
        """Yield the same way with other numbers of chunks."""
        made = algorithm(way.algorithm, known=self.known)
        if "chunks" in made.options and self.ranks <= FEW:
            for chunks in CHUNKS:
                if chunks != made.chunks(self.ranks, size) and size // chunks >= LEAST_CHUNK:
                    yield replace(way, chunks=chunks)

    def table(self, nbytes: int, goal: str = "allreduce", most: int = 12) -> str:
        """Return the cheapest offers as lines of text: seconds, measured or simulated, and the way."""
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
    """Return seconds as text with a fitting unit (s, ms or us)."""
    scale, unit = next(((s, u) for s, u in ((1, "s"), (1e3, "ms")) if seconds * s >= 1), (1e6, "us"))
    return f"{seconds * scale:.3f} {unit}"
