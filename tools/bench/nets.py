"""The six nets, with the layers and names of the files that Caffe's users know."""

from __future__ import annotations

from collections.abc import Callable

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


def resnet50() -> Net:
    """ResNet-50 (He et al. 2015) as its authors' prototxt has it: strides in the first 1x1."""
    net = Net("resnet50", 8, (3, 224, 224), 1000, rate=0.00003)

    def unit(blob: str, name: str, outputs: int, kernel: int, stride: int = 1, pad: int = 0) -> str:
        conv, bn = (name, f"bn_{name}") if name == "conv1" else (f"res{name}", f"bn{name}")
        blob = net.convolution(blob, conv, outputs, kernel, stride=stride, pad=pad, bias=False)
        return net.batch_norm(blob, bn)

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

    def conv(blob: str, name: str, outputs: int, kernel: int, stride: int = 1, pad: int = 0) -> str:
        blob = net.convolution(blob, name, outputs, kernel, stride=stride, pad=pad)
        return net.relu(blob, f"{name}/relu")

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


NETS: dict[str, Callable[[], Net]] = {
    made.__name__: made for made in (lenet, cifar10_quick, alexnet, vgg16, resnet50, googlenet)
}
