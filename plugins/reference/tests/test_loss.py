"""Losses and scores compared with sums over one prediction at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from demitasse import DataError
from demitasse_reference.kernels.loss import segment_scores

Apply = Callable[..., Any]


def one_by_one(x: np.ndarray, label: np.ndarray) -> list[float]:
    """Return -log softmax(x)[label] for each row."""
    return [
        math.log(math.fsum(math.exp(v) for v in row)) - row[int(y)]
        for row, y in zip(x.tolist(), label.tolist(), strict=True)
    ]


X = np.random.default_rng(5).normal(size=(6, 4)) * 2
LABEL = np.array([0.0, 3.0, 2.0, 2.0, 1.0, 3.0])


@pytest.mark.parametrize("normalization", ["valid", "full", "batch_size"])
def test_the_loss_is_the_mean_over_samples(apply: Apply, normalization: str) -> None:
    loss, probability = apply("softmax_loss", X, LABEL, normalization=normalization)
    assert loss.shape == ()
    assert loss == pytest.approx(math.fsum(one_by_one(X, LABEL)) / 6, rel=1e-13)
    assert np.allclose(probability.sum(axis=1), 1)
    assert np.allclose(probability, np.exp(X) / np.exp(X).sum(axis=1, keepdims=True))


@pytest.mark.parametrize(
    ("normalization", "divisor"), [("valid", 4), ("full", 6), ("batch_size", 3), ("none", 1)]
)
def test_the_normaliser_is_counted_as_its_name_says(
    apply: Apply, normalization: str, divisor: int
) -> None:
    """Three samples with two predictions each, two of the six labels ignored."""
    x = X.reshape(3, 2, 4).transpose(0, 2, 1)
    losses = [v for v, y in zip(one_by_one(X, LABEL), LABEL, strict=True) if y != 2]
    options = {"ignore_label": 2, "normalization": normalization}
    loss, probability = apply("softmax_loss", x, LABEL.reshape(3, 1, 2), **options)
    assert loss == pytest.approx(math.fsum(losses) / divisor, rel=1e-13)
    dloss = np.array(divisor, np.float64)
    dx = apply("softmax_loss_backward", dloss, probability, LABEL.reshape(3, 2), **options)
    expected = probability - (np.arange(4)[:, None] == LABEL.reshape(3, 1, 2))
    expected[np.repeat(LABEL.reshape(3, 1, 2) == 2, 4, axis=1)] = 0
    assert np.allclose(dx, expected, rtol=1e-13)


def test_a_batch_whose_labels_are_all_ignored_costs_nothing(apply: Apply) -> None:
    label = np.full(6, 255.0)
    loss, probability = apply("softmax_loss", X, label, ignore_label=255)
    assert loss == 0
    options = {"ignore_label": 255}
    assert not apply("softmax_loss_backward", np.array(1.0), probability, label, **options).any()
    accuracy, per_class = apply("accuracy", X, label, **options)
    assert accuracy == 0
    assert not per_class.any()


def test_a_sure_and_wrong_prediction_costs_its_margin(apply: Apply) -> None:
    """If a probability rounds to 0, its logarithm must not be lost."""
    loss, _ = apply("softmax_loss", np.array([[2000.0, 0.0]]), np.array([1.0]))
    assert loss == 2000


def test_labels_may_be_of_any_type(apply: Apply) -> None:
    expected = apply("softmax_loss", X, LABEL)[0]
    for dtype in ("float32", "uint8", "int64"):
        assert apply("softmax_loss", X, LABEL.astype(dtype))[0] == expected


@pytest.mark.parametrize("operation", ["softmax_loss", "accuracy"])
@pytest.mark.parametrize(("wrong", "shown"), [(4, "4"), (-1, "-1"), (1.5, "1.5"), (math.nan, "nan")])
def test_a_label_that_is_no_class_is_named(
    apply: Apply, operation: str, wrong: float, shown: str
) -> None:
    label = LABEL.copy()
    label[[3, 5]] = wrong
    message = f"label {shown} of sample 3 .* not one of the 4 classes .*from 0 to 3"
    with pytest.raises(DataError, match=message):
        apply(operation, X, label)
    with pytest.raises(DataError, match="or 255, which is ignored"):
        apply(operation, X, label, ignore_label=255)


def test_segments_are_scored_by_their_confusions() -> None:
    best = np.array([[0, 0, 1], [2, 1, 1]])
    label = np.array([[0, 1, 1], [2, 9, 0]], float)
    x = np.moveaxis(np.eye(4)[best], -1, 0)[None]
    scores = segment_scores(x, label[None, None], ignored=(9, 7))
    assert scores.shape == (1, 1, 1, 3)
    # Class 0: 1 of 2 right, and one pixel of class 1 mistaken for it; class 1 the same; 2 right; no 3.
    np.testing.assert_allclose(
        scores.ravel(), [3 / 5, (1 / 2 + 1 / 2 + 1) / 3, (1 / 3 + 1 / 3 + 1 + 1) / 4]
    )
    equal = segment_scores(np.zeros((1, 2, 1, 1)), np.ones((1, 1, 1, 1)), ignored=())
    assert equal.ravel().tolist() == [1.0, 1.0, 1.0]
    none = segment_scores(np.zeros((1, 2, 1, 1)), np.full((1, 1, 1, 1), 5.0), ignored=(5,))
    assert none.ravel().tolist() == [0.0, 0.0, 1.0]
    with pytest.raises(DataError, match="label 5 of sample 0"):
        segment_scores(np.zeros((1, 2, 1, 1)), np.full((1, 1, 1, 1), 5.0), ignored=())


def test_accuracy_is_the_share_of_largest_predictions(apply: Apply) -> None:
    x = np.array([[1.0, 5.0, 2.0], [7.0, 1.0, 2.0], [0.0, 1.0, 2.0], [3.0, 2.0, 1.0]])
    accuracy, per_class = apply("accuracy", x, np.array([1.0, 0.0, 1.0, 1.0]))
    assert accuracy == 0.5
    assert np.allclose(per_class, [1, 1 / 3, 0])


def test_of_equal_predictions_the_later_class_comes_first(apply: Apply) -> None:
    x = np.zeros((3, 4))
    assert apply("accuracy", x, np.array([0.0, 2.0, 3.0]))[0] == pytest.approx(1 / 3)
    assert apply("accuracy", x, np.array([0.0, 2.0, 3.0]), top_k=2)[0] == pytest.approx(2 / 3)


@pytest.mark.parametrize(("top_k", "share"), [(1, 0.25), (2, 0.5), (3, 1.0), (4, 1.0)])
def test_accuracy_of_the_top_k(apply: Apply, top_k: int, share: float) -> None:
    x = np.tile([4.0, 3.0, 2.0, 1.0], (4, 1))
    label = np.array([0.0, 1.0, 2.0, 2.0])
    assert apply("accuracy", x, label, top_k=top_k)[0] == share


def test_ignored_labels_do_not_score(apply: Apply) -> None:
    x = np.array([[2.0, 1.0], [2.0, 1.0], [2.0, 1.0]])
    accuracy, per_class = apply("accuracy", x, np.array([0.0, 1.0, 1.0]), ignore_label=1)
    assert accuracy == 1
    assert per_class.tolist() == [1, 0]


def test_predictions_that_are_not_numbers_never_score(apply: Apply) -> None:
    x = np.array([[math.nan, 1.0], [2.0, math.nan], [math.nan, math.nan]])
    assert apply("accuracy", x, np.zeros(3))[0] == 0


def test_accuracy_along_another_axis(apply: Apply) -> None:
    x = np.random.default_rng(2).normal(size=(2, 3, 5))
    label = x.argmax(axis=2).astype(np.float64)
    label[0, 0] = (label[0, 0] + 1) % 5
    assert apply("accuracy", x, label, axis=2)[0] == pytest.approx(5 / 6)
