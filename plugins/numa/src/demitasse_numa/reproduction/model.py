"""Seconds of an iteration of three Caffes on n memory domains, from figures and counts.

All three compute, and move the numbers that layers write through memory. They differ in where that
memory is and who waits for whom (sections 3.3 and 4):

- NUMA-Caffe has the numbers of each solver in its own domain, at that domain's bandwidth, and adds the
  exchange of gradients and weights along the tree, priced by the plugin's own ``costs``.
- Intel-Caffe computes on all domains as well, but its blobs lie in the first one (Table 3: 84% of the
  traffic is one package's): others read over that domain's links, and sockets that ask one memory at
  once queue. Interleaved by numactl, nobody queues, but nearly all pages are far: all domains together
  get what one gives, or its links.
- BVLC-Caffe multiplies matrices on one domain's worth of cores, whatever it is given, as an image's
  matrices are small; everything else runs in one thread.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from demitasse import Level, Link, MemorySpace, Quantity
from demitasse_numa.costs import exchange
from demitasse_numa.reproduction.nets import Count
from demitasse_numa.reproduction.servers import Server

FLOAT = 4
PASSES = 3
"""Products of a forward pass, and of a backward pass by weights and by data: as many operations each."""

WEIGHT_READS, UPDATE = 3, 5
"""Times that a step reads the weights in those products, and the arrays of weights, gradients and
history that SGD with momentum reads and writes."""


@dataclass(frozen=True)
class Constants:
    """What was calibrated, one value for all servers and nets: the share of a peak that layers reach
    without and with fused multiplications and additions in it; how often a number that a layer writes
    passes the memory; how much longer a memory takes for each socket more that asks it; the bytes that
    one thread moves in a cycle; cycles of each layer in which the others wait."""

    plain: float = 0.784
    fused: float = 0.190
    passes: float = 10.0
    queueing: float = 0.303
    bytes_per_cycle: float = 1.91
    cycles: float = 4.08e6


CALIBRATED = Constants()


@dataclass(frozen=True)
class Case:
    """A server, a net, and so many domains of the server."""

    server: Server
    net: Count
    domains: int
    constants: Constants = CALIBRATED

    def with_high_bandwidth(self) -> Case:
        """Itself with its data in high-bandwidth memory."""
        fast = self.server.high_bandwidth or self.server.bandwidth
        return replace(self, server=replace(self.server, bandwidth=fast))

    @property
    def _rate(self) -> float:
        """Operations a second of one domain."""
        share = self.constants.fused if self.server.fused else self.constants.plain
        return share * self.server.peak

    @property
    def _operations(self) -> float:
        return PASSES * self.net.flops * self.net.batch

    @property
    def _traffic(self) -> float:
        """Bytes of an iteration, all images."""
        return self.constants.passes * self.net.numbers * FLOAT * self.net.batch

    @property
    def _unfolded(self) -> float:
        """Bytes of unfolded images: forward, by weights, by data and back."""
        return 4 * self.net.unfolded * FLOAT * self.net.batch

    @property
    def _weights(self) -> float:
        return self.net.parameters * FLOAT

    @property
    def _parallel(self) -> float:
        """What is the same whoever's memory it is: computing, and what of layers is not parallel."""
        waiting = self.constants.cycles * self.net.layers / self.server.clock
        return self._operations / (self.domains * self._rate) + waiting

    @property
    def moved(self) -> float:
        """Bytes of an iteration through all memories: the numbers of layers, and the weights that each
        domain reads."""
        return self._traffic + WEIGHT_READS * self.domains * self._weights

    @property
    def remote(self) -> tuple[float, float]:
        """Bytes that NUMA-Caffe takes from other domains in an iteration: gradients up the tree and
        weights back, once for each domain but a root; samples, which are read in one domain."""
        others = self.domains - 1
        samples = FLOAT * self.net.sample * self.net.batch
        return 2 * others * self._weights, samples * others / self.domains

    @property
    def remote_bvlc(self) -> float:
        """Bytes that BVLC-Caffe takes from other domains: its threads are on all, and whichever has a
        number, all but one of them are far from it; of what layers write, of unfolded images, of the
        weights in products."""
        moved = self._traffic + self._unfolded + WEIGHT_READS * self._weights
        return moved * (self.domains - 1) / self.domains

    def numa(self) -> float:
        """NUMA-Caffe: every domain its own memory, and the exchange."""
        n, memory = self.domains, self.server.bandwidth
        own = self._traffic / (n * memory) + WEIGHT_READS * self._weights / memory
        # The update of a part each: the weights are spread over domains as roots.
        update = UPDATE * self._weights / (n * memory)
        return self._parallel + own + update + sum(exchange(self._level(), self._weights, n))

    def intel(self, interleaved: bool = False) -> float:
        """Intel-Caffe: all domains, one domain's memory; or pages of all in turn."""
        n, memory = self.domains, self.server.bandwidth
        update = UPDATE * self._weights / memory
        if n == 1:
            return self._parallel + self.moved / memory + update
        one = max(1 / memory, (n - 1) / n / self.server.links)
        if interleaved:
            return self._parallel + self.moved * one + update / n
        queue = 1.0 if self.server.on_die else 1 + self.constants.queueing * (n - 1)
        return self._parallel + self.moved * one * queue + update

    def bvlc(self) -> float:
        """BVLC-Caffe: matrices on one domain's worth of cores, the rest in one thread."""
        single = self.constants.bytes_per_cycle * self.server.clock
        moved = self._traffic + self._unfolded + UPDATE * self._weights
        return self._operations / self._rate + moved / single

    def _level(self) -> Level:
        def given(value: float) -> Quantity:
            return Quantity(value, "B/s", "paper")

        return Level(
            "numa",
            self.server.domains,
            memory=(MemorySpace("host", None, given(self.server.bandwidth)),),
            link=Link(None, given(self.server.links)),
        )
