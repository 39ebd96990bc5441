"""Inner product and its backward passes compared with sums of products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

Apply = Callable[..., Any]


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("axis", [1, 2])
def test_inner_product_is_its_definition(apply: Apply, axis: int, transpose: bool) -> None:
    rng = np.random.default_rng(axis)
    x = rng.normal(size=(2, 3, 4))
    rows = [part for sample in x for part in ([sample.ravel()] if axis == 1 else sample)]
    w, b = rng.normal(size=(5, len(rows[0]))), rng.normal(size=5)
    given = w.T if transpose else w
    options = {"axis": axis, "transpose": transpose}
    expected = [[sum(w[k] * row) + b[k] for k in range(5)] for row in rows]
    y = apply("inner_product", x, given, b, **options)
    assert y.shape == ((2, 5) if axis == 1 else (2, 3, 5))
    assert np.allclose(y.reshape(-1, 5), expected, rtol=1e-13, atol=1e-14)
    dy = rng.normal(size=y.shape)
    dw, db = apply("inner_product_backward_weights", dy, x, shape=given.shape, **options)
    flat = dy.reshape(-1, 5)
    summed = sum(np.outer(d, row) for d, row in zip(flat, rows, strict=True))
    assert np.allclose(dw.T if transpose else dw, summed, rtol=1e-13, atol=1e-14)
    assert np.allclose(db, flat.sum(axis=0), rtol=1e-13)
    dx = apply("inner_product_backward_data", dy, given, shape=x.shape, **options)
    back = [sum(d[k] * w[k] for k in range(5)) for d in flat]
    assert np.allclose(dx.reshape(len(rows), -1), back, rtol=1e-13, atol=1e-14)
