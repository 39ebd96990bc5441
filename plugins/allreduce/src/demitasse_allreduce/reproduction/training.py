"""Iterations of S-Caffe and of its stages (sections 4.1 to 4.3) on any number of devices, by strong
scaling."""

from __future__ import annotations

from dataclasses import dataclass

from demitasse_allreduce.reproduction.cluster import FLOAT, MEMORY, PEAK, broadcast, mvapich2, tuned

K40, K40_BOOSTED = 2 * 2880 * 745e6, 2 * 2880 * 875e6
"""FLOP/s of a Tesla K40 at its default and at its highest clock. Its cores are those of half a K80."""

UPDATE = 10
"""How often Caffe's update reads or writes an array of all parameters: decay 3, momentum 4, step 3
times."""


def operations(flops: float, first: float) -> float:
    """Return the operations of an image's two passes. Gradients by weights and by data each take as many
    operations as the forward pass, except that the first layer needs no gradient by data."""
    return 3 * flops - first


def share(passes: float, images: int, seconds: float, peak: float) -> float:
    """Return the share of a ``peak`` that was reached with ``images`` in so many ``seconds``;
    ``passes`` is the number of operations of an image in both passes."""
    return passes * images / seconds / peak


@dataclass(frozen=True)
class Net:
    """A net: the multiplications and additions of an image's forward pass (``flops``) and of its first
    layer (``first``), the number of parameters, the number of layers that have parameters, and the
    share of a device's peak that both passes reach."""

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
        """The operations of both passes of an image."""
        return operations(self.flops, self.first)


GOOGLENET_FLOPS = 2 * 1.59e9, 2 * 112 * 112 * 64 * 147
CAFFENET_FLOPS = 2 * 724e6, 2 * 55 * 55 * 96 * 363
CIFAR_FLOPS = 2 * 12.354e6, 2 * 32 * 32 * 32 * 75
"""Operations of an image: of the forward pass, and of the first convolution."""

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
"""Caffe's models as they are trained, GoogLeNet with its two side losses. The shares are from times
that Caffe published, with cuDNN: 128 images in 1.6888 s on GoogLeNet's page in the model zoo (taken to
be at the default clock, as none is named), and 20 times 256 images in 19.2 s on the page about hardware
(at the highest clock). For CIFAR10 quick no time was published, so it has GoogLeNet's share."""

FIXED = 11.3e-3
"""Seconds of both passes that are not divided among more devices: launching kernels, which few images do
not fill. Calibrated on Figure 9's speedup of 32."""


@dataclass(frozen=True)
class Iteration:
    """The seconds of an iteration's phases: both passes, the broadcast of parameters, the reduction of
    gradients and the root's update. ``layered`` is how much longer one reduction per layer takes than
    one reduction of all gradients."""

    forward: float
    backward: float
    broadcast: float
    reduce: float
    update: float
    layered: float

    def basic(self) -> float:
        """Return the seconds of SC-B: the phases one after the other."""
        return self.forward + self.backward + self.broadcast + self.reduce + self.update

    def broadcasts_first(self) -> float:
        """Return the seconds of SC-OB: the broadcast overlaps with the forward pass."""
        hidden = min(self.forward, self.broadcast)
        return self.basic() - hidden

    def reductions_beside(self) -> float:
        """Return the seconds of SC-B if each layer's reduction overlaps with the backward pass, as
        SC-OBR adds it."""
        hidden = min(self.backward, self.reduce + self.layered)
        return self.basic() + self.layered - hidden

    def overlapped(self) -> float:
        """Return the seconds of SC-OBR: both overlaps."""
        return self.broadcasts_first() + self.reductions_beside() - self.basic()


def iteration(net: Net, batch: int, devices: int, hierarchical: bool) -> Iteration:
    """Return an iteration of ``batch`` images on all devices together. Gradients are reduced by HR if
    it is ``hierarchical``, otherwise by MVAPICH2's own reduction."""
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
    """Return the speedup of S-Caffe on ``many`` devices over ``few``, with HR. The phases run one after
    the other (SC-B), or ``overlapped`` as far as possible (SC-OBR)."""
    one, other = (iteration(net, batch, devices, True) for devices in (few, many))
    return one.overlapped() / other.overlapped() if overlapped else one.basic() / other.basic()


def broadcast_gain(net: Net, batch: int, devices: int) -> float:
    """Return the improvement, in per cent, if broadcasts overlap with forward (SC-OB over SC-B)."""
    step = iteration(net, batch, devices, False)
    return 100 * (1 - step.broadcasts_first() / step.basic())


def reduction_gain(net: Net, batch: int, devices: int) -> float:
    """Return the improvement, in per cent, if reductions overlap with backward (SC-OBR over SC-B)."""
    step = iteration(net, batch, devices, False)
    return 100 * (1 - step.reductions_beside() / step.basic())
