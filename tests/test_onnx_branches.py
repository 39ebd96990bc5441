"""ONNX models that choose between two graphs, and forms of models that people ship: extents of -1, empty
constants, and operators of ONNX's first years."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_models import W, X, agree, composed, model, random_array, read

from demitasse import ModelError, Runtime


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    with composed() as made:
        yield made


def branch(nodes: Sequence[onnx.NodeProto], output: str, **constants: Any) -> onnx.GraphProto:
    held = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    value = helper.make_tensor_value_info(output, TensorProto.FLOAT, None)
    return helper.make_graph(nodes, "branch", [], [value], held)


def decided(then: onnx.GraphProto, otherwise: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Nodes that choose by whether x has one channel, as exporters write ``squeeze(1)``."""
    return [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "one"], ["channels"]),
        helper.make_node("Equal", ["channels", "one"], ["single"]),
        helper.make_node("If", ["single"], ["y"], then_branch=then, else_branch=otherwise),
    ]


def test_shapes_decide_which_branch_is_computed(runtime: Runtime, tmp_path: Path) -> None:
    """Also of the same net with other inputs."""
    squeezed = branch([helper.make_node("Squeeze", ["x", "axes"], ["s"])], "s", axes=[1])
    plain = branch([helper.make_node("Identity", ["x"], ["p"])], "p")
    made = model(decided(squeezed, plain), {"one": np.array(1)}, ("N", "C", 6, 5))
    net = read(runtime, made, tmp_path)
    assert np.array_equal(net.forward(x=X[:, :1])["y"], X[:, 0])
    assert np.array_equal(net.forward(x=X)["y"], X)


def test_branches_read_what_is_around_them(runtime: Runtime, tmp_path: Path) -> None:
    """Blobs and constants of the graph, through a branch in a branch, weights of their own, and outputs
    that are constants or come from outside."""
    inner = helper.make_node(
        "If",
        ["single"],
        ["i"],
        then_branch=branch([helper.make_node("Neg", ["r"], ["n"])], "n"),
        else_branch=branch([helper.make_node("Mul", ["r", "two"], ["m"])], "m"),
    )
    convolution = helper.make_node("Conv", ["i", "w"], ["c"], group=2, pads=[1, 1, 1, 1])
    outer = branch([inner, convolution], "c", w=W)
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        *decided(branch([], "two"), outer),
        helper.make_node("If", ["single"], ["z"], then_branch=outer, else_branch=branch([], "r")),
    ]
    made = model(nodes, {"one": np.array(1), "two": np.float32(2)}, outputs=("y", "z"))
    found = read(runtime, made, tmp_path).forward(x=X)
    once = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Mul", ["r", "two"], ["m"]),
        helper.make_node("Conv", ["m", "w"], ["y"], group=2, pads=[1, 1, 1, 1]),
    ]
    folder = tmp_path / "plain"
    folder.mkdir()
    plain = read(runtime, model(once, {"two": np.float32(2), "w": W}), folder).forward(x=X)
    agree({"y": found["y"]}, plain, 1e-6)
    assert np.array_equal(found["z"], X.clip(0))


def test_what_a_branch_makes_has_its_own_kind(runtime: Runtime, tmp_path: Path) -> None:
    """Not the condition's: real numbers are not made conditions, and whole ones are divided as such."""
    whole = [helper.make_node("Cast", ["x"], ["w"], to=TensorProto.INT64)]
    nodes = [
        *decided(branch([], "x"), branch([helper.make_node("Neg", ["x"], ["n"])], "n")),
        helper.make_node("CastLike", ["half", "y"], ["like"]),
        helper.make_node(
            "If", ["single"], ["v"], then_branch=branch(whole, "w"), else_branch=branch(whole, "w")
        ),
        helper.make_node("Div", ["v", "two"], ["z"]),
    ]
    constants = {"one": np.array(1), "half": np.float32(0.5), "two": np.array(2)}
    made = model(nodes, constants, outputs=("like", "z"))
    found = read(runtime, made, tmp_path).forward(x=5 * X)
    assert found["like"] == 0.5
    assert np.array_equal(found["z"], np.trunc(np.trunc(5 * X) / 2))


def rated() -> onnx.ModelProto:
    """A model whose second input chooses, as a sampling rate does."""
    nodes = [
        helper.make_node("Equal", ["rate", "wide"], ["is wide"]),
        helper.make_node(
            "If",
            ["is wide"],
            ["y"],
            then_branch=branch([helper.make_node("Neg", ["x"], ["n"])], "n"),
            else_branch=branch([helper.make_node("Abs", ["x"], ["a"])], "a"),
        ),
    ]
    made = model(nodes, {"wide": np.array(16000)})
    made.graph.input.append(helper.make_tensor_value_info("rate", TensorProto.INT64, ()))
    return made


@pytest.mark.parametrize(("rate", "expected"), [(16000, -X), ("8000", np.abs(X))])
def test_an_input_that_chooses_can_be_made_constant(
    runtime: Runtime, rate: Any, expected: np.ndarray, tmp_path: Path
) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(rated(), path)
    net = runtime.net(path, overrides={"value.rate": rate})
    assert np.array_equal(net.forward(x=X)["y"], expected)


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        ({}, "operator If: its condition is computed from what the net is given; only one that"),
        ({"value.rate": "fast"}, "value.rate is 'fast', not one number"),
        ({"value.rat": 1}, "unknown override 'value.rat'; did you mean 'value.rate'"),
    ],
)
def test_conditions_that_nothing_decides_are_told_of(
    runtime: Runtime, overrides: Any, told: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(rated(), path)
    with pytest.raises(ModelError, match=told):
        runtime.net(path, overrides=overrides)


def test_extents_of_minus_one_are_open(runtime: Runtime, tmp_path: Path) -> None:
    made = model([helper.make_node("Relu", ["x"], ["y"])], {}, (-1, 4, -1, 5))
    net = read(runtime, made, tmp_path)
    assert net.blobs["y"].shape == (1, 4, 1, 5)
    assert np.array_equal(net.forward(x=X)["y"], X.clip(0))


@pytest.mark.parametrize(
    "node",
    [
        helper.make_node("Conv", ["x", "w"], ["y"], group=2),
        helper.make_node("Concat", ["x", "wide"], ["y"], axis=1),
    ],
)
def test_shapes_that_do_not_fit_are_told_of_with_the_open_input(
    runtime: Runtime, node: onnx.NodeProto, tmp_path: Path
) -> None:
    """Whichever operation notices."""
    constants = {"w": W, "wide": np.zeros((1, 1, 7, 7), np.float32)}
    with pytest.raises(
        ModelError, match=r"input 'x' is N,4,H,W, with its open extents set to 1: set th"
    ):
        read(runtime, model([node], constants, ("N", 4, "H", "W")), tmp_path)


def test_what_is_empty_adds_nothing(runtime: Runtime, tmp_path: Path) -> None:
    nodes = [helper.make_node("Concat", ["x", "nothing", "x"], ["y"], axis=1)]
    made = model(nodes, {"nothing": np.zeros((2, 0, 6, 5), np.float32)})
    found = read(runtime, made, tmp_path).forward(x=X)["y"]
    assert np.array_equal(found, np.concatenate([X, X], 1))


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_places_become_vectors_that_differ_at_one_element(
    runtime: Runtime, axis: int, tmp_path: Path
) -> None:
    """Places below 0 count from the end, and those beyond it are nowhere."""
    nodes = [helper.make_node("OneHot", ["x", "depth", "values"], ["y"], axis=axis)]
    places = np.array([[0, 3, -1], [2, -4, 9]])
    constants = {"depth": np.array([4]), "values": np.array([-0.5, 2], np.float32)}
    found = read(runtime, model(nodes, constants, (2, 3)), tmp_path).forward(x=places)["y"]
    hot = (places[..., None] % 4 == np.arange(4)) & (places[..., None] >= -4) & (places[..., None] < 4)
    expected = np.moveaxis(np.where(hot, 2, -0.5), -1, axis)
    assert np.array_equal(found, expected)


def test_operators_of_the_first_years_are_computed(runtime: Runtime, tmp_path: Path) -> None:
    """As converters to Windows' own runtime wrote them."""
    bias = [0.5, -1.0, 2.0, 0.25]
    nodes = [
        helper.make_node("ImageScaler", ["x"], ["s"], scale=2.0, bias=bias),
        helper.make_node("Crop", ["s"], ["c"], border=[1, 2, 0, 1]),
        helper.make_node("Affine", ["c"], ["y"], alpha=3.0, beta=-1.0),
        helper.make_node("Crop", ["s"], ["z"], border=[1, 2, 0, 0], scale=[3, 2]),
    ]
    found = read(runtime, model(nodes, {}, outputs=("y", "z"), opset=7), tmp_path).forward(x=X)
    scaled = 2 * X + np.array(bias, np.float32)[:, None, None]
    np.testing.assert_allclose(found["y"], 3 * scaled[:, :, 2:5, 1:] - 1, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found["z"], scaled[:, :, 2:5, 1:3], rtol=1e-6, atol=1e-6)


def test_nearest_elements_may_be_found_as_tensorflow_finds_them(
    runtime: Runtime, tmp_path: Path
) -> None:
    attributes = {
        **{"coordinate_transformation_mode": "tf_half_pixel_for_nn", "mode": "nearest"},
        "nearest_mode": "floor",
    }
    nodes = [helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], **attributes)]
    x = random_array(1, 1, 1, 5)
    found = read(
        runtime, model(nodes, {"sizes": np.array([1, 1, 1, 7])}, x.shape, opset=11), tmp_path
    ).forward(x=x)["y"]
    assert np.array_equal(found.ravel(), x.ravel()[np.floor((np.arange(7) + 0.5) * 5 / 7).astype(int)])
