"""Counts for the three nets of section 5: operations, numbers that layers write, and parameters."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Count:
    """Counts for one image: multiplications and additions of a forward pass (``flops``), numbers that
    layers write, numbers of unfolded images (im2col) and of the ``sample``; and the ``parameters`` and
    the number of ``layers`` of the net."""

    batch: int
    channels: int
    extent: int
    flops: float = 0.0
    numbers: float = 0.0
    unfolded: float = 0.0
    parameters: int = 0
    layers: int = 0
    sample: int = 0

    def __post_init__(self) -> None:
        self.sample = self.channels * self.extent**2

    def wrote(self, passes: int = 1) -> None:
        """Count ``passes`` layers that each write as many numbers as the current blob has."""
        self.numbers += passes * self.channels * self.extent**2
        self.layers += passes

    def convolution(
        self,
        outputs: int,
        kernel: int,
        stride: int = 1,
        pad: int = 0,
        groups: int = 1,
        relu: bool = True,
    ) -> None:
        """Count a convolution, by unfolding and a matrix product (section 2.3), and its ReLU."""
        extent = (self.extent + 2 * pad - kernel) // stride + 1
        depth = self.channels * kernel**2
        self.flops += 2 * depth / groups * outputs * extent**2
        if kernel > 1:
            self.unfolded += depth * extent**2
        self.parameters += depth // groups * outputs + outputs
        self.channels, self.extent = outputs, extent
        self.wrote(1 + relu)

    def pool(self, kernel: int, stride: int, pad: int = 0) -> None:
        """Count a pooling layer (sizes are rounded up, as in Caffe)."""
        self.extent = -(-(self.extent + 2 * pad - kernel) // stride) + 1
        self.wrote()

    def inner(self, outputs: int, passes: int = 1) -> None:
        """Count an inner product, and ``passes - 1`` element-wise layers on it."""
        depth = self.channels * self.extent**2
        self.flops += 2 * depth * outputs
        self.parameters += depth * outputs + outputs
        self.channels, self.extent = outputs, 1
        self.wrote(passes)

    def inception(
        self, one: int, narrow3: int, three: int, narrow5: int, five: int, project: int
    ) -> None:
        """Count an inception module: four branches, joined."""
        inputs = self.channels
        for outputs, kernel, narrow in ((one, 1, 0), (three, 3, narrow3), (five, 5, narrow5)):
            self.channels = inputs
            if narrow:
                self.convolution(narrow, 1)
            self.convolution(outputs, kernel, pad=kernel // 2)
        self.channels = inputs
        self.pool(3, 1, 1)
        self.convolution(project, 1)
        self.channels = one + three + five + project
        self.wrote()


def cifar() -> Count:
    """Return Caffe's CIFAR-10 model after cuda-convnet ("full": two normalisations), batch 128."""
    net = Count(128, 3, 32)
    for outputs, normalised in ((32, True), (32, True), (64, False)):
        net.convolution(outputs, 5, pad=2)
        net.pool(3, 2)
        net.wrote(int(normalised))
    net.inner(10)
    return net


def alexnet() -> Count:
    """Return Caffe's AlexNet, batch 256."""
    net = Count(256, 3, 227)
    net.convolution(96, 11, 4)
    net.wrote()
    net.pool(3, 2)
    net.convolution(256, 5, pad=2, groups=2)
    net.wrote()
    net.pool(3, 2)
    net.convolution(384, 3, pad=1)
    net.convolution(384, 3, pad=1, groups=2)
    net.convolution(256, 3, pad=1, groups=2)
    net.pool(3, 2)
    net.inner(4096, 3)
    net.inner(4096, 3)
    net.inner(1000)
    return net


def googlenet() -> Count:
    """Return GoogLeNet without its two side losses. The paper does not name the batch; this is Caffe's
    default, 32."""
    net = Count(32, 3, 224)
    net.convolution(64, 7, 2, 3)
    net.pool(3, 2)
    net.wrote()
    net.convolution(64, 1)
    net.convolution(192, 3, pad=1)
    net.wrote()
    net.pool(3, 2)
    net.inception(64, 96, 128, 16, 32, 32)
    net.inception(128, 128, 192, 32, 96, 64)
    net.pool(3, 2)
    net.inception(192, 96, 208, 16, 48, 64)
    net.inception(160, 112, 224, 24, 64, 64)
    net.inception(128, 128, 256, 24, 64, 64)
    net.inception(112, 144, 288, 32, 64, 64)
    net.inception(256, 160, 320, 32, 128, 128)
    net.pool(3, 2)
    net.inception(256, 160, 320, 32, 128, 128)
    net.inception(384, 192, 384, 48, 128, 128)
    net.pool(7, 1)
    net.inner(1000)
    return net


NETS = {"CIFAR": cifar, "AlexNet": alexnet, "GoogLeNet": googlenet}
