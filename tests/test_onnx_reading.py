"""ONNX models that others write: the same numbers by ONNX's own evaluator and by us; mistakes."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx_models import LAYERS, Arrays, agree, composed, exported, filled, small

import demitasse
from demitasse import DemitasseError, ModelError, Runtime

FUZZED = int(os.environ.get("DEMITASSE_FUZZ", "400"))


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    with composed() as made:
        yield made


def model(
    nodes: Sequence[onnx.NodeProto],
    constants: Arrays,
    shape: Sequence[Any] = (2, 4, 6, 5),
    outputs: Sequence[str] = ("y",),
    opset: int = 17,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    versions = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=versions, ir_version=8)


def read(runtime: Runtime, made: onnx.ModelProto, folder: Path) -> Any:
    path = folder / "model.onnx"
    path.write_bytes(made.SerializeToString())
    return runtime.net(path)


def random_array(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).normal(size=shape).astype(np.float32)


X = random_array(2, 4, 6, 5)
W = random_array(4, 2, 3, 3)

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
}


@pytest.mark.parametrize("name", NODES)
def test_an_operator_computes_what_its_own_evaluator_says(
    runtime: Runtime, name: str, tmp_path: Path
) -> None:
    operator, attributes, constants = NODES[name]
    node = helper.make_node(operator, ["x", *constants], ["y"], **attributes)
    made = model([node], constants)
    expected = ReferenceEvaluator(made).run(None, {"x": X})[0]
    agree(read(runtime, made, tmp_path).forward(x=X), {"y": np.asarray(expected)}, 1e-5)


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


def test_a_gate_by_channel_multiplies_what_it_came_from(runtime: Runtime, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("GlobalAveragePool", ["x"], ["mean"]),
        helper.make_node("Sigmoid", ["mean"], ["gate"]),
        helper.make_node("Mul", ["gate", "x"], ["y"]),
    ]
    made = model(nodes, {}, outputs=("y", "gate"))
    gate = 1 / (1 + np.exp(-X.mean((2, 3), keepdims=True)))
    agree(read(runtime, made, tmp_path).forward(x=X), {"y": gate * X, "gate": gate}, 1e-6)


def test_an_open_batch_is_whatever_is_given(runtime: Runtime, tmp_path: Path) -> None:
    net = read(runtime, model([helper.make_node("Relu", ["x"], ["y"])], {}, ("N", 4)), tmp_path)
    assert net.graph.inputs["x"].shape == (1, 4)
    assert net.forward(x=np.ones((7, 4)))["y"].shape == (7, 4)
    path = tmp_path / "model.onnx"
    assert runtime.net(path, overrides={"input.x": "3,4"}).graph.inputs["x"].shape == (3, 4)


def test_weights_are_served_by_the_names_of_their_nodes(runtime: Runtime, tmp_path: Path) -> None:
    node = helper.make_node("Conv", ["x", "w", "b"], ["y"], name="conv1", group=2)
    read(runtime, model([node], {"w": W, "b": random_array(4)}), tmp_path)
    arrays = runtime.read(tmp_path / "model.onnx").weights().parameters["conv1"]
    np.testing.assert_array_equal(arrays[0], W)
    np.testing.assert_array_equal(arrays[1], random_array(4))


def test_the_weights_of_a_model_can_be_trained(runtime: Runtime, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Gemm", ["x", "w"], ["h"], name="fc", transB=1),
        helper.make_node("Relu", ["h"], ["y"]),
    ]
    net = read(runtime, model(nodes, {"w": random_array(5, 6)}, (4, 6)), tmp_path)
    assert [parameter.trainable for parameter in net.graph.parameters] == [True]


# Mistakes.


@pytest.mark.parametrize(
    ("nodes", "constants", "said"),
    [
        (
            [("Einsum", ["x"], ["y"], {})],
            {},
            r"node 0 'n0' \(Einsum\): unknown operator 'Einsum'.*valid: .* and [0-9]+ more",
        ),
        ([("Relux", ["x"], ["y"], {})], {}, "unknown operator 'Relux'; did you mean 'Relu'"),
        ([("Relu", ["z"], ["y"], {})], {}, "unknown input 'z'"),
        ([("Relu", ["x"], ["x"], {}), ("Relu", ["x"], ["y"], {})], {}, "'x' has been made before"),
        ([("Relu", ["x"], ["t"], {})], {}, "unknown output 'y'|no output"),
        (
            [("Conv", ["x", "w"], ["y"], {"strid": [1, 1]})],
            {"w": W},
            "unknown attribute 'strid'; did you mean",
        ),
        ([("Conv", ["x", "x"], ["y"], {})], {}, "its weights .input 1. must be constants"),
        ([("MaxPool", ["x"], ["y"], {"kernel_shape": [2, 2], "dilations": [2, 2]})], {}, "dilations"),
        ([("Transpose", ["x"], ["y"], {"perm": [0, 2, 3, 3]})], {}, "is no order of the axes"),
        (
            [("Pad", ["x", "p"], ["y"], {"mode": "mirror"})],
            {"p": np.array([0, 0, 1, 1] * 2)},
            "mode 'mirror' is none of constant, reflect, edge, wrap",
        ),
        (
            [("Range", ["x", "x", "x"], ["y"], {})],
            {},
            "operator Range: of numbers that the net computes",
        ),
        (
            [("Cast", ["x"], ["y"], {"to": 7})],
            {},
            "operator Cast: to int64: what the net computes stays",
        ),
        (
            [("Resize", ["x", "", "s"], ["y"], {"mode": "area"})],
            {"s": np.array([1, 1, 2, 2], np.float32)},
            "mode 'area' is none of nearest, linear, cubic",
        ),
        (
            [("LSTM", ["x", "w", "r"], ["y"], {"hidden_size": 2})],
            {"w": random_array(1, 8, 5), "r": random_array(1, 8, 2)},
            "works on steps x samples x features",
        ),
        (
            [("Gather", ["x", "i"], ["y"], {"axis": 1})],
            {"i": np.array([4])},
            r"an index of \[4\] is not one of axis 1",
        ),
        ([("Reshape", ["x", "s"], ["y"], {})], {"s": np.array([-1, 7])}, "do not divide by 7"),
        ([("Constant", [], ["y"], {"value_string": "a"})], {}, "no value"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_node_and_what_is_supported(
    runtime: Runtime,
    nodes: list[tuple[str, list[str], list[str], dict[str, Any]]],
    constants: Arrays,
    said: str,
    tmp_path: Path,
) -> None:
    made = [
        helper.make_node(operator, inputs, outputs, name=f"n{number}", **attributes)
        for number, (operator, inputs, outputs, attributes) in enumerate(nodes)
    ]
    with pytest.raises(ModelError, match=said) as error:
        read(runtime, model(made, constants), tmp_path)
    assert "model.onnx" in str(error.value)


def test_a_word_that_nobody_brings_is_named_with_who_would(tmp_path: Path) -> None:
    made = model([helper.make_node("Sigmoid", ["x"], ["y"], name="s")], {})
    with (
        demitasse.compose(plugins=["onnx", "training", "reference"]) as bare,
        pytest.raises(
            ModelError, match="'sigmoid', which no composed plugin defines; 'caffe' brings it"
        ),
    ):
        read(bare, made, tmp_path)


@pytest.mark.parametrize("location", ["../outside.bin", "/etc/hostname", "link.bin", ".", ""])
def test_data_outside_of_the_models_folder_is_not_read(
    runtime: Runtime, location: str, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "outside.bin").write_bytes(W.tobytes())
    (folder / "link.bin").symlink_to(tmp_path / "outside.bin")
    made = model([helper.make_node("Conv", ["x", "w"], ["y"], group=2)], {"w": W})
    _outsource(made.graph.initializer[0], location)
    with pytest.raises(ModelError, match="is not in the model's folder"):
        read(runtime, made, folder)


def test_data_beside_the_model_is_read(runtime: Runtime, tmp_path: Path) -> None:
    made = model([helper.make_node("Conv", ["x", "w"], ["y"], group=2)], {"w": W})
    expected = ReferenceEvaluator(made).run(None, {"x": X})[0]
    _outsource(made.graph.initializer[0], "weights.bin", offset=8)
    (tmp_path / "weights.bin").write_bytes(bytes(8) + W.tobytes())
    agree(read(runtime, made, tmp_path).forward(x=X), {"y": np.asarray(expected)}, 1e-6)
    (tmp_path / "weights.bin").write_bytes(W.tobytes())
    with pytest.raises(ModelError, match="needs 288 bytes"):
        read(runtime, made, tmp_path)


def _outsource(tensor: onnx.TensorProto, location: str, offset: int = 0) -> None:
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", str(offset))):
        tensor.external_data.add(key=key, value=value)


def test_a_size_that_no_machine_holds_is_refused_before_memory_is_taken(
    runtime: Runtime, tmp_path: Path
) -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    with pytest.raises(ModelError, match="is not of 1 to"):
        read(runtime, model([node], {}, (2**40, 2**20)), tmp_path)
    tensor = onnx.TensorProto(
        name="w", dims=[2**40, 2**20], data_type=TensorProto.FLOAT, raw_data=b"1234"
    )
    made = model([helper.make_node("Add", ["x", "w"], ["y"])], {})
    made.graph.initializer.append(tensor)
    with pytest.raises(ModelError, match="4 bytes of float32 numbers do not make the shape"):
        read(runtime, made, tmp_path)
    doubled = [helper.make_node("Concat", [f"c{n}", f"c{n}"], [f"c{n + 1}"], axis=0) for n in range(60)]
    with pytest.raises(ModelError, match="makes a constant of more than"):
        read(
            runtime, model([*doubled, helper.make_node("Add", ["x", "c60"], ["y"])], {"c0": X}), tmp_path
        )


def test_damaged_models_are_errors_of_ours_and_nothing_else(runtime: Runtime, tmp_path: Path) -> None:
    """DEMITASSE_FUZZ says how many; 10,000 take a minute and a half."""
    names = ("convolution in groups", "batch normalisation", "normalisation across", "inner product")
    net = small(
        tmp_path,
        *(
            f'layer {{ name: "l{number}" bottom: "{"x" if number == 0 else f"t{number - 1}"}" '
            f'top: "t{number}" {LAYERS[name]} }}'
            for number, name in enumerate(names)
        ),
    )
    weights, inputs, _ = filled(runtime, net, tmp_path)
    whole = exported(runtime, net, weights, inputs, tmp_path).read_bytes()
    path, draw = tmp_path / "damaged.onnx", random.Random(5)
    refused = 0
    for _ in range(FUZZED):
        path.write_bytes(damaged(whole, draw))
        try:
            reader = runtime.read(path)
            reader.weights()
            runtime.net(path).close()
        except DemitasseError:
            refused += 1
    assert FUZZED / 4 < refused < FUZZED


def damaged(whole: bytes, draw: random.Random) -> bytes:
    data = bytearray(whole)
    for _ in range(draw.choice([1, 1, 2, 4])):
        place, kind = draw.randrange(len(data)), draw.random()
        if kind < 0.6:
            data[place] = draw.randrange(256)
        elif kind < 0.75:
            del data[place : place + draw.choice([1, 2, 30])]
        elif kind < 0.9:
            data[place:place] = draw.randbytes(draw.choice([1, 2, 5]))
        else:
            data = data[: place + 1]
    return bytes(data)
