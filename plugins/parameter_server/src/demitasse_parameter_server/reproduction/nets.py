"""Counts, layer by layer, for the two nets of section V as Caffe ships them: what a sample, and what an
iteration, costs a worker.

The paper's AlexNet for CIFAR-10 is taken to be Caffe's cifar10_full (Krizhevsky's net for that data
set): its solver has the paper's 60,000 iterations, and its three variants are in Caffe's examples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

WORD = 4
"""Bytes of a float32."""

PASSES = 3
"""A layer's matrix products: forward, for the gradient of its weights, and for that of its input."""


@dataclass
class Count:
    """Counts for a net: ``flops``, ``moved`` bytes and ``powers`` (calls of the C library's function)
    for a sample, forward and backward; the number of ``weights``; and ``fixed``, the bytes that a
    worker moves in each iteration however few samples it has. ``shape`` is that of the last blob:
    channels, rows, columns."""

    shape: tuple[int, int, int]
    batch: int
    flops: float = 0.0
    moved: float = 0.0
    weights: int = 0
    fixed: float = 0.0
    powers: float = 0.0

    @property
    def size(self) -> int:
        channels, rows, columns = self.shape
        return channels * rows * columns

    def convolution(self, outputs: int, kernel: int, pad: int = 0) -> None:
        """Count a convolution as Caffe does it, one sample at a time: the columns of im2col are written
        and read again in each of three passes. The first layer's input has no gradient."""
        inputs, rows, columns = self.shape
        made = outputs, rows + 2 * pad - kernel + 1, columns + 2 * pad - kernel + 1
        passes = PASSES if self.weights else PASSES - 1
        unrolled = inputs * kernel * kernel * made[1] * made[2]
        self.flops += 2.0 * passes * unrolled * outputs
        self.moved += WORD * passes * (self.size + 2 * unrolled)
        self.weights += outputs * (inputs * kernel * kernel + 1)
        self.shape = made
        self.moved += WORD * passes * self.size

    def inner_product(self, outputs: int) -> None:
        """Count an inner product with a worker's whole share of the batch; each pass reads all
        weights."""
        inputs = self.size
        self.flops += 2.0 * PASSES * inputs * outputs
        self.moved += WORD * PASSES * (inputs + outputs)
        self.fixed += WORD * PASSES * inputs * outputs
        self.weights += outputs * (inputs + 1)
        self.shape = outputs, 1, 1

    def pool(self, kernel: int, stride: int, rounded_up: bool = True) -> None:
        """Count pooling, forward and backward; the gradient is zeroed first."""
        channels, rows, _ = self.shape
        before = self.size
        rest = rows - kernel
        made = (-(-rest // stride) if rounded_up else rest // stride) + 1
        self.shape = channels, made, made
        self.flops += 2.0 * kernel * kernel * self.size
        self.moved += WORD * (3 * before + 3 * self.size)

    def elementwise(self, flops: float, blobs: float, powers: float = 0.0) -> None:
        """Count an activation or normalisation, by operations per element, blobs of its size that are
        moved, and powers per element, forward and backward together."""
        self.flops += flops * self.size
        self.moved += WORD * blobs * self.size
        self.powers += powers * self.size


Element = tuple[float, float, float]
"""Counts per element, forward and backward together: operations, blobs moved, powers."""

RELU, SIGMOID, LRN, BATCH_NORM = (2, 5, 0), (10, 5, 0.5), (10, 22, 2), (20, 28, 0)
"""An exponential counts as half a power. LRN within a channel and batch normalisation are counted as
Caffe's layers compose them; the square in LRN is a power there too."""


def cifar10_full(activation: Element, normalisation: Element) -> Count:
    """Return Caffe's cifar10_full with the given activation, and the normalisation after the first two
    of its three stages."""
    net = Count((3, 32, 32), 100)
    for stage, outputs in enumerate((32, 32, 64)):
        net.convolution(outputs, 5, 2)
        net.pool(3, 2)
        net.elementwise(*activation)
        if stage < 2:
            net.elementwise(*normalisation)
    net.inner_product(10)
    net.elementwise(10, 4, 1)
    return net


def lenet() -> Count:
    """Return Caffe's LeNet for MNIST."""
    net = Count((1, 28, 28), 64)
    for outputs in (20, 50):
        net.convolution(outputs, 5)
        net.pool(2, 2)
    net.inner_product(500)
    net.elementwise(*RELU)
    net.inner_product(10)
    net.elementwise(10, 4, 1)
    return net


CIFAR: dict[str, Callable[[], Count]] = {
    "Batch Normalization": lambda: cifar10_full(SIGMOID, BATCH_NORM),
    "ReLU": lambda: cifar10_full(RELU, LRN),
    "Sigmoid": lambda: cifar10_full(SIGMOID, LRN),
}


class Update(NamedTuple):
    """What a solver's update in Caffe does, counted by its BLAS calls: the ``blobs`` of the weights'
    size that it moves, and the ``powers`` of each weight."""

    blobs: int
    powers: int


SOLVERS = {"native SGD": Update(5, 0), "Adam": Update(17, 1), "RMSProp": Update(15, 2)}
"""Adam's root and RMSProp's square and root are powers (``caffe_powx``)."""
