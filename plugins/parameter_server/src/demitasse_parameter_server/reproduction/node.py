"""The time of a step of SingleCaffe on a node of Tianhe-2, and of DistCaffe on several, from the node's
figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from demitasse_parameter_server.reproduction.nets import WORD, Count, Update

THREADS = (1, 2, 4, 8, 12, 16, 20, 24)
"""The numbers of threads of Figures 6 and 7 for which predictions are made."""


@dataclass(frozen=True)
class Node:
    """The figures of hwdesc/tianhe2-node.toml (a test compares them), and some that it does not have.

    Two numbers are fitted:

    - ``efficiency``: the share of a core's peak that small products reach, fitted to the best speedup.
    - ``power``: the cycles of a power by the C library, one number at a time, as in Caffe without
      Intel's vector functions. It is the least multiple of ten with which five nodes of DistCaffe are
      as fast with RMSProp (68 ns; 93 ns are reported for glibc 2.13, including a loop around it).

    ``core_bandwidth`` is what one core alone can draw. ``alone`` is how much faster a core runs while
    no other does (assumed: 3.2 GHz, and 2.8 with all cores, as for the E5-2695v2, the next model).
    ``barrier`` is a meeting of all threads; ``latency`` and ``network`` are for a message between
    nodes."""

    cores: int = 24
    peak: float = 35.2e9
    clock: float = 2.2e9
    bandwidth: float = 119e9
    core_bandwidth: float = 10e9
    alone: float = 3.2 / 2.8
    power: float = 150.0
    barrier: float = 20e-6
    latency: float = 5e-6
    network: float = 6e9
    efficiency: float = 1.0

    def _pace(self, threads: int) -> float:
        return self.alone if threads == 1 else 1.0

    def compute(self, net: Count, samples: int, threads: int) -> float:
        """Return the seconds of forward and backward over ``samples`` samples in each of ``threads``
        workers, which share the memory's bandwidth."""
        each = min(self.core_bandwidth, self.bandwidth / threads)
        products = net.flops / (self.peak * self.efficiency)
        arithmetic = (products + net.powers * self.power / self.clock) / self._pace(threads)
        return samples * (arithmetic + net.moved / each) + net.fixed / each

    def update(self, net: Count, solver: Update, threads: int) -> float:
        """Return the seconds of the solver's update. One worker does it whatever ``threads`` is: in the
        paper the sum is divided among workers, but the server's task belongs to one (sections IV.B and
        IV.C.1)."""
        powers = solver.powers * self.power / self.clock / self._pace(threads)
        return net.weights * (WORD * solver.blobs / self.core_bandwidth + powers)

    def native(self, net: Count, solver: Update, samples: int | None = None) -> float:
        """Return the seconds of an iteration of Caffe with one thread."""
        return self.compute(net, samples or net.batch, 1) + self.update(net, solver, 1)

    def single(self, net: Count, solver: Update, threads: int) -> float:
        """Return the seconds of an iteration with ``threads`` workers: the largest share of the batch,
        the sum of all gradients by slices, the update, the pull of its result by each worker, and three
        meetings."""
        if threads == 1:
            return self.native(net, solver)
        share = math.ceil(net.batch / threads)
        # The sum reads each worker's gradients and writes one; the pull reads one and writes each
        # worker's.
        moved = 2 * WORD * net.weights * (threads + 1)
        exchange = moved / min(self.core_bandwidth * threads, self.bandwidth)
        work = self.compute(net, share, threads) + self.update(net, solver, threads)
        return work + exchange + 3 * self.barrier

    def distributed(self, net: Count, solver: Update, nodes: int) -> float:
        """Return the seconds of an iteration of DistCaffe: native Caffe on each node's share, plus a
        reduction of the gradients and a broadcast of the parameters, both along binomial trees."""
        share = math.ceil(net.batch / nodes)
        stages = 2 * math.ceil(math.log2(nodes)) if nodes > 1 else 0
        message = self.latency + WORD * net.weights / self.network
        return self.native(net, solver, share) + stages * message

    def speedup(self, net: Count, solver: Update, threads: int) -> float:
        """Return the speedup over Caffe with one thread."""
        return self.native(net, solver) / self.single(net, solver, threads)

    def best(self, net: Count, solver: Update) -> float:
        """Return the seconds of an iteration with the fastest number of threads."""
        return min(self.single(net, solver, threads) for threads in THREADS)

    def best_speedup(self, net: Count, solver: Update) -> float:
        """Return the speedup of the fastest number of threads over Caffe with one thread."""
        return self.native(net, solver) / self.best(net, solver)

    def equal_nodes(self, net: Count, solver: Update) -> int | None:
        """Return how many nodes DistCaffe needs to be as fast as this node at its best; None if it is
        slower with all numbers of nodes that the paper tried."""
        best = self.best(net, solver)
        nodes = range(1, self.cores + 1)
        return next((n for n in nodes if self.distributed(net, solver, n) <= best), None)


def calibrated(speedup: float, nets: Sequence[Count], solver: Update, of: Node) -> Node:
    """Return a node with the efficiency at which the best speedup of all nets is ``speedup``. It is
    found by bisection: the less efficient products are, the more bandwidth is left unused, and the
    larger the speedup."""
    low, high = 0.01, 1.0
    for _ in range(60):
        node = replace(of, efficiency=(low + high) / 2)
        if max(node.best_speedup(net, solver) for net in nets) > speedup:
            low = node.efficiency
        else:
            high = node.efficiency
    return replace(of, efficiency=low)
