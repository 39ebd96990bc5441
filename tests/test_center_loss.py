"""The loss by the distance to classes' centres, beside the formulas of its paper."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from slopes import parameter, step, train

import demitasse

RANDOM = np.random.default_rng(6)
X = RANDOM.normal(size=(6, 3, 2, 1))
LABEL = np.array([4, 0, 4, 2, 4, 0], float)


def layer(weight: str = "", more: str = "num_output: 5") -> str:
    return (
        f'layer {{ name: "centres" type: "CenterLoss" bottom: "x" bottom: "label" top: "loss" {weight} '
        f"center_loss_param {{ {more} center_filler {{ type: 'gaussian' std: 1 }} }} }}"
    )


@pytest.fixture(params=["cpu", "reference"])
def runtime(request: Any) -> Iterator[Any]:
    names = ["caffe", "datasets", "training", "snapshots", request.param, "reference"]
    with demitasse.compose(plugins=list(dict.fromkeys(names))) as made:
        yield made


@pytest.mark.parametrize("weight", [None, 0.008, 2.0])
def test_samples_are_drawn_to_centres_and_centres_to_samples(
    runtime: Any, tmp_path: Path, weight: float | None
) -> None:
    text = parameter("x", X) + layer("" if weight is None else f"loss_weight: {weight}")
    trainer = train(runtime, tmp_path, text, LABEL)
    before = np.array(trainer.net.params["centres"][0])
    assert before.shape == (5, 6)
    loss, gradients = step(trainer, {"x": X})
    moved = before - trainer.net.params["centres"][0]
    away = X.reshape(6, 6) - before[LABEL.astype(int)]
    factor = 1.0 if weight is None else weight
    assert loss == pytest.approx(factor * (away**2).sum() / 12, rel=1e-12)
    np.testing.assert_allclose(gradients["x"].reshape(6, 6), factor * away / 6, rtol=1e-12)
    expected = np.zeros((5, 6))
    for row, name in zip(away, LABEL.astype(int), strict=True):
        expected[name] -= row
    expected /= 1 + np.bincount(LABEL.astype(int), minlength=5)[:, None]
    np.testing.assert_allclose(moved, expected, rtol=1e-9, atol=1e-12)
    assert not expected[[1, 3]].any() and expected[[0, 2, 4]].all()


def test_without_a_weight_nothing_moves(runtime: Any, tmp_path: Path) -> None:
    other = 'layer { name: "sum" type: "Reduction" bottom: "x" top: "sum" loss_weight: 1 }'
    trainer = train(runtime, tmp_path, parameter("x", X) + layer("loss_weight: 0") + other, LABEL)
    before = np.array(trainer.net.params["centres"][0])
    step(trainer, {"x": X})
    np.testing.assert_array_equal(trainer.net.params["centres"][0], before)


def test_a_test_has_the_loss_alone(tmp_path: Path) -> None:
    inputs = (
        'layer { name: "in" type: "Input" top: "x" top: "label" input_param { '
        "shape { dim: 6 dim: 3 dim: 2 dim: 1 } shape { dim: 6 } } }"
    )
    (tmp_path / "net.prototxt").write_text(inputs + layer())
    with demitasse.compose(plugins=["caffe", "training", "reference"]) as runtime:
        net = runtime.net(tmp_path / "net.prototxt", phase="test", precision="f64", seed=1)
        away = X.reshape(6, 6) - np.array(net.params["centres"][0])[LABEL.astype(int)]
        made = net.forward(x=X, label=LABEL)["loss"]
        assert float(made) == pytest.approx((away**2).sum() / 12, rel=1e-12)


@pytest.mark.parametrize(
    ("more", "said"),
    [("", "needs a num_output of 1 or more"), ("num_output: 5 axis: 2", "a row per sample")],
)
def test_mistakes_are_told(runtime: Any, tmp_path: Path, more: str, said: str) -> None:
    with pytest.raises(demitasse.ModelError, match=said) as caught:
        train(runtime, tmp_path, parameter("x", X) + layer(more=more), LABEL)
    assert "layer 'centres' (CenterLoss)" in str(caught.value)


def test_it_is_trained_with_one_worker(tmp_path: Path) -> None:
    sync = demitasse.SyncSpec("numa")
    level = demitasse.Level("worker", 2, workers="threads", sync=sync)
    machine = demitasse.Machine("two", (demitasse.Level("node"), level))
    text = parameter("x", X) + layer()
    plugins = ["caffe", "datasets", "training", "snapshots", "reference", "numa", "system"]
    with (
        demitasse.compose(machine, plugins=plugins) as two,
        pytest.raises(demitasse.ModelError, match="train it with one worker"),
    ):
        train(two, tmp_path, text, LABEL)
