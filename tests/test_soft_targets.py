"""The loss by targets that are shares, next to its formula."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from slopes import parameter, step, train

import demitasse

RANDOM = np.random.default_rng(12)
X = 2 * RANDOM.normal(size=(4, 3, 2, 2))
TARGET = RANDOM.dirichlet([0.5] * 3, size=(4, 2, 2)).transpose(0, 3, 1, 2)
TARGET[1, :, 0, 1], TARGET[2, :, 1, 1] = [0, 1, 0], [0, 0.25, 0.75]


@pytest.fixture(params=["cpu", "reference"])
def runtime(request: Any) -> Iterator[Any]:
    names = ["caffe", "datasets", "training", "snapshots", request.param, "reference"]
    with demitasse.compose(plugins=list(dict.fromkeys(names))) as made:
        yield made


def softmax(x: np.ndarray, axis: int) -> np.ndarray:
    powers = np.exp(x - x.max(axis, keepdims=True))
    return powers / powers.sum(axis, keepdims=True)


def layer(more: str = "") -> str:
    return parameter("x", X) + (
        'layer { name: "soft" type: "SoftmaxCrossEntropyLoss" bottom: "x" bottom: "label" top: "loss" '
        f"{more} }}"
    )


@pytest.mark.parametrize(("more", "axis"), [("", 1), ("softmax_param { axis: -1 }", 3)])
def test_the_softmax_is_drawn_to_the_targets(runtime: Any, tmp_path: Path, more: str, axis: int) -> None:
    with train(runtime, tmp_path, layer(more + " loss_weight: 0.125"), TARGET) as trainer:
        loss, gradients = step(trainer, {"x": X})
    share = softmax(X, axis)
    given = TARGET > 0
    expected = (TARGET[given] * np.log(TARGET[given] / share[given])).sum() / 4
    assert loss == pytest.approx(0.125 * expected, rel=1e-9)
    np.testing.assert_allclose(gradients["x"], 0.125 * (share - TARGET) / 4, rtol=1e-9, atol=1e-12)


def test_a_share_that_vanishes_stays_finite(runtime: Any, tmp_path: Path) -> None:
    x = X.copy()
    x[0, :, 0, 0] = [0, 2000, 0]
    with train(runtime, tmp_path, layer(), TARGET) as trainer:
        loss, gradients = step(trainer, {"x": x})
    assert np.isfinite(loss)
    np.testing.assert_allclose(gradients["x"], (softmax(x, 1) - TARGET) / 4, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("more", "target", "told"),
    [("", TARGET[:, :2], "not as many"), ("loss_param { normalize: true }", TARGET, "loss_param")],
)
def test_what_it_cannot_compute_is_named(
    runtime: Any, tmp_path: Path, more: str, target: np.ndarray, told: str
) -> None:
    with pytest.raises(
        demitasse.DemitasseError, match=rf"layer 'soft' \(SoftmaxCrossEntropyLoss\): .*{told}"
    ):
        train(runtime, tmp_path, layer(more), target)
