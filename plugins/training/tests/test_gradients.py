"""Gradients are the derivatives of the loss, and blobs can be inspected."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from demitasse import ModelError

PLAIN_DESCENT = {"rate": 1.0, "momentum": 0.0, "decay": 0.0}
"""A step of this solver subtracts the gradient from the parameters."""


@pytest.fixture
def branches(toy: ModuleType) -> Any:
    """A net with shared weights, two branches that join, dropout, a view, and two losses."""
    return toy.net(
        toy.layer("samples", "Samples", "", "data label", batch=6),
        toy.layer("first", "Convolution", "data", "first", outputs=2),
        toy.layer("active", "ReLU", "first", "first"),
        toy.layer("left", "Convolution", "first", "left", outputs=2, share="both"),
        toy.layer("right", "Convolution", "left", "right", outputs=2, share="both"),
        toy.layer("joined", "Concat", "left right", "joined"),
        toy.layer("drop", "Dropout", "joined", "joined"),
        toy.layer("flat", "Reshape", "joined", "flat", shape=(6, 144)),
        toy.layer("scores", "InnerProduct", "flat", "scores", outputs=3),
        toy.layer("side", "InnerProduct", "first", "side", outputs=3),
        toy.layer("total", "Sum", "scores side", "total"),
        toy.layer("loss", "SoftmaxLoss", "total label", "loss"),
        toy.layer("aside", "SoftmaxLoss", "side label", "aside", loss_weights=(0.3,)),
    )


def test_a_step_subtracts_the_derivatives_of_the_loss(
    toy: ModuleType, runtime: Callable[..., Any], branches: Any, copied: Any
) -> None:
    """Central differences in float64, of ten elements of every parameter."""
    made = runtime(arrays=toy.images(6))
    trainer = made.trainer(toy.solver(branches, **PLAIN_DESCENT), precision="f64")
    net = made.net(branches, phase="train", precision="f64", seed=3)
    before = copied(trainer.net)
    for layer, arrays in before.items():
        for mine, value in zip(net.params[layer], arrays, strict=True):
            mine[...] = value

    def objective() -> float:
        net.rewind()
        scores = net.forward()
        return float(scores["loss"] + 0.3 * scores["aside"])

    assert trainer.step(1).loss == pytest.approx(objective(), abs=1e-14), "the same dropout mask"
    after = trainer.net.params
    random, epsilon, checked = np.random.default_rng(0), 1e-5, 0
    for layer, arrays in before.items():
        for number, value in enumerate(arrays):
            gradient = value - after[layer][number]
            assert np.abs(gradient).max() > 1e-6
            flat = net.params[layer][number].reshape(-1)
            for i in random.permutation(value.size)[:10]:
                kept = flat[i]
                # In the toys, biases have twice the rate.
                flat[i] = kept + epsilon
                above = objective()
                flat[i] = kept - epsilon
                below = objective()
                flat[i] = kept
                derivative = (above - below) / (2 * epsilon) * (1 + number)
                assert gradient.reshape(-1)[i] == pytest.approx(derivative, abs=2e-9)
                checked += 1
    assert checked > 50


def test_blobs_and_their_gradients_agree_with_numpy(
    toy: ModuleType, runtime: Callable[..., Any]
) -> None:
    arrays = toy.images(5, size=3)
    net = toy.net(
        toy.layer("samples", "Samples", "", "data label", batch=5),
        toy.layer("hidden", "InnerProduct", "data", "hidden", outputs=7),
        toy.layer("active", "ReLU", "hidden", "active"),
        toy.layer("scores", "InnerProduct", "active", "scores", outputs=3),
        toy.layer("loss", "SoftmaxLoss", "scores label", "loss", loss_weights=(2.0,)),
    )
    solver = toy.solver(net, **PLAIN_DESCENT)
    trainer = runtime(arrays=arrays).trainer(solver, precision="f64", retain="all")
    (W, b), (V, c) = ([a.copy() for a in trainer.net.params[k]] for k in ("hidden", "scores"))
    result = trainer.step(1)

    x, label = arrays["data"].reshape(5, 9), arrays["label"].astype(int)
    hidden = x @ W.T + b
    active = np.maximum(hidden, 0)
    scores = active @ V.T + c
    probability = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    loss = -np.log(probability[range(5), label]).mean()
    d_scores = 2.0 * (probability - np.eye(3)[label]) / 5
    d_active = d_scores @ V
    d_hidden = d_active * (hidden > 0)

    blobs = trainer.net.blobs
    assert result.loss == pytest.approx(2.0 * loss, abs=1e-14)
    expected = {"hidden": hidden, "active": active, "scores": scores, "loss": loss}
    for name, value in expected.items():
        assert blobs[name].shape == np.shape(value)
        assert np.allclose(blobs[name].data, value, rtol=0, atol=1e-14), name
    assert np.array_equal(blobs["data"].data, arrays["data"])
    gradients = {"hidden": d_hidden, "active": d_active, "scores": d_scores, "loss": 2.0}
    for name, value in gradients.items():
        assert np.allclose(blobs[name].diff, value, rtol=0, atol=1e-14), name
    assert np.allclose(trainer.net.params["hidden"][0], W - d_hidden.T @ x, rtol=0, atol=1e-14)
    assert np.allclose(trainer.net.params["scores"][1], c - 2 * d_scores.sum(0), rtol=0, atol=1e-14)


def test_the_gradient_of_a_blob_with_two_readers_is_the_sum_of_both(
    toy: ModuleType, train: Callable[..., Any]
) -> None:
    """y = V h + U h: the gradient of h is V^T dy + U^T dy."""
    net = toy.net(
        toy.layer("samples", "Samples", "", "data label", batch=5),
        toy.layer("hidden", "InnerProduct", "data", "hidden", outputs=7),
        toy.layer("left", "InnerProduct", "hidden", "left", outputs=3),
        toy.layer("right", "InnerProduct", "hidden", "right", outputs=3),
        toy.layer("both", "Sum", "left right", "both"),
        toy.layer("loss", "SoftmaxLoss", "both label", "loss"),
    )
    trainer = train(net, retain="all", solver={"rate": 0.0})
    V, U = (trainer.net.params[layer][0] for layer in ("left", "right"))
    trainer.step(1)
    blobs = trainer.net.blobs
    expected = blobs["both"].diff @ V + blobs["both"].diff @ U
    assert np.allclose(blobs["hidden"].diff, expected, rtol=0, atol=1e-15)


def test_a_blob_that_is_overwritten_in_place_shows_its_last_values(
    toy: ModuleType, train: Callable[..., Any]
) -> None:
    trainer = train(toy.classifier(), retain="all")
    trainer.step(1)
    assert (trainer.net.blobs["first"].data >= 0).all(), "rectified"


def test_a_retained_blob_is_a_live_view(toy: ModuleType, train: Callable[..., Any]) -> None:
    trainer = train(toy.classifier(), retain="all", solver={"rate": 0.0})
    view = trainer.net.blobs["scores"].data
    trainer.step(1)
    first = view.copy()
    trainer.step(1)
    assert not np.array_equal(first, view)
    assert np.shares_memory(view, trainer.net.blobs["scores"].data)


def test_a_blob_whose_memory_others_use_is_not_shown(toy: ModuleType, train: Callable[..., Any]) -> None:
    trainer = train(toy.classifier())
    trainer.step(1)
    with pytest.raises(ModelError, match=r"blob 'second' shares its memory.*retain='all'"):
        _ = trainer.net.blobs["second"].data
    with pytest.raises(ModelError, match=r"blob 'second'.*retain='all' to look at its gradient"):
        _ = trainer.net.blobs["second"].diff
    assert trainer.net.blobs["second"].shape == (10, 4, 6, 6)
    assert trainer.net.blobs["loss"].data.shape == (), "outputs are kept"


def test_parameters_are_live_views_in_logical_order(toy: ModuleType, train: Callable[..., Any]) -> None:
    trainer = train(toy.classifier())
    params = trainer.net.params
    assert {name: [a.shape for a in arrays] for name, arrays in params.items()} == {
        "first": [(4, 1, 3, 3), (4,)],
        "second": [(4, 4, 3, 3), (4,)],
        "third": [(4, 4, 3, 3), (4,)],
        "scores": [(3, 144), (3,)],
    }
    params["scores"][1][...] = [50.0, 0.0, 0.0]
    expected = (trainer.net.blobs["label"].shape[0],)
    assert expected == (10,)
    assert trainer.step(1).loss > 5, "the edited bias counts"
