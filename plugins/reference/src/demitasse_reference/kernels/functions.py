"""Functions of one element, and products and maxima of several tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from demitasse_reference.kernels.activation import relu
from demitasse_reference.kernels.arrays import Extents, Kernels, Reals, Values


def _slopes(w: Reals, rank: int) -> Reals:
    """Return the slopes of channels, or the one for all, shaped to broadcast at this ``rank``."""
    return w.reshape(-1, *[1] * (rank - 2)) if w.ndim else w


def parametric_relu(x: Reals, w: Reals) -> Reals:
    """He et al. 2015, with a slope for each channel or one for all."""
    return np.where(x > 0, x, _slopes(w, x.ndim) * x)


def parametric_relu_backward(dy: Reals, x: Reals, w: Reals) -> tuple[Reals, Reals]:
    below = np.where(x > 0, 0, dy * x)
    axes = (0, *range(2, x.ndim)) if w.ndim else tuple(range(x.ndim))
    return np.where(x > 0, dy, _slopes(w, x.ndim) * dy), below.sum(axis=axes)


def absolute(x: Reals) -> Reals:
    return np.abs(x)


def absolute_backward(dy: Reals, x: Reals) -> Reals:
    return dy * np.sign(x)


def softplus(x: Reals) -> Reals:
    return np.logaddexp(x, 0)


def softplus_backward(dy: Reals, x: Reals) -> Reals:
    return dy * sigmoid(x)


def clip(x: Reals, *, least: float, most: float) -> Reals:
    return np.maximum(least, np.minimum(x, most))


def clip_backward(dy: Reals, x: Reals, *, least: float, most: float) -> Reals:
    return np.where((x >= least) & (x <= most), dy, 0)


def elu(x: Reals, *, alpha: float) -> Reals:
    """Clevert, Unterthiner and Hochreiter 2016."""
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


def elu_backward(dy: Reals, y: Reals, *, alpha: float) -> Reals:
    return np.where(y > 0, dy, dy * (y + alpha))


def exponential(x: Reals, *, scale: float, shift: float) -> Reals:
    y: Reals = np.exp(scale * x + shift)
    return y


def exponential_backward(dy: Reals, y: Reals, *, scale: float) -> Reals:
    return dy * y * scale


def logarithm(x: Reals, *, factor: float, scale: float, shift: float) -> Reals:
    y: Reals = factor * np.log(scale * x + shift)
    return y


def logarithm_backward(dy: Reals, x: Reals, *, factor: float, scale: float, shift: float) -> Reals:
    return dy * factor * scale / (scale * x + shift)


def power(x: Reals, *, power: float, scale: float, shift: float) -> Reals:
    if scale == 0:  # holds for an infinite x and for NaN, too
        return np.full(x.shape, np.power(shift, power))
    y: Reals = np.power(scale * x + shift, power)
    return y


def power_backward(dy: Reals, x: Reals, *, power: float, scale: float, shift: float) -> Reals:
    if power == 0 or scale == 0:
        return np.zeros(x.shape)
    dx: Reals = dy * power * scale * np.power(scale * x + shift, power - 1)
    return dx


def sigmoid(x: Reals) -> Reals:
    # The exponential of a negative number stays in range.
    small = np.exp(-np.abs(x))
    y: Reals = np.where(x > 0, 1, small) / (1 + small)
    return y


def sigmoid_backward(dy: Reals, y: Reals) -> Reals:
    return dy * y * (1 - y)


def swish(x: Reals, *, beta: float) -> Reals:
    """Ramachandran, Zoph and Le 2017."""
    return x * sigmoid(beta * x)


def swish_backward(dy: Reals, x: Reals, *, beta: float) -> Reals:
    s = sigmoid(beta * x)
    return dy * (s + beta * x * s * (1 - s))


def tanh(x: Reals) -> Reals:
    y: Reals = np.tanh(x)
    return y


def tanh_backward(dy: Reals, y: Reals) -> Reals:
    return dy * (1 - y * y)


def greater(x: Reals, *, threshold: float) -> Values:
    y: Values = x > threshold
    return y


def product(*xs: Reals) -> Reals:
    y = np.ones(xs[0].shape)
    for x in xs:
        y = y * x
    return y


def product_backward(dy: Reals, *xs: Reals, by_division: bool) -> tuple[Reals, ...]:
    if by_division:
        return tuple(product(*xs) / x * dy for x in xs)
    return tuple(dy * product(np.ones(dy.shape), *xs[:i], *xs[i + 1 :]) for i in range(len(xs)))


def maximum(*xs: Reals) -> tuple[Reals, Values]:
    """Among equal values, Caffe prefers the second to the first, and both to any later one."""
    y, argmax = xs[0], np.zeros(xs[0].shape, np.int32)
    for number, x in enumerate(xs[1:], start=1):
        takes = ~(y > x) if number == 1 else x > y
        y, argmax = np.where(takes, x, y), np.where(takes, number, argmax)
    return y, argmax


def maximum_backward(dy: Reals, argmax: Values, *, shapes: Sequence[Extents]) -> tuple[Reals, ...]:
    return tuple(np.where(argmax == number, dy, 0) for number in range(len(shapes)))


KERNELS: Kernels = {
    "leaky_relu": relu,
    "parametric_relu": parametric_relu,
    "parametric_relu_backward": parametric_relu_backward,
    "absolute": absolute,
    "absolute_backward": absolute_backward,
    "softplus": softplus,
    "softplus_backward": softplus_backward,
    "clip": clip,
    "clip_backward": clip_backward,
    "elu": elu,
    "elu_backward": elu_backward,
    "exponential": exponential,
    "exponential_backward": exponential_backward,
    "logarithm": logarithm,
    "logarithm_backward": logarithm_backward,
    "power": power,
    "power_backward": power_backward,
    "sigmoid": sigmoid,
    "sigmoid_backward": sigmoid_backward,
    "swish": swish,
    "swish_backward": swish_backward,
    "tanh": tanh,
    "tanh_backward": tanh_backward,
    "greater": greater,
    "product": product,
    "product_backward": product_backward,
    "maximum": maximum,
    "maximum_backward": maximum_backward,
}
