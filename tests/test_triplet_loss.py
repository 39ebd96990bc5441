"""The loss by an anchor's distances to its positive and its negative, beside its formula."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from slopes import parameter, slope, step, train

import demitasse

RANDOM = np.random.default_rng(8)
ROWS = {name: RANDOM.normal(size=(5, 3, 2, 1)) for name in ("a", "p", "n")}
LAYER = (
    'layer {{ name: "l" type: "TripletLoss" bottom: "a" bottom: "p" bottom: "{}" top: "loss" '
    "loss_weight: 3 {} }}"
)


def loss(a: np.ndarray, p: np.ndarray, n: np.ndarray, margin: float) -> float:
    near, far = (((a - each).reshape(5, 6) ** 2).sum(1) for each in (p, n))
    return float(np.maximum(0, margin + near - far).sum() / (2 * 5))


@pytest.fixture(params=["cpu", "reference"])
def runtime(request: Any) -> Iterator[Any]:
    names = ["caffe", "datasets", "training", "snapshots", request.param, "reference"]
    with demitasse.compose(plugins=list(dict.fromkeys(names))) as made:
        yield made


@pytest.mark.parametrize("margin", [0.0, 2.5])
def test_a_loss_and_its_gradients_are_the_formulas(runtime: Any, tmp_path: Path, margin: float) -> None:
    text = "".join(parameter(name, value) for name, value in ROWS.items())
    text += LAYER.format("n", f"triplet_loss_param {{ margin: {margin} }}")
    found, gradients = step(train(runtime, tmp_path, text, np.zeros(5)), ROWS)
    away = [((ROWS["a"] - ROWS[each]).reshape(5, 6) ** 2).sum(1) for each in "pn"]
    counted = margin + away[0] - away[1] > 0
    assert counted.any() and not counted.all()
    assert found == pytest.approx(3 * loss(**ROWS, margin=margin), rel=1e-12)
    for name, value in ROWS.items():
        expected = slope(lambda x, name=name: 3 * loss(**{**ROWS, name: x}, margin=margin), value)
        np.testing.assert_allclose(gradients[name], expected, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize(
    ("negative", "more", "said"),
    [
        ("n", "", r"needs triplet_loss_param \{ margin"),
        ("label", "triplet_loss_param { margin: 1 }", "must be rows of the same length"),
    ],
)
def test_mistakes_are_told(runtime: Any, tmp_path: Path, negative: str, more: str, said: str) -> None:
    text = "".join(parameter(name, value) for name, value in ROWS.items())
    with pytest.raises(demitasse.ModelError, match=said) as caught:
        train(runtime, tmp_path, text + LAYER.format(negative, more), np.zeros(5))
    assert "layer 'l' (TripletLoss)" in str(caught.value)
