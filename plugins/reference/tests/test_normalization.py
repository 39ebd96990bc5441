"""Local response normalisation compared with loops written from its definition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

Apply = Callable[..., Any]
OPTIONS = {"alpha": 0.4, "beta": 0.75, "k": 1.5}


@pytest.mark.parametrize("size", [1, 3, 5, 9])
def test_across_channels(apply: Apply, size: int) -> None:
    x = np.random.default_rng(size).normal(size=(2, 6, 2, 3))
    y, scale = apply("lrn_across_channels", x, size=size, **OPTIONS)
    for n, c, i, j in np.ndindex(*x.shape):
        around = [x[n, other, i, j] ** 2 for other in range(6) if abs(other - c) <= (size - 1) // 2]
        expected = 1.5 + 0.4 / size * sum(around)
        assert scale[n, c, i, j] == pytest.approx(expected, rel=1e-13)
        assert y[n, c, i, j] == pytest.approx(x[n, c, i, j] / expected**0.75, rel=1e-13)


@pytest.mark.parametrize("size", [1, 3, 5, 9])
def test_within_a_channel(apply: Apply, size: int) -> None:
    x = np.random.default_rng(size).normal(size=(2, 2, 4, 5))
    y, scale = apply("lrn_within_channel", x, size=size, **OPTIONS)
    reach = (size - 1) // 2
    for n, c, i, j in np.ndindex(*x.shape):
        around = [
            x[n, c, a, b] ** 2
            for a in range(4)
            for b in range(5)
            if abs(a - i) <= reach and abs(b - j) <= reach
        ]
        expected = 1.5 + 0.4 / size**2 * sum(around)
        assert scale[n, c, i, j] == pytest.approx(expected, rel=1e-13)
        assert y[n, c, i, j] == pytest.approx(x[n, c, i, j] / expected**0.75, rel=1e-13)


def test_a_batch_is_normalised_by_its_own_statistics(apply: Apply) -> None:
    x = np.random.default_rng(1).normal(3, 2, size=(4, 3, 2, 5))
    nothing = [np.zeros(3), np.zeros(3), np.zeros(1)]
    mean, variance, factor, y, average, inverse = apply(
        "batch_norm", x, *nothing, None, None, keep=0.9, epsilon=0.25
    )
    for c in range(3):
        values = x[:, c].ravel()
        centre = sum(values) / 40
        spread = sum((value - centre) ** 2 for value in values)
        assert mean[c] == average[c] == pytest.approx(centre, rel=1e-13)
        assert variance[c] == pytest.approx(spread / 39, rel=1e-13)
        assert inverse[c] == pytest.approx((spread / 40 + 0.25) ** -0.5, rel=1e-13)
        np.testing.assert_allclose(y[:, c].ravel(), (values - centre) * inverse[c], rtol=1e-12)
    assert factor == [1.0]


def test_kept_statistics_are_those_of_several_batches(apply: Apply) -> None:
    """After batches a and b the mean is (0.9 a + b) / (0.9 + 1), and so is the variance."""
    a, b, x = np.random.default_rng(2).normal(1, 2, size=(3, 6, 2))
    kept = [np.zeros(2), np.zeros(2), np.zeros(1)]
    for batch in (a, b):
        kept = list(apply("batch_norm", batch, *kept, None, None, keep=0.9)[:3])
    y = apply("batch_norm_inference", x, *kept, None, None, epsilon=0.5)
    mean = (0.9 * a.mean(axis=0) + b.mean(axis=0)) / 1.9
    variance = (0.9 * a.var(axis=0, ddof=1) + b.var(axis=0, ddof=1)) / 1.9
    np.testing.assert_allclose(y, (x - mean) / np.sqrt(variance + 0.5), rtol=1e-12)


def test_a_batch_of_one_number_has_no_unbiased_variance(apply: Apply) -> None:
    nothing = [np.zeros(2), np.zeros(2), np.zeros(1)]
    mean, variance, _, y, *_ = apply("batch_norm", np.array([[3.0, -1.0]]), *nothing, None, None)
    assert np.array_equal(mean, [3, -1])
    assert not variance.any()
    assert not y.any()


@pytest.mark.parametrize("name", ["batch_norm", "batch_norm_inference"])
def test_a_normalisation_may_scale_and_rectify(apply: Apply, name: str) -> None:
    """It gives what the operations of those names give one after the other, forward and backward."""
    x, dy = np.random.default_rng(3).normal(1, 2, size=(2, 4, 3, 2, 5))
    w, b, mean, variance = np.random.default_rng(4).uniform(0.5, 2, size=(4, 3))
    kept, backward = [mean, variance, np.array([1.5])], f"{name}_backward"

    def first(result: Any) -> Any:
        return result[3] if isinstance(result, tuple) else result

    whole = apply(name, x, *kept, w, b, relu=True)
    alone = apply(name, x, *kept, None, None)
    scaled = apply("scale", first(alone), w, b)
    y = apply("relu", scaled)
    np.testing.assert_allclose(first(whole), y, rtol=1e-12, atol=1e-14)

    dscaled = apply("relu_backward", dy, y)
    dalone, dw, db = apply("scale_backward", dscaled, first(alone), w)
    if name == "batch_norm":
        statistics = alone[4:]
        dx = apply(backward, dalone, x, None, None, *statistics)[0]
        found = apply(backward, dy, x, w, b, *statistics, relu=True)
    else:
        dx = apply(backward, dalone, x, *kept, None, None)[0]
        found = apply(backward, dy, x, *kept, w, b, relu=True)
    for ours, theirs in zip(found, (dx, dw, db), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-11, atol=1e-13)
