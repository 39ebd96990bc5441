"""ONNX's operators one by one: the same numbers by ONNX's own evaluator and by us."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnx_models import (
    W,
    X,
    agree,
    composed,
    model,
    random_array,
    read,
    reference_outputs,
)

from demitasse import ModelError, Runtime


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    with composed() as made:
        yield made


NODES: dict[str, tuple[str, dict[str, Any], dict[str, np.ndarray]]] = {
    "Conv, padded by itself": (
        "Conv",
        {"auto_pad": "SAME_UPPER", "group": 2},
        {"w": W, "b": random_array(4)},
    ),
    "ConvTranspose": (
        "ConvTranspose",
        {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 0]},
        {"w": W, "b": random_array(2)},
    ),
    "MaxPool, rounded up": ("MaxPool", {"kernel_shape": [3, 2], "strides": [2, 2], "ceil_mode": 1}, {}),
    "AveragePool, padding not counted": (
        "AveragePool",
        {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]},
        {},
    ),
    "AveragePool, padding counted": (
        "AveragePool",
        {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1},
        {},
    ),
    "GlobalMaxPool": ("GlobalMaxPool", {}, {}),
    "ReduceMean": ("ReduceMean", {"axes": [2, 3], "keepdims": 0}, {}),
    "BatchNormalization": (
        "BatchNormalization",
        {"epsilon": 0.01},
        {n: np.abs(random_array(4)) + 0.1 for n in ("scale", "bias", "mean", "variance")},
    ),
    "PRelu": ("PRelu", {}, {"slope": random_array(4, 1, 1)}),
    "LeakyRelu": ("LeakyRelu", {"alpha": -0.3}, {}),
    "Clip": ("Clip", {}, {"least": np.float32(-0.5), "most": np.float32(0.7)}),
    "MatMul": ("MatMul", {}, {"w": random_array(5, 3)}),
    "Add, by channel": ("Add", {}, {"b": random_array(4, 1, 1)}),
    "Add, by the inner axes": ("Add", {}, {"b": random_array(6, 5)}),
    "Mul, one number": ("Mul", {}, {"w": np.float32(3)}),
    "Div, by row": ("Div", {}, {"w": np.abs(random_array(6, 1)) + 1}),
    "Sub": ("Sub", {}, {"b": random_array(1, 4, 1, 1)}),
    "Pow": ("Pow", {}, {"p": np.float32(2)}),
    "Softmax": ("Softmax", {}, {}),
    "LogSoftmax": ("LogSoftmax", {"axis": 1}, {}),
    "Flatten": ("Flatten", {"axis": 2}, {}),
    "Reshape": ("Reshape", {}, {"shape": np.array([0, -1, 5])}),
    "Unsqueeze": ("Unsqueeze", {}, {"axes": np.array([0, -1])}),
    "Slice": ("Slice", {}, {"s": np.array([1, -4]), "e": np.array([3, 2**60]), "a": np.array([1, 2])}),
    "Neg": ("Neg", {}, {}),
    "Softplus": ("Softplus", {}, {}),
    "Identity": ("Identity", {}, {}),
    "Conv, padded before more than behind": ("Conv", {"group": 2, "pads": [2, 0, 1, 1]}, {"w": W}),
    "ConvTranspose, padded unevenly": (
        "ConvTranspose",
        {"strides": [2, 2], "pads": [0, 1, 1, 0]},
        {"w": W, "b": random_array(2)},
    ),
    "MaxPool, padded behind": (
        "MaxPool",
        {"kernel_shape": [3, 3], "pads": [2, 0, 0, 2], "strides": [1, 2]},
        {},
    ),
    "AveragePool, padded unevenly": (
        "AveragePool",
        {"kernel_shape": [3, 3], "pads": [2, 0, 1, 2], "count_include_pad": 1},
        {},
    ),
    "Transpose": ("Transpose", {"perm": [0, 2, 3, 1]}, {}),
    "DepthToSpace": ("DepthToSpace", {"blocksize": 2}, {}),
    "DepthToSpace, by column": ("DepthToSpace", {"blocksize": 2, "mode": "CRD"}, {}),
    "Expand": ("Expand", {}, {"shape": np.array([3, 1, 4, 1, 5])}),
    "Tile": ("Tile", {}, {"repeats": np.array([1, 2, 1, 3])}),
    "Gather": ("Gather", {"axis": 2}, {"index": np.array([[3, -1], [0, 3]])}),
    "Gather, one": ("Gather", {"axis": 1}, {"index": np.array(2)}),
    "Slice, backwards by two": (
        "Slice",
        {},
        {
            "s": np.array([-1, 1]),
            "e": np.array([-(2**60), 5]),
            "a": np.array([3, 2]),
            "t": np.array([-2, 2]),
        },
    ),
    **{
        f"Pad, {mode}": ("Pad", {"mode": mode}, {"pads": np.array([0, 1, 3, 2, 0, 0, 2, 4])})
        for mode in ("constant", "reflect", "edge", "wrap")
    },
    "Pad, with a number": (
        "Pad",
        {},
        {"pads": np.array([0, 0, 1, 2, 0, 1, 1, 0]), "value": np.float32(1.5)},
    ),
    **{
        f"Resize, {mode} {way}, {nearest}": (
            "Resize",
            {"mode": mode, "coordinate_transformation_mode": way, "nearest_mode": nearest},
            {"roi": np.zeros(0, np.float32), "scales": np.array([1, 1, 1.5, 0.6], np.float32)},
        )
        for mode, way, nearest in (
            ("nearest", "asymmetric", "floor"),
            ("nearest", "half_pixel", "round_prefer_ceil"),
            ("linear", "half_pixel", "floor"),
            ("linear", "align_corners", "floor"),
            ("linear", "pytorch_half_pixel", "floor"),
            ("cubic", "half_pixel", "floor"),
            ("cubic", "asymmetric", "floor"),
        )
    },
    "Resize, thinned out": (
        "Resize",
        {"mode": "linear", "antialias": 1},
        {"roi": np.zeros(0, np.float32), "scales": np.array([1, 1, 0.5, 0.4], np.float32)},
    ),
    "HardSigmoid": ("HardSigmoid", {"alpha": 0.3}, {}),
    "HardSwish": ("HardSwish", {}, {}),
    "Erf": ("Erf", {}, {}),
    "Selu": ("Selu", {}, {}),
    "Celu": ("Celu", {"alpha": 0.6}, {}),
    "Softsign": ("Softsign", {}, {}),
    "ThresholdedRelu": ("ThresholdedRelu", {"alpha": 0.4}, {}),
    "Clip, to an upper limit below the lower": (
        "Clip",
        {},
        {"least": np.float32(2), "most": np.float32(1)},
    ),
    "Max, with a number": ("Max", {}, {"least": np.float32(0.1)}),
    "Min, with a row": ("Min", {}, {"most": random_array(5)}),
    "Sub, from a number": ("Sub", {}, {"b": np.float32(2)}),
    "ReduceMax": ("ReduceMax", {"axes": [1], "keepdims": 1}, {}),
    "ReduceMin": ("ReduceMin", {"axes": [1, 3], "keepdims": 0}, {}),
    "ReduceMean of channels": ("ReduceMean", {"axes": [1]}, {}),
    "ReduceSum": ("ReduceSum", {}, {"axes": np.array([0, 2])}),
    "ReduceL1": ("ReduceL1", {"axes": [-1]}, {}),
    "ReduceL2": ("ReduceL2", {"axes": [1], "keepdims": 0}, {}),
    "ReduceSumSquare": ("ReduceSumSquare", {"axes": [1]}, {}),
    "ArgMax": ("ArgMax", {"axis": 1}, {}),
    "ArgMin": ("ArgMin", {"axis": 3, "keepdims": 0, "select_last_index": 1}, {}),
    "LayerNormalization": (
        "LayerNormalization",
        {"axis": 2, "epsilon": 0.01},
        {"scale": random_array(6, 5), "bias": random_array(6, 5)},
    ),
    "InstanceNormalization": (
        "InstanceNormalization",
        {"epsilon": 0.01},
        {"scale": random_array(4), "bias": random_array(4)},
    ),
    "LpNormalization": ("LpNormalization", {"axis": 1}, {}),
    "Greater": ("Greater", {}, {"limit": np.float32(0.2)}),
    "LessOrEqual": ("LessOrEqual", {}, {"limit": random_array(4, 1, 1)}),
}


@pytest.mark.parametrize("name", NODES)
def test_an_operator_computes_what_its_own_evaluator_says(
    runtime: Runtime, name: str, tmp_path: Path
) -> None:
    operator, attributes, constants = NODES[name]
    node = helper.make_node(operator, ["x", *constants], ["y"], **attributes)
    made = model([node], constants)
    expected = ReferenceEvaluator(made).run(None, {"x": X})[0]
    agree(read(runtime, made, tmp_path).forward(x=X), {"y": np.asarray(expected, np.float64)}, 1e-5)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(("operator", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_recurrences_run_over_the_steps_either_way(
    runtime: Runtime, operator: str, gates: int, direction: str, tmp_path: Path
) -> None:
    ways, draw = 1 + (direction == "bidirectional"), np.random.default_rng(3)
    shapes = {"w": (ways, gates * 3, 6), "r": (ways, gates * 3, 3), "b": (ways, gates * 6)}
    x, *learned = (draw.normal(size=s).astype(np.float32) for s in ((5, 2, 6), *shapes.values()))
    before = {"linear_before_reset": 1} if operator == "GRU" else {}
    outputs, expected = ["y", "last"], []
    for way in range(ways):  # ONNX's evaluator knows one direction only
        node = helper.make_node(operator, ["x", *shapes], outputs, hidden_size=3, **before)
        parts = dict(zip(shapes, (each[way : way + 1] for each in learned), strict=True))
        backwards = direction == "reverse" or way == 1
        y, last = reference_outputs(
            model([node], parts, (5, 2, 6), outputs), x=x[::-1] if backwards else x
        ).values()
        expected.append((y[::-1] if backwards else y, last))
    node = helper.make_node(
        operator, ["x", *shapes], outputs, name="r", hidden_size=3, direction=direction, **before
    )
    made = model([node], dict(zip(shapes, learned, strict=True)), (5, 2, 6), outputs)
    both = [
        np.concatenate(each, axis)
        for axis, each in zip((1, 0), zip(*expected, strict=True), strict=True)
    ]
    agree(read(runtime, made, tmp_path).forward(x=x), dict(zip(outputs, both, strict=True)), 1e-5)


def test_blobs_are_repeated_to_meet_each_other(runtime: Runtime, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["row"], axes=[2]),
        helper.make_node("ReduceMax", ["x"], ["column"], axes=[1, 3]),
        helper.make_node("Add", ["row", "column"], ["sum"]),
        helper.make_node("Sub", ["column", "x"], ["less"]),
        helper.make_node("Div", ["x", "column"], ["over"]),
        helper.make_node("Min", ["row", "x"], ["least"]),
        helper.make_node("Greater", ["x", "row"], ["above"]),
        helper.make_node("Where", ["above", "less", "row"], ["chosen"]),
        helper.make_node("Transpose", ["x"], ["turned"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["x", "turned"], ["products"]),
    ]
    outputs = ("sum", "less", "over", "least", "chosen", "products")
    made = model(nodes, {}, outputs=outputs)
    agree(read(runtime, made, tmp_path).forward(x=X), reference_outputs(made, x=X), 1e-5)


def test_a_choice_has_the_shape_that_all_three_make(runtime: Runtime, tmp_path: Path) -> None:
    """Also when it is written and read again."""
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["row"], axes=[2]),
        helper.make_node("Greater", ["row", "limit"], ["above"]),
        helper.make_node("Where", ["above", "column", "x"], ["y"]),
        helper.make_node("Where", ["fixed", "row", "one"], ["z"]),
    ]
    constants = {
        "limit": np.float32(0),
        "column": np.array([[1], [np.inf], [-1], [-1e30], [2], [0.5]], np.float32),
        "fixed": np.array([[True], [False], [True]]),
        "one": np.float32(-np.inf),
    }
    made = model(nodes, constants, outputs=("y", "z"))
    expected = reference_outputs(made, x=X)
    net = read(runtime, made, tmp_path)
    again = runtime.net(runtime.program("export_onnx", tmp_path / "model.onnx", tmp_path / "again.onnx"))
    for found in (net.forward(x=X), again.forward(x=X)):
        np.testing.assert_allclose(found["y"], expected["y"], rtol=1e-5)
        np.testing.assert_allclose(found["z"], expected["z"], rtol=1e-5)


def test_of_two_blobs_to_choose_from_neither_is_written_over(runtime: Runtime, tmp_path: Path) -> None:
    """Nobody reads either of them again, and the result may lie where one of them does, not where
    both do."""
    nodes = [
        helper.make_node("Abs", ["x"], ["chosen"]),
        helper.make_node("Exp", ["x"], ["otherwise"]),
        helper.make_node("Where", ["x", "chosen", "otherwise"], ["y"]),
    ]
    x = X.copy()
    x[:, 1::2] = 0
    found = read(runtime, model(nodes, {}), tmp_path).forward(x=x)["y"]
    np.testing.assert_allclose(found, np.where(x != 0, np.abs(x), np.exp(x)), rtol=1e-6)


@pytest.mark.parametrize("followers", [("Mul",), ("Add",), ("Mul", "Add"), ("Mul", "Relu"), ("Relu",)])
@pytest.mark.parametrize("product", [False, True])
def test_a_normalisation_with_a_scale_of_its_own_keeps_it_where_another_follows(
    runtime: Runtime, product: bool, followers: tuple[str, ...], tmp_path: Path
) -> None:
    """Also where all of them are folded into the weights of a convolution before them."""
    names = ("scale", "bias", "mean", "variance")
    constants = {n: np.abs(random_array(4 + i))[i:] + 0.1 for i, n in enumerate(names)}
    constants |= {"w": W, "Mul": random_array(4, 1, 1), "Add": random_array(5, 1, 1)[1:]}
    first = [helper.make_node("Conv", ["x", "w"], ["c"], group=2)] if product else []
    nodes = [*first, helper.make_node("BatchNormalization", ["c" if product else "x", *names], ["t0"])]
    for number, operator in enumerate(followers):
        read_ = [f"t{number}", *([operator] if operator != "Relu" else [])]
        nodes.append(helper.make_node(operator, read_, [f"t{number + 1}"]))
    made = model(nodes, constants, outputs=(f"t{len(followers)}",))
    agree(read(runtime, made, tmp_path).forward(x=X), reference_outputs(made, x=X), 1e-5)


def test_weights_that_are_computed_may_be_padded(runtime: Runtime, tmp_path: Path) -> None:
    """A Pad that a convolution reads as its weights is not one that it can do itself."""
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["point"], axes=[2, 3]),
        helper.make_node("Pad", ["point", "pads"], ["w"]),
        helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1]),
    ]
    made = model(nodes, {"pads": np.array([0, 0, 1, 0, 0, 0, 1, 2])})
    agree(read(runtime, made, tmp_path).forward(x=X), reference_outputs(made, x=X), 1e-5)


def test_pads_below_zero_cut_off(runtime: Runtime, tmp_path: Path) -> None:
    node = helper.make_node("Pad", ["x", "pads", "value"], ["y"])
    constants = {"pads": np.array([0, 0, -1, 2, 0, 1, 1, -2]), "value": np.float32(1.5)}
    around = [(0, 0), (0, 1), (0, 1), (2, 0)]
    wanted = np.pad(X[:, :, 1:, :-2], around, constant_values=1.5)
    net = read(runtime, model([node], constants), tmp_path)
    agree(net.forward(x=X), {"y": wanted}, 1e-6)


@pytest.mark.parametrize("precision", ["f32", "f64", "bf16"])
@pytest.mark.parametrize("value", [-np.inf, float(np.finfo(np.float32).min), -1e9, 0.75])
def test_what_is_padded_with_a_number_stays_what_it_was(
    runtime: Runtime, value: float, precision: str, tmp_path: Path
) -> None:
    pads = np.array([0, 1, -1, 2, 1, 0, 3, 0])
    made = model(
        [helper.make_node("Pad", ["x", "pads", "value"], ["y"])],
        {"pads": pads, "value": np.float32(value)},
    )
    path = tmp_path / "model.onnx"
    onnx.save(made, path)
    x = (
        np.random.default_rng(3).integers(-99, 99, X.shape).astype(np.float32)
    )  # bfloat16 has them exactly
    expected = np.pad(x[:, :, 1:], [(0, 1), (1, 0), (0, 3), (2, 0)], constant_values=value)
    found = runtime.net(path, precision=precision).forward(x=x)["y"]
    rounded = np.isclose(expected, value, rtol=0.01)
    assert np.array_equal(found[~rounded], expected[~rounded])
    if precision != "bf16" or value > -1e9:
        assert np.array_equal(found, expected)


@pytest.mark.parametrize(
    ("attributes", "cut"), [({"output_shape": [12, 10]}, 1), ({"auto_pad": "SAME_UPPER"}, 0)]
)
def test_a_transposed_convolution_of_a_size_is_cut_at_one_side(
    runtime: Runtime, attributes: dict[str, Any], cut: int, tmp_path: Path
) -> None:
    """Of 13 x 11 the first row and column, or the last; ONNX's evaluator (1.23) has it otherwise, its
    runtime as here."""
    made = []
    for given_ in ({}, attributes):
        node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2], **given_)
        made.append(read(runtime, model([node], {"w": W}), tmp_path).forward(x=X)["y"])
    whole, part = made
    assert np.array_equal(part, whole[:, :, cut : 12 + cut, cut : 10 + cut])


def test_a_linear_layer_is_read_in_all_its_forms(runtime: Runtime, tmp_path: Path) -> None:
    x, w, c = random_array(3, 6), random_array(6, 2), random_array(2)
    for transposed, bias in itertools.product([False, True], [c, c[None], np.float32(2)]):
        node = helper.make_node(
            "Gemm", ["x", "w", "c"], ["y"], name="fc", transB=int(transposed), alpha=0.5, beta=2.0
        )
        made = model([node], {"w": w.T.copy() if transposed else w, "c": bias}, (3, 6))
        net = read(runtime, made, tmp_path)
        agree(net.forward(x=x), {"y": 0.5 * x @ w + 2 * bias}, 1e-5)
        assert [array.shape for array in net.params["fc"]] == [(2, 6) if transposed else (6, 2), (2,)]


def test_an_older_softmax_runs_over_all_axes_from_its_own_on(runtime: Runtime, tmp_path: Path) -> None:
    made = model([helper.make_node("Softmax", ["x"], ["y"])], {}, opset=11)
    raised = np.exp(X.reshape(2, -1) - X.reshape(2, -1).max(1, keepdims=True))
    expected = (raised / raised.sum(1, keepdims=True)).reshape(X.shape)
    agree(read(runtime, made, tmp_path).forward(x=X), {"y": expected}, 1e-6)


@pytest.mark.parametrize("precision", ["f32", "f64", "bf16"])
@pytest.mark.parametrize(("axis", "opset"), [(-1, 17), (1, 17), (0, 13), (1, 11), (3, 9)])
def test_the_logarithm_of_a_softmax_may_be_far_below_what_that_can_be(
    runtime: Runtime, axis: int, opset: int, precision: str, tmp_path: Path
) -> None:
    x = 100 * random_array(2, 3, 4, 5)
    made = model([helper.make_node("LogSoftmax", ["x"], ["y"], axis=axis)], {}, x.shape, opset=opset)
    path = tmp_path / "model.onnx"
    onnx.save(made, path)
    over = (axis,) if opset >= 13 else tuple(range(axis, 4))
    less = x.astype(np.float64) - x.max(over, keepdims=True)
    expected = less - np.log(np.exp(less).sum(over, keepdims=True))
    assert expected.min() < -200
    again = runtime.program("export_onnx", path, tmp_path / "again.onnx")
    for each in (path, again):
        found = runtime.net(each, precision=precision).forward(x=x)["y"]
        within = 0.02 if precision == "bf16" else 1e-5
        np.testing.assert_allclose(found, expected, rtol=within, atol=within)


@pytest.mark.parametrize(("mode", "order"), [("DCR", (0, 3, 5, 1, 2, 4)), ("CRD", (0, 1, 3, 5, 2, 4))])
def test_space_becomes_depth_in_either_order(
    runtime: Runtime, mode: str, order: tuple[int, ...], tmp_path: Path
) -> None:
    x = random_array(2, 3, 4, 6)
    node = helper.make_node("SpaceToDepth", ["x"], ["y"], blocksize=2, mode=mode)
    expected = x.reshape(2, 3, 2, 2, 3, 2).transpose(order).reshape(2, 12, 2, 3)
    made = model([node], {}, x.shape, opset=28)
    agree(read(runtime, made, tmp_path).forward(x=x), {"y": expected}, 0)
    node = helper.make_node("SpaceToDepth", ["x"], ["y"], blocksize=2, mode="RCD")
    with pytest.raises(ModelError, match=r"unknown mode 'RCD' .valid: DCR, CRD"):
        read(runtime, model([node], {}, x.shape, opset=28), tmp_path)
