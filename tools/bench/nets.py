"""The ten nets, with layers and names as in the files that Caffe's users know."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from bench.layers import Net


def lenet() -> Net:
    """Caffe's LeNet for MNIST (LeCun et al. 1998, with max pooling and one ReLU)."""
    net = Net("lenet", 64, (1, 28, 28), 10, rate=0.001)
    blob = net.convolution("data", "conv1", 20, 5)
    blob = net.pool(blob, "pool1", "max_pool", 2, 2)
    blob = net.convolution(blob, "conv2", 50, 5)
    blob = net.pool(blob, "pool2", "max_pool", 2, 2)
    blob = net.relu(net.inner_product(blob, "ip1", 500), "relu1")
    net.loss(net.inner_product(blob, "ip2", 10), "loss")
    return net


def cifar10_quick() -> Net:
    """Caffe's quick net for CIFAR-10 (after Krizhevsky's cuda-convnet)."""
    net = Net("cifar10_quick", 100, (3, 32, 32), 10, rate=0.001, decay=0.004)
    blob = net.convolution("data", "conv1", 32, 5, pad=2)
    blob = net.relu(net.pool(blob, "pool1", "max_pool", 3, 2), "relu1")
    blob = net.relu(net.convolution(blob, "conv2", 32, 5, pad=2), "relu2")
    blob = net.pool(blob, "pool2", "average_pool", 3, 2)
    blob = net.relu(net.convolution(blob, "conv3", 64, 5, pad=2), "relu3")
    blob = net.pool(blob, "pool3", "average_pool", 3, 2)
    blob = net.inner_product(blob, "ip1", 64)
    net.loss(net.inner_product(blob, "ip2", 10), "loss")
    return net


def alexnet() -> Net:
    """bvlc_alexnet: Krizhevsky et al. 2012 with its two groups, LRN before pooling."""
    net = Net("alexnet", 32, (3, 227, 227), 1000, rate=0.0002)
    blob = net.relu(net.convolution("data", "conv1", 96, 11, stride=4), "relu1")
    blob = net.pool(net.lrn(blob, "norm1"), "pool1", "max_pool", 3, 2)
    blob = net.relu(net.convolution(blob, "conv2", 256, 5, pad=2, groups=2), "relu2")
    blob = net.pool(net.lrn(blob, "norm2"), "pool2", "max_pool", 3, 2)
    blob = net.relu(net.convolution(blob, "conv3", 384, 3, pad=1), "relu3")
    blob = net.relu(net.convolution(blob, "conv4", 384, 3, pad=1, groups=2), "relu4")
    blob = net.relu(net.convolution(blob, "conv5", 256, 3, pad=1, groups=2), "relu5")
    blob = net.pool(blob, "pool5", "max_pool", 3, 2)
    _two_hidden(net, blob)
    return net


def vgg16() -> Net:
    """VGG-16, configuration D of Simonyan and Zisserman 2014."""
    net = Net("vgg16", 8, (3, 224, 224), 1000, rate=0.00002)
    blob = "data"
    for stage, (count, outputs) in enumerate([(2, 64), (2, 128), (3, 256), (3, 512), (3, 512)], 1):
        for number in range(1, count + 1):
            blob = net.convolution(blob, f"conv{stage}_{number}", outputs, 3, pad=1)
            blob = net.relu(blob, f"relu{stage}_{number}")
        blob = net.pool(blob, f"pool{stage}", "max_pool", 2, 2)
    _two_hidden(net, blob)
    return net


def _two_hidden(net: Net, blob: str) -> None:
    for number in (6, 7):
        blob = net.relu(net.inner_product(blob, f"fc{number}", 4096), f"relu{number}")
        blob = net.dropout(blob, f"drop{number}", 0.5)
    net.loss(net.inner_product(blob, "fc8", 1000), "loss")


def _rectified(
    net: Net, blob: str, name: str, outputs: int, kernel: int, stride: int = 1, pad: int = 0
) -> str:
    """Add a convolution and its ReLU."""
    blob = net.convolution(blob, name, outputs, kernel, stride=stride, pad=pad)
    return net.relu(blob, f"{name}/relu")


def _normalised(
    net: Net,
    blob: str,
    name: str,
    outputs: int,
    kernel: int,
    stride: int = 1,
    pad: int = 0,
    *,
    groups: int = 1,
    norm: str = "",
) -> str:
    """Add a convolution without biases and its batch normalisation, named ``norm``."""
    window = {"stride": stride, "pad": pad, "groups": groups}
    blob = net.convolution(blob, name, outputs, kernel, **window, bias=False)
    return net.batch_norm(blob, norm or f"{name}/bn")


def resnet50() -> Net:
    """ResNet-50 (He et al. 2015) as its authors' prototxt has it: strides in the first 1x1."""
    net = Net("resnet50", 8, (3, 224, 224), 1000, rate=0.00003)

    def unit(blob: str, name: str, *window: int) -> str:
        conv, bn = (name, f"bn_{name}") if name == "conv1" else (f"res{name}", f"bn{name}")
        return _normalised(net, blob, conv, *window, norm=bn)

    blob = net.relu(unit("data", "conv1", 64, 7, 2, 3), "conv1_relu")
    blob = net.pool(blob, "pool1", "max_pool", 3, 2)
    for stage, (count, width) in enumerate([(3, 64), (4, 128), (6, 256), (3, 512)], 2):
        for number in range(count):
            name, stride = f"{stage}{'abcdef'[number]}", 2 if number == 0 and stage > 2 else 1
            shortcut = blob
            if number == 0:
                shortcut = unit(blob, f"{name}_branch1", 4 * width, 1, stride)
            blob = net.relu(unit(blob, f"{name}_branch2a", width, 1, stride), f"{name}_relu_a")
            blob = net.relu(unit(blob, f"{name}_branch2b", width, 3, 1, 1), f"{name}_relu_b")
            blob = unit(blob, f"{name}_branch2c", 4 * width, 1)
            blob = net.relu(net.add((shortcut, blob), f"res{name}"), f"{name}_relu")
    blob = net.pool(blob, "pool5", "average_pool", 7)
    net.loss(net.inner_product(blob, "fc1000", 1000), "loss")
    return net


# 1x1; reduction and outputs of 3x3; reduction and outputs of 5x5; projection after the pooling.
INCEPTIONS = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}


def googlenet() -> Net:
    """bvlc_googlenet: Szegedy et al. 2014 with LRN and its two auxiliary losses."""
    net = Net("googlenet", 16, (3, 224, 224), 1000, rate=0.0003, decay=0.0002)

    conv = partial(_rectified, net)

    def head(blob: str, number: int) -> None:
        name = f"loss{number}"
        blob = net.pool(blob, f"{name}/ave_pool", "average_pool", 5, 3)
        blob = conv(blob, f"{name}/conv", 128, 1)
        blob = net.relu(net.inner_product(blob, f"{name}/fc", 1024), f"{name}/relu_fc")
        blob = net.dropout(blob, f"{name}/drop_fc", 0.7)
        blob = net.inner_product(blob, f"{name}/classifier", 1000)
        net.loss(blob, f"{name}/loss", 0.3)

    blob = conv("data", "conv1/7x7_s2", 64, 7, 2, 3)
    blob = net.lrn(net.pool(blob, "pool1/3x3_s2", "max_pool", 3, 2), "pool1/norm1")
    blob = conv(conv(blob, "conv2/3x3_reduce", 64, 1), "conv2/3x3", 192, 3, 1, 1)
    blob = net.pool(net.lrn(blob, "conv2/norm2"), "pool2/3x3_s2", "max_pool", 3, 2)
    for block, (ones, reduce3, threes, reduce5, fives, projected) in INCEPTIONS.items():
        name = f"inception_{block}"
        branches = (
            conv(blob, f"{name}/1x1", ones, 1),
            conv(conv(blob, f"{name}/3x3_reduce", reduce3, 1), f"{name}/3x3", threes, 3, 1, 1),
            conv(conv(blob, f"{name}/5x5_reduce", reduce5, 1), f"{name}/5x5", fives, 5, 1, 2),
            conv(net.pool(blob, f"{name}/pool", "max_pool", 3, 1, 1), f"{name}/pool_proj", projected, 1),
        )
        blob = net.concat(branches, f"{name}/output")
        if block in ("4a", "4d"):
            head(blob, 1 if block == "4a" else 2)
        if block in ("3b", "4e"):
            blob = net.pool(blob, f"pool{int(block[0])}/3x3_s2", "max_pool", 3, 2)
    blob = net.pool(blob, "pool5/7x7_s1", "average_pool", 7)
    blob = net.dropout(blob, "pool5/drop_7x7_s1", 0.4)
    net.loss(net.inner_product(blob, "loss3/classifier", 1000), "loss3/loss3")
    return net


def resnet18() -> Net:
    """ResNet-18 (He et al. 2015): pairs of 3x3, the shortcut projected where the width changes."""
    net = Net("resnet18", 16, (3, 224, 224), 1000, rate=0.0001)
    blob = net.relu(_normalised(net, "data", "conv1", 64, 7, 2, 3), "conv1_relu")
    blob = net.pool(blob, "pool1", "max_pool", 3, 2)
    for stage, width in enumerate((64, 128, 256, 512), 2):
        for number in range(2):
            name, stride = f"res{stage}{'ab'[number]}", 2 if number == 0 and stage > 2 else 1
            shortcut = blob
            if stride > 1:
                shortcut = _normalised(net, blob, f"{name}_branch1", width, 1, stride)
            blob = net.relu(
                _normalised(net, blob, f"{name}_branch2a", width, 3, stride, 1), f"{name}_relu_a"
            )
            blob = _normalised(net, blob, f"{name}_branch2b", width, 3, 1, 1)
            blob = net.relu(net.add((shortcut, blob), name), f"{name}_relu")
    blob = net.pool(blob, "pool5", "average_pool", 7)
    net.loss(net.inner_product(blob, "fc1000", 1000), "loss")
    return net


def mobilenet() -> Net:
    """MobileNet (Howard et al. 2017): depthwise 3x3 and 1x1 in turn."""
    net = Net("mobilenet", 16, (3, 224, 224), 1000, rate=0.0003, decay=0.00004)
    blob = net.relu(_normalised(net, "data", "conv1", 32, 3, 2, 1), "relu1")
    outputs = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5]
    for number, (width, stride) in enumerate([*outputs, (1024, 2), (1024, 1)], 2):
        name, channels = f"conv{number}", net.shape(blob)[0]
        blob = _normalised(net, blob, f"{name}/dw", channels, 3, stride, 1, groups=channels)
        blob = net.relu(blob, f"{name}/dw/relu")
        blob = net.relu(_normalised(net, blob, f"{name}/sep", width, 1), f"{name}/sep/relu")
    blob = net.pool(blob, "pool6", "average_pool", 7)
    net.loss(net.inner_product(blob, "fc7", 1000), "loss")
    return net


def mobilenet_v2() -> Net:
    """MobileNetV2 (Sandler et al. 2018, table 2): inverted residuals, ReLU6."""
    net = Net("mobilenet_v2", 16, (3, 224, 224), 1000, rate=0.0003, decay=0.00004)
    blob = net.relu6(_normalised(net, "data", "conv1", 32, 3, 2, 1), "relu1")
    stages = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)]
    stages += [(6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]
    for stage, (expansion, width, count, first) in enumerate(stages, 2):
        for number in range(1, count + 1):
            name, bottom, stride = f"conv{stage}_{number}", blob, first if number == 1 else 1
            channels = expansion * net.shape(bottom)[0]
            if expansion > 1:
                blob = _normalised(net, blob, f"{name}/expand", channels, 1)
                blob = net.relu6(blob, f"{name}/expand/relu")
            blob = _normalised(net, blob, f"{name}/dwise", channels, 3, stride, 1, groups=channels)
            blob = net.relu6(blob, f"{name}/dwise/relu")
            blob = _normalised(net, blob, f"{name}/linear", width, 1)
            if number > 1:
                blob = net.add((bottom, blob), f"block_{stage}_{number}")
    blob = net.relu6(_normalised(net, blob, "conv9", 1280, 1), "relu9")
    blob = net.pool(blob, "pool9", "average_pool", 7)
    net.loss(net.inner_product(blob, "fc10", 1000), "loss")
    return net


def squeezenet() -> Net:
    """SqueezeNet 1.1 (Iandola et al. 2016): fire modules, and no inner product."""
    net = Net("squeezenet", 16, (3, 227, 227), 1000, rate=0.0003, decay=0.0002)

    conv = partial(_rectified, net)

    blob = net.pool(conv("data", "conv1", 64, 3, 2), "pool1", "max_pool", 3, 2)
    for number, width in enumerate((16, 16, 32, 32, 48, 48, 64, 64), 2):
        name = f"fire{number}"
        squeezed = conv(blob, f"{name}/squeeze1x1", width, 1)
        ones = conv(squeezed, f"{name}/expand1x1", 4 * width, 1)
        threes = conv(squeezed, f"{name}/expand3x3", 4 * width, 3, pad=1)
        blob = net.concat((ones, threes), f"{name}/concat")
        if number in (3, 5):
            blob = net.pool(blob, f"pool{number}", "max_pool", 3, 2)
    blob = conv(net.dropout(blob, "drop9", 0.5), "conv10", 1000, 1)
    blob = net.pool(blob, "pool10", "average_pool", net.shape(blob)[1])
    net.loss(blob, "loss")
    return net


NETS: dict[str, Callable[[], Net]] = {
    made.__name__: made
    for made in (
        *(lenet, cifar10_quick, alexnet, vgg16, resnet50, googlenet),
        *(resnet18, mobilenet, mobilenet_v2, squeezenet),
    )
}

OURS = frozenset(NETS)
"""The nets that are described here; nets from users' files are added to ``NETS``."""
