"""Sums and concatenations of several tensors, and scales along some of their axes."""

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


def _from_axis(values: Reals, axis: int, rank: int) -> Reals:
    """Return ``values`` along the axes from ``axis`` on, shaped to broadcast at this ``rank``."""
    return values.reshape(*values.shape, *[1] * (rank - axis - values.ndim))


def scale(x: Reals, w: Reals, b: Reals | None, *, axis: int) -> Reals:
    y: Reals = x * _from_axis(w, axis, x.ndim)
    return y if b is None else y + _from_axis(b, axis, x.ndim)


def scale_backward(dy: Reals, x: Reals, w: Reals, *, axis: int) -> tuple[Reals, Reals, Reals]:
    others = (*range(axis), *range(axis + w.ndim, dy.ndim))
    return dy * _from_axis(w, axis, dy.ndim), (dy * x).sum(axis=others), dy.sum(axis=others)


KERNELS: Kernels = {
    "sum": weighted_sum,
    "sum_backward": weighted_sum_backward,
    "concat": concat,
    "concat_backward": concat_backward,
    "scale": scale,
    "scale_backward": scale_backward,
}
