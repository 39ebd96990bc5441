"""Reductions on KESCH, the cluster of section 6.1: equations 1 and 2, and the costs of this plugin's
own schedules on the network of hwdesc/kesch-cs-storm.toml (a test compares the numbers here with that
file)."""

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
"""As described: latencies in seconds, bandwidths in bytes per second, PEAK in FLOP/s. One adapter
serves 16 devices."""

ADDING = 3 / MEMORY
"""Seconds per byte that a device adds: for each, two bytes are read and one is written."""

FLOAT = 4
MB = 1e6


@dataclass(frozen=True)
class Constants:
    """The calibrated constants, and what they were calibrated on.

    - ``chunks``: the chunks of a chain, n of equation 2. With 11, eight is the ideal length of a chain,
      as section 5 says of this cluster (eight is best for n from 10 to 11, whatever a chunk costs).
    - ``step``: seconds that each step of a reduction takes besides its message (launching the addition,
      waiting for it, the handshake), so that a chain of eight beats a binomial tree above 8 MB, as
      section 5 observed.
    - ``passing_on``: the factor by which a message takes longer if a device receives one message and
      sends another at the same time, one of them to or from another node. Receiving and sending in turn
      explains 2. The rest is a residual: it was calibrated on row CC-8 of Table 2.
    - ``host``: the factor by which a step of MVAPICH2's own reduction, between hosts' memories and added
      by their processors, takes longer than a step between devices; from row SC-B of Table 2.
    """

    chunks: int = 11
    step: float = 83.5e-6
    passing_on: float = 3.4
    host: float = 1.627


CALIBRATED = Constants()

STAGED = 3
"""Whole copies between device and host that MVAPICH2's own reduction of device buffers makes, by its
published source: both of the root's buffers to the host before it, and the result back after it."""


@dataclass(frozen=True)
class Cluster(Topology):
    """The network, and the time that a step of a reduction takes besides its message."""

    step: float = 0.0
    passing_on: float = 1.0

    def messages(self, source: Array, target: Array, moved: Array) -> tuple[Array, Array]:
        """Return (latency, seconds) as Topology does, for the steps of a reduction between devices."""
        latency, seconds = super().messages(source, target, moved)
        far = source // self.inside(0) != target // self.inside(0)
        between = np.intersect1d(source, target)
        outside = np.union1d(source[far], target[far])
        busy = np.intersect1d(between, outside)
        slow = np.isin(source, busy) | np.isin(target, busy)
        times = np.where(slow, self.passing_on, 1.0)
        return (latency + self.step) * times, seconds * times


def kesch(constants: Constants = CALIBRATED) -> Cluster:
    """Return the cluster with calibrated constants."""
    tiers = (
        Tier("node", NODES, NODE_LATENCY, NODE_BANDWIDTH, ADAPTERS),
        Tier("gpu", DEVICES, DEVICE_LATENCY, DEVICE_BANDWIDTH),
    )
    return Cluster(tiers, (), constants.step, constants.passing_on)


def step_seconds(size: float, constants: Constants = CALIBRATED) -> float:
    """Return the seconds t of the equations for ``size`` bytes: a message between two devices of a
    node, and its addition."""
    return constants.step + DEVICE_LATENCY + size * (1 / DEVICE_BANDWIDTH + ADDING)


def equation_1(processes: int, t_buffer: float) -> float:
    """Return the seconds of a binomial tree: log2(P) t(b), with the logarithm rounded up to whole
    rounds."""
    return ceil(log2(processes)) * t_buffer


def equation_2(processes: int, chunks: int, t_chunk: float) -> float:
    """Return the seconds of a chunked chain: (n + P - 2) t(c)."""
    return (chunks + processes - 2) * t_chunk


def ideal_chain(constants: Constants = CALIBRATED, most: int = 64) -> int:
    """Return the length at which a chain has the largest advantage over a binomial tree for a large
    buffer, by equations 1 and 2. The logarithm is not rounded here, since otherwise the successors of
    powers of two would win."""
    n = constants.chunks
    return max(range(2, most + 1), key=lambda p: log2(p) / equation_2(p, n, 1 / n))


def ideal_chains(constants: Constants = CALIBRATED, chain: int = 8, most: int = 20) -> int:
    """Return the number of processes at which a chain of chains of ``chain`` processes has the largest
    advantage over a binomial tree for a large buffer: ``ideal_chain`` for two levels, with up to
    ``most`` chains."""
    n = constants.chunks
    lower = equation_2(chain, n, 1 / n)
    ahead = {chain * p: log2(chain * p) / (lower + equation_2(p, n, 1 / n)) for p in range(2, most + 1)}
    return max(ahead, key=lambda processes: ahead[processes])


def chain_crossover(processes: int = 8, constants: Constants = CALIBRATED) -> float:
    """Return the bytes above which equation 2 gives less time than equation 1."""
    n, k = constants.chunks, ceil(log2(processes))
    fixed = constants.step + DEVICE_LATENCY
    each = 1 / DEVICE_BANDWIDTH + ADDING
    return fixed * (n + processes - 2 - k) / (each * (k - (n + processes - 2) / n))


@dataclass(frozen=True)
class Reduction:
    """A reduction: its algorithm's name and, for two levels, its chain size (``CC-8``, ``CB-4``)."""

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
        """Return the seconds of its schedule for ``size`` bytes on the cluster's first ``processes``
        devices."""
        return _seconds(self.algorithm, self.chain, processes, int(size // FLOAT), constants, goal)


@cache
def _seconds(
    name: str, chain: int, processes: int, elements: int, constants: Constants, goal: str
) -> float:
    made, options = algorithm(name), dict[str, Any](goal=goal)
    adds = goal == "reduce"  # a broadcast has no additions to launch and wait for
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
    """Return the seconds of MVAPICH2's own reduction: a binomial tree between hosts, and the copies to
    the host and back."""
    copies = STAGED * size / DEVICE_BANDWIDTH
    return copies + constants.host * BINOMIAL.seconds(processes, size, constants)


def tuned(processes: int, size: float, constants: Constants = CALIBRATED) -> tuple[float, Reduction]:
    """Return the seconds of HR (Tuned), section 6.5: those of the fastest reduction, and that
    reduction."""
    ways = [BINOMIAL, *([CHAIN] if processes <= DEVICES else [])]
    ways += [way for level in (CC, CB) for chain, way in level.items() if chain < processes]
    return min(((way.seconds(processes, size, constants), way) for way in ways), key=lambda x: x[0])


def broadcast(processes: int, size: float, constants: Constants = CALIBRATED) -> float:
    """Return the seconds of a broadcast between devices by a binomial tree."""
    return BINOMIAL.seconds(processes, size, constants, "broadcast")


def reduction_crossover(
    better: Reduction, other: Reduction, processes: int, constants: Constants = CALIBRATED
) -> float | None:
    """Return the bytes, from 1 KB to 1 GB, above which one reduction is faster than another; None if it
    is not faster at 1 GB."""
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
    """Return the largest number of processes, among ``chain`` times powers of two and all devices, at
    which a chain of chains is no slower than chains below a binomial tree. If it always is slower,
    returns ``chain``, where both are the same single chain."""
    whole = NODES * DEVICES
    doubles = [chain << power for power in range(1, 8) if chain << power < whole]
    ahead = [chain]
    for processes in [*doubles, whole]:
        ours, theirs = (way[chain].seconds(processes, size, constants) for way in (CC, CB))
        if ours <= theirs:
            ahead.append(processes)
    return ahead[-1]


def upper_ratio(chunks: int, few: int = 8, many: int = 20) -> float:
    """Return the time of a chain of ``many`` over that of a tree of ``many``, by equations 1 and 2, if a
    chain of ``few`` takes as long as a tree of ``few``. It bounds how much slower the upper chain can
    make a two-level reduction."""
    longer = equation_2(many, chunks, 1) / equation_2(few, chunks, 1)
    return longer * equation_1(few, 1) / equation_1(many, 1)
