"""What is trained: where gradients stop, and which blobs are part of the objective."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from slopes import parameter, slope, step, train

import demitasse

RANDOM = np.random.default_rng(3)
X, Y = RANDOM.normal(size=(3, 4)), RANDOM.normal(size=(3, 4))
LABEL = np.array([1.0, 0, 3])
BOTH = parameter("x", X) + parameter("y", Y)


@pytest.fixture(params=["cpu", "reference"])
def runtime(request: Any) -> Iterator[Any]:
    names = ["caffe", "datasets", "training", "snapshots", request.param, "reference"]
    with demitasse.compose(plugins=list(dict.fromkeys(names))) as made:
        yield made


def gradients(runtime: Any, folder: Path, text: str) -> tuple[float, dict[str, np.ndarray]]:
    return step(train(runtime, folder, BOTH + text, LABEL), {"x": X, "y": Y})  # type: ignore[no-any-return]


def layer(kind: str, bottoms: str, top: str, more: str = "") -> str:
    named = " ".join(f'bottom: "{bottom}"' for bottom in bottoms.split())
    tops = " ".join(f'top: "{each}"' for each in top.split())
    return f'layer {{ name: "{top.split()[0]} of {kind}" type: "{kind}" {named} {tops} {more} }}\n'


def logistic(x: np.ndarray) -> float:
    """The loss that SoftmaxWithLoss is."""
    shares = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    return float(-np.log(shares[range(3), LABEL.astype(int)]).mean())


# Where gradients stop.


def test_a_gradient_stops_at_the_bottom_that_says_so(runtime: Any, tmp_path: Path) -> None:
    text = layer("EuclideanLoss", "x y", "loss", "propagate_down: true propagate_down: false")
    loss, moved = gradients(runtime, tmp_path, text)
    assert loss == pytest.approx(((X - Y) ** 2).sum() / 6)
    np.testing.assert_allclose(moved["x"], (X - Y) / 3, rtol=1e-9)
    assert not moved["y"].any()


def test_a_blob_is_still_reached_on_another_way(runtime: Any, tmp_path: Path) -> None:
    text = (
        layer("Sigmoid", "x", "s", "propagate_down: false")
        + layer("Eltwise", "x s", "sum")
        + layer("EuclideanLoss", "sum y", "loss")
    )
    _, moved = gradients(runtime, tmp_path, text)
    apart = (X + 1 / (1 + np.exp(-X)) - Y) / 3
    np.testing.assert_allclose(moved["x"], apart, rtol=1e-9)
    np.testing.assert_allclose(moved["y"], -apart, rtol=1e-9)


def test_a_gradient_stops_in_place_too(runtime: Any, tmp_path: Path) -> None:
    text = (
        layer("Power", "x", "p", "power_param { scale: 2 }")
        + layer("ReLU", "p", "p", "propagate_down: false")
        + layer("EuclideanLoss", "p y", "loss")
    )
    loss, moved = gradients(runtime, tmp_path, text)
    rest = np.maximum(2 * X, 0) - Y
    assert loss == pytest.approx((rest**2).sum() / 6)
    assert not moved["x"].any()
    np.testing.assert_allclose(moved["y"], -rest / 3, rtol=1e-9)


def test_parameters_of_the_layer_itself_are_trained(runtime: Any, tmp_path: Path) -> None:
    """What lies below an inner product stands still, its own weights move."""
    text = layer(
        "InnerProduct",
        "x",
        "p",
        "propagate_down: false inner_product_param { num_output: 4 weight_filler "
        '{ type: "gaussian" std: 1 } }',
    ) + layer("EuclideanLoss", "p y", "loss")
    trainer = train(runtime, tmp_path, BOTH + text, LABEL)
    before = [a.copy() for a in trainer.net.params["p of InnerProduct"]]
    _, moved = step(trainer, {"x": X, "y": Y})
    rest = (X @ before[0].T + before[1] - Y) / 3
    after = trainer.net.params["p of InnerProduct"]
    assert not moved["x"].any()
    np.testing.assert_allclose(before[0] - after[0], rest.T @ X, rtol=1e-8)
    np.testing.assert_allclose(before[1] - after[1], rest.sum(0), rtol=1e-8)


def test_labels_take_no_gradient_and_false_says_no_more(runtime: Any, tmp_path: Path) -> None:
    text = layer("SoftmaxWithLoss", "x label", "loss", "propagate_down: true propagate_down: false")
    _, moved = gradients(runtime, tmp_path, text)
    np.testing.assert_allclose(moved["x"], slope(logistic, X), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            layer("SoftmaxWithLoss", "x label", "l", "propagate_down: true propagate_down: true"),
            "propagate_down: true for bottom 'label', but no gradient reaches its labels",
        ),
        (
            layer("SigmoidCrossEntropyLoss", "x y", "l", "propagate_down: 0 propagate_down: 1"),
            "propagate_down: true for bottom 'y', but no gradient reaches its labels",
        ),
        (layer("ReLU", "x", "l", "propagate_down: 1 propagate_down: 0"), "has 2 propagate_down for 1 "),
        (layer("EuclideanLoss", "x y", "l", "propagate_down: false"), "has 1 propagate_down for 2 "),
        (layer("ReLU", "x", "l", "loss_weight: 1 loss_weight: 1"), "has 2 loss_weight for 1 tops"),
        (layer("Accuracy", "x label", "l", "loss_weight: 1"), "an accuracy has no gradient"),
    ],
)
def test_what_cannot_be_propagated_is_an_error_with_its_place(
    tmp_path: Path, text: str, message: str
) -> None:
    with (
        demitasse.compose(plugins=["caffe", "datasets", "training", "reference"]) as runtime,
        pytest.raises(demitasse.ModelError, match=rf"net.prototxt:\d+: layer .*{message}"),
    ):
        train(runtime, tmp_path, BOTH + text, LABEL)


def test_nothing_is_propagated_in_the_test_phase(runtime: Any, tmp_path: Path) -> None:
    """So a file may say there what it likes, as long as it says it of every bottom."""
    text = layer("SoftmaxWithLoss", "x label", "loss", "propagate_down: true propagate_down: true")
    given = layer("Input", "", "x label", "input_param { shape { dim: 3 dim: 4 } shape { dim: 3 } }")
    (tmp_path / "net.prototxt").write_text(given + text)
    outputs = runtime.net(tmp_path / "net.prototxt", precision="f64").forward(x=X, label=LABEL)
    assert outputs["loss"] == pytest.approx(logistic(X))


# What is part of the objective.


REDUCTION = layer("Reduction", "x", "r", "reduction_param { operation: SUMSQ } loss_weight: 0.5")
POWER = layer("Power", "x", "p", "power_param { power: 2 scale: 3 } loss_weight: 0.25")
OBJECTIVES: dict[str, tuple[str, Callable[[np.ndarray], float]]] = {
    "a reduction": (REDUCTION, lambda x: 0.5 * float((x**2).sum())),
    "the sum of a blob": (POWER, lambda x: 0.25 * float((9 * x**2).sum())),
    "several losses": (
        REDUCTION
        + POWER
        + layer("SoftmaxWithLoss", "x label", "loss", "loss_weight: 2")
        + layer("HingeLoss", "x label", "unused", "loss_weight: 0"),
        lambda x: float(0.5 * (x**2).sum() + 0.25 * (9 * x**2).sum()) + 2 * logistic(x),
    ),
    "a blob that goes on": (
        layer("Sigmoid", "x", "s", "loss_weight: 3")
        + layer("Reduction", "s", "r", "reduction_param { operation: SUMSQ } loss_weight: 1"),
        lambda x: float((3 / (1 + np.exp(-x)) + 1 / (1 + np.exp(-x)) ** 2).sum()),
    ),
    "both sides of a layer in place": (
        layer("Power", "x", "p", "power_param { scale: 2 } loss_weight: 1")
        + layer("Sigmoid", "p", "p", "loss_weight: 10"),
        lambda x: float((2 * x + 10 / (1 + np.exp(-2 * x))).sum()),
    ),
    "one of two pieces": (
        layer(
            "Slice", "x", "a b", "slice_param { axis: 1 slice_point: 1 } loss_weight: 0 loss_weight: 2"
        ),
        lambda x: 2 * float(x[:, 1:].sum()),
    ),
    "a view": (
        layer("Power", "x", "p", "power_param { power: 2 }")
        + layer("Flatten", "p", "f", "flatten_param { axis: 0 } loss_weight: 1"),
        lambda x: float((x**2).sum()),
    ),
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_objective_is_the_weighted_sum_of_blobs(runtime: Any, tmp_path: Path, name: str) -> None:
    text, formula = OBJECTIVES[name]
    loss, moved = gradients(runtime, tmp_path, text)
    assert loss == pytest.approx(formula(X), rel=1e-12)
    np.testing.assert_allclose(moved["x"], slope(formula, X), rtol=1e-6, atol=1e-8)
    assert not moved["y"].any()


def test_a_parameter_may_itself_be_part_of_the_objective(runtime: Any, tmp_path: Path) -> None:
    x = parameter("x", X).replace("}\n", "loss_weight: 3 }\n")
    loss, moved = step(train(runtime, tmp_path, x, LABEL), {"x": X})
    assert loss == pytest.approx(3 * X.sum())
    np.testing.assert_allclose(moved["x"], np.full(X.shape, 3.0), rtol=1e-12)


def test_a_parameter_may_be_seen_in_another_shape(runtime: Any, tmp_path: Path) -> None:
    """Its gradient has memory of its own, which a view of another gradient is not."""
    text = layer("Flatten", "x", "f", "flatten_param { axis: 0 }") + layer(
        "Reduction", "f", "r", "reduction_param { operation: SUMSQ } loss_weight: 1"
    )
    _, moved = gradients(runtime, tmp_path, text)
    np.testing.assert_allclose(moved["x"], 2 * X, rtol=1e-12)


def test_a_blob_called_like_another_s_gradient_keeps_its_values(runtime: Any, tmp_path: Path) -> None:
    text = layer("Power", "x", "dp", "power_param { scale: 5 }") + layer(
        "Sigmoid", "dp", "p", "loss_weight: 4"
    )
    loss, moved = gradients(runtime, tmp_path, text)
    assert loss == pytest.approx(4 * float((1 / (1 + np.exp(-5 * X))).sum()))
    assert moved["x"].any()


def test_no_gradient_comes_from_the_second_top_of_a_loss(runtime: Any, tmp_path: Path) -> None:
    """The probabilities are a by-product: what is done with them trains nothing below."""
    text = layer("SoftmaxWithLoss", "x label", "loss shares", "loss_weight: 0 loss_weight: 0") + layer(
        "EuclideanLoss", "shares y", "apart"
    )
    loss, moved = gradients(runtime, tmp_path, text)
    shares = np.exp(X) / np.exp(X).sum(1, keepdims=True)
    assert loss == pytest.approx(((shares - Y) ** 2).sum() / 6)
    assert not moved["x"].any()
    np.testing.assert_allclose(moved["y"], (Y - shares) / 3, rtol=1e-9)
