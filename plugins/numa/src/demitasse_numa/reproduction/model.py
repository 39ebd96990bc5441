"""The seconds of an iteration of three Caffes on n memory domains, from figures and counts.

All three compute, and move the numbers that layers write through memory. They differ in where this
memory is and who waits for whom (sections 3.3 and 4):

- NUMA-Caffe keeps the numbers of each solver in its own domain, at that domain's bandwidth. The exchange
  of gradients and weights along the tree is added, at the plugin's own ``costs``.
- Intel-Caffe also computes on all domains, but its blobs are in the first one (Table 3: one package has
  84% of the traffic). Other domains read over the links of the first, and sockets that access one
  memory at the same time queue. With interleaving by numactl nothing queues, but nearly all pages are
  remote: all domains together get the bandwidth of one memory, or of its links.
- BVLC-Caffe multiplies matrices on the cores of one domain, however many it has, because an image's
  matrices are small. Everything else runs in one thread.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from demitasse import Level, Link, MemorySpace, Quantity
from demitasse_numa.costs import exchange
from demitasse_numa.reproduction.nets import Count
from demitasse_numa.reproduction.servers import Server

FLOAT = 4
PASSES = 3
"""Matrix products of a layer: forward, backward by weights and backward by data, with equally many
operations each."""

WEIGHT_READS, UPDATE = 3, 5
"""How often a step reads the weights in these products, and how many arrays of weights, gradients and
history SGD with momentum reads and writes."""


@dataclass(frozen=True)
class Constants:
    """The calibrated constants, with one value for all servers and nets.

    - ``plain``, ``fused``: the share of a peak that layers reach, if the peak does not, or does, count
      fused multiply-add
    - ``passes``: how often a number that a layer writes passes through memory
    - ``queueing``: how much longer a memory takes for each further socket that accesses it
    - ``bytes_per_cycle``: the bytes that one thread moves in a cycle
    - ``cycles``: the serial cycles of each layer, during which other threads wait
    """

    plain: float = 0.784
    fused: float = 0.190
    passes: float = 10.0
    queueing: float = 0.303
    bytes_per_cycle: float = 1.91
    cycles: float = 4.08e6


CALIBRATED = Constants()


@dataclass(frozen=True)
class Case:
    """A server, a net, and the number of the server's domains that are used."""

    server: Server
    net: Count
    domains: int
    constants: Constants = CALIBRATED

    def with_high_bandwidth(self) -> Case:
        """Return this case with its data in high-bandwidth memory."""
        fast = self.server.high_bandwidth or self.server.bandwidth
        return replace(self, server=replace(self.server, bandwidth=fast))

    @property
    def _rate(self) -> float:
        """The operations per second of one domain."""
        share = self.constants.fused if self.server.fused else self.constants.plain
        return share * self.server.peak

    @property
    def _operations(self) -> float:
        return PASSES * self.net.flops * self.net.batch

    @property
    def _traffic(self) -> float:
        """Bytes of an iteration that layers move, for all images."""
        return self.constants.passes * self.net.numbers * FLOAT * self.net.batch

    @property
    def _unfolded(self) -> float:
        """Bytes of unfolded images: forward, backward by weights, backward by data, and folding back."""
        return 4 * self.net.unfolded * FLOAT * self.net.batch

    @property
    def _weights(self) -> float:
        return self.net.parameters * FLOAT

    @property
    def _parallel(self) -> float:
        """The seconds that do not depend on where memory is: computing, and the serial part of
        layers."""
        waiting = self.constants.cycles * self.net.layers / self.server.clock
        return self._operations / (self.domains * self._rate) + waiting

    @property
    def moved(self) -> float:
        """Bytes that an iteration moves through all memories: the numbers of layers, and the weights
        that each domain reads."""
        return self._traffic + WEIGHT_READS * self.domains * self._weights

    @property
    def remote(self) -> tuple[float, float]:
        """Bytes that NUMA-Caffe reads from other domains in an iteration: gradients up the tree and
        weights back, once for each domain except the root; and samples, which are read in one
        domain."""
        others = self.domains - 1
        samples = FLOAT * self.net.sample * self.net.batch
        return 2 * others * self._weights, samples * others / self.domains

    @property
    def remote_bvlc(self) -> float:
        """Bytes that BVLC-Caffe reads from other domains in an iteration, of the numbers that layers
        write, of unfolded images, and of the weights in products. Its threads are on all domains, so
        each number is remote for all domains but one."""
        moved = self._traffic + self._unfolded + WEIGHT_READS * self._weights
        return moved * (self.domains - 1) / self.domains

    def numa(self) -> float:
        """Return the seconds of NUMA-Caffe: every domain uses its own memory; the exchange is added."""
        n, memory = self.domains, self.server.bandwidth
        own = self._traffic / (n * memory) + WEIGHT_READS * self._weights / memory
        # Each domain updates a part: the roots of the weights are spread over the domains.
        update = UPDATE * self._weights / (n * memory)
        return self._parallel + own + update + sum(exchange(self._level(), self._weights, n))

    def intel(self, interleaved: bool = False) -> float:
        """Return the seconds of Intel-Caffe: all domains use the memory of one or, ``interleaved``,
        pages of all domains in turn."""
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
        """Return the seconds of BVLC-Caffe: matrix products on the cores of one domain, the rest in one
        thread."""
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
