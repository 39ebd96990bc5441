"""The papers' nets on a GPU: our kernels compute everything that their plans ask for, layouts hardly
change, and a convolutional net learns as on the processor."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench import nets, prototxt
from bench.layers import Net
from cuda_on_cpu import NO_COMPILER, EmulatedDriver, compiler

import demitasse
from demitasse import Level, Machine, MemorySpace, fingerprint

pytestmark = pytest.mark.skipif(compiler() is None, reason=NO_COMPILER)

GPU = Level("gpu", workers="streams", memory=(MemorySpace("gpu", at="gpu:*"),))
HOST = Level("node", memory=(MemorySpace("host"),))
NAMES = ["caffe", "training", "datasets", "cpu", "reference", "snapshots"]


def on_gpu() -> demitasse.Runtime:
    machine = Machine("stand-in", (HOST, GPU), fingerprint=fingerprint())
    return demitasse.compose(machine, [*NAMES, "gpu"], {"gpu": {"driver": EmulatedDriver}})


def on_host() -> demitasse.Runtime:
    return demitasse.compose(Machine("host", (HOST,), fingerprint=fingerprint()), NAMES)


def trainer_of(runtime: demitasse.Runtime, net: Net, folder: Path, precision: str) -> Any:
    random = np.random.default_rng(1)
    images = random.standard_normal((2 * net.batch, *net.image)).astype(np.float32)
    labels = random.integers(0, net.classes, 2 * net.batch).astype(np.int32)
    samples = {"data": images, "label": labels}
    path = prototxt.write(net, folder)
    return runtime.trainer(path, data={"train": samples}, precision=precision)


LARGE = [pytest.param(name, marks=pytest.mark.slow) for name in ("alexnet", "vgg16")]


@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("name", ["lenet", "cifar10_quick", "googlenet", "resnet50", *LARGE])
def test_the_papers_nets_need_no_other_kernels(name: str, precision: str, tmp_path: Path) -> None:
    net = getattr(nets, name)()
    net.batch = 1
    with on_gpu() as runtime:
        plan = trainer_of(runtime, net, tmp_path, precision).net.plan
    words = Counter(entry.operation for entry in plan.entries)
    assert {entry.plugin for entry in plan.entries} == {"gpu"}
    if name == "resnet50":  # sums are made in one pass with their neighbours
        assert words["batch_norm_sum_relu"] == 16
        assert words["sum_relu_backward"] == 15
        assert max(words[name] for name in ("sum", "sum_relu", "relu_backward")) <= 1
    heads = words["softmax_loss"]  # each reads and writes float32
    assert words["reorder"] <= (0 if precision == "f32" else 1 + 2 * heads)


@pytest.mark.parametrize(("precision", "within"), [("f32", 1e-5), ("bf16", 2e-2)])
def test_a_net_of_convolutions_learns_as_on_the_processor(
    precision: str, within: float, tmp_path: Path
) -> None:
    net = nets.cifar10_quick()
    net.batch = 2
    losses = []
    for runtime in (on_gpu(), on_host()):
        with runtime:
            trainer = trainer_of(runtime, net, tmp_path, precision)
            losses.append([trainer.step().loss for _ in range(3)])
    assert np.allclose(*losses, rtol=within)
    assert losses[0][0] != losses[0][2]


NORMALISED = """
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 dim: 9 dim: 8 } } }
layer { name: "conv" type: "Convolution" bottom: "x" top: "y" convolution_param {
  num_output: 12 kernel_size: 3 pad: 1 weight_filler { type: "gaussian" std: 0.2 } } }
layer { name: "norm" type: "BatchNorm" bottom: "y" top: "y" }
layer { name: "scale" type: "Scale" bottom: "y" top: "y" scale_param { bias_term: true
  filler { type: "gaussian" std: 1 } bias_filler { type: "gaussian" std: 1 } } }
layer { name: "relu" type: "ReLU" bottom: "y" top: "y" }
layer { name: "product" type: "InnerProduct" bottom: "y" top: "z" inner_product_param {
  num_output: 5 weight_filler { type: "gaussian" std: 0.1 } } }
layer { name: "last" type: "Scale" bottom: "z" top: "z" scale_param { filler { type: "gaussian" } } }
"""


@pytest.mark.parametrize(("precision", "within"), [("f32", 1e-5), ("bf16", 3e-2)])
def test_normalisations_are_in_the_weights_of_a_net_that_only_runs_forward(
    precision: str, within: float, tmp_path: Path
) -> None:
    path = tmp_path / "net.prototxt"
    path.write_text(NORMALISED)
    x = np.random.default_rng(1).standard_normal((2, 3, 9, 8)).astype(np.float32)
    with on_host() as runtime:
        trained = runtime.net(path, seed=3)
        mean, variance, count = trained.params["norm"]
        mean[...], variance[...], count[...] = np.linspace(-1, 1, 12), np.linspace(1, 4, 12), 1.5
        weights = runtime.write(tmp_path / "weights.demitasse", demitasse.Weights(dict(trained.params)))
        (expected,) = trained.forward(x=x).values()
        expected = expected.copy()
    with on_gpu() as runtime:
        net = runtime.net(path, precision=precision, weights=weights)
        (found,) = net.forward(x=x).values()
        entries = net.plan.entries
    folded = [each.layer for each in entries if each.operation == "fold_normalization" and each.once]
    assert folded == ["norm", "last"]
    assert not [each for each in entries if each.operation.startswith(("batch_norm", "scale"))]
    assert {each.plugin for each in entries} == {"gpu"}
    np.testing.assert_allclose(found, expected, rtol=0, atol=within * np.abs(expected).max())
