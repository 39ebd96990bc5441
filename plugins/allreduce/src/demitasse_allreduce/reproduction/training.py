"""Iterations of S-Caffe and of its stages (sections 4.1 to 4.3) on so many devices, strong scaling."""

from __future__ import annotations

from dataclasses import dataclass

from demitasse_allreduce.reproduction.cluster import FLOAT, PEAK, broadcast, mvapich2, tuned

PRODUCTS = 3
"""As many operations each: forward, and backward by weights and by data."""


K40, K40_BOOSTED = 2 * 2880 * 745e6, 2 * 2880 * 875e6
"""FLOP/s of a Tesla K40 at its default clock and at its highest: its cores are those of half a K80."""


def share(flops: float, images: int, seconds: float, peak: float) -> float:
    """What both passes of ``images``, of so many operations forward each, reached of a ``peak``."""
    return PRODUCTS * flops * images / seconds / peak


@dataclass(frozen=True)
class Net:
    """Multiplications and additions of an image's forward pass, parameters, and the share of a device's
    peak that both passes reach."""

    name: str
    flops: float
    parameters: int
    share: float

    @property
    def size(self) -> float:
        """Bytes of its gradients."""
        return self.parameters * FLOAT


GOOGLENET = Net("GoogLeNet", 2 * 1.59e9, 13_378_280, share(2 * 1.59e9, 128, 1.6888, K40))
CAFFENET = Net("CaffeNet", 2 * 724e6, 60_965_224, share(2 * 724e6, 20 * 256, 19.2, K40_BOOSTED))
CIFAR_QUICK = Net("CIFAR10 quick", 2 * 12.354e6, 145_578, GOOGLENET.share)
"""Caffe's models as they are trained: GoogLeNet with its two side losses. Shares by times that Caffe has
published, with cuDNN: 128 images in 1.6888 s on GoogLeNet's page in its model zoo (at the default
clock, as none is named), 20 times 256 in 19.2 s on its page about hardware (at the highest). For CIFAR10
quick none is: GoogLeNet's."""

FIXED = 11.9e-3
"""Seconds of an iteration that more devices do not divide, calibrated on Figure 9's 32 times."""


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


def iteration(net: Net, batch: int, devices: int, hierarchical: bool, fixed: float = FIXED) -> Iteration:
    """An iteration of ``batch`` images on all devices together, with HR or MVAPICH2's own reduction."""
    computing = PRODUCTS * net.flops * batch / devices / (net.share * PEAK)
    spread = reduced = 0.0
    if devices > 1:
        spread = broadcast(devices, net.size)
        reduced = tuned(devices, net.size)[0] if hierarchical else mvapich2(devices, net.size)
    forward = computing / PRODUCTS
    return Iteration(forward, computing - forward, spread, reduced, FIXED)


def speedup(net: Net, batch: int, few: int, many: int, overlapped: bool = False) -> float:
    """How many times as fast S-Caffe is on more devices: with HR, phases one after the other (SC-B) or
    ``overlapped`` as far as they can be (SC-OBR)."""
    one, other = (iteration(net, batch, devices, True) for devices in (few, many))
    return one.overlapped() / other.overlapped() if overlapped else one.basic() / other.basic()


def broadcast_gain(net: Net, batch: int, devices: int) -> float:
    """The improvement in per cent by broadcasts behind forward (SC-OB over SC-B)."""
    step = iteration(net, batch, devices, False)
    return 100 * (1 - step.broadcasts_first() / step.basic())


def reduction_gain(net: Net, batch: int, devices: int) -> float:
    """The improvement in per cent by reductions behind backward (SC-OBR over SC-B)."""
    step = iteration(net, batch, devices, False)
    return 100 * (1 - step.reductions_beside() / step.basic())
