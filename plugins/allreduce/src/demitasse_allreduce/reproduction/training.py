"""Iterations of S-Caffe and of its stages (sections 4.1 to 4.3) on so many devices, strong scaling."""

from __future__ import annotations

from dataclasses import dataclass

from demitasse_allreduce.reproduction.cluster import FLOAT, MEMORY, PEAK, broadcast, mvapich2, tuned

K40, K40_BOOSTED = 2 * 2880 * 745e6, 2 * 2880 * 875e6
"""FLOP/s of a Tesla K40 at its default clock and at its highest: its cores are those of half a K80."""

UPDATE = 10
"""How often Caffe's update reads or writes an array of all parameters: decay 3, momentum 4, step 3."""


def operations(flops: float, first: float) -> float:
    """Of an image's two passes: as many for gradients by weights and by data as forward has, but for the
    first layer's by data, which nobody asks for."""
    return 3 * flops - first


def share(passes: float, images: int, seconds: float, peak: float) -> float:
    """What ``images``, of so many operations each in both passes, reached of a ``peak``."""
    return passes * images / seconds / peak


@dataclass(frozen=True)
class Net:
    """Multiplications and additions of an image's forward pass, and of its first layer; parameters,
    layers that have some, and the share of a device's peak that both passes reach."""

    name: str
    flops: float
    first: float
    parameters: int
    layers: int
    share: float

    @property
    def size(self) -> float:
        """Bytes of its gradients."""
        return self.parameters * FLOAT

    @property
    def passes(self) -> float:
        """Operations of both passes of an image."""
        return operations(self.flops, self.first)


GOOGLENET_FLOPS = 2 * 1.59e9, 2 * 112 * 112 * 64 * 147
CAFFENET_FLOPS = 2 * 724e6, 2 * 55 * 55 * 96 * 363
CIFAR_FLOPS = 2 * 12.354e6, 2 * 32 * 32 * 32 * 75
"""Forward, and the first convolution's."""

GOOGLENET = Net(
    "GoogLeNet", *GOOGLENET_FLOPS, 13_378_280, 64, share(operations(*GOOGLENET_FLOPS), 128, 1.6888, K40)
)
CAFFENET = Net(
    "CaffeNet",
    *CAFFENET_FLOPS,
    60_965_224,
    8,
    share(operations(*CAFFENET_FLOPS), 20 * 256, 19.2, K40_BOOSTED),
)
CIFAR_QUICK = Net("CIFAR10 quick", *CIFAR_FLOPS, 145_578, 5, GOOGLENET.share)
"""Caffe's models as they are trained: GoogLeNet with its two side losses. Shares by times that Caffe has
published, with cuDNN: 128 images in 1.6888 s on GoogLeNet's page in its model zoo (at the default
clock, as none is named), 20 times 256 in 19.2 s on its page about hardware (at the highest). For CIFAR10
quick none is: GoogLeNet's."""

FIXED = 11.3e-3
"""Seconds of both passes that more devices do not divide, calibrated on Figure 9's 32 times: launching
kernels, which few images do not fill."""


@dataclass(frozen=True)
class Iteration:
    """Seconds of its phases: both passes, the broadcast of parameters, the reduction of gradients, the
    root's update; and what a reduction for each layer takes more than one of all."""

    forward: float
    backward: float
    broadcast: float
    reduce: float
    update: float
    layered: float

    def basic(self) -> float:
        """SC-B: one after the other."""
        return self.forward + self.backward + self.broadcast + self.reduce + self.update

    def broadcasts_first(self) -> float:
        """SC-OB: the broadcast behind forward."""
        hidden = min(self.forward, self.broadcast)
        return self.basic() - hidden

    def reductions_beside(self) -> float:
        """What SC-OBR adds to SC-B: each layer's reduction behind backward."""
        hidden = min(self.backward, self.reduce + self.layered)
        return self.basic() + self.layered - hidden

    def overlapped(self) -> float:
        """Both."""
        return self.broadcasts_first() + self.reductions_beside() - self.basic()


def iteration(net: Net, batch: int, devices: int, hierarchical: bool) -> Iteration:
    """An iteration of ``batch`` images on all devices together, with HR or MVAPICH2's own reduction."""
    computing = net.passes * batch / devices / (net.share * PEAK) + FIXED
    forward = computing * net.flops / net.passes
    update = UPDATE * net.size / MEMORY
    if devices == 1:
        return Iteration(forward, computing - forward, 0.0, 0.0, update, 0.0)

    def reduction(size: float) -> float:
        return tuned(devices, size)[0] if hierarchical else mvapich2(devices, size)

    layered = (net.layers - 1) * reduction(FLOAT)
    phases = broadcast(devices, net.size), reduction(net.size), update
    return Iteration(forward, computing - forward, *phases, layered)


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
