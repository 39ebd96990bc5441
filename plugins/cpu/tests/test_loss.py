"""Losses and scores compared with their definitions, label by label."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from demitasse import DataError

Compute = Callable[..., list[Any]]


def predictions(dtype: str, kind: str, places: int = 3) -> tuple[Any, Any]:
    """Return scores of 7 classes at 6 x ``places``, with classes on axis 1, and labels of which some are
    2."""
    random = np.random.default_rng(7)
    x = (random.standard_normal((6, 7, places)) * 5).astype(dtype)
    return x, random.integers(0, 7, (6, places)).astype(kind)


def normaliser(label: Any, ignore: int | None, normalization: str) -> float:
    valid = label.size if ignore is None else int((label != ignore).sum())
    counts = {"valid": max(valid, 1), "full": label.size, "batch_size": len(label), "none": 1}
    return float(counts[normalization])


@pytest.mark.parametrize("normalization", ["valid", "full", "batch_size", "none"])
@pytest.mark.parametrize("ignore", [None, 2])
@pytest.mark.parametrize(
    ("dtype", "kind", "places"),
    [("float32", "float32", 3), ("float64", "int32", 1), ("float32", "int32", 150)],
)
def test_softmax_loss_and_its_gradient(
    compute: Compute, dtype: str, kind: str, places: int, ignore: int | None, normalization: str
) -> None:
    x, label = predictions(dtype, kind, places)
    given = {"ignore_label": ignore, "normalization": normalization}
    powers = np.exp(x.astype(np.float64))
    probability = powers / powers.sum(1, keepdims=True)
    total, gradient = 0.0, probability.copy()
    for n, i in np.ndindex(label.shape):
        if label[n, i] == ignore:
            gradient[n, :, i] = 0
            continue
        total -= np.log(probability[n, int(label[n, i]), i])
        gradient[n, int(label[n, i]), i] -= 1
    over = normaliser(label, ignore, normalization)
    loss, found = compute("softmax_loss", [x, label], given)
    np.testing.assert_allclose(loss, total / over, rtol=1e-5)
    np.testing.assert_allclose(found, probability, rtol=1e-4, atol=1e-7)
    alone, nothing = compute("softmax_loss", [x, label], given, absent=[1])
    assert nothing is None
    assert alone == loss
    dloss = np.array(0.5, dtype)
    (dx,) = compute("softmax_loss_backward", [dloss, found, label], given)
    np.testing.assert_allclose(dx, 0.5 * gradient / over, rtol=1e-4, atol=1e-6)


def test_a_million_classes_add_up(compute: Compute) -> None:
    """A float32 sum of as many equal numbers would be wrong in the fifth digit."""
    x = np.full((1, 2**20), -0.1, np.float32)
    x[0, 7] = 0
    powers = np.exp(x.astype(np.float64))
    expected = powers / powers.sum()
    (probability,) = compute("softmax", [x], {"axis": 1})
    np.testing.assert_allclose(probability, expected, rtol=1e-6)
    loss, probability = compute("softmax_loss", [x, np.array([7], np.int32)], {"axis": 1})
    np.testing.assert_allclose(loss, -np.log(expected[0, 7]), rtol=2e-7)
    np.testing.assert_allclose(probability, expected, rtol=1e-6)
    dy = np.full_like(x, 0.3)
    dy[0, 7] = -1e6
    (dx,) = compute("softmax_backward", [dy, probability], {"axis": 1})
    mean = (dy.astype(np.float64) * expected).sum()
    np.testing.assert_allclose(dx, expected * (dy - mean), rtol=2e-6)


def test_the_gradient_may_take_the_memory_of_the_probabilities(
    compute: Compute, asked: Callable[..., Any]
) -> None:
    x, label = predictions("float32", "int32")
    _, probability = compute("softmax_loss", [x, label])
    inputs = [np.ones((), np.float32), probability, label]
    (apart,) = compute("softmax_loss_backward", inputs)
    _, candidate = asked("softmax_loss_backward", inputs, {})
    assert candidate.in_place
    candidate.bind(inputs, [probability], None)()
    assert np.array_equal(probability, apart)


def test_a_loss_of_ignored_labels_only_is_nothing(compute: Compute) -> None:
    x, label = np.ones((3, 4), np.float32), np.full(3, 2, np.int32)
    loss, probability = compute("softmax_loss", [x, label], {"ignore_label": 2})
    assert loss == 0
    (dx,) = compute(
        "softmax_loss_backward", [np.ones((), np.float32), probability, label], {"ignore_label": 2}
    )
    assert not dx.any()


@pytest.mark.parametrize("operation", ["softmax_loss", "accuracy"])
@pytest.mark.parametrize("wrong", [4, -1, 1.5, np.nan])
def test_a_label_that_is_no_class_is_named(compute: Compute, operation: str, wrong: float) -> None:
    label = np.array([0, 3, wrong], np.float32)
    with pytest.raises(DataError, match=r"label (4|-1|1\.5|nan) of sample 2 .* from 0 to 3"):
        compute(operation, [np.zeros((3, 4), np.float32), label])


@pytest.mark.parametrize("places", [1, 3, 150])
@pytest.mark.parametrize("top_k", [1, 3])
@pytest.mark.parametrize("ignore", [None, 2])
def test_accuracy(compute: Compute, ignore: int | None, top_k: int, places: int) -> None:
    x, label = predictions("float32", "int32", places)
    x = np.round(x / 4)  # so that there are ties, of which the later class ranks first
    hits: list[list[bool]] = [[] for _ in range(7)]
    for n, i in np.ndindex(label.shape):
        if label[n, i] != ignore:
            ranked = sorted(range(7), key=lambda c: (x[n, c, i], c), reverse=True)
            hits[label[n, i]].append(int(label[n, i]) in ranked[:top_k])
    flat = [hit for row in hits for hit in row]
    found, by_class = compute("accuracy", [x, label], {"ignore_label": ignore, "top_k": top_k})
    np.testing.assert_allclose(found, np.mean(flat), rtol=1e-6)
    np.testing.assert_allclose(by_class, [float(np.mean(row or [False])) for row in hits], rtol=1e-6)
    alone, nothing = compute(
        "accuracy", [x, label], {"ignore_label": ignore, "top_k": top_k}, absent=[1]
    )
    assert nothing is None
    assert alone == found


def test_scores_that_are_no_numbers_never_count(compute: Compute) -> None:
    x, label = np.full((4, 3), np.nan, np.float32), np.zeros(4, np.int32)
    found, _ = compute("accuracy", [x, label])
    assert found == 0
