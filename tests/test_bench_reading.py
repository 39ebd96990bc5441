"""Users' files as nets of tools/bench: the same layers, with the same results, or why not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from bench import prototxt
from bench.layers import Net
from bench.nets import NETS
from bench.reading import UnreadError, read
from real_files import DATA

import demitasse
from demitasse import Runtime

SMALL = """
name: "small"
layer { name: "input" type: "Data" top: "image" top: "class" data_param { batch_size: 64 } }
layer { name: "a" type: "Convolution" bottom: "image" top: "a"
        convolution_param {
          num_output: 6 kernel_h: 3 kernel_w: 5 stride: 2 pad: 1 dilation: 2 group: 3 } }
layer { name: "n" type: "BatchNorm" bottom: "a" top: "n" batch_norm_param { eps: 0.001 } }
layer { name: "s" type: "Scale" bottom: "n" top: "s" scale_param { bias_term: true } }
layer { name: "r" type: "ReLU" bottom: "s" top: "s" relu_param { negative_slope: 0.1 } }
layer { name: "p" type: "PReLU" bottom: "s" top: "p" }
layer { name: "n2" type: "BatchNorm" bottom: "p" top: "n2" }
layer { name: "e" type: "ELU" bottom: "s" top: "e" elu_param { alpha: 0.5 } }
layer { name: "m" type: "Eltwise" bottom: "n2" bottom: "e" top: "m" eltwise_param { operation: MAX } }
layer { name: "t" type: "Eltwise" bottom: "m" bottom: "s" bottom: "e" top: "t"
        eltwise_param { operation: PROD } }
layer { name: "up" type: "Pooling" bottom: "t" top: "up"
        pooling_param { kernel_size: 3 stride: 2 pad: 1 } }
layer { name: "down" type: "Pooling" bottom: "t" top: "down"
        pooling_param { pool: AVE kernel_h: 2 kernel_w: 3 stride: 2 pad_w: 1 round_mode: FLOOR } }
layer { name: "d" type: "Dropout" bottom: "up" top: "d" }
layer { name: "l" type: "LRN" bottom: "d" top: "l" lrn_param { local_size: 3 alpha: 0.01 beta: 0.5 } }
layer { name: "g" type: "Pooling" bottom: "down" top: "g"
        pooling_param { pool: AVE global_pooling: true } }
layer { name: "f" type: "Flatten" bottom: "l" top: "f" }
layer { name: "gf" type: "Flatten" bottom: "g" top: "gf" }
layer { name: "j" type: "Concat" bottom: "f" bottom: "gf" top: "j" }
layer { name: "h" type: "InnerProduct" bottom: "j" top: "h"
        inner_product_param { num_output: 7 bias_term: false } }
layer { name: "tanh" type: "TanH" bottom: "h" top: "h" }
layer { name: "sigmoid" type: "Sigmoid" bottom: "h" top: "h2" }
layer { name: "o" type: "InnerProduct" bottom: "h2" top: "o" inner_product_param { num_output: 4 } }
layer { name: "accuracy" type: "Accuracy" bottom: "o" bottom: "class" top: "accuracy" }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "o" bottom: "class" top: "loss" loss_weight: 2 }
"""


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    with demitasse.compose() as runtime:
        yield runtime


def written(net: Net, folder: Path) -> Path:
    """The prototxt that all contenders' layers go by."""
    return prototxt.write(net, folder).with_name("train.prototxt")


def outputs(runtime: Runtime, path: Path, net: Net, like: demitasse.Net | None = None) -> demitasse.Net:
    """A file's net after a pass over the same samples, with the parameters of the same layers."""
    random = np.random.default_rng(4)
    labels = random.integers(0, net.classes, net.batch).astype(np.float32)
    data = {"data": random.random((net.batch, *net.image), np.float32), "label": labels}
    made = runtime.net(path, phase="test", data={"test": data}, retain="all")
    if like is not None:
        assert {name: [a.shape for a in arrays] for name, arrays in made.params.items()} == {
            name: [a.shape for a in arrays] for name, arrays in like.params.items()
        }
        for name, arrays in made.params.items():
            for mine, theirs in zip(arrays, like.params[name], strict=True):
                mine[...] = theirs
    made.forward()
    return made


def test_a_users_net_gives_what_its_own_file_gives(runtime: Runtime, tmp_path: Path) -> None:
    path = tmp_path / "small.prototxt"
    path.write_text(SMALL, encoding="utf-8")
    net = read(path, image=(3, 17, 23))
    assert (net.name, net.batch, net.classes, net.shape("a")) == ("small", 16, 4, (6, 8, 9))
    net.batch = 64
    own = outputs(runtime, path, net)
    ours = outputs(runtime, written(net, tmp_path / "written"), net, own)
    compared = [blob for blob in own.blobs if blob in ours.blobs and blob not in ("f", "gf")]
    assert {"a", "n2", "m", "t", "up", "down", "l", "g", "j", "o", "loss"} <= set(compared)
    for blob in compared:
        np.testing.assert_allclose(ours.blobs[blob], own.blobs[blob], rtol=1e-5, atol=1e-6)
    assert [layer.numbers["weight"] for layer in net.layers if layer.kind == "softmax_loss"] == [2.0]


REAL = (
    "BVLC+caffe/examples/mnist/lenet_train_test.prototxt",
    "DeepScale+SqueezeNet/SqueezeNet_v1.1/train_val.prototxt",
    "amirgholami+SqueezeNext/1.0-G-SqNxt-23/train_val.prototxt",
)


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no real files at {DATA}")
@pytest.mark.parametrize("name", [*REAL[:2], pytest.param(REAL[2], marks=pytest.mark.slow)])
def test_real_nets_give_what_their_own_files_give(name: str, runtime: Runtime, tmp_path: Path) -> None:
    path = DATA / "prototxt" / name
    net = read(path, 1, (1, 28, 28) if "mnist" in name else None)
    data = {"data": np.ones((200, *net.image), np.float32), "label": np.zeros(200, np.float32)}
    own = runtime.net(path, phase="train", data={"train": data})
    ours = runtime.net(written(net, tmp_path), phase="train", data={"train": data})
    assert own.blobs.keys() - {"label"} >= {layer.top for layer in net.layers if layer.shape}
    assert sum(a.size for x in own.params.values() for a in x) == sum(
        a.size for x in ours.params.values() for a in x
    )
    for layer in net.layers:
        assert ours.blobs[layer.top].shape[1:] == own.blobs[layer.top].shape[1:], layer.name
        if layer.shape:
            assert ours.blobs[layer.top].shape[1:] == layer.shape


@pytest.mark.parametrize("name", NETS)
def test_a_net_is_the_same_after_json(name: str) -> None:
    net = NETS[name]()
    assert Net.of(json.loads(json.dumps(net.message()))) == net


IMAGE = (
    'layer { name: "data" type: "Input" top: "data" '
    "input_param { shape { dim: 2 dim: 3 dim: 9 dim: 9 } } }"
)
WRONG = {
    "name: 'x'": "no layer gives samples",
    IMAGE: "no layer is behind the samples",
    'layer { name: "d" type: "Data" top: "data" data_param { batch_size: 2 } }': (
        r"wrong.prototxt:1: layer 'd' \(Data\) the shape of an image is not known: give --image 3x"
    ),
    f'{IMAGE}\nlayer {{ name: "s" type: "SPP" bottom: "data" top: "s" '
    "spp_param { pyramid_height: 2 } }": (
        r"wrong.prototxt:2: layer 's' \(SPP\) is of a type that the peers have not here; Convolution, "
    ),
    f'{IMAGE}\nlayer {{ name: "p" type: "Pooling" bottom: "data" top: "p" '
    "pooling_param { pool: STOCHASTIC kernel_size: 2 } }": (
        r"layer 'p' \(Pooling\) pools STOCHASTIC; the bench has MAX"
    ),
    f'{IMAGE}\nlayer {{ name: "r" type: "ReLU" bottom: "date" top: "r" }}': "date",
    f'{IMAGE}\nlayer {{ name: "r" type: "ReLU" bottom: "data" top: "r" }}': (
        "ends in 3x9x9 numbers a sample; the bench compares classifiers"
    ),
    f'{IMAGE}\nlayer {{ name: "e" type: "Eltwise" bottom: "data" bottom: "data" top: "e" '
    "eltwise_param { coeff: 1 coeff: -1 } }": "has coefficients",
    f'{IMAGE}\nlayer {{ name: "c" type: "ConvolutionDepthwise" bottom: "data" top: "c" '
    "convolution_param { num_output: 4 kernel_size: 3 } }": "has 3 groups, which do not divide 3 ch",
    f'{IMAGE}\nlayer {{ name: "c" type: "Convolution" bottom: "data" top: "c" '
    "convolution_param { num_output: 4 kernel_size: 11 } }": r"\(Convolution\) leaves nothing of its",
    "layer {": "wrong.prototxt",
}


@pytest.mark.parametrize(("text", "why"), WRONG.items(), ids=range(len(WRONG)))
def test_what_the_peers_cannot_run_is_refused_with_the_place(
    text: str, why: str, tmp_path: Path
) -> None:
    path = tmp_path / "wrong.prototxt"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UnreadError, match=why):
        read(path)


def test_a_deploy_file_is_trained_by_a_loss_in_place_of_its_softmax(tmp_path: Path) -> None:
    path = tmp_path / "deploy.prototxt"
    product = 'layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" '
    product += "inner_product_param { num_output: 5 } }"
    softmax = 'layer { name: "prob" type: "Softmax" bottom: "ip" top: "prob" }'
    for text in (f"{IMAGE}\n{product}\n{softmax}", f"{IMAGE}\n{product}"):
        path.write_text(text, encoding="utf-8")
        net = read(path)
        assert [layer.kind for layer in net.layers] == ["inner_product", "softmax_loss"]
        assert [layer.kind for layer in net.deploy().layers] == ["inner_product", "softmax"]
        assert (net.batch, net.classes, net.image) == (2, 5, (3, 9, 9))
