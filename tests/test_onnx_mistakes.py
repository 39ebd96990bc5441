"""ONNX models that cannot be read: mistakes are told with their nodes, damage is an error of ours."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from onnx_models import (
    LAYERS,
    Arrays,
    W,
    X,
    agree,
    composed,
    exported,
    filled,
    model,
    random_array,
    read,
    small,
)

import demitasse
from demitasse import DemitasseError, ModelError, Runtime

FUZZED = int(os.environ.get("DEMITASSE_FUZZ", "400"))


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    with composed() as made:
        yield made


@pytest.mark.parametrize(
    ("nodes", "constants", "said"),
    [
        (
            [("TopK", ["x"], ["y"], {})],
            {},
            r"node 0 'n0' \(TopK\): ONNX's operator 'TopK' is not supported \([0-9]+ are, as the README",
        ),
        (
            [("Einsum", ["x"], ["y"], {"equation": "iijk->ijk"})],
            {},
            r"equation 'iijk->ijk' does not fit axes \[4\], or has a letter twice in one term",
        ),
        (
            [("Mod", ["x", "c"], ["y"], {})],
            {"c": np.float32(2)},
            "only for whole numbers, by constants above 0",
        ),
        (
            [("ScatterND", ["x", "i", "x"], ["y"], {"reduction": "add"})],
            {"i": np.zeros((2, 1), np.int64)},
            "reduction 'add' is not supported, only none",
        ),
        (
            [("GatherElements", ["x", "i"], ["y"], {"axis": 1})],
            {"i": np.full((2, 1, 6, 5), 4)},
            r"an index of \[4, .*\] is not one of 4",
        ),
        (
            [("QuantizeLinear", ["x", "s", "z"], ["y"], {})],
            {"s": np.float32(1), "z": np.int32(0)},
            "to int32: only whole numbers of 8 or 16 bits are supported",
        ),
        ([("LpPool", ["x"], ["y"], {"kernel_shape": [2, 2], "p": 0})], {}, "p 0 is not above 0"),
        (
            [("Loop", ["x"], ["y"], {"body": helper.make_graph([], "g", [], [])})],
            {},
            "operator 'Loop' is not supported .*; exporters do not write it if shapes are fixed",
        ),
        ([("Relux", ["x"], ["y"], {})], {}, "unknown operator 'Relux'; did you mean 'Relu'"),
        ([("Relu", ["z"], ["y"], {})], {}, "unknown input 'z'"),
        (
            [("Relu", ["b"], ["y"], {}), ("Tanh", ["x"], ["b"], {})],
            {},
            r"node 0 'n0' \(Relu\): input 'b' is made by node 1 'n1' \(Tanh\), which is not before it",
        ),
        (
            [("Add", ["x", "b"], ["a"], {}), ("Relu", ["a"], ["b"], {}), ("Relu", ["b"], ["y"], {})],
            {},
            r"node 0 'n0' \(Add\): input 'b' is made by node 1 'n1' \(Relu\).*without cycles",
        ),
        ([("Relu", ["y"], ["y"], {})], {}, "'y' is made by node 0 .*, which is not before it"),
        ([("Relu", ["x"], ["x"], {}), ("Relu", ["x"], ["y"], {})], {}, "'x' is made twice"),
        ([("Relu", ["x"], ["t"], {})], {}, "unknown output 'y'|no output"),
        (
            [("Conv", ["x", "w"], ["y"], {"strid": [1, 1]})],
            {"w": W},
            "unknown attribute 'strid'; did you mean",
        ),
        ([("Conv", ["x"], ["y"], {})], {}, "its weights .input 1. must be constants"),
        (
            [("MaxPool", ["x"], ["y"], {"kernel_shape": [2, 2], "dilations": [9, 9]})],
            {},
            "a window of 10 does not fit 6",
        ),
        ([("Transpose", ["x"], ["y"], {"perm": [0, 2, 3, 3]})], {}, "is not an order of the axes"),
        (
            [("Pad", ["x", "p"], ["y"], {"mode": "mirror"})],
            {"p": np.array([0, 0, 1, 1] * 2)},
            "unknown mode 'mirror' .valid: constant, reflect, edge, wrap",
        ),
        (
            [("Range", ["x", "x", "x"], ["y"], {})],
            {},
            "operator Range: is supported for constants only",
        ),
        (
            [("Cast", ["x"], ["y"], {"to": 8})],
            {},
            "operator Cast: to 8 is not a supported type of numbers",
        ),
        (
            [("Resize", ["x", "", "s"], ["y"], {"mode": "area"})],
            {"s": np.array([1, 1, 2, 2], np.float32)},
            "unknown mode 'area' .valid: nearest, linear, cubic",
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
        ([("Reshape", ["x", "s"], ["y"], {})], {"s": np.array([-1, 7])}, "are not divisible by 7"),
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


@pytest.mark.parametrize("opset", [-1, 0, onnx.defs.onnx_opset_version() + 1, 99, None])
def test_a_version_of_the_operators_that_there_is_not_is_refused(
    runtime: Runtime, opset: int | None, tmp_path: Path
) -> None:
    made = model([helper.make_node("Relu", ["x"], ["y"])], {}, opset=opset or 0)
    if opset is None:
        del made.opset_import[:]
    told = "no version" if opset is None else f"version {opset}"
    newest = onnx.defs.onnx_opset_version()
    with pytest.raises(ModelError, match=rf"model.onnx: says {told} of .*valid: 1 to {newest}"):
        read(runtime, made, tmp_path)
    made.ir_version = 2  # which does not say it
    del made.opset_import[:]
    assert (read(runtime, made, tmp_path).forward(x=X)["y"] == X.clip(0)).all()


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
    with pytest.raises(ModelError, match="outside the model's folder"):
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
    with pytest.raises(ModelError, match="does not have 1 to"):
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


@pytest.mark.parametrize(
    ("operator", "inputs", "attributes", "dims", "told"),
    [
        ("Add", ["x", "w"], {}, [1] * 100, "initializer 'w': its shape has 100 axes, more than 32"),
        (
            "Add",
            ["x", "w"],
            {},
            [0, 2**62, 2**62],
            "initializer 'w': .* is empty, but larger than any blob",
        ),
        ("Reshape", ["x", "whole"], {}, [], "operator Reshape: makes a blob of 40 axes, more than 32"),
        ("Expand", ["x", "ones"], {}, [], "operator Expand: makes a blob of 40 axes, more than 32"),
        ("LSTM", ["s", "r", "r"], {"hidden_size": 2**40}, [], "hidden_size 1099511627776 is not the 1"),
    ],
)
def test_a_shape_that_no_array_can_have_is_refused(
    runtime: Runtime,
    operator: str,
    inputs: list[str],
    attributes: dict[str, Any],
    dims: list[int],
    told: str,
    tmp_path: Path,
) -> None:
    size = math.prod(dims) * 4
    w = onnx.TensorProto(name="w", dims=dims, data_type=TensorProto.FLOAT, raw_data=bytes(size))
    constants = {"ones": np.ones(40, np.int64), "r": np.ones((1, 4, 1), np.float32)}
    constants["whole"] = np.array([-1] + [1] * 39)
    shaped = helper.make_node("Reshape", ["x", "three"], ["s"])
    nodes = [shaped] if "s" in inputs else []
    nodes.append(helper.make_node(operator, inputs, ["y"], **attributes))
    made = model(nodes, constants | {"three": np.array([-1, 1, 1])})
    made.graph.initializer.append(w)
    with pytest.raises(ModelError, match=told):
        read(runtime, made, tmp_path)


@pytest.mark.parametrize(
    ("operator", "inputs", "attributes"),
    [
        ("Pad", ["x", "large"], {"mode": "edge"}),
        ("MaxPool", ["x"], {"kernel_shape": [2, 2], "pads": [0, 1, 0, 2**31]}),
        ("Resize", ["x", "", "", "large"], {"axes": [3]}),
        ("Resize", ["x", "", "scale"], {"axes": [3]}),
    ],
)
def test_a_table_that_no_machine_holds_is_refused(
    runtime: Runtime, operator: str, inputs: list[str], attributes: dict[str, Any], tmp_path: Path
) -> None:
    large = [2**50] * 8 if operator == "Pad" else [2**50]
    constants = {"large": np.array(large), "scale": np.array([1e15], np.float32)}
    node = helper.make_node(operator, inputs, ["y"], **attributes)
    with pytest.raises(ModelError, match="makes a table of places of more than"):
        read(runtime, model([node], constants, opset=18), tmp_path)


@pytest.mark.parametrize(
    ("node", "said"),
    [
        (helper.make_node("MatMul", ["x"], ["y"]), "MatMul: the second matrix .* must be constants"),
        (helper.make_node("Gemm", [], ["y"]), "Gemm: the second matrix .* must be constants"),
    ],
)
def test_weights_of_a_node_with_too_few_inputs_are_missed(
    runtime: Runtime, node: Any, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(model([node], {}).SerializeToString())
    with pytest.raises(ModelError, match=said):
        runtime.read(path).weights()


def test_a_node_that_makes_constants_has_no_weights(runtime: Runtime, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    nodes = [helper.make_node("Range", ["x", "x", "x"], ["y"])]
    path.write_bytes(model(nodes, {}).SerializeToString())
    assert runtime.read(path).weights().parameters == {}


def test_operators_and_modes_of_thousands_of_letters_are_shortened(
    runtime: Runtime, tmp_path: Path
) -> None:
    long = "x" * 5000
    pad = helper.make_node("Pad", ["x", "p"], ["y"], mode=long)
    for node in (helper.make_node(long, ["x"], ["y"]), pad):
        with pytest.raises(ModelError) as error:
            read(runtime, model([node], {"p": np.array([0, 0, 1, 1] * 2)}), tmp_path)
        assert len(str(error.value)) < 1000


def test_an_operators_name_of_several_lines_is_told_on_one(runtime: Runtime, tmp_path: Path) -> None:
    with pytest.raises(ModelError) as error:
        read(runtime, model([helper.make_node("Re\nlu", ["x"], ["y"])], {}), tmp_path)
    assert "\n" not in str(error.value)


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
