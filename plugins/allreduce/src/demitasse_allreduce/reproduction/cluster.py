"""Reductions on KESCH, the cluster of section 6.1: equations 1 and 2, and this plugin's own schedules
priced on the network of hwdesc/kesch-cs-storm.toml (a test compares the two)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from math import ceil, log2
from typing import Any

import numpy as np

from demitasse import Tier, Topology, cost
from demitasse_allreduce.algorithms import algorithm

Array = np.ndarray[Any, np.dtype[Any]]

NODES, DEVICES = 12, 16
NODE_LATENCY, NODE_BANDWIDTH, ADAPTERS = 2e-6, 100e9 / 8, 16
DEVICE_LATENCY, DEVICE_BANDWIDTH = 10e-6, 10e9
MEMORY, PEAK = 240e9, 4.37e12
"""As described: seconds, bytes a second, and FLOP/s; one adapter serves 16 devices."""

ADDING = 3 / MEMORY
"""Seconds a byte that a device adds: two are read and one written."""

FLOAT = 4
MB = 1e6


@dataclass(frozen=True)
class Constants:
    """What was calibrated, and on what.

    - ``chunks`` of a chain, n of equation 2: 11, for which eight is the ideal length of a chain, as
      section 5 says of this cluster (eight is best for n from 10 to 11, whatever a chunk costs).
    - ``step``: seconds that each step of a reduction takes besides its message (launching the addition,
      waiting for it, the handshake), so that a chain of eight beats a binomial tree above 8 MB, as
      section 5 observed.
    - ``passing_on``: how many times as long a message takes whose device gets one and sends another at
      once, one of them to another node. Receiving and sending in turn explains 2; the rest is what
      Table 2's row CC-8 leaves, on which it was calibrated.
    - ``host``: how many times as long a step of MVAPICH2's own reduction takes, among the hosts'
      memories and added by their processors, as one among devices; from the row SC-B of Table 2.
    """

    chunks: int = 11
    step: float = 83.5e-6
    passing_on: float = 3.4
    host: float = 1.627


CALIBRATED = Constants()

STAGED = 3
"""Whole copies between device and host that MVAPICH2's own reduction of a device's buffers makes, by its
published source: both of the root's buffers down before, the result up after."""


@dataclass(frozen=True)
class Cluster(Topology):
    """The network, with what a step of a reduction takes besides its message."""

    step: float = 0.0
    passing_on: float = 1.0

    def messages(self, source: Array, target: Array, moved: Array) -> tuple[Array, Array]:
        """As a Topology's, for the steps of a reduction among devices."""
        latency, seconds = super().messages(source, target, moved)
        far = source // self.inside(0) != target // self.inside(0)
        between = np.intersect1d(source, target)
        outside = np.union1d(source[far], target[far])
        busy = np.intersect1d(between, outside)
        slow = np.isin(source, busy) | np.isin(target, busy)
        times = np.where(slow, self.passing_on, 1.0)
        return (latency + self.step) * times, seconds * times


def kesch(constants: Constants = CALIBRATED) -> Cluster:
    """The cluster with calibrated constants."""
    tiers = (
        Tier("node", NODES, NODE_LATENCY, NODE_BANDWIDTH, ADAPTERS),
        Tier("gpu", DEVICES, DEVICE_LATENCY, DEVICE_BANDWIDTH),
    )
    return Cluster(tiers, (), constants.step, constants.passing_on)


def step_seconds(size: float, constants: Constants = CALIBRATED) -> float:
    """t of the equations for so many bytes: a message between two devices of a node, added."""
    return constants.step + DEVICE_LATENCY + size * (1 / DEVICE_BANDWIDTH + ADDING)


def equation_1(processes: int, t_buffer: float) -> float:
    """Seconds of a binomial tree: log2(P) t(b), a whole number of rounds."""
    return ceil(log2(processes)) * t_buffer


def equation_2(processes: int, chunks: int, t_chunk: float) -> float:
    """Seconds of a chunked chain: (n + P - 2) t(c)."""
    return (chunks + processes - 2) * t_chunk


def ideal_chain(constants: Constants = CALIBRATED, most: int = 64) -> int:
    """The length at which a chain of a large buffer leads a binomial tree most, by equations 1 (with the
    logarithm as it is, or each power of two's successor would win) and 2."""
    n = constants.chunks
    return max(range(2, most + 1), key=lambda p: log2(p) / equation_2(p, n, 1 / n))


def ideal_chains(constants: Constants = CALIBRATED, chain: int = 8, most: int = 20) -> int:
    """The number of processes at which a chain of chains of ``chain`` leads a binomial tree of a large
    buffer most: ``ideal_chain`` for two levels, of up to ``most`` chains."""
    n = constants.chunks
    lower = equation_2(chain, n, 1 / n)
    ahead = {chain * p: log2(chain * p) / (lower + equation_2(p, n, 1 / n)) for p in range(2, most + 1)}
    return max(ahead, key=lambda processes: ahead[processes])


def chain_crossover(processes: int = 8, constants: Constants = CALIBRATED) -> float:
    """Bytes above which equation 2 is below equation 1."""
    n, k = constants.chunks, ceil(log2(processes))
    fixed = constants.step + DEVICE_LATENCY
    each = 1 / DEVICE_BANDWIDTH + ADDING
    return fixed * (n + processes - 2 - k) / (each * (k - (n + processes - 2) / n))


@dataclass(frozen=True)
class Reduction:
    """A reduction by its algorithm's name and, of two levels, its chain size: ``CC-8``, ``CB-4``."""

    algorithm: str
    chain: int = 0

    def __str__(self) -> str:
        short = {"chain-chain": "CC", "chain-binomial": "CB"}
        return f"{short[self.algorithm]}-{self.chain}" if self.chain else self.algorithm

    def seconds(
        self,
        processes: int,
        size: float,
        constants: Constants = CALIBRATED,
        goal: str = "reduce",
    ) -> float:
        """Seconds of its schedule for ``size`` bytes by the cluster's first devices."""
        return _seconds(self.algorithm, self.chain, processes, int(size // FLOAT), constants, goal)


@cache
def _seconds(
    name: str, chain: int, processes: int, elements: int, constants: Constants, goal: str
) -> float:
    made, options = algorithm(name), dict[str, Any](goal=goal)
    adds = goal == "reduce"  # a broadcast launches and awaits no addition
    network = kesch(constants if adds else replace(constants, step=0.0))
    if "chunks" in made.options:
        options["chunks"] = constants.chunks
    if chain:
        options["groups"] = chain
    rounds, place = made.rounds(processes, elements, **options), network.place(processes)
    return cost(rounds, network, place, FLOAT, ADDING if adds else 0.0).seconds


BINOMIAL, CHAIN = Reduction("binomial"), Reduction("chain")
CC = {size: Reduction("chain-chain", size) for size in (4, 8, 16)}
CB = {size: Reduction("chain-binomial", size) for size in (4, 8, 16)}


def mvapich2(processes: int, size: float, constants: Constants = CALIBRATED) -> float:
    """Seconds of MVAPICH2's own reduction: equation 1's tree among hosts, copied there and back."""
    copies = STAGED * size / DEVICE_BANDWIDTH
    return copies + constants.host * BINOMIAL.seconds(processes, size, constants)


def tuned(processes: int, size: float, constants: Constants = CALIBRATED) -> tuple[float, Reduction]:
    """HR (Tuned) of section 6.5: seconds of the quickest reduction, and which it is."""
    ways = [BINOMIAL, *([CHAIN] if processes <= DEVICES else [])]
    ways += [way for level in (CC, CB) for chain, way in level.items() if chain < processes]
    return min(((way.seconds(processes, size, constants), way) for way in ways), key=lambda x: x[0])


def broadcast(processes: int, size: float, constants: Constants = CALIBRATED) -> float:
    """Seconds of a broadcast from device to device by a binomial tree."""
    return BINOMIAL.seconds(processes, size, constants, "broadcast")


def reduction_crossover(
    better: Reduction, other: Reduction, processes: int, constants: Constants = CALIBRATED
) -> float | None:
    """Bytes above which one reduction is quicker than another, from 1 KB to 1 GB; None: it never is."""
    low, high = 1e3, 1e9

    def wins(size: float) -> bool:
        return better.seconds(processes, size, constants) < other.seconds(processes, size, constants)

    if not wins(high):
        return None
    while high / low > 1.001:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if wins(middle) else (middle, high)
    return high


def chains_ahead(constants: Constants = CALIBRATED, size: float = 256 * MB, chain: int = 8) -> int:
    """The most processes, of ``chain`` and its doubles and all, at which a chain of chains is no slower
    than chains below a binomial tree; ``chain`` itself, where both are one chain, if it never is."""
    whole = NODES * DEVICES
    doubles = [chain << power for power in range(1, 8) if chain << power < whole]
    ahead = [chain]
    for processes in [*doubles, whole]:
        ours, theirs = (way[chain].seconds(processes, size, constants) for way in (CC, CB))
        if ours <= theirs:
            ahead.append(processes)
    return ahead[-1]


def upper_ratio(chunks: int, few: int = 8, many: int = 20) -> float:
    """By equations 1 and 2: a chain of ``many`` over a tree of as many, if a chain of ``few`` takes as
    long as a tree of as many. What a two-level reduction may lose by its upper chain at most."""
    longer = equation_2(many, chunks, 1) / equation_2(few, chunks, 1)
    return longer * equation_1(few, 1) / equation_1(many, 1)
