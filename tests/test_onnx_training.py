"""ONNX models that are trained: the same steps as by hand, weights in common, statistics."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper
from onnx_models import (
    W,
    X,
    composed,
    model,
    random_array,
    read,
)

from demitasse import ModelError, Runtime


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    with composed() as made:
        yield made


def test_the_weights_of_a_model_can_be_trained(runtime: Runtime, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Gemm", ["x", "w"], ["h"], name="fc", transB=1),
        helper.make_node("Relu", ["h"], ["y"]),
    ]
    net = read(runtime, model(nodes, {"w": random_array(5, 6)}, (4, 6)), tmp_path)
    assert [parameter.trainable for parameter in net.graph.parameters] == [True]


def test_nodes_that_read_the_same_weights_have_them_in_common(runtime: Runtime, tmp_path: Path) -> None:
    """Not those that an exporter found alike: the numbers of fresh batch normalisations."""
    fresh = {"one": np.ones(4, np.float32), "zero": np.zeros(4, np.float32)}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="first", group=2, pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["a", "one", "zero", "zero", "one"], ["b"], name="n1"),
        helper.make_node("Conv", ["b", "w"], ["c"], name="second", group=2, pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c", "one", "zero", "zero", "one"], ["y"], name="n2"),
    ]
    net = read(runtime, model(nodes, {"w": W, **fresh}), tmp_path)
    owners = [sorted(name for name, _ in p.owners) for p in net.graph.parameters if p.trainable]
    assert owners == [["first", "second"], ["n1"], ["n1"], ["n2"], ["n2"]]


def test_arrays_are_shared_wherever_among_the_inputs_they_are(runtime: Runtime, tmp_path: Path) -> None:
    """And not by nodes that have one of two in common."""
    equation = {"equation": "ab,nb,bc->nac"}
    nodes = [
        helper.make_node("Einsum", [first, "x", "c"], [made], name=made, **equation)
        for made, first in (("p", "a"), ("q", "b"), ("y", "a"))
    ]
    constants = {"a": random_array(2, 3), "b": random_array(2, 3) + 1, "c": random_array(3, 4)}
    x = random_array(5, 3)
    net = read(runtime, model(nodes, constants, x.shape, ("p", "q", "y")), tmp_path)
    owners = [sorted(name for name, _ in p.owners) for p in net.graph.parameters]
    assert owners == [["p", "y"], ["p", "y"], ["q"], ["q"]]
    found = net.forward(x=x)
    for name, first in (("p", "a"), ("q", "b"), ("y", "a")):
        wanted = np.einsum("ab,nb,bc->nac", constants[first], x, constants["c"])
        np.testing.assert_allclose(found[name], wanted, rtol=1e-5, atol=1e-5)


def test_training_from_a_model_takes_the_steps_of_stochastic_gradients(
    runtime: Runtime, tmp_path: Path
) -> None:
    """A linear classifier, by hand in float64."""
    draw = np.random.default_rng(2)
    w, x, label = draw.normal(size=(5, 6)), draw.normal(size=(12, 6)), draw.integers(0, 5, 12)
    node = helper.make_node("Gemm", ["x", "w"], ["y"], name="fc", transB=1)
    (tmp_path / "model.onnx").write_bytes(model([node], {"w": w}, ("n", 6)).SerializeToString())
    options: dict[str, Any] = {"batch": 4, "rate": 0.5, "momentum": 0.9, "iterations": 3}
    solver = runtime.program("onnx_solver", tmp_path / "model.onnx", **options)
    data = {"train": {"x": x, "label": label}}
    with runtime.trainer(solver, data=data, precision="f64") as trainer:
        losses = [trainer.step().loss for _ in range(3)]
    history = np.zeros_like(w)
    for step, found in enumerate(losses):
        a, b = x[4 * step : 4 * step + 4], label[4 * step : 4 * step + 4]
        shares = np.exp(a @ w.T)
        shares /= shares.sum(1, keepdims=True)
        assert found == pytest.approx(-np.log(shares[range(4), b]).mean(), rel=1e-12)
        shares[range(4), b] -= 1
        history = 0.9 * history + 0.5 * shares.T @ a / 4
        w = w - history


@pytest.mark.parametrize("axis", [0, 1])
def test_a_logarithm_of_a_softmax_takes_its_gradient_back(
    runtime: Runtime, axis: int, tmp_path: Path
) -> None:
    """dx = dy - softmax(x) * the sum of dy, by hand in float64."""
    draw = np.random.default_rng(2)
    w, x, target = draw.normal(size=(5, 6)), draw.normal(size=(4, 6)), draw.normal(size=(4, 5))
    nodes = [
        helper.make_node("Gemm", ["x", "w"], ["h"], name="fc", transB=1),
        helper.make_node("LogSoftmax", ["h"], ["y"], axis=axis),
    ]
    (tmp_path / "model.onnx").write_bytes(model(nodes, {"w": w}, (4, 6)).SerializeToString())
    options: dict[str, Any] = {"batch": 4, "rate": 0.5, "iterations": 2, "loss": "half_squared_distance"}
    solver = runtime.program("onnx_solver", tmp_path / "model.onnx", **options)
    data = {"train": {"x": x, "label": target}}
    with runtime.trainer(solver, data=data, precision="f64") as trainer:
        losses = [trainer.step().loss for _ in range(2)]
    for found in losses:
        h = x @ w.T
        powers = np.exp(h)
        shares = powers / powers.sum(axis, keepdims=True)
        less = np.log(shares) - target
        assert found == pytest.approx((less**2).sum() / 8, rel=1e-10)
        w = w - 0.5 * (less / 4 - shares * (less / 4).sum(axis, keepdims=True)).T @ x


def test_statistics_are_a_batchs_in_training_where_the_file_says_so(
    runtime: Runtime, tmp_path: Path
) -> None:
    names = ("scale", "bias", "mean", "variance")
    constants = {n: np.abs(random_array(4)).astype(np.float64) + 0.1 * i for i, n in enumerate(names)}
    node = helper.make_node(
        "BatchNormalization", ["x", *names], ["y", "m", "v"], name="n", training_mode=1, momentum=0.8
    )
    path = tmp_path / "model.onnx"
    path.write_bytes(model([node], constants, ("n", 4, 6, 5)).SerializeToString())
    net = runtime.net(path, phase="train", precision="f64")
    mean, variance = X.mean((0, 2, 3), np.float64), X.var((0, 2, 3), np.float64)

    def normalised(mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
        along = (each[:, None, None] for each in (mean, np.sqrt(variance + 1e-5)))
        centre, deviation = along
        scale, bias = (constants[n][:, None, None] for n in ("scale", "bias"))
        made: np.ndarray = scale * (X - centre) / deviation + bias
        return made

    np.testing.assert_allclose(net.forward(x=X)["y"], normalised(mean, variance), rtol=1e-9, atol=1e-9)
    for kept, name, now in zip(net.params["n"], ("mean", "variance"), (mean, variance), strict=False):
        np.testing.assert_allclose(kept, 0.8 * constants[name] + 0.2 * now, rtol=1e-9)
    tested = runtime.net(path, precision="f64").forward(x=X)["y"]
    wanted = normalised(constants["mean"], constants["variance"])
    np.testing.assert_allclose(tested, wanted, rtol=1e-9, atol=1e-9)


def test_a_normalisation_that_trains_keeps_its_scale_where_another_follows(
    runtime: Runtime, tmp_path: Path
) -> None:
    names = ("scale", "bias", "mean", "variance")
    constants = {n: np.abs(random_array(4)).astype(np.float64) + 0.1 * i for i, n in enumerate(names)}
    constants["k"] = np.array([2.0, -3.0, 0.5, 7.0]).reshape(4, 1, 1)
    nodes = [
        helper.make_node(
            "BatchNormalization", ["x", *names], ["n", "m", "v"], name="n", training_mode=1
        ),
        helper.make_node("Mul", ["n", "k"], ["y"]),
    ]
    path = tmp_path / "model.onnx"
    path.write_bytes(model(nodes, constants, ("n", 4, 6, 5)).SerializeToString())
    net = runtime.net(path, phase="train", precision="f64")
    over = {"axis": (0, 2, 3), "keepdims": True}
    x = X.astype(np.float64)
    apart = (x - x.mean(**over)) / np.sqrt(x.var(**over) + 1e-5)
    scale, bias = (constants[n][:, None, None] for n in ("scale", "bias"))
    wanted = (scale * apart + bias) * constants["k"]
    np.testing.assert_allclose(net.forward(x=X)["y"], wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"loss": "softmax"}, "unknown loss 'softmax'; did you mean 'softmax_loss'"),
        ({"output": "z"}, r"unknown output 'z'.*valid: y"),
        ({"label": "x"}, "the label 'x' has the name of a blob"),
        ({"batch": 0}, "batch 0 and iterations 1"),
    ],
)
def test_a_model_that_cannot_be_trained_so_is_told_of(
    runtime: Runtime, options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    read(runtime, model([helper.make_node("Relu", ["x"], ["y"])], {}, ("n", 4)), tmp_path)
    given = {"batch": 4, "rate": 0.1, "iterations": 1, **options}
    with pytest.raises(ModelError, match=said):
        runtime.program("onnx_solver", tmp_path / "model.onnx", **given)
