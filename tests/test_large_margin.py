"""Products with L-Softmax's margin of the angle, next to the paper's equations, and softmax losses in
which one class counts more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from slopes import parameter, slope, step, train

import demitasse

RANDOM = np.random.default_rng(4)
X = RANDOM.normal(size=(8, 2, 2, 1))
LABEL = np.array([4, 0, 4, 2, 4, 0, 1, 3], float)
MARGINS = {"SINGLE": 1, "DOUBLE": 2, "TRIPLE": 3, "QUADRUPLE": 4}
FACTORS = "base: 40 gamma: 0.5 power: 2 lambda_min: 3"


@pytest.fixture(params=["cpu", "reference"])
def runtime(request: Any) -> Iterator[Any]:
    names = ["caffe", "datasets", "training", "snapshots", request.param, "reference"]
    with demitasse.compose(plugins=list(dict.fromkeys(names))) as made:
        yield made


def net(more: str) -> str:
    return parameter("x", X) + (
        'layer { name: "scores" type: "LargeMarginInnerProduct" bottom: "x" bottom: "label" top: "y" '
        f'top: "lambda" largemargin_inner_product_param {{ {more} '
        "weight_filler { type: 'gaussian' std: 1 } } }"
        'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "y" bottom: "label" top: "loss" }'
    )


def loss_of(x: np.ndarray, w: np.ndarray, margin: int, factor: float) -> float:
    """The mean loss with the paper's psi, one sample after the other."""
    total = 0.0
    for sample, name in zip(x.reshape(len(x), -1), LABEL.astype(int), strict=True):
        y = w @ sample
        most = np.linalg.norm(sample) * np.linalg.norm(w[name])
        t = np.arccos(y[name] / most)
        k = min(int(margin * t / np.pi), margin - 1)
        turned = most * ((-1) ** k * np.cos(margin * t) - 2 * k)
        y[name] = (factor * y[name] + turned) / (1 + factor)
        total += np.log(np.exp(y - y.max()).sum()) + y.max() - y[name]
    return total / len(x)


@pytest.mark.parametrize("kind", MARGINS)
def test_losses_and_gradients_are_the_papers(runtime: Any, tmp_path: Path, kind: str) -> None:
    with train(runtime, tmp_path, net(f"num_output: 5 type: {kind} {FACTORS}"), LABEL) as trainer:
        for iteration in range(3):
            before = np.array(trainer.net.params["scores"][0])
            loss, gradients = step(trainer, {"x": X})
            factor = max(3.0, 40 * (1 + 0.5 * (iteration + 1)) ** -2.0)
            found = float(trainer.net.blobs["lambda"].data[0])
            moved = before - trainer.net.params["scores"][0]
            margin = MARGINS[kind]
            assert found == pytest.approx(factor, rel=1e-12)
            assert loss == pytest.approx(loss_of(X, before, margin, factor), rel=1e-9)
            of_x = slope(lambda x: loss_of(x, before, margin, factor), X)  # noqa: B023
            of_w = slope(lambda w: loss_of(X, w, margin, factor), before)  # noqa: B023
            np.testing.assert_allclose(gradients["x"], of_x, rtol=1e-6, atol=1e-8)
            np.testing.assert_allclose(moved, of_w, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("", "num_output"),
        ("num_output: 5 axis: 2", "axis 2"),
        ("num_output: 3", "label 4"),
    ],
)
def test_a_mistake_is_named(runtime: Any, tmp_path: Path, more: str, told: str) -> None:
    with (
        pytest.raises(demitasse.DemitasseError, match="scores.*" + told),
        train(runtime, tmp_path, net(more), LABEL) as trainer,
    ):
        trainer.step()


SCORES = RANDOM.normal(size=(4, 3, 2, 1))
CLASSES = np.array([[0, 2], [1, 1], [2, 0], [1, 255]], float).reshape(4, 1, 2, 1)


@pytest.mark.parametrize(
    ("normalised", "divisor"), [("", 7), ("normalize: false", 4), ("normalization: FULL", 8)]
)
def test_the_losses_of_one_class_are_multiplied(
    runtime: Any, tmp_path: Path, normalised: str, divisor: int
) -> None:
    text = parameter("x", SCORES) + (
        'layer { name: "loss" type: "WeightedSoftmaxWithLoss" bottom: "x" bottom: "label" top: "loss" '
        "softmax_param { pos_cid: 1 pos_mult: 2.5 } "
        f"loss_param {{ ignore_label: 255 {normalised} }} }}"
    )

    def expected(x: np.ndarray) -> float:
        logs = x - np.log(np.exp(x).sum(1, keepdims=True))
        total = 0.0
        for i, row in enumerate(CLASSES[:, 0, :, 0]):
            for j, name in enumerate(row):
                if name != 255:
                    total -= (2.5 if name == 1 else 1.0) * logs[i, int(name), j, 0]
        return total / divisor

    with train(runtime, tmp_path, text, CLASSES) as trainer:
        loss, gradients = step(trainer, {"x": SCORES})
    assert loss == pytest.approx(expected(SCORES), rel=1e-9)
    np.testing.assert_allclose(gradients["x"], slope(expected, SCORES), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("more", "told"), [("pos_cid: 3", "pos_cid: 3"), ("pos_mult: -1", "pos_mult: -1")]
)
def test_a_class_or_factor_that_cannot_be_is_named(
    runtime: Any, tmp_path: Path, more: str, told: str
) -> None:
    text = parameter("x", SCORES) + (
        'layer { name: "loss" type: "WeightedSoftmaxWithLoss" bottom: "x" bottom: "label" top: "loss" '
        f"softmax_param {{ {more} }} }}"
    )
    with pytest.raises(demitasse.DemitasseError, match=f"loss.*{told}"):
        train(runtime, tmp_path, text, CLASSES)
