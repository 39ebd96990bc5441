"""The machine of section 5.1, as described and as its own tables calibrate it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import erf, exp, pi, sqrt

from demitasse_cgdp.model.rates import Hop, Rates, Tree
from demitasse_cgdp.reproduction.nets import NETS, Net
from demitasse_cgdp.reproduction.printed import ADD, BVLC, DOWN, TABLE_2, TABLE_3, TABLE_4, TRL, UP

PEAK, MEMORY = 10.6e12, 732e9
"""FLOP/s and bytes per second of a P100 (vendor's); hwdesc/power8-4xp100.toml has them too."""

MS = 1e-3
ALEXNET, GOOGLENET = "AlexNet", "GoogLeNet-v1"

LAUNCH = 35e-6
"""Seconds for which a thread launches a kernel while others use the same driver: the least multiple of
five microseconds with which CGDP by single layers is slower than the typical scheme on ResNet-152, as
Figure 2 (16 images) and section 5.3 (12) report. It is hidden while the accelerator has work in its
queue; after a synchronisation it has none."""


def largest(count: int) -> float:
    """Return the expected maximum of ``count`` standard normal numbers."""
    step, total = 1e-3, 0.0
    for number in range(-8000, 8001):
        x = number * step
        below = (1 + erf(x / sqrt(2))) / 2
        total += x * count * exp(-x * x / 2) / sqrt(2 * pi) * below ** (count - 1) * step
    return total


@dataclass(frozen=True)
class Machine:
    """The calibrated machine. ``rates``: CGDP's. ``near`` and ``far``: seconds per byte of copies
    between GPUs of one processor and of two. ``jitter``: by how many seconds the time of a weighted
    layer varies between GPUs (standard deviation); all wait for the slowest."""

    rates: Rates
    near: float
    far: float
    jitter: float

    def tree(self, gpus: int) -> Tree:
        """Return BVLC/Caffe's tree: first the GPUs of a processor, then the processors."""
        hops = (Hop(0.0, 1 / self.near), Hop(0.0, 1 / self.far))
        return Tree(hops[: gpus.bit_length() - 1], MEMORY)

    def waiting(self, net: Net, gpus: int) -> float:
        """Return the seconds of a step in which a GPU waits for the slowest of all."""
        return self.jitter * len(net.weighted) * _largest(gpus)


_largest = cache(largest)


def _overhead(framework: str, net: str, gpus: int) -> float:
    row = TABLE_2[framework, net]
    cell = row[gpus.bit_length() - 1]
    assert cell is not None
    return (cell - row[0]) * MS


@cache
def calibrated() -> Machine:
    """Return the machine's constants, calibrated from printed cells:

    - the links to the host and the host's additions: from the sums of Table 4's rows;
    - both copies of the tree together: from Table 3's broadcast;
    - jitter: from GoogLeNet with four GPUs in Table 2 (BVLC/Caffe), less its exchange;
    - a near copy: from AlexNet with two GPUs in Table 2 (BVLC/Caffe), less additions and jitter;
    - interference: from AlexNet with two and with four GPUs in Table 2 (TRL/Caffe). What four GPUs lose
      more than two is attributed to additions, of which two GPUs have half, and the rest to copies; both
      are shares of their times in Table 4.
    """
    alexnet, googlenet = NETS[ALEXNET](), NETS[GOOGLENET]()
    size = float(alexnet.gradients)
    down, add, up = (sum(TABLE_4[row]) * MS for row in (DOWN, ADD, UP))
    both = TABLE_3[BVLC]["broadcast"] * MS / size
    # For a tree of four GPUs: two additions of three passes each, and the division by four in two
    # passes.
    exchange = googlenet.gradients * (2 * both + 8 / MEMORY)
    weighted = len(googlenet.weighted), len(alexnet.weighted)
    jitter = (_overhead(BVLC, GOOGLENET, 4) - exchange) / (weighted[0] * _largest(4))
    left = _overhead(BVLC, ALEXNET, 2) - 5 * size / MEMORY - jitter * weighted[1] * _largest(2)
    near = left / 2 / size
    two, four = (
        _overhead(TRL, ALEXNET, gpus) - weighted[1] * (jitter * _largest(gpus) + LAUNCH)
        for gpus in (2, 4)
    )
    adding = (four - two) / (add / 2)
    copying = (four - adding * add) / (down + up)
    rates = Rates(size / down, size / up, 4 * size / add, LAUNCH, copying, adding)
    return Machine(rates, near, both - near, jitter)
