"""Operators that are several words here: outputs as by ONNX's own evaluator, and gradients that are
slopes of what the net computes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from onnx_models import composed, model
from slopes import slope

from demitasse import Runtime

DRAW = np.random.default_rng(11)
SHAPE = (2, 2, 3, 5)


def normal(*shape: int) -> np.ndarray:
    return DRAW.normal(size=shape)


Node = tuple[str, list[str], dict[str, Any], dict[str, np.ndarray]]

NODES: dict[str, Node] = {
    "the largest of places that are apart": (
        "MaxPool",
        ["h"],
        {"kernel_shape": [2, 3], "dilations": [2, 1], "strides": [1, 2], "pads": [1, 1, 0, 1]},
        {},
    ),
    "the mean of places that are apart": (
        "AveragePool",
        ["h"],
        {"kernel_shape": [2, 2], "dilations": [1, 3], "pads": [0, 1, 1, 0], "count_include_pad": 1},
        {},
    ),
    "roots of sums of powers": (
        "LpPool",
        ["h"],
        {"kernel_shape": [2, 2], "p": 3, "strides": [1, 2]},
        {},
    ),
    "roots over all of the space": ("GlobalLpPool", ["h"], {"p": 2}, {}),
    "logarithms of sums of powers": ("ReduceLogSumExp", ["h", "a"], {}, {"a": np.array([1, 3])}),
    "products along an axis": ("ReduceProd", ["h", "a"], {"keepdims": 0}, {"a": np.array([3])}),
    "sines": ("Sin", ["h"], {}, {}),
    "cosines": ("Cos", ["h"], {}, {}),
    "shrunk": ("Shrink", ["h"], {"lambd": 0.3, "bias": 0.2}, {}),
    "thresholds": ("ThresholdedRelu", ["h"], {"alpha": 0.2}, {}),
    "a slope for each element": ("PRelu", ["h", "s"], {}, {"s": normal(2, 3, 5)}),
    "slopes of the last axis": ("PRelu", ["h", "s"], {}, {"s": normal(5)}),
    "limits": ("Clip", ["h", "least", "most"], {}, {"least": np.array(-0.4), "most": np.array(0.9)}),
    "powers of a number": ("Pow", ["b", "h"], {}, {"b": np.array([1.2])}),
    "over roots of squares": ("RMSNormalization", ["h", "s"], {"axis": -2}, {"s": normal(3, 5)}),
    "of mean 0 and variance 1": ("MeanVarianceNormalization", ["h"], {}, {}),
    "a triangle": ("Trilu", ["h", "k"], {"upper": 0}, {"k": np.array(1)}),
    "running sums": ("CumSum", ["h", "a"], {"exclusive": 1, "reverse": 1}, {"a": np.array(3)}),
    "elements by index": (
        "GatherElements",
        ["h", "i"],
        {"axis": 3},
        {"i": DRAW.integers(-5, 5, (2, 2, 3, 4))},
    ),
    "slices by index": (
        "GatherND",
        ["h", "i"],
        {"batch_dims": 1},
        {"i": np.array([[[0, 2]], [[1, -1]]])},
    ),
    "slices that are put": (
        "ScatterND",
        ["h", "i", "u"],
        {},
        {"i": np.array([[1, 0]]), "u": normal(1, 3, 5)},
    ),
    "elements that are put": (
        "ScatterElements",
        ["h", "i", "u"],
        {"axis": 3},
        {"i": np.tile(np.array([4, 0]), (2, 2, 3, 1)), "u": normal(2, 2, 3, 2)},
    ),
    "Einstein's sums": ("Einsum", ["h", "m"], {"equation": "nchw,cd->ndhw"}, {"m": normal(2, 4)}),
    "Einstein's sums of blobs": ("Einsum", ["h", "h"], {"equation": "...ij,...kj->k..."}, {}),
    "matrices from the left": ("MatMul", ["m", "h"], {}, {"m": normal(4, 3)}),
    "many matrices": ("MatMul", ["h", "m"], {}, {"m": normal(2, 5, 3)}),
    "a vector": ("MatMul", ["h", "m"], {}, {"m": normal(5)}),
    "weights that are computed": ("Conv", ["q", "h"], {"strides": [2, 1]}, {"q": normal(2, 2, 7, 6)}),
    "weights of a transpose": (
        "ConvTranspose",
        ["q", "h"],
        {"strides": [1, 2]},
        {"q": normal(1, 2, 3, 2)},
    ),
}


class GlobalLpPool(OpRun):
    """ONNX's own evaluator (1.23) has none."""

    op_domain = ""

    def _run(self, x: np.ndarray, p: int = 2) -> tuple[np.ndarray]:
        made: np.ndarray = (np.abs(x) ** p).sum((2, 3), keepdims=True) ** (1 / p)
        return (made,)


class MeanVarianceNormalization(OpRun):
    """ONNX says it in other operators, whose constants are of float32."""

    op_domain = ""

    def _run(self, x: np.ndarray, axes: Any = None) -> tuple[np.ndarray]:
        over: dict[str, Any] = {"axis": (0, 2, 3), "keepdims": True}
        return ((x - x.mean(**over)) / np.sqrt(x.var(**over) + 1e-9),)


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    with composed() as made:
        yield made


@pytest.mark.parametrize("name", NODES)
def test_an_operator_gives_what_it_has_to_and_takes_its_gradient_back(
    runtime: Runtime, name: str, tmp_path: Path
) -> None:
    operator, inputs, attributes, constants = NODES[name]
    draw = np.random.default_rng(3)
    x, w = draw.normal(size=(2, 2)), draw.normal(size=(2, 30))
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["rows"], name="w"),
        helper.make_node("Reshape", ["rows", "shape"], ["h"]),
        helper.make_node(operator, inputs, ["made"], name="made", **attributes),
        helper.make_node("Reshape", ["made", "flat"], ["y"]),
    ]
    shapes = {"shape": np.array(SHAPE), "flat": np.array([2, -1])}
    made = model(nodes, {"w": w, **constants, **shapes}, ("n", 2), opset=23)
    for value in (*made.graph.input, *made.graph.output):
        value.type.tensor_type.elem_type = TensorProto.DOUBLE
    path = tmp_path / "model.onnx"
    path.write_bytes(made.SerializeToString())
    net = runtime.net(path, precision="f64", overrides={"input.x": "2,2"})
    y = net.forward(x=x)["y"]
    evaluator = ReferenceEvaluator(made, new_ops=[GlobalLpPool, MeanVarianceNormalization])
    np.testing.assert_allclose(y, evaluator.run(None, {"x": x})[0], rtol=1e-6, atol=1e-6)

    target = draw.normal(size=y.shape)
    options: dict[str, Any] = {"batch": 2, "rate": 1.0, "loss": "half_squared_distance"}
    solver = runtime.program("onnx_solver", path, iterations=1, **options)
    data = {"train": {"x": x, "label": target}}
    with runtime.trainer(solver, data=data, precision="f64") as trainer:
        before = {layer: [np.array(a) for a in arrays] for layer, arrays in net.params.items()}
        trainer.step()
        after = {layer: [np.array(a) for a in arrays] for layer, arrays in trainer.net.params.items()}

    for layer, arrays in before.items():
        for number, array in enumerate(arrays):

            def loss(at: np.ndarray, layer: str = layer, number: int = number) -> float:
                net.params[layer][number][...] = at
                return float(((net.forward(x=x)["y"] - target) ** 2).sum()) / 4

            slopes = slope(loss, array)
            loss(array)
            np.testing.assert_allclose(array - after[layer][number], slopes, rtol=1e-5, atol=1e-6)
