"""ONNX models in which numbers are whole ones or conditions: all are computed as real numbers, and mean
what they mean in ONNX."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_models import X, agree, composed, model, read, reference_outputs

from demitasse import ModelError, Runtime

WHOLE = np.random.default_rng(5).integers(-30, 31, (3, 4, 5))


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    with composed() as made:
        yield made


def typed(made: onnx.ModelProto, kind: int, shape: tuple[int, ...]) -> onnx.ModelProto:
    """The model with an input of another type."""
    made.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", kind, shape))
    return made


@pytest.mark.parametrize("precision", ["f32", "f64"])
@pytest.mark.parametrize("divisor", [7, -3, np.array([[1], [-2], [30], [9]])])
def test_whole_numbers_are_divided_without_a_rest(
    runtime: Runtime, divisor: Any, precision: str, tmp_path: Path
) -> None:
    """Towards 0, and by what rounding in float32 would bring below a whole quotient, as 49 by 49."""
    x = np.concatenate([WHOLE, [[[49, -49, 98, 2**20 - 7, 0]] * 4]])
    constants = {"d": np.array(divisor)}
    nodes = [helper.make_node("Div", ["x", "d"], ["y"])]
    path = tmp_path / "model.onnx"
    onnx.save(typed(model(nodes, constants), TensorProto.INT64, x.shape), path)
    found = runtime.net(path, precision=precision).forward(x=x)["y"]
    assert np.array_equal(found, np.trunc(x / np.array(divisor)))


def test_whole_numbers_are_divided_by_others(runtime: Runtime, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Abs", ["x"], ["a"]),
        helper.make_node("Add", ["a", "one"], ["b"]),
        helper.make_node("Div", ["x", "b"], ["y"]),
        helper.make_node("Mod", ["x", "seven"], ["z"]),
        helper.make_node("Mod", ["x", "seven"], ["r"], fmod=1),
    ]
    constants = {"one": np.array(1), "seven": np.array(7)}
    made = typed(model(nodes, constants, outputs=("y", "z", "r")), TensorProto.INT32, WHOLE.shape)
    found = read(runtime, made, tmp_path).forward(x=WHOLE)
    assert np.array_equal(found["y"], np.trunc(WHOLE / (abs(WHOLE) + 1)))
    assert np.array_equal(found["z"], WHOLE % 7)
    assert np.array_equal(found["r"], np.fmod(WHOLE, 7))


def test_the_place_of_a_maximum_is_a_row_and_a_column(runtime: Runtime, tmp_path: Path) -> None:
    """As nets of poses tell it: the place in a map, divided by its width."""
    nodes = [
        helper.make_node("Reshape", ["x", "flat"], ["f"]),
        helper.make_node("ArgMax", ["f"], ["p"], axis=2, keepdims=0),
        helper.make_node("Div", ["p", "width"], ["row"]),
        helper.make_node("Mod", ["p", "width"], ["column"]),
        helper.make_node("Cast", ["row"], ["y"], to=TensorProto.INT32),
    ]
    constants = {"flat": np.array([2, 4, -1]), "width": np.array(5)}
    made = model(nodes, constants, outputs=("y", "column"))
    found, place = read(runtime, made, tmp_path).forward(x=X), X.reshape(2, 4, -1).argmax(2)
    assert np.array_equal(found["y"], place // 5)
    assert np.array_equal(found["column"], place % 5)


def test_numbers_are_rounded(runtime: Runtime, tmp_path: Path) -> None:
    operators = ("Floor", "Ceil", "Round", "Sign")
    x = X.copy()
    x.flat[:9] = np.arange(-4, 5) / 2
    nodes = [helper.make_node(name, ["x"], [name]) for name in operators]
    nodes += [
        helper.make_node("Cast", ["x"], ["Cast"], to=7),
        helper.make_node("Cast", ["x"], ["b"], to=9),
    ]
    made = model(nodes, {}, outputs=(*operators, "Cast", "b"))
    found = read(runtime, made, tmp_path).forward(x=x)
    for name, formula in zip(operators, (np.floor, np.ceil, np.rint, np.sign), strict=True):
        assert np.array_equal(found[name], formula(x)), name
    assert np.array_equal(found["Cast"], np.trunc(x))
    assert np.array_equal(found["b"], x != 0)


def test_conditions_are_joined(runtime: Runtime, tmp_path: Path) -> None:
    """Of blobs, of an input that is one, and of constants."""
    operators = ("And", "Or", "Xor", "Equal")
    nodes = [helper.make_node("Cast", ["x"], ["b"], to=TensorProto.BOOL)]
    nodes += [helper.make_node(name, ["x", "turned"], [name]) for name in operators]
    nodes += [helper.make_node(name, ["x", "c"], [f"{name}.c"]) for name in operators]
    nodes.insert(1, helper.make_node("Not", ["b"], ["not"]))
    nodes.insert(2, helper.make_node("Transpose", ["x"], ["turned"], perm=[1, 0]))
    outputs = ("not", *operators, *(f"{name}.c" for name in operators))
    x = np.array(list(itertools.islice(itertools.cycle([True, False, False]), 16))).reshape(4, 4)
    constant = np.array([True, False, True, False])
    made = typed(model(nodes, {"c": constant}, outputs=outputs), TensorProto.BOOL, (4, 4))
    found = read(runtime, made, tmp_path).forward(x=x)
    formulas = (np.logical_and, np.logical_or, np.logical_xor, np.equal)
    assert np.array_equal(found["not"], ~x)
    for name, formula in zip(operators, formulas, strict=True):
        assert np.array_equal(found[name], formula(x, x.T)), name
        assert np.array_equal(found[f"{name}.c"], formula(x, constant)), name


def test_a_constant_that_becomes_as_a_blob_is_stays_a_constant(runtime: Runtime, tmp_path: Path) -> None:
    """As functions of PyTorch's exporter say numbers."""
    nodes = [
        helper.make_node("CastLike", ["c", "x"], ["like"]),
        helper.make_node("Pow", ["x", "like"], ["p"]),
        helper.make_node("ConstantOfShape", ["shape"], ["zeros"]),
        helper.make_node("CastLike", ["low", "zeros"], ["lowest"]),
        helper.make_node("Max", ["p", "lowest"], ["y"]),
    ]
    constants = {"c": np.array(2), "shape": np.array([1]), "low": np.array([-np.inf])}
    found = read(runtime, model(nodes, constants), tmp_path).forward(x=X)["y"]
    np.testing.assert_allclose(found, X**2, rtol=1e-6)


@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.uint16, np.int16])
@pytest.mark.parametrize("axis", [None, 1])
def test_whole_numbers_of_few_bits_stand_for_real_ones(
    runtime: Runtime, kind: type[np.generic], axis: int | None, tmp_path: Path
) -> None:
    """Of a blob too: what a model of eight bits computes is rounded as it says."""
    limits: Any = np.iinfo(kind)
    scale = np.float32(4 / (limits.max - limits.min) / 1.5)
    zero = np.array((limits.max + limits.min) // 2 + 3, kind)
    if axis is not None:
        scale, zero = scale * np.arange(1, 5, dtype=np.float32), zero + np.arange(4, dtype=kind)
    along: dict[str, Any] = {} if axis is None else {"axis": axis}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], **along),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], **along),
    ]
    made = model(nodes, {"s": scale, "z": zero}, outputs=("q", "y"), opset=21)
    x = X.copy()
    x.flat[:2] = 99, -99
    found, expected = read(runtime, made, tmp_path).forward(x=x), reference_outputs(made, x=x)
    apart = np.abs(found["q"] - expected["q"].astype(np.float64))
    assert apart.max() <= 1  # x over the scale, and x times its inverse, may be rounded to two sides
    assert (apart == 0).mean() > 0.99
    agree({"y": found["y"]}, {"y": expected["y"]}, 2 * float(np.max(scale)) / 4)
    assert limits.min == found["q"].min()
    assert limits.max == found["q"].max()


@pytest.mark.parametrize("kind", [TensorProto.UINT32, TensorProto.UINT64, TensorProto.BOOL])
def test_inputs_may_be_of_every_type_of_whole_numbers(
    runtime: Runtime, kind: int, tmp_path: Path
) -> None:
    x = (abs(WHOLE) % 2).astype(helper.tensor_dtype_to_np_dtype(kind))
    made = typed(model([helper.make_node("Cast", ["x"], ["y"], to=1)], {}), kind, x.shape)
    assert np.array_equal(read(runtime, made, tmp_path).forward(x=x)["y"], x)


@pytest.mark.parametrize("shape", [(), (3,), (2, 1)])
def test_constants_of_bfloat16_may_have_any_shape(
    runtime: Runtime, shape: tuple[int, ...], tmp_path: Path
) -> None:
    made = model([helper.make_node("Mul", ["x", "w"], ["y"])], {}, (2, 3))
    values = np.full(shape, 1.5, np.float32)
    bits = (values.view(np.uint32) >> 16).astype(np.uint16)
    made.graph.initializer.append(
        onnx.TensorProto(name="w", dims=shape, data_type=TensorProto.BFLOAT16, raw_data=bits.tobytes())
    )
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert np.array_equal(read(runtime, made, tmp_path).forward(x=x)["y"], 1.5 * x)


def test_outputs_may_be_constants(runtime: Runtime, tmp_path: Path) -> None:
    """As the places of a detector's priors; also one of the file, and one that depends on a shape."""
    nodes = [
        helper.make_node("Relu", ["x"], ["y"]),
        helper.make_node("Neg", ["c"], ["n"]),
        helper.make_node("Shape", ["x"], ["s"]),
    ]
    constant = np.arange(6, dtype=np.float32).reshape(2, 3)
    made = model(nodes, {"c": constant}, outputs=("y", "n", "c", "s"))
    found = read(runtime, made, tmp_path).forward(x=X)
    assert np.array_equal(found["y"], X.clip(0))
    assert np.array_equal(found["n"], -constant)
    assert np.array_equal(found["c"], constant)
    assert np.array_equal(found["s"], X.shape)


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (helper.make_sequence_type_proto, "input 'x': is of sequence type; only arrays of numbers"),
        (helper.make_optional_type_proto, "input 'x': is of optional type; only arrays of numbers"),
    ],
)
def test_inputs_that_are_no_arrays_are_told_of(
    runtime: Runtime, kind: Any, told: str, tmp_path: Path
) -> None:
    made = model([helper.make_node("Identity", ["x"], ["y"])], {})
    array = helper.make_tensor_type_proto(TensorProto.FLOAT, [2])
    made.graph.input[0].CopyFrom(helper.make_value_info("x", kind(array)))
    with pytest.raises(ModelError, match=told):
        read(runtime, made, tmp_path)


def test_constants_are_worked_out_with_their_indices(runtime: Runtime, tmp_path: Path) -> None:
    """What is taken from constants, or put into them, as NumPy takes and puts it."""
    data = np.arange(24.0, dtype=np.float32).reshape(2, 3, 4)
    index = np.array([[[0, 2, -1, 1]], [[2, 0, 0, -3]]])
    nodes = [
        helper.make_node("GatherElements", ["d", "i"], ["a"], axis=1),
        helper.make_node("GatherND", ["d", "pairs"], ["b"]),
        helper.make_node("GatherND", ["d", "ones"], ["c"], batch_dims=1),
        helper.make_node("ScatterElements", ["d", "i", "a"], ["e"], axis=1),
        helper.make_node("ScatterND", ["d", "pairs", "rows"], ["f"]),
        helper.make_node("CumSum", ["d", "axis"], ["g"], exclusive=1, reverse=1),
        helper.make_node("Trilu", ["d", "axis"], ["h"]),
    ]
    constants = {
        "d": data,
        "i": index,
        "pairs": np.array([[0, 1], [1, -1]]),
        "ones": np.array([[2], [0]]),
        "rows": -np.ones((2, 4), np.float32),
        "axis": np.array(2),
    }
    outputs = tuple("abcefgh")
    made = model([helper.make_node("Relu", ["x"], ["y"]), *nodes], constants, outputs=("y", *outputs))
    found, expected = read(runtime, made, tmp_path).forward(x=X), reference_outputs(made, x=X)
    for name in outputs:
        assert np.array_equal(found[name], expected[name]), name
    assert numpy_helper.to_array(made.graph.initializer[0]).shape == data.shape
