"""Sums and concatenations computed by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

Apply = Callable[..., Any]


def test_a_sum_without_coefficients_adds_all(apply: Apply) -> None:
    y = apply("sum", np.array([1.0, 2.0]), np.array([10.0, 20.0]), np.array([100.0, 200.0]))
    assert y.tolist() == [111, 222]


def test_coefficients_weigh_the_terms_and_their_gradients(apply: Apply) -> None:
    options = {"coefficients": (2.0, -1.0)}
    assert apply("sum", np.array([1.0, 2.0]), np.array([3.0, 5.0]), **options).tolist() == [-1, -1]
    parts = apply("sum_backward", np.array([1.0, 4.0]), shapes=((2,), (2,)), **options)
    assert [part.tolist() for part in parts] == [[2, 8], [-1, -4]]


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_what_is_joined_comes_apart_again(apply: Apply, axis: int) -> None:
    rng = np.random.default_rng(0)
    whole = (2, 3, 4)
    shapes = [(*whole[:axis], extent, *whole[axis + 1 :]) for extent in (1, 4, 2)]
    xs = [rng.normal(size=shape) for shape in shapes]
    y = apply("concat", *xs, axis=axis)
    assert np.take(y, [0], axis).tolist() == xs[0].tolist()
    assert np.take(y, [1, 2, 3, 4], axis).tolist() == xs[1].tolist()
    parts = apply("concat_backward", y, axis=axis, shapes=tuple(shapes))
    assert all(np.array_equal(part, x) for part, x in zip(parts, xs, strict=True))
