"""The four nets of Table 1 by their definitions, counted layer by layer as Caffe computes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from math import prod

WORD = 4
"""Bytes of a float32."""

Shape = tuple[int, int, int]


@dataclass(frozen=True)
class Operation:
    """One of Caffe's layers with a whole minibatch: its floating-point operations and the bytes that it
    moves, in forward and in backward, and the number of its ``parameters``. For a normalisation or a
    scale, ``part_of`` is the weighted layer that it belongs to."""

    name: str
    forward: tuple[float, float]
    backward: tuple[float, float]
    parameters: int = 0
    part_of: str = ""
    kernels: tuple[int, int] = (1, 1)


@dataclass
class Net:
    """A net with a batch of ``batch`` images. ``operations`` are in the order of forward. ``numbers``
    counts the elements of its blobs per image, of which ``samples`` are the image itself. ``shape`` is
    the last blob's: channels, rows, columns. ``depth`` is the number of weighted layers before it."""

    name: str
    batch: int
    shape: Shape
    operations: list[Operation] = field(default_factory=list)
    numbers: int = 0
    depth: int = 0

    def __post_init__(self) -> None:
        self.samples = prod(self.shape)
        self.numbers += self.samples

    @property
    def parameters(self) -> int:
        """The number of all parameters, learned ones and running statistics."""
        return sum(each.parameters for each in self.operations)

    @property
    def gradients(self) -> int:
        """The bytes of a replica's gradients."""
        return WORD * self.parameters

    def convolution(
        self,
        outputs: int,
        kernel: int,
        stride: int = 1,
        pad: int = 0,
        groups: int = 1,
        bias: bool = True,
    ) -> None:
        """Add a convolution. Its gradients are those of the bias, the weights and, except in the first
        layer, the input."""
        inputs, rows, columns = self.shape
        before = prod(self.shape)
        extents = [(extent + 2 * pad - kernel) // stride + 1 for extent in (rows, columns)]
        self.shape = outputs, extents[0], extents[1]
        products = 2.0 * inputs // groups * kernel * kernel * prod(self.shape)
        weights = outputs * inputs // groups * kernel * kernel
        ways = 2 if self.operations else 1
        moved = before + prod(self.shape)
        self._add(
            f"conv{len(self.weighted) + 1}",
            (products, moved + bias * 2 * prod(self.shape)),
            (ways * products, ways * moved + bias * prod(self.shape)),
            weights + bias * outputs,
            (weights, ways * weights),
            kernels=(groups + bias, ways * groups + bias),
        )
        self.depth += 1
        self.numbers += prod(self.shape)

    def inner(self, outputs: int) -> None:
        """Add an inner product. Its weights pass through memory once in forward, twice in backward."""
        inputs, self.shape = prod(self.shape), (outputs, 1, 1)
        weights, moved = inputs * outputs, inputs + outputs
        products = 2.0 * weights
        self._add(
            f"fc{len(self.weighted) + 1}",
            (products, moved),
            (2 * products, 2 * moved),
            weights + outputs,
            (weights, 2 * weights),
            kernels=(2, 3),
        )
        self.depth += 1
        self.numbers += outputs

    def relu(self) -> None:
        """Add a ReLU in place: forward reads and writes the blob; backward reads one more."""
        self._passes("relu", 2, 3)

    def dropout(self) -> None:
        """Add a dropout in place, with a mask."""
        self._passes("drop", 3, 3, kernels=(2, 1))

    def lrn(self) -> None:
        """Add an LRN across channels, not in place. Backward reads three blobs and writes one."""
        self._passes("norm", 3, 5)
        self.numbers += prod(self.shape)

    def batch_norm(self) -> None:
        """Add a normalisation and a scale, both in place. Caffe composes them of products and
        elementwise functions, each of which reads and writes whole blobs. The running statistics are
        blobs with parameters, and their differences are sent too. Besides, the normalised values and two
        scratch blobs are kept."""
        channels = self.shape[0]
        of = self.weighted[-1]
        self._passes(f"bn_{of}", 14, 16, 2 * channels + 1, of, (10, 12))
        self._passes(f"scale_{of}", 4, 6, 2 * channels, of, (2, 5))
        self.numbers += 2 * prod(self.shape)

    def pool(self, kernel: int, stride: int, pad: int = 0) -> None:
        """Add a pooling, whose output sizes are rounded up."""
        channels, rows, columns = self.shape
        before = prod(self.shape)
        extents = [-(-(extent + 2 * pad - kernel) // stride) + 1 for extent in (rows, columns)]
        self.shape = channels, extents[0], extents[1]
        after = prod(self.shape)
        self._add("pool", (kernel * kernel * after, before + after), (after, before + 2 * after))
        self.numbers += after

    def join(self, shape: Shape) -> None:
        """Concatenate branches, in forward and in backward."""
        self.shape = shape
        self._passes("concat", 2, 2, kernels=(4, 4))
        self.numbers += prod(shape)

    def fork(self, branches: int) -> None:
        """Fork into branches. Each has a gradient of its own, and backward adds them up."""
        self._passes("split", 0, 1 + branches, kernels=(0, branches - 1))
        self.numbers += branches * prod(self.shape) // 2

    def plus(self) -> None:
        """Add two branches. In backward, each takes the gradient."""
        self._passes("eltwise", 3, 4, kernels=(2, 2))
        self.numbers += prod(self.shape)

    def loss(self) -> None:
        """Add a softmax with its loss."""
        self._passes("loss", 8, 2, kernels=(6, 1))

    @property
    def weighted(self) -> list[str]:
        """The names of convolutions and inner products, in the order of forward."""
        return [e.name for e in self.operations if e.parameters and not e.part_of]

    def _passes(
        self,
        name: str,
        forward: int,
        backward: int,
        parameters: int = 0,
        part_of: str = "",
        kernels: tuple[int, int] = (1, 1),
    ) -> None:
        size = prod(self.shape)
        flops = (size, forward * size), (size, backward * size)
        self._add(name, *flops, parameters, part_of=part_of, kernels=kernels)

    def _add(
        self,
        name: str,
        forward: tuple[float, float],
        backward: tuple[float, float],
        parameters: int = 0,
        weights: tuple[float, float] = (0, 0),
        part_of: str = "",
        kernels: tuple[int, int] = (1, 1),
    ) -> None:
        """Append an operation. ``forward`` and ``backward`` are (flops, elements) per image; ``weights``
        are the elements that pass each way once per batch."""
        ways = [
            (self.batch * flops, WORD * (self.batch * moved + passed))
            for (flops, moved), passed in zip((forward, backward), weights, strict=True)
        ]
        self.operations.append(Operation(name, ways[0], ways[1], parameters, part_of, kernels))


@cache
def alexnet(batch: int = 256) -> Net:
    """Return Caffe's bvlc_alexnet."""
    net = Net("AlexNet", batch, (3, 227, 227))
    for outputs, kernel, stride, pad, groups in ((96, 11, 4, 0, 1), (256, 5, 1, 2, 2)):
        net.convolution(outputs, kernel, stride, pad, groups)
        net.relu()
        net.lrn()
        net.pool(3, 2)
    for outputs, groups in ((384, 1), (384, 2), (256, 2)):
        net.convolution(outputs, 3, pad=1, groups=groups)
        net.relu()
    net.pool(3, 2)
    return _hidden(net)


@cache
def vgg16(batch: int = 32) -> Net:
    """Return VGG's configuration D."""
    net = Net("VGGNet-16", batch, (3, 224, 224))
    for count, outputs in zip((2, 2, 3, 3, 3), (64, 128, 256, 512, 512), strict=True):
        for _ in range(count):
            net.convolution(outputs, 3, pad=1)
            net.relu()
        net.pool(2, 2)
    return _hidden(net)


def _hidden(net: Net) -> Net:
    for _ in range(2):
        net.inner(4096)
        net.relu()
        net.dropout()
    net.inner(1000)
    net.loss()
    return net


_INCEPTIONS = (
    (64, 96, 128, 16, 32, 32),
    (128, 128, 192, 32, 96, 64),
    (192, 96, 208, 16, 48, 64),
    (160, 112, 224, 24, 64, 64),
    (128, 128, 256, 24, 64, 64),
    (112, 144, 288, 32, 64, 64),
    (256, 160, 320, 32, 128, 128),
    (256, 160, 320, 32, 128, 128),
    (384, 192, 384, 48, 128, 128),
)


@cache
def googlenet(batch: int = 64, further: bool = True) -> Net:
    """Return Caffe's bvlc_googlenet for training, with its two ``further`` losses, whose weights are
    exchanged too."""
    net = Net("GoogLeNet-v1", batch, (3, 224, 224))
    net.convolution(64, 7, 2, 3)
    net.relu()
    net.pool(3, 2)
    net.lrn()
    for outputs, kernel in ((64, 1), (192, 3)):
        net.convolution(outputs, kernel, pad=kernel // 2)
        net.relu()
    net.lrn()
    net.pool(3, 2)
    for number, branches in enumerate(_INCEPTIONS):
        if number in (2, 7):
            net.pool(3, 2)
        _inception(net, *branches, further=further and number in (3, 6))
    net.pool(7, 1)
    net.dropout()
    net.inner(1000)
    net.loss()
    return net


def _inception(
    net: Net, one: int, narrow3: int, three: int, narrow5: int, five: int, project: int, further: bool
) -> None:
    inputs, before = net.shape, net.depth
    net.fork(5 if further else 4)
    if further:
        net.pool(5, 3)
        net.convolution(128, 1)
        net.relu()
        net.inner(1024)
        net.relu()
        net.dropout()
        net.inner(1000)
        net.loss()
    for branch in (((one, 1),), ((narrow3, 1), (three, 3)), ((narrow5, 1), (five, 5))):
        net.shape, net.depth = inputs, before
        for outputs, kernel in branch:
            net.convolution(outputs, kernel, pad=kernel // 2)
            net.relu()
    net.shape, net.depth = inputs, before + 1  # and one more: as deep as those of two convolutions
    net.pool(3, 1, 1)
    net.convolution(project, 1)
    net.relu()
    net.join((one + three + five + project, *inputs[1:]))


@cache
def resnet152(batch: int = 12) -> Net:
    """Return He et al.'s ResNet-152, with the stride in the first of a block's three convolutions."""
    net = Net("ResNet-152", batch, (3, 224, 224))
    _normalised(net, 64, 7, 2, 3)
    net.relu()
    net.pool(3, 2)
    for stage, (count, width) in enumerate(((3, 64), (8, 128), (36, 256), (3, 512))):
        for number in range(count):
            inputs, before, stride = net.shape, net.depth, 2 if stage and not number else 1
            net.fork(2)
            if not number:
                _normalised(net, 4 * width, 1, stride)
                net.shape, net.depth = inputs, before
            for outputs, kernel, step in ((width, 1, stride), (width, 3, 1), (4 * width, 1, 1)):
                _normalised(net, outputs, kernel, step, kernel // 2)
                if outputs == width:
                    net.relu()
            net.plus()
            net.relu()
    net.pool(7, 1)
    net.inner(1000)
    net.loss()
    return net


def _normalised(net: Net, outputs: int, kernel: int, stride: int = 1, pad: int = 0) -> None:
    net.convolution(outputs, kernel, stride, pad, bias=False)
    net.batch_norm()


NETS: dict[str, Callable[..., Net]] = {
    "AlexNet": alexnet,
    "GoogLeNet-v1": googlenet,
    "VGGNet-16": vgg16,
    "ResNet-152": resnet152,
}
