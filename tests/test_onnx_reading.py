"""ONNX models that others write: shapes, batches, weights, and what exporters spell out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, inliner
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


def test_shapes_are_worked_out_for_whatever_batch_comes(runtime: Runtime, tmp_path: Path) -> None:
    """As view(x.size(0), -1) and interpolate(x, size=other.shape) are exported."""
    numbers = {"zero": np.array(0), "axis": np.array([0]), "rest": np.array([-1]), "two": np.array(2)}
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["samples"]),
        helper.make_node("Unsqueeze", ["samples", "axis"], ["listed"]),
        helper.make_node("Concat", ["listed", "rest"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["flat"]),
        helper.make_node("Mul", ["shape", "two"], ["twice"]),
        helper.make_node("Slice", ["twice", "from", "to"], ["size"]),
        helper.make_node("Slice", ["shape", "zeros", "from"], ["kept"]),
        helper.make_node("Concat", ["kept", "size"], ["sizes"], axis=0),
        helper.make_node("Resize", ["x", "", "", "sizes"], ["large"]),
    ]
    numbers |= {"from": np.array([2]), "to": np.array([4]), "zeros": np.array([0])}
    made = model(nodes, numbers, ("n", 4, 6, 5), ("flat", "large"))
    net = read(runtime, made, tmp_path)
    for samples in (1, 2):
        agree(net.forward(x=X[:samples]), reference_outputs(made, x=X[:samples]), 1e-6)


def test_an_open_extent_that_is_too_small_is_told_of(runtime: Runtime, tmp_path: Path) -> None:
    pool = helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[2, 2])
    made = model([pool], {}, ("n", 4, "h", "w"))
    with pytest.raises(
        ModelError, match=r"'x' is n,4,h,w, .* set to 1: set them by the override input\.x"
    ):
        read(runtime, made, tmp_path)
    net = runtime.net(tmp_path / "model.onnx", overrides={"input.x": "1,4,2,2"})
    agree(net.forward(x=X), reference_outputs(made, x=X), 1e-6)


@pytest.mark.parametrize("precision", ["f32", "f64", "bf16"])
@pytest.mark.parametrize("masked", [-1e9, float(np.finfo(np.float32).min), -np.inf])
def test_attention_sees_what_a_mask_leaves(
    runtime: Runtime, masked: float, precision: str, tmp_path: Path
) -> None:
    """Scores above the diagonal are a constant that is far below all, as in GPT-2."""
    x = random_array(2, 6, 8)
    nodes = [
        helper.make_node("Transpose", ["x"], ["keys"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["x", "keys"], ["scores"]),
        helper.make_node("Where", ["mask", "scores", "low"], ["masked"]),
        helper.make_node("Softmax", ["masked"], ["y"], axis=-1),
    ]
    mask = np.tril(np.ones((6, 6), bool))
    made = model(nodes, {"mask": mask, "low": np.float32(masked)}, x.shape)
    path = tmp_path / "model.onnx"
    onnx.save(made, path)
    found = runtime.net(path, precision=precision).forward(x=x)["y"]
    scores = np.where(mask, x.astype(np.float64) @ x.transpose(0, 2, 1), -np.inf)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    expected = powers / powers.sum(-1, keepdims=True)
    np.testing.assert_allclose(found, expected, atol=0.02 if precision == "bf16" else 1e-5)


def test_numbers_in_eight_bits_and_in_sixteen_are_read(runtime: Runtime, tmp_path: Path) -> None:
    scale, zero = np.array([0.5, 0.25, 1, 2], np.float32), np.array([1, 0, -3, 7], np.int8)
    held = np.random.default_rng(1).integers(-100, 100, (4, 2, 3, 3)).astype(np.int8)
    nodes = [
        helper.make_node("DequantizeLinear", ["held", "scale", "zero"], ["w"], axis=0),
        helper.make_node("Conv", ["x", "w", "b"], ["y"], group=2),
    ]
    made = model(nodes, {"held": held, "scale": scale, "zero": zero})
    bias = np.array([1.5, -2, 0.25, 3], np.float32)
    halves = (bias.view(np.uint32) >> 16).astype(np.uint16)
    made.graph.initializer.append(
        helper.make_tensor("b", TensorProto.BFLOAT16, (4,), halves.tobytes(), raw=True)
    )
    net = read(runtime, made, tmp_path)
    w = (held.astype(np.float32) - zero.reshape(4, 1, 1, 1)) * scale.reshape(4, 1, 1, 1)
    agree(net.forward(x=X), reference_outputs(model(nodes[1:], {"w": w, "b": bias}), x=X), 1e-5)


SPELT: dict[str, tuple[list[tuple[str, list[str], str]], str]] = {
    "swish": ([("Sigmoid", ["x"], "s"), ("Mul", ["s", "x"], "y")], "swish"),
    "hard swish": (
        [
            ("Add", ["x", "3"], "a"),
            ("Clip", ["a", "0", "6"], "c"),
            ("Mul", ["x", "c"], "m"),
            ("Div", ["m", "6"], "y"),
        ],
        "hard_swish",
    ),
    "hard sigmoid": (
        [("Add", ["x", "3"], "a"), ("Clip", ["a", "0", "6"], "c"), ("Div", ["c", "6"], "y")],
        "hard_sigmoid",
    ),
    "gelu": (
        [
            ("Div", ["x", "1.4142135"], "d"),
            ("Erf", ["d"], "e"),
            ("Add", ["e", "1"], "a"),
            ("Mul", ["x", "a"], "m"),
            ("Mul", ["m", "0.5"], "y"),
        ],
        "gelu",
    ),
}


@pytest.mark.parametrize("name", SPELT)
def test_a_gate_that_is_spelt_out_is_one_operation(runtime: Runtime, name: str, tmp_path: Path) -> None:
    spelt, word = SPELT[name]
    nodes = [helper.make_node(operator, inputs, [made]) for operator, inputs, made in spelt]
    constants = {n: np.float32(n) for n in ("0", "0.5", "1", "1.4142135", "3", "6")}
    made = model(nodes, constants)
    net = read(runtime, made, tmp_path)
    assert [node.operation.name for node in net.graph.nodes] == [word]
    agree(net.forward(x=X), reference_outputs(made, x=X), 1e-5)


def test_what_is_almost_a_gate_is_what_it_is(runtime: Runtime, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Sigmoid", ["z"], ["s"]),
        helper.make_node("Mul", ["s", "x"], ["y"]),
        helper.make_node("Add", ["x", "2"], ["z"]),
        helper.make_node("Clip", ["z", "0", "6"], ["c"]),
        helper.make_node("Div", ["c", "6"], ["h"]),
    ]
    made = model(
        [nodes[2], *nodes[:2], *nodes[3:]], {n: np.float32(n) for n in "026"}, outputs=("y", "h")
    )
    agree(read(runtime, made, tmp_path).forward(x=X), reference_outputs(made, x=X), 1e-6)


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


@pytest.mark.skipif(onnx.defs.onnx_opset_version() < 23, reason="this onnx has no Attention yet")
@pytest.mark.parametrize("held", [(), ("k", "v")])
def test_an_operator_that_onnx_says_in_others_is_read_as_those(
    runtime: Runtime, held: tuple[str, ...], tmp_path: Path
) -> None:
    """Attention, also with keys and values that are constant."""
    if not hasattr(inliner, "inline_selected_functions"):
        pytest.skip("this onnx does not put what it defines by others in place")
    draw = np.random.default_rng(4)
    arrays = {name: draw.normal(size=(1, 2, 4, 8)).astype(np.float32) for name in "xkv"}
    node = helper.make_node("Attention", ["x", "k", "v"], ["y"], name="attention", is_causal=1)
    made = model([node], {name: arrays[name] for name in held}, (1, 2, 4, 8), opset=23)
    free = [name for name in "kv" if name not in held]
    made.graph.input.extend(
        helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, 2, 4, 8)) for name in free
    )
    x, k, v = (arrays[name].astype(np.float64) for name in "xkv")
    scores = x @ k.swapaxes(2, 3) / np.sqrt(8)
    powers = np.exp(scores) * np.tril(np.ones((4, 4)))
    expected = powers / powers.sum(3, keepdims=True) @ v
    found = read(runtime, made, tmp_path).forward(**{name: arrays[name] for name in ("x", *free)})
    np.testing.assert_allclose(found["y"], expected, rtol=1e-5, atol=1e-6)
