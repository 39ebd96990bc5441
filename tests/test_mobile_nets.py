"""Blocks of MobileNets as exporters write them, their normalisations in the weights: an expansion and a
depthwise convolution with a function each, and a projection with a shortcut."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnx_models import composed, model, random_array, read

from demitasse import Runtime
from demitasse_cpu.onednn.library import library

SHAPE = (2, 16, 14, 14)
CLIPPED = {"zero": np.float32(0), "six": np.float32(6)}
WEIGHTS = {
    "w1": random_array(32, 16, 1, 1) / 4,
    "b1": random_array(32) + 1,
    "w2": random_array(32, 1, 3, 3) / 2,
    "b2": random_array(32) + 1,
    "w3": random_array(16, 32, 1, 1) / 6,
    "b3": random_array(16),
}
FUNCTIONS: Mapping[str, tuple[str, tuple[onnx.NodeProto, ...], dict[str, np.ndarray]]] = {
    "ReLU6": ("clip", (helper.make_node("Clip", ["IN", "zero", "six"], ["OUT"]),), CLIPPED),
    "HardSwish": ("hard_swish", (helper.make_node("HardSwish", ["IN"], ["OUT"]),), {}),
    "hard swish, spelled out": (
        "hard_swish",
        (
            helper.make_node("Add", ["IN", "three"], ["OUT.sum"]),
            helper.make_node("Clip", ["OUT.sum", "zero", "six"], ["OUT.ramp"]),
            helper.make_node("Mul", ["IN", "OUT.ramp"], ["OUT.product"]),
            helper.make_node("Div", ["OUT.product", "six"], ["OUT"]),
        ),
        {**CLIPPED, "three": np.float32(3)},
    ),
}


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    with composed() as made:
        yield made


def behind(function: str, source: str, target: str) -> list[onnx.NodeProto]:
    """The nodes of a function between two names."""
    nodes = []
    for node in FUNCTIONS[function][1]:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        for names in (copy.input, copy.output):
            names[:] = [name.replace("IN", source).replace("OUT", target) for name in names]
        nodes.append(copy)
    return nodes


def block(function: str) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["wide"]),
        *behind(function, "wide", "wide.f"),
        helper.make_node("Conv", ["wide.f", "w2", "b2"], ["deep"], group=32, pads=[1, 1, 1, 1]),
        *behind(function, "deep", "deep.f"),
        helper.make_node("Conv", ["deep.f", "w3", "b3"], ["narrow"]),
        helper.make_node("Add", ["narrow", "x"], ["y"]),
    ]
    return model(nodes, {**WEIGHTS, **FUNCTIONS[function][2]}, SHAPE)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_block_gives_what_the_evaluator_gives(runtime: Runtime, tmp_path: Path, function: str) -> None:
    made, x = block(function), random_array(*SHAPE)
    net = read(runtime, made, tmp_path)
    (expected,) = ReferenceEvaluator(made).run(None, {"x": x})
    found = net.forward(x=x)["y"]
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6 * float(np.abs(expected).max()))


@pytest.mark.skipif(library() is None, reason="without oneDNN functions are done apart")
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_blocks_functions_are_done_with_its_convolutions(
    runtime: Runtime, tmp_path: Path, function: str
) -> None:
    net = read(runtime, block(function), tmp_path)
    done = [entry.operation for entry in net.plan.entries if entry.operation != "reorder"]
    word = FUNCTIONS[function][0]
    assert done == [f"convolution_{word}", f"convolution_{word}", "convolution_sum"]
