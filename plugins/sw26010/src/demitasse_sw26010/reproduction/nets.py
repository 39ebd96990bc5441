"""The paper's five nets, as in their authors' files. AlexNet's LRN is replaced by batch normalisation
(Section VI.A)."""

from __future__ import annotations

from demitasse_sw26010.reproduction.training import PricedNet, Shape


def alexnet(net: PricedNet) -> None:
    """Krizhevsky et al. 2012, two groups."""
    x = net.batch_norm(net.relu(net.convolution((net.batch, 3, 227, 227), 96, 11, stride=4)))
    x = net.pool(x, "max", 3, 2)
    x = net.batch_norm(net.relu(net.convolution(x, 256, 5, pad=2, groups=2)))
    x = net.pool(x, "max", 3, 2)
    x = net.relu(net.convolution(x, 384, 3, pad=1))
    x = net.relu(net.convolution(x, 384, 3, pad=1, groups=2))
    x = net.relu(net.convolution(x, 256, 3, pad=1, groups=2))
    _hidden(net, net.pool(x, "max", 3, 2))


def vgg16(net: PricedNet) -> None:
    """Simonyan and Zisserman 2014, configuration D."""
    _vgg(net, (2, 2, 3, 3, 3))


def vgg19(net: PricedNet) -> None:
    """Configuration E."""
    _vgg(net, (2, 2, 4, 4, 4))


def _vgg(net: PricedNet, stages: tuple[int, ...]) -> None:
    x: Shape = (net.batch, 3, 224, 224)
    for count, outputs in zip(stages, (64, 128, 256, 512, 512), strict=True):
        for _ in range(count):
            x = net.relu(net.convolution(x, outputs, 3, pad=1))
        x = net.pool(x, "max", 2, 2)
    _hidden(net, x)


def _hidden(net: PricedNet, x: Shape) -> None:
    for _ in range(2):
        x = net.dropout(net.relu(net.inner_product(x, 4096)))
    net.loss(net.inner_product(x, 1000))


def resnet50(net: PricedNet) -> None:
    """He et al. 2015."""
    x = net.convolution((net.batch, 3, 224, 224), 64, 7, stride=2, pad=3)
    x = net.pool(net.relu(net.batch_norm(x)), "max", 3, 2)
    for stage, (count, width) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512))):
        for number in range(count):
            stride = 2 if stage and not number else 1
            net.fork(x, 2)
            beside = x
            if not number:
                beside = net.batch_norm(net.convolution(x, 4 * width, 1, stride=stride, bias=False))
            y = net.relu(net.batch_norm(net.convolution(x, width, 1, stride=stride, bias=False)))
            y = net.relu(net.batch_norm(net.convolution(y, width, 3, pad=1, bias=False)))
            y = net.batch_norm(net.convolution(y, 4 * width, 1, bias=False))
            x = net.relu(net.plus(y, beside))
    net.loss(net.inner_product(net.pool(x, "average", 7, 1), 1000))


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


def googlenet(net: PricedNet) -> None:
    """Szegedy et al. 2014, with its two additional losses; its LRN is priced too."""
    x = net.relu(net.convolution((net.batch, 3, 224, 224), 64, 7, stride=2, pad=3))
    x = _lrn(net, net.pool(x, "max", 3, 2))
    x = net.relu(net.convolution(x, 64, 1))
    x = _lrn(net, net.relu(net.convolution(x, 192, 3, pad=1)))
    x = net.pool(x, "max", 3, 2)
    for number, (one, reduce3, three, reduce5, five, pooled) in enumerate(_INCEPTIONS):
        if number in (2, 7):
            x = net.pool(x, "max", 3, 2)
        further = number in (3, 6)
        net.fork(x, 5 if further else 4)
        if further:
            y = net.relu(net.convolution(net.pool(x, "average", 5, 3), 128, 1))
            y = net.dropout(net.relu(net.inner_product(y, 1024)))
            net.loss(net.inner_product(y, 1000))
        a = net.relu(net.convolution(x, one, 1))
        b = net.relu(net.convolution(net.relu(net.convolution(x, reduce3, 1)), three, 3, pad=1))
        c = net.relu(net.convolution(net.relu(net.convolution(x, reduce5, 1)), five, 5, pad=2))
        d = net.relu(net.convolution(net.pool(x, "max", 3, 1, 1), pooled, 1))
        x = net.join((a, b, c, d))
    net.loss(net.inner_product(net.dropout(net.pool(x, "average", 7, 1)), 1000))


def _lrn(net: PricedNet, x: Shape) -> Shape:
    net.add("lrn_across_channels", (x,), (x, x))
    net.add("lrn_across_channels_backward", (x, x, x, x), (x,))
    return x
