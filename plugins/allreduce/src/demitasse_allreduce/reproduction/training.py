"""Iterations of S-Caffe and of its stages (sections 4.1 to 4.3) on so many devices, strong scaling."""

from __future__ import annotations

from dataclasses import dataclass

from demitasse_allreduce.reproduction.cluster import FLOAT, PEAK, broadcast, mvapich2, tuned

PRODUCTS = 3
"""As many operations each: forward, and backward by weights and by data."""


@dataclass(frozen=True)
class Net:
    """Multiplications and additions of an image's forward pass, and parameters."""

    name: str
    flops: float
    parameters: int

    @property
    def size(self) -> float:
        """Bytes of its gradients."""
        return self.parameters * FLOAT


GOOGLENET = Net("GoogLeNet", 2 * 1.59e9, 13_378_280)
CAFFENET = Net("CaffeNet", 2 * 724e6, 60_965_224)
CIFAR_QUICK = Net("CIFAR10 quick", 2 * 12.354e6, 145_578)
"""Caffe's models as they are trained: GoogLeNet with its two side losses."""


@dataclass(frozen=True)
class Rates:
    """``share`` of a device's peak that layers reach, calibrated on Figure 8's 2.5 times; ``fixed``
    seconds of an iteration that more devices do not divide, calibrated on Figure 9's 32 times."""

    share: float = 0.319
    fixed: float = 7.0e-3


CALIBRATED = Rates()


@dataclass(frozen=True)
class Iteration:
    """Seconds of its phases: both passes, the broadcast of parameters, the reduction of gradients."""

    forward: float
    backward: float
    broadcast: float
    reduce: float
    fixed: float

    def basic(self) -> float:
        """SC-B: one after the other."""
        return self.forward + self.backward + self.broadcast + self.reduce + self.fixed

    def broadcasts_first(self) -> float:
        """SC-OB: the broadcast behind forward."""
        hidden = min(self.forward, self.broadcast)
        return self.basic() - hidden

    def reductions_beside(self) -> float:
        """What SC-OBR adds to SC-B: the reduction behind backward."""
        hidden = min(self.backward, self.reduce)
        return self.basic() - hidden

    def overlapped(self) -> float:
        """Both."""
        return self.broadcasts_first() + self.reductions_beside() - self.basic()


def iteration(
    net: Net, batch: int, devices: int, hierarchical: bool, rates: Rates = CALIBRATED
) -> Iteration:
    """An iteration of ``batch`` images on all devices together, with HR or MVAPICH2's own reduction."""
    computing = PRODUCTS * net.flops * batch / devices / (rates.share * PEAK)
    spread = reduced = 0.0
    if devices > 1:
        spread = broadcast(devices, net.size)
        reduced = tuned(devices, net.size)[0] if hierarchical else mvapich2(devices, net.size)
    forward = computing / PRODUCTS
    return Iteration(forward, computing - forward, spread, reduced, rates.fixed)


def speedup(net: Net, batch: int, few: int, many: int, rates: Rates = CALIBRATED) -> float:
    """How many times as fast S-Caffe (SC-OBR with HR) is on more devices."""
    one, other = (iteration(net, batch, devices, True, rates) for devices in (few, many))
    return one.overlapped() / other.overlapped()


def broadcast_gain(net: Net, batch: int, devices: int, rates: Rates = CALIBRATED) -> float:
    """The improvement in per cent by broadcasts behind forward (SC-OB over SC-B)."""
    step = iteration(net, batch, devices, False, rates)
    return 100 * (1 - step.broadcasts_first() / step.basic())


def reduction_gain(net: Net, batch: int, devices: int, rates: Rates = CALIBRATED) -> float:
    """The improvement in per cent by reductions behind backward (SC-OBR over SC-B)."""
    step = iteration(net, batch, devices, False, rates)
    return 100 * (1 - step.reductions_beside() / step.basic())
