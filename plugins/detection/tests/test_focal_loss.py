"""FocalLoss compared with the paper's equation, its slopes, and SoftmaxWithLoss for a gamma of 0."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import demitasse
from demitasse_detection.focal import focal_loss
from demitasse_detection.operations import OPERATIONS

PROPERTY = settings(max_examples=examples(40), suppress_health_check=list(HealthCheck))
DEFAULTS = next(word for word in OPERATIONS if word.name == "focal_loss").attributes
LAYER = "layer {{ name: 'f' type: 'FocalLoss' bottom: 'x' bottom: 'label' top: 'f' {} }}"


def slow(x: np.ndarray, label: np.ndarray, about: dict[str, Any]) -> float:
    """Compute the loss label by label."""
    rows = np.moveaxis(x, about["axis"], -1).reshape(-1, x.shape[about["axis"]])
    total, counted = 0.0, 0
    for row, number in zip(rows, label.reshape(-1), strict=True):
        if number == about["ignore_label"]:
            continue
        p = np.exp(row)[int(number)] / np.exp(row).sum()
        total -= about["alpha"] * (1 - p) ** about["gamma"] * np.log(p)
        counted += 1
    over = {"valid": counted, "full": len(rows), "batch_size": len(x), "none": 1}
    return float(total / max(1, over[about["normalization"]]))


@given(
    st.sampled_from([((4, 3), 1), ((2, 3, 2, 3), 1), ((2, 2, 5), 2)]),
    st.sampled_from([0.0, 0.5, 1.0, 2.0, 5.0]),
    st.sampled_from([0.25, 1.0]),
    st.sampled_from([None, 0]),
    st.sampled_from(["valid", "full", "batch_size", "none"]),
    st.integers(0, 99),
)
@PROPERTY
def test_the_loss_is_the_papers_and_its_slopes_are_slopes(
    form: tuple[tuple[int, ...], int],
    gamma: float,
    alpha: float,
    ignored: int | None,
    over: str,
    seed: int,
) -> None:
    shape, axis = form
    dice = np.random.default_rng(seed)
    x = dice.normal(0, 2, shape)
    label = dice.integers(0, shape[axis], tuple(np.delete(shape, axis)))
    about = {**DEFAULTS, "axis": axis, "gamma": gamma, "alpha": alpha, "ignore_label": ignored}
    about["normalization"] = over
    loss, probability, slopes = focal_loss(x, label, about)
    assert loss == pytest.approx(slow(x, label, about), rel=1e-9, abs=1e-12)
    np.testing.assert_allclose(probability.sum(axis), 1, rtol=1e-12)
    for at in dice.permutation(x.size)[:5]:
        sides = []
        for change in (1e-6, -1e-6):
            moved = x.copy()
            moved.flat[at] += change
            sides.append(focal_loss(moved, label, about)[0])
        assert slopes.flat[at] == pytest.approx((sides[0] - sides[1]) / 2e-6, rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_what_is_sure_beyond_all_bounds_has_finite_slopes(gamma: float) -> None:
    x, about = np.array([[1000.0, 0.0], [1000.0, 0.0]]), {**DEFAULTS, "gamma": gamma, "alpha": 1.0}
    loss, _, slopes = focal_loss(x, np.array([0, 1]), about)
    assert loss == 500  # the confident one adds nothing, the wrong one 1000
    np.testing.assert_allclose(slopes, [[0, 0], [0.5, -0.5]])


@pytest.mark.parametrize(
    ("fields", "about"),
    [
        ("", {}),
        ("focal_loss_param { gamma: 0.5 alpha: 1 }", {"gamma": 0.5, "alpha": 1.0}),
        (
            "loss_param { ignore_label: 2 normalize: false }",
            {"ignore_label": 2} | {"normalization": "batch_size"},
        ),
        (
            "loss_param { normalization: FULL ignore_label: 1 }",
            {"ignore_label": 1, "normalization": "full"},
        ),
        ("focal_loss_param { axis: -3 }", {}),
        ("softmax_param { axis: 1 }", {}),
    ],
)
def test_a_layers_fields_are_those_of_the_loss(run: Any, fields: str, about: dict[str, Any]) -> None:
    dice = np.random.default_rng(3)
    x, label = dice.normal(size=(2, 3, 4, 5)), dice.integers(0, 3, (2, 1, 4, 5))
    made = run(LAYER.format(fields), x=x, label=label.astype(np.float32))["f"]
    assert float(made) == pytest.approx(slow(x, label, {**DEFAULTS, **about}), rel=1e-9)


def test_without_gamma_it_is_the_softmax_loss(run: Any) -> None:
    dice = np.random.default_rng(4)
    x, label = dice.normal(size=(6, 5)), dice.integers(0, 5, 6).astype(np.float32)
    made = run(
        LAYER.format("top: 'p' focal_loss_param { gamma: 0 alpha: 1 }")
        + "layer { name: 's' type: 'SoftmaxWithLoss' bottom: 'x' bottom: 'label' top: 's' top: 'q' }",
        x=x,
        label=label,
    )
    assert float(made["f"]) == pytest.approx(float(made["s"]), rel=1e-12)
    np.testing.assert_allclose(made["p"], made["q"], rtol=1e-12)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("focal_loss_param { gamma: -1 }", "gamma -1 and alpha 0.25: the first must be 0 or more"),
        ("focal_loss_param { alpha: 0 }", "and alpha 0: .* the second above 0"),
        ("focal_loss_param { type: LINEAR }", "must be ORIGIN; LINEAR is for two classes"),
        ("focal_loss_param { axis: 2 }", r"axis 2 is not one of the 2 axes of x"),
        (
            "propagate_down: [true, false, false]",
            "a propagate_down for each of 2 bottoms, false for labels",
        ),
    ],
)
def test_a_wrong_field_is_told_with_its_layer(run: Any, fields: str, message: str) -> None:
    with pytest.raises(demitasse.ModelError, match=message) as caught:
        run(LAYER.format(fields), x=np.zeros((6, 5)), label=np.zeros(6))
    assert "net.prototxt:3" in str(caught.value)


def test_a_label_that_is_no_class_is_an_error(run: Any) -> None:
    message = r"net.prototxt:3: layer 'f' \(FocalLoss\): label 5 \(valid: a class from 0 to 4\)"
    with pytest.raises(demitasse.DataError, match=message):
        run(LAYER.format(""), x=np.zeros((6, 5)), label=np.arange(6.0))
