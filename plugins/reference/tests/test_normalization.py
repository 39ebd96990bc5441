"""Local response normalisation against loops written from its definition."""

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
