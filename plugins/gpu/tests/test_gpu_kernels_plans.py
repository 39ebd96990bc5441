"""The papers' nets on a GPU: all that their plans ask for is computed by our kernels, hardly a layout is
changed, and a net of convolutions learns as on the processor."""

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
    heads = words["softmax_loss"]  # each takes float32 and gives it
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
