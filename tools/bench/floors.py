"""What no implementation of these algorithms goes below: the arithmetic, and a model of the memory.

Arithmetic: each convolution and inner product does its multiply-and-adds once forward and, in
training, twice more backward (for its input's gradient, which a first layer does not need, and for
its weights'), directly, at the rate of a large matrix product. Winograd's convolution goes below it.

Memory: every blob that is not overwritten in place passes the memory bus twice forward (written,
read) and three times backward (read again, its gradient written and read). A parameter is read twice
by the kernels, forward and backward, in their precision, and passes six times in f32: its gradient
written and read, master and momentum each read and written. It is a model: blobs that stay in a
cache do not pass the bus, so a small net may go below it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from bench.layers import Net

BYTES = {"f32": 4, "bf16": 2}


@dataclass(frozen=True)
class Rates:
    """What this machine was measured to do: GFLOP/s of a matrix product, GB/s of a triad."""

    matrix_product: float
    triad: float


@dataclass(frozen=True)
class Floor:
    """Seconds of one step or pass."""

    arithmetic: float
    memory: float


def flops(net: Net, training: bool) -> float:
    """Of one batch."""
    forward = 2.0 * net.macs * net.batch
    if not training:
        return forward
    first = sum(layer.macs for layer in net.layers if "data" in layer.bottoms)
    return 3 * forward - 2.0 * first * net.batch


def traffic(net: Net, training: bool, precision: str) -> float:
    """Bytes of one batch."""
    blobs = sum(prod(shape) for shape in net.blobs()) * net.batch * BYTES[precision]
    parameters = net.parameters
    if not training:
        return 2.0 * blobs + parameters * BYTES[precision]
    return 5.0 * blobs + parameters * (2.0 * BYTES[precision] + 6.0 * 4)


def floor(net: Net, training: bool, precision: str, rates: Rates) -> Floor:
    """The floors of one batch on a machine; 0 where nobody measured the rate."""
    work, moved = flops(net, training), traffic(net, training, precision)
    return Floor(
        work / (rates.matrix_product * 1e9) if rates.matrix_product else 0.0,
        moved / (rates.triad * 1e9) if rates.triad else 0.0,
    )
