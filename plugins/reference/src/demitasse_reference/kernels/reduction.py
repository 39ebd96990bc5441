"""Sums over trailing axes, the largest along an axis, and rows centred and scaled by their deviation."""

from __future__ import annotations

import numpy as np

from demitasse_reference.kernels.arrays import Extents, Kernels, Reals


def _from(axis: int, x: Reals) -> tuple[int, ...]:
    """Return the axes of x from ``axis`` on."""
    return tuple(range(axis, x.ndim))


def _spread(values: Reals, rank: int) -> Reals:
    """Return values of leading axes, shaped to broadcast with tensors of ``rank`` dimensions."""
    return values.reshape(*values.shape, *[1] * (rank - values.ndim))


def total(x: Reals, *, axis: int, coefficient: float) -> Reals:
    y: Reals = coefficient * x.sum(axis=_from(axis, x))
    return y


def total_backward(dy: Reals, *, coefficient: float, shape: Extents) -> Reals:
    return coefficient * np.broadcast_to(_spread(dy, len(shape)), tuple(shape))


def absolute_total(x: Reals, *, axis: int, coefficient: float) -> Reals:
    return total(np.abs(x), axis=axis, coefficient=coefficient)


def absolute_total_backward(dy: Reals, x: Reals, *, coefficient: float) -> Reals:
    return coefficient * _spread(dy, x.ndim) * np.sign(x)


def square_total(x: Reals, *, axis: int, coefficient: float) -> Reals:
    return total(x * x, axis=axis, coefficient=coefficient)


def square_total_backward(dy: Reals, x: Reals, *, coefficient: float) -> Reals:
    return coefficient * _spread(dy, x.ndim) * 2 * x


def largest(x: Reals, *, axis: int, count: int, give: str) -> Reals:
    rising = np.argsort(x, axis=axis, kind="stable")  # reversed, the last of equal values is first
    places = np.take(np.flip(rising, axis), range(count), axis)
    values: Reals = np.take_along_axis(x, places, axis)
    if give == "both":
        return np.stack([places, values], axis)
    return values if give == "values" else places.astype(np.float64)


def centre(x: Reals, *, axis: int) -> Reals:
    y: Reals = x - x.mean(axis=_from(axis, x), keepdims=True)
    return y


def standardize(x: Reals, *, axis: int, epsilon: float) -> tuple[Reals, Reals]:
    centred = centre(x, axis=axis)
    deviation = np.sqrt((centred * centred).mean(axis=_from(axis, x)))
    return centred / (_spread(deviation, x.ndim) + epsilon), deviation


def standardize_backward(dy: Reals, y: Reals, deviation: Reals, *, axis: int, epsilon: float) -> Reals:
    tilt = (dy * y).mean(axis=_from(axis, y))
    # In a constant row, no direction changes the deviation.
    tilt = _spread(np.divide(tilt, deviation, out=np.zeros_like(tilt), where=deviation > 0), y.ndim)
    return centre(dy, axis=axis) / (_spread(deviation, y.ndim) + epsilon) - y * tilt


KERNELS: Kernels = {
    "total": total,
    "total_backward": total_backward,
    "absolute_total": absolute_total,
    "absolute_total_backward": absolute_total_backward,
    "square_total": square_total,
    "square_total_backward": square_total_backward,
    "largest": largest,
    "centre": centre,
    "standardize": standardize,
    "standardize_backward": standardize_backward,
}
