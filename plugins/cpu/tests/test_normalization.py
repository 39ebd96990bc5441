"""Local response normalisation compared with its definition, element by element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

Compute = Callable[..., list[Any]]


def neighbours(name: str, shape: tuple[int, ...], place: tuple[int, ...], reach: int) -> Any:
    """Return the window around a place, as an index."""
    n, c, *position = place
    around = [slice(max(0, p - reach), p + reach + 1) for p in (c, *position)]
    if name == "lrn_across_channels":
        return (n, around[0], *position)
    return (n, c, *around[1:])


@pytest.mark.parametrize("beta", [0.75, 0.5])
@pytest.mark.parametrize("size", [1, 3, 5])
@pytest.mark.parametrize("name", ["lrn_across_channels", "lrn_within_channel"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_definition(compute: Compute, dtype: str, name: str, size: int, beta: float) -> None:
    random = np.random.default_rng(8)
    x, dy = (random.standard_normal((2, 6, 4, 7)).astype(dtype) for _ in range(2))
    x64, dy64 = x.astype(np.float64), dy.astype(np.float64)
    alpha, k = 0.3, 2.0
    given = {"size": size, "alpha": alpha, "beta": beta, "k": k}
    elements = size if name == "lrn_across_channels" else size * size
    scale = np.empty(x.shape)
    for place in np.ndindex(x.shape):
        window = x64[neighbours(name, x.shape, place, size // 2)]
        scale[place] = k + alpha / elements * (window**2).sum()
    expected = x64 * scale**-beta
    y, found = compute(name, [x], given)
    tolerance = {"float32": 1e-5, "float64": 1e-12}[dtype]
    np.testing.assert_allclose(found, scale, rtol=tolerance)
    np.testing.assert_allclose(y, expected, rtol=tolerance)
    alone, nothing = compute(name, [x], given, absent=[1])
    assert nothing is None
    assert np.array_equal(alone, y)

    ratio = dy64 * expected / scale
    gradient = np.empty(x.shape)
    for place in np.ndindex(x.shape):
        shared = ratio[neighbours(name, x.shape, place, size // 2)].sum()
        direct = dy64[place] * scale[place] ** -beta
        gradient[place] = direct - 2 * alpha * beta / elements * x64[place] * shared
    (dx,) = compute(f"{name}_backward", [dy, x, y, found], given)
    np.testing.assert_allclose(dx, gradient, rtol=10 * tolerance, atol=tolerance)
