"""Sums and joins of several tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from demitasse_reference.kernels.arrays import Extents, Kernels, Reals


def weighted_sum(*xs: Reals, coefficients: Sequence[float]) -> Reals:
    y = np.zeros(xs[0].shape)
    for coefficient, x in zip(coefficients or [1.0] * len(xs), xs, strict=True):
        y += coefficient * x
    return y


def weighted_sum_backward(
    dy: Reals, *, coefficients: Sequence[float], shapes: Sequence[Extents]
) -> tuple[Reals, ...]:
    return tuple(coefficient * dy for coefficient in coefficients or [1.0] * len(shapes))


def concat(*xs: Reals, axis: int) -> Reals:
    return np.concatenate(xs, axis)


def concat_backward(dy: Reals, *, axis: int, shapes: Sequence[Extents]) -> tuple[Reals, ...]:
    cuts = np.cumsum([shape[axis] for shape in shapes])[:-1]
    return tuple(np.split(dy, cuts, axis))


KERNELS: Kernels = {
    "sum": weighted_sum,
    "sum_backward": weighted_sum_backward,
    "concat": concat,
    "concat_backward": concat_backward,
}
