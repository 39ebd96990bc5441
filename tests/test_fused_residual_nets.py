"""Residual nets: what is added to a normalisation's or a convolution's result is so in the same kernel,
and what the nets learn and give stays what it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plan_entries import operations

import demitasse
from demitasse import Plan, Runtime
from demitasse_cpu.onednn.inner_product import bfloat16_kernel
from demitasse_cpu.onednn.library import library, problem


def convolution(name: str, bottom: str, outputs: int, taps: int = 1, relu: bool = True) -> str:
    """With a normalisation, a scale and perhaps a ReLU behind, as published nets have them."""
    text = f"""
layer {{ name: "{name}" type: "Convolution" bottom: "{bottom}" top: "{name}" convolution_param {{
  num_output: {outputs} kernel_size: {taps} pad: {taps // 2} bias_term: false
  weight_filler {{ type: "msra" }} }} }}
layer {{ name: "bn_{name}" type: "BatchNorm" bottom: "{name}" top: "{name}" }}
layer {{ name: "scale_{name}" type: "Scale" bottom: "{name}" top: "{name}"
  scale_param {{ bias_term: true }} }}"""
    if relu:
        text += f'\nlayer {{ name: "relu_{name}" type: "ReLU" bottom: "{name}" top: "{name}" }}'
    return text


def block(name: str, bottom: str, projected: bool) -> str:
    """A bottleneck of 8 channels beside its 24 of input, or a projection of these, and their sum."""
    shortcut = f"{name}_short" if projected else bottom
    layers = [convolution(shortcut, bottom, 24, relu=False)] if projected else []
    layers += [
        convolution(f"{name}_a", bottom, 8),
        convolution(f"{name}_b", f"{name}_a", 8, taps=3),
        convolution(f"{name}_c", f"{name}_b", 24, relu=False),
        f'layer {{ name: "{name}" type: "Eltwise" bottom: "{shortcut}" bottom: "{name}_c" '
        f'top: "{name}" }}',
        f'layer {{ name: "relu_{name}" type: "ReLU" bottom: "{name}" top: "{name}" }}',
    ]
    return "\n".join(layers)


BODY = "\n".join(
    [
        convolution("stem", "data", 16, taps=3),
        block("one", "stem", projected=True),
        block("two", "one", projected=False),
        """
layer { name: "pool" type: "Pooling" bottom: "two" top: "pool"
  pooling_param { pool: AVE global_pooling: true } }
layer { name: "scores" type: "InnerProduct" bottom: "pool" top: "scores" inner_product_param {
  num_output: 3 weight_filler { type: "xavier" } } }""",
    ]
)
TRAINED = f"""
layer {{ name: "data" type: "Data" top: "data" top: "label"
  data_param {{ source: "given" batch_size: 6 }} }}
{BODY}
layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "scores" bottom: "label" top: "loss" }}
"""
DEPLOYED = f"""
layer {{ name: "data" type: "Input" top: "data"
  input_param {{ shape {{ dim: 6 dim: 3 dim: 9 dim: 7 }} }} }}
{BODY}
"""
SOLVER = """
net: "net.prototxt" base_lr: 0.05 lr_policy: "fixed" max_iter: 9 random_seed: 3 momentum: 0.9
weight_decay: 0.001 snapshot_after_train: false
"""
TOLERANCE = {"f32": 1e-5, "f64": 1e-12}
PLUGINS = ["caffe", "datasets", "training", "snapshots"]
needs_onednn = pytest.mark.skipif(library() is None, reason=f"oneDNN is not here: {problem()}")


@pytest.fixture(scope="module")
def cpu() -> Iterator[Runtime]:
    with demitasse.compose(plugins=[*PLUGINS, "cpu", "reference"]) as composed:
        yield composed


@pytest.fixture(scope="module")
def reference() -> Iterator[Runtime]:
    with demitasse.compose(plugins=[*PLUGINS, "reference"]) as composed:
        yield composed


@pytest.fixture
def solver(tmp_path: Path) -> Path:
    (tmp_path / "net.prototxt").write_text(TRAINED)
    (tmp_path / "deploy.prototxt").write_text(DEPLOYED)
    (tmp_path / "solver.prototxt").write_text(SOLVER)
    return tmp_path / "solver.prototxt"


def samples() -> dict[str, Any]:
    random = np.random.default_rng(7)
    data = random.normal(size=(18, 3, 9, 7)).astype(np.float32)
    return {"data": data, "label": (np.arange(18) % 3).astype(np.float32)}


def trained(runtime: Runtime, solver: Path, **options: Any) -> tuple[list[float], Any, Plan]:
    """The losses of five steps, the parameters after them, and the plan."""
    with runtime.trainer(solver, data={"train": samples()}, **options) as trainer:
        losses = [trainer.step(1).loss for _ in range(5)]
        parameters = {
            layer: [array.copy() for array in arrays] for layer, arrays in trainer.net.params.items()
        }
        return losses, parameters, trainer.plan


@pytest.mark.parametrize("precision", TOLERANCE)
def test_a_residual_net_trains_the_same_fused_and_apart(
    cpu: Runtime, reference: Runtime, solver: Path, precision: str
) -> None:
    fused, learned, plan = trained(cpu, solver, precision=precision)
    apart, others, whole = trained(cpu, solver, precision=precision, retain="all")
    exact, _, defined = trained(reference, solver, precision="f64")
    limit = TOLERANCE[precision]
    np.testing.assert_allclose(fused, apart, rtol=limit)
    np.testing.assert_allclose(fused, exact, rtol=limit)
    assert abs(exact[-1] - exact[0]) > 0.01, "it has learned something"
    for layer, arrays in others.items():
        for ours, theirs in zip(learned[layer], arrays, strict=True):
            size = max(1.0, float(np.abs(theirs).max()))
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=10 * limit * size)
    words = operations(plan)
    assert words.count("batch_norm_sum_relu") == 2, "two blocks"
    # Two read the first block's ReLU; those that read the stem's arrive at its normalisation.
    assert words.count("sum_relu_backward") == words.count("sum") == 1
    assert words[words.index("sum") + 1] == "batch_norm_backward"
    assert not {"batch_norm_sum_relu", "sum_relu_backward"} & {*operations(whole), *operations(defined)}
    text = str(plan)
    for word, count in (("batch_norm_sum_relu", 2), ("sum_relu_backward", 1)):
        assert sum(f" {word} " in line for line in text.splitlines()) == count
    assert f"{len(words)} operations" in text


def test_what_is_trained_in_bfloat16_is_fused_too(cpu: Runtime, solver: Path) -> None:
    losses, _, plan = trained(cpu, solver, precision="bf16")
    exact, _, _ = trained(cpu, solver, precision="f32")
    assert {"batch_norm_sum_relu", "sum_relu_backward"} <= {*operations(plan)}
    # Of numbers near 1, whose activations have eight bits; the first is that of one forward pass.
    assert losses[0] == pytest.approx(exact[0], rel=2**-8)


def deployed(runtime: Runtime, solver: Path, weights: Path, **options: Any) -> tuple[Any, Plan]:
    net = runtime.net(solver.with_name("deploy.prototxt"), weights=weights, **options)
    (scores,) = net.forward(data=samples()["data"][:6]).values()
    return scores.astype(np.float64), net.plan


@pytest.fixture
def weights(cpu: Runtime, solver: Path) -> Path:
    """Of the net after five steps."""
    with cpu.trainer(solver, data={"train": samples()}, precision="f64") as trainer:
        trainer.step(5)
        return Path(trainer.snapshot(solver.with_name("saved")))


def serves_sums(precision: str) -> bool:
    """Whether oneDNN is here and has kernels of the precision."""
    return library() is not None and (precision == "f32" or bool(bfloat16_kernel(library())))


@pytest.mark.parametrize(("precision", "limit"), [("f32", 2e-5), ("bf16", 0.03), ("f64", 1e-12)])
def test_a_residual_net_gives_the_same_fused_and_apart(
    cpu: Runtime, reference: Runtime, solver: Path, weights: Path, precision: str, limit: float
) -> None:
    scores, plan = deployed(cpu, solver, weights, precision=precision)
    exact, _ = deployed(reference, solver, weights, precision="f64", retain="all")
    np.testing.assert_allclose(scores, exact, rtol=0, atol=limit * np.abs(exact).max())
    words = [entry.operation for entry in plan.entries if not entry.once]
    if precision != "f64" and serves_sums(precision):
        assert words.count("convolution_sum_relu") == 2
        assert "sum_relu" not in words
        assert sum(" convolution_sum_relu " in line for line in str(plan).splitlines()) == 2
    else:
        assert "convolution_sum_relu" not in words
        assert words.count("sum_relu") == 2


@needs_onednn
def test_a_sum_is_done_where_the_later_branch_is_convolved(
    cpu: Runtime, solver: Path, weights: Path
) -> None:
    """The projection stands first in the file: it is an operand of the branch that is added to it."""
    _, plan = deployed(cpu, solver, weights, precision="f32")
    sums = [entry for entry in plan.entries if entry.operation == "convolution_sum_relu"]
    assert [entry.layer for entry in sums] == ["one_c", "two_c"]
    assert all(entry.plugin == "cpu" and "oneDNN" in entry.kernel for entry in sums)
