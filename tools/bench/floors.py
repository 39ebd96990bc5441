"""Lower bounds of the time of these algorithms: their arithmetic, and a model of memory traffic.

Arithmetic: each convolution and inner product does its multiply-adds once forward and, in training,
twice more backward (for its input's gradient, which a first layer does not need, and for its weights'),
directly, at the rate of a large matrix product. Winograd's convolution can be faster.

Memory: every blob that is not overwritten in place crosses the memory bus twice forward (written, read)
and three times backward (read again, its gradient written and read). A parameter is read twice by the
kernels, forward and backward, in their precision, and crosses the bus six times in f32: its gradient
written and read, master and momentum each read and written. This is a model: blobs that stay in a cache
do not cross the bus, so a small net can be faster.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from bench.layers import Net

BYTES = {"f32": 4, "bf16": 2}


@dataclass(frozen=True)
class Rates:
    """The measured rates of this machine: GFLOP/s of a matrix product, GB/s of a triad."""

    matrix_product: float
    triad: float


@dataclass(frozen=True)
class Floor:
    """Seconds of one step or pass."""

    arithmetic: float
    memory: float


def flops(net: Net, training: bool) -> float:
    """Return the flops of one batch."""
    forward = 2.0 * net.macs * net.batch
    if not training:
        return forward
    first = sum(layer.macs for layer in net.layers if "data" in layer.bottoms)
    return 3 * forward - 2.0 * first * net.batch


def traffic(net: Net, training: bool, precision: str) -> float:
    """Return the bytes of memory traffic of one batch."""
    blobs = sum(prod(shape) for shape in net.blobs()) * net.batch * BYTES[precision]
    parameters = net.parameters
    if not training:
        return 2.0 * blobs + parameters * BYTES[precision]
    return 5.0 * blobs + parameters * (2.0 * BYTES[precision] + 6.0 * 4)


def floor(net: Net, training: bool, precision: str, rates: Rates) -> Floor:
    """Return the lower bounds of one batch on a machine; 0 if the rate was not measured."""
    work, moved = flops(net, training), traffic(net, training, precision)
    return Floor(
        work / (rates.matrix_product * 1e9) if rates.matrix_product else 0.0,
        moved / (rates.triad * 1e9) if rates.triad else 0.0,
    )
