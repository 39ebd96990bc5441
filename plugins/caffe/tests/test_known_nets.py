"""Whole nets, with shapes from their papers and from Caffe's logs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demitasse_caffe.layers import LAYER_TYPES
from demitasse_caffe.plugin import model_reader

TYPES = {kind.name: kind for kind in LAYER_TYPES}

LENET = {
    "conv1": (20, 24, 24),
    "pool1": (20, 12, 12),
    "conv2": (50, 8, 8),
    "pool2": (50, 4, 4),
    "ip1": (500,),
    "ip2": (10,),
}

CIFAR_QUICK = {
    "conv1": (32, 32, 32),
    "pool1": (32, 16, 16),
    "conv2": (32, 16, 16),
    "pool2": (32, 8, 8),
    "conv3": (64, 8, 8),
    "pool3": (64, 4, 4),
    "ip1": (64,),
    "ip2": (10,),
}

CIFAR_FULL = {
    "conv1": (32, 32, 32),
    "pool1": (32, 16, 16),
    "norm1": (32, 16, 16),
    "conv2": (32, 16, 16),
    "pool2": (32, 8, 8),
    "conv3": (64, 8, 8),
    "pool3": (64, 4, 4),
    "ip1": (10,),
}

ALEXNET = {
    "conv1": (96, 55, 55),
    "norm1": (96, 55, 55),
    "pool1": (96, 27, 27),
    "conv2": (256, 27, 27),
    "pool2": (256, 13, 13),
    "conv3": (384, 13, 13),
    "conv4": (384, 13, 13),
    "conv5": (256, 13, 13),
    "pool5": (256, 6, 6),
    "fc6": (4096,),
    "fc7": (4096,),
    "fc8": (1000,),
}

GOOGLENET = {
    "conv1/7x7_s2": (64, 112, 112),
    "pool1/3x3_s2": (64, 56, 56),
    "inception_3a/output": (256, 28, 28),
    "inception_4a/output": (512, 14, 14),
    "inception_5b/output": (1024, 7, 7),
    "pool5/7x7_s1": (1024, 1, 1),
    "prob": (1000,),
}


# Numbers of parameters: those of LeNet (431,080) and AlexNet (60,965,224) are published; the others are
# sums of outputs * (inputs + 1) over their layers, worked out by hand.

NETS = [
    ("examples/mnist/lenet.prototxt", 64, LENET, 431080),
    ("examples/cifar10/cifar10_quick.prototxt", 1, CIFAR_QUICK, 145578),
    ("examples/cifar10/cifar10_full.prototxt", 1, CIFAR_FULL, 89578),
    ("models/bvlc_alexnet/deploy.prototxt", 10, ALEXNET, 60965224),
    ("models/bvlc_googlenet/deploy.prototxt", 10, GOOGLENET, 6998552),
]


@pytest.mark.parametrize(("path", "batch", "expected", "learned"), NETS)
def test_a_known_net_has_its_known_shapes(
    shared: Path, recorder: Any, path: str, batch: int, expected: dict[str, Any], learned: int
) -> None:
    reader = model_reader(shared / "prototxt/BVLC+caffe" / path, TYPES)
    assert reader is not None
    graph = recorder("test")
    shapes = graph.expand(reader.net("test"))
    assert {name: shapes[name] for name in expected} == {
        name: (batch, *shape) for name, shape in expected.items()
    }
    assert sum(int(np.prod(p.shape)) for p in graph.parameters) == learned


RESNET_50 = {
    "conv1": (64, 112, 112),
    "pool1": (64, 56, 56),
    "res2c": (256, 56, 56),
    "res3d": (512, 28, 28),
    "res4f": (1024, 14, 14),
    "res5c": (2048, 7, 7),
    "pool5": (2048, 1, 1),
    "fc1000": (1000,),
}


def test_resnet_50_has_its_published_shapes_and_parameters(shared: Path, recorder: Any) -> None:
    """25,557,032 is the published count; in addition, this file's first convolution has a bias of 64,
    and 53 layers keep statistics of 26,560 channels."""
    path = "prototxt/KaimingHe+deep-residual-networks/prototxt/ResNet-50-deploy.prototxt"
    reader = model_reader(shared / path, TYPES)
    assert reader is not None
    graph = recorder("test")
    shapes = graph.expand(reader.net("test"))
    assert {name: shapes[name] for name in RESNET_50} == {k: (1, *v) for k, v in RESNET_50.items()}
    kept = [p for p in graph.parameters if not getattr(p, "trainable", True)]
    assert sum(int(np.prod(p.shape)) for p in kept) == 2 * 26_560 + 53
    counts = [int(np.prod(p.shape)) for p in graph.parameters]
    assert sum(counts) - (2 * 26_560 + 53) == 25_557_032 + 64


@pytest.mark.parametrize("phase", ["train", "test"])
@pytest.mark.parametrize(
    ("path", "sample"),
    [
        ("examples/mnist/lenet_train_test.prototxt", (1, 28, 28)),
        ("models/bvlc_googlenet/train_val.prototxt", (3, 256, 256)),
    ],
)
def test_a_net_builds_for_both_phases_with_its_scores(
    shared: Path, recorder: Any, path: str, sample: tuple[int, ...], phase: str
) -> None:
    reader = model_reader(shared / "prototxt/BVLC+caffe" / path, TYPES)
    assert reader is not None
    graph = recorder(phase, sample)
    shapes = graph.expand(reader.net(phase))
    names = [operation for operation, _, _ in graph.operations]
    assert "image_transform" in names and "softmax_loss" in names
    assert ("accuracy" in names) == (phase == "test")
    assert all(shape == () for name, shape in shapes.items() if "loss" in name and "/" not in name)
