"""ONNX models that were quantised after training: products of whole numbers mean what ONNX says, in the
formulas of its operators, written here in NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx_models import X, agree, composed, model, random_array, read

from demitasse import ModelError, Runtime

DRAW = np.random.default_rng(11)


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    with composed() as made:
        yield made


def whole(kind: str, *shape: int) -> np.ndarray:
    limits: Any = np.iinfo(kind)
    return DRAW.integers(limits.min, limits.max + 1, shape).astype(kind)


def by_range(x: np.ndarray) -> tuple[np.ndarray, float, float]:
    """DynamicQuantizeLinear, as ONNX's specification says it."""
    least, most = min(0.0, float(x.min())), max(0.0, float(x.max()))
    scale = (most - least) / 255 or 1.0
    zero = np.rint(-least / scale)
    return np.clip(np.rint(x / scale) + zero, 0, 255), scale, zero


def convolved(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """A convolution with one zero around planes, of sums of products in 64 bits."""
    x = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], (2, 3))
    made: np.ndarray = np.einsum("ncijkl,ockl->noij", windows, w)
    return made


@pytest.mark.parametrize("x", [X, np.abs(X) + 1, -np.abs(X), np.zeros_like(X)])
def test_numbers_are_quantised_by_their_own_range(
    runtime: Runtime, x: np.ndarray, tmp_path: Path
) -> None:
    names = ["q", "scale", "zero"]
    made = model([helper.make_node("DynamicQuantizeLinear", ["x"], names)], {}, outputs=names)
    found, (q, scale, zero) = read(runtime, made, tmp_path).forward(x=x), by_range(x)
    assert found["zero"] == zero
    assert float(found["scale"]) == pytest.approx(scale, rel=1e-6)
    apart = np.abs(found["q"] - q)
    assert apart.max() <= 1  # x over the scale, and x times its inverse, may be rounded to two sides
    assert (apart == 0).mean() > 0.99


@pytest.mark.parametrize("zero", [np.int8(-7), np.arange(-3, 3).astype(np.int8), None])
def test_a_quantised_layer_computes_sums_of_whole_numbers(
    runtime: Runtime, zero: Any, tmp_path: Path
) -> None:
    """As tools that quantise weights alone write it: with the scale of x found by the net."""
    w, names = whole("int8", 5, 6), ["q", "scale", "shift"]
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], names),
        helper.make_node(
            "MatMulInteger", ["q", "w", "shift", *(["z"] if zero is not None else [])], ["s"]
        ),
        helper.make_node("Cast", ["s"], ["real"], to=1),
        helper.make_node("Mul", ["scale", "of w"], ["both"]),
        helper.make_node("Mul", ["real", "both"], ["y"]),
    ]
    constants = {"w": w, "of w": np.float32(0.01), **({"z": zero} if zero is not None else {})}
    made = model(nodes, constants, outputs=("q", "s", "y"))
    found = read(runtime, made, tmp_path).forward(x=X)
    _, scale, shift = by_range(X)
    sums = (found["q"] - shift) @ (w - np.asarray(0 if zero is None else zero, np.float64))
    assert np.array_equal(found["s"], sums)
    agree({"y": found["y"]}, {"y": sums * scale * 0.01}, 1e-6)


def test_blobs_of_whole_numbers_are_multiplied(runtime: Runtime, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "one", "seven"], ["q"]),
        helper.make_node("Transpose", ["q"], ["t"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMulInteger", ["q", "t", "seven", "seven"], ["y"]),
    ]
    constants = {"one": np.float32(1), "seven": np.uint8(7)}
    found = read(runtime, model(nodes, constants), tmp_path).forward(x=9 * X)["y"]
    x = np.clip(np.rint(9 * X) + 7, 0, 255) - 7
    assert np.array_equal(found, x @ x.swapaxes(2, 3))


def test_convolutions_of_whole_numbers_pad_with_the_zero_point(runtime: Runtime, tmp_path: Path) -> None:
    w, names = whole("uint8", 3, 4, 3, 3), ["q", "scale", "shift"]
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], names),
        helper.make_node("ConvInteger", ["q", "w", "shift", "z"], ["y"], pads=[1, 1, 1, 1]),
    ]
    made = model(nodes, {"w": w, "z": np.uint8(121)}, outputs=("q", "y"))
    found = read(runtime, made, tmp_path).forward(x=X)
    sums = convolved(found["q"] - by_range(X)[2], w - 121.0)
    assert np.array_equal(found["y"], sums)


@pytest.mark.parametrize("kind", ["uint8", "int8"])
def test_a_quantised_convolution_rounds_in_the_scale_of_its_result(
    runtime: Runtime, kind: str, tmp_path: Path
) -> None:
    """Each output has a scale of its weights."""
    limits: Any = np.iinfo(kind)
    w, bias = whole("int8", 3, 4, 3, 3), np.array([900, -20000, 5], np.int32)
    scales, zero = np.array([0.01, 0.02, 0.004], np.float32), np.array(limits.max - 120, kind)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "sx", "zx"], ["q"]),
        helper.make_node(
            "QLinearConv",
            ["q", "sx", "zx", "w", "sw", "zw", "sy", "zy", "b"],
            ["y"],
            pads=[1, 1, 1, 1],
        ),
    ]
    constants = {
        **{"sx": np.float32(0.03), "zx": np.array(limits.max - 100, kind), "w": w, "sw": scales},
        **{"zw": np.zeros(3, np.int8), "sy": np.float32(0.25), "zy": zero, "b": bias},
    }
    made = model(nodes, constants, outputs=("q", "y"))
    found = read(runtime, made, tmp_path).forward(x=X)
    sums = convolved(found["q"] - (limits.max - 100.0), w.astype(np.float64)) + bias[:, None, None]
    real = sums * (0.03 * scales.astype(np.float64) / 0.25)[:, None, None]
    expected = np.clip(np.rint(real) + float(zero), limits.min, limits.max)
    assert np.abs(found["y"] - expected).max() <= 1
    assert (found["y"] == expected).mean() > 0.99
    assert len(np.unique(expected)) > 20


def test_a_quantised_product_rounds_in_the_scale_of_its_result(runtime: Runtime, tmp_path: Path) -> None:
    w = whole("uint8", 5, 6)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "sx", "zx"], ["q"]),
        helper.make_node("QLinearMatMul", ["q", "sx", "zx", "w", "sw", "zw", "sy", "zy"], ["y"]),
    ]
    scales, zeros = np.linspace(0.01, 0.03, 6, dtype=np.float32), np.arange(120, 126).astype(np.uint8)
    constants = {
        **{"sx": np.float32(0.03), "zx": np.uint8(128), "w": w, "sw": scales, "zw": zeros},
        **{"sy": np.float32(0.1), "zy": np.uint8(100)},
    }
    found = read(runtime, model(nodes, constants, outputs=("q", "y")), tmp_path).forward(x=X)
    sums = (found["q"] - 128.0) @ (w - zeros.astype(np.float64))
    expected = np.clip(np.rint(sums * (0.03 * scales.astype(np.float64) / 0.1)) + 100, 0, 255)
    assert np.abs(found["y"] - expected).max() <= 1
    assert (found["y"] == expected).mean() > 0.99


def test_rows_of_eight_bits_are_looked_up_by_numbers(runtime: Runtime, tmp_path: Path) -> None:
    table = whole("uint8", 9, 4)
    nodes = [
        helper.make_node("Gather", ["t", "x"], ["rows"]),
        helper.make_node("DequantizeLinear", ["rows", "s", "z"], ["y"]),
        helper.make_node("Gather", ["line", "x"], ["l"]),
    ]
    line = random_array(9)
    constants = {"t": table, "s": np.float32(0.5), "z": np.uint8(30), "line": line}
    made = model(nodes, constants, (2, 3), ("y", "l"))
    numbers = np.array([[0, 8, 3], [3, 1, 7]])
    found = read(runtime, made, tmp_path).forward(x=numbers)
    assert np.array_equal(found["y"], (table[numbers] - 30.0) / 2)
    assert np.array_equal(found["l"], line[numbers])


def lstm(x: np.ndarray, w: np.ndarray, r: np.ndarray, b: np.ndarray) -> np.ndarray:
    """ONNX's LSTM in one direction, with the gates i, o, f, c."""
    h = c = np.zeros((x.shape[1], r.shape[1]))
    made = []
    for step in x:
        i, o, f, g = np.split(step @ w.T + h @ r.T + b, 4, axis=1)
        i, o, f = (1 / (1 + np.exp(-gate)) for gate in (i, o, f))
        c = f * c + i * np.tanh(g)
        h = o * np.tanh(c)
        made.append(h)
    return np.stack(made)


@pytest.mark.parametrize("by_row", [False, True])
def test_a_recurrence_with_weights_of_eight_bits_is_computed(
    runtime: Runtime, by_row: bool, tmp_path: Path
) -> None:
    """ONNX Runtime's: its weights are transposed, and one scale, or one of each row, makes them real."""
    units, features = 5, 3
    w, r = whole("int8", 2, features, 4 * units), whole("int8", 2, units, 4 * units)
    shape = (2, 4 * units) if by_row else (2,)
    scales = [DRAW.uniform(0.002, 0.01, shape).astype(np.float32) for _ in range(2)]
    zeros = [DRAW.integers(-9, 9, shape).astype(np.int8) for _ in range(2)]
    b = random_array(2, 8 * units)
    constants = {"w": w, "r": r, "b": b}
    constants |= {"sw": scales[0], "zw": zeros[0], "sr": scales[1], "zr": zeros[1]}
    inputs = ["x", "w", "r", "b", "", "", "", "", "sw", "zw", "sr", "zr"]
    attributes = {"hidden_size": units, "direction": "bidirectional", "domain": "com.microsoft"}
    node = helper.make_node("DynamicQuantizeLSTM", inputs, ["y"], **attributes)
    made = model([node], constants, (7, 2, features))
    made.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    x = random_array(7, 2, features)
    found = read(runtime, made, tmp_path).forward(x=x)["y"]
    for way in range(2):
        real = [
            ((q[way] - zero[way].astype(np.float64)) * scale[way]).T
            for q, zero, scale in zip((w, r), zeros, scales, strict=True)
        ]
        bias = b[way, : 4 * units] + b[way, 4 * units :]
        read_so = x[::-1] if way else x
        expected = lstm(read_so.astype(np.float64), real[0], real[1], bias)
        agree({"y": found[:, way]}, {"y": expected[::-1] if way else expected}, 1e-5)


@pytest.mark.parametrize(
    ("node", "constants", "told"),
    [
        (
            helper.make_node("MatMulInteger", ["x", "w", "", "z"], ["y"]),
            {"w": np.ones((5, 6), np.int8), "z": np.zeros(4, np.int8)},
            r"its weights are int8 of \(5, 6\), zero points \(4,\)",
        ),
        (
            helper.make_node("QLinearConv", ["x", "s", "z", "w", "s", "z", "s", "z32"], ["y"]),
            {
                **{"w": np.ones((3, 4, 3, 3), np.int8), "s": np.float32(1), "z": np.int8(0)},
                "z32": np.int32(0),
            },
            "needs one zero point of its result, of 8 or 16 bits",
        ),
        (
            helper.make_node("QLinearAdd", ["x"], ["y"], domain="com.microsoft"),
            {},
            "unknown operator 'com.microsoft.QLinearAdd'; of other domains than ONNX's, only com",
        ),
    ],
)
def test_what_is_not_computed_is_told_of(
    runtime: Runtime, node: onnx.NodeProto, constants: Any, told: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=told):
        read(runtime, model([node], constants), tmp_path)
