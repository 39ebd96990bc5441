"""A step of SingleCaffe on a node of Tianhe-2, and of DistCaffe on several, from the node's figures."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from demitasse_parameter_server.reproduction.nets import WORD, Count


@dataclass(frozen=True)
class Node:
    """Figures of hwdesc/tianhe2-node.toml (a test compares them), and what it does not have.

    ``efficiency`` is the share of a core's peak that small products reach, the one number that is
    fitted. ``core_bandwidth``: what one core alone can draw; ``barrier``: a meeting of all threads;
    ``latency``, ``network``: a message between nodes."""

    cores: int = 24
    peak: float = 35.2e9
    bandwidth: float = 119e9
    core_bandwidth: float = 10e9
    barrier: float = 20e-6
    latency: float = 5e-6
    network: float = 6e9
    efficiency: float = 1.0

    def compute(self, net: Count, samples: int, threads: int) -> float:
        """Seconds of forward and backward over so many samples in each of ``threads`` workers, who share
        the memory's bandwidth."""
        each = min(self.core_bandwidth, self.bandwidth / threads)
        products = net.flops / (self.peak * self.efficiency)
        return samples * (products + net.moved / each) + net.fixed / each

    def update(self, net: Count, blobs: int, threads: int) -> float:
        """Seconds of the solver's update, divided among threads."""
        rate = min(self.core_bandwidth * threads, self.bandwidth)
        return WORD * blobs * net.weights / rate

    def native(self, net: Count, blobs: int, samples: int | None = None) -> float:
        """Seconds of an iteration of Caffe with one thread."""
        return self.compute(net, samples or net.batch, 1) + self.update(net, blobs, 1)

    def single(self, net: Count, blobs: int, threads: int) -> float:
        """Seconds of an iteration with so many workers: the largest share of the batch, the sum of all
        gradients by slices, the update by slices, a meeting before each and one after."""
        if threads == 1:
            return self.native(net, blobs)
        share = math.ceil(net.batch / threads)
        moved = WORD * net.weights * (threads + 1)
        total = moved / min(self.core_bandwidth * threads, self.bandwidth)
        work = self.compute(net, share, threads) + self.update(net, blobs, threads)
        return work + total + 3 * self.barrier

    def distributed(self, net: Count, blobs: int, nodes: int) -> float:
        """Seconds of an iteration of DistCaffe: native Caffe on each node's share, and a reduction of
        the gradients and broadcast of the parameters, both along binomial trees."""
        share = math.ceil(net.batch / nodes)
        stages = 2 * math.ceil(math.log2(nodes)) if nodes > 1 else 0
        message = self.latency + WORD * net.weights / self.network
        return self.native(net, blobs, share) + stages * message

    def speedup(self, net: Count, blobs: int, threads: int) -> float:
        """Over Caffe with one thread."""
        return self.native(net, blobs) / self.single(net, blobs, threads)

    def best(self, net: Count, blobs: int) -> float:
        """Seconds of an iteration with a thread on each core."""
        return self.single(net, blobs, self.cores)

    def equal_nodes(self, net: Count, blobs: int) -> int | None:
        """How many nodes DistCaffe needs to be as quick as the node at its best; None where all that
        the paper tried are slower."""
        best = self.best(net, blobs)
        nodes = range(1, self.cores + 1)
        return next((n for n in nodes if self.distributed(net, blobs, n) <= best), None)


def calibrated(speedup: float, net: Count, blobs: int) -> Node:
    """The node whose efficiency gives a net's speedup on all cores: by bisection, as less efficient
    products leave more of the bandwidth unused."""
    low, high = 0.01, 1.0
    for _ in range(60):
        node = replace(Node(), efficiency=(low + high) / 2)
        if node.speedup(net, blobs, node.cores) > speedup:
            low = node.efficiency
        else:
            high = node.efficiency
    return Node(efficiency=low)
