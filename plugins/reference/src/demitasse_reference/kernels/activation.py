"""Element-wise non-linearities, dropout, and softmax."""

from __future__ import annotations

import numpy as np

from demitasse import keep_mask
from demitasse_reference.kernels.arrays import Kernels, Reals, Values


def relu(x: Reals, *, negative_slope: float) -> Reals:
    return np.where(x > 0, x, negative_slope * x)


def relu_backward(dy: Reals, y: Reals, *, negative_slope: float) -> Reals:
    return np.where(y > 0, dy, negative_slope * dy)


def dropout(
    x: Reals,
    iteration: Values,
    sample: Values,
    *,
    ratio: float,
    seed: int,
    stream: int,
) -> tuple[Reals, Values]:
    mask = keep_mask(seed, stream, int(iteration[0]), int(sample[0]), x.shape, ratio)
    return x * mask / (1.0 - ratio), mask


def dropout_backward(dy: Reals, mask: Values, *, ratio: float) -> Reals:
    return dy * mask / (1.0 - ratio)


def softmax(x: Reals, *, axis: int) -> Reals:
    # A constant added to all of x cancels out; subtracting the largest keeps exp within range.
    powers = np.exp(x - x.max(axis, keepdims=True))
    result: Reals = powers / powers.sum(axis, keepdims=True)
    return result


def softmax_backward(dy: Reals, y: Reals, *, axis: int) -> Reals:
    dx: Reals = y * (dy - (dy * y).sum(axis, keepdims=True))
    return dx


def reverse_gradient(x: Reals, iteration: Values, **schedule: float) -> Reals:
    return x


def reverse_gradient_backward(
    dy: Reals, iteration: Values, *, lower: float, upper: float, steepness: float, iterations: float
) -> Reals:
    progress = min(float(iteration[0]) / iterations, 1.0)
    share = 2.0 / (1.0 + np.exp(-steepness * progress)) - 1.0
    dx: Reals = -(lower + (upper - lower) * share) * dy
    return dx


KERNELS: Kernels = {
    "relu": relu,
    "relu_backward": relu_backward,
    "dropout": dropout,
    "dropout_backward": dropout_backward,
    "reverse_gradient": reverse_gradient,
    "reverse_gradient_backward": reverse_gradient_backward,
    "softmax": softmax,
    "softmax_backward": softmax_backward,
}
