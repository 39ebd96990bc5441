"""Permutations of axes, weighted sums along an axis, choices by conditions, and gates."""

from __future__ import annotations

import math

import numpy as np

from demitasse_reference.kernels.arrays import Extents, Kernels, Reals, Values


def permute(x: Reals, *, order: Extents) -> Reals:
    return x.transpose(order)


def permute_backward(dy: Reals, *, order: Extents) -> Reals:
    return dy.transpose(np.argsort(order))


def resample(x: Reals, places: Values, weights: Reals, *, axis: int) -> Reals:
    taken = np.moveaxis(x, axis, 0)[places.astype(np.int64)]
    y: Reals = np.moveaxis(np.einsum("ik,ik...->i...", weights, taken), 0, axis)
    return y


def resample_backward(dy: Reals, places: Values, weights: Reals, *, axis: int, shape: Extents) -> Reals:
    arriving = np.moveaxis(dy, axis, 0)
    dx = np.zeros((shape[axis], *arriving.shape[1:]))
    for i, k in np.ndindex(*places.shape):
        dx[int(places[i, k])] += weights[i, k] * arriving[i]
    return np.moveaxis(dx, 0, axis)


def select(c: Reals, a: Reals, b: Reals) -> Reals:
    return np.where(c != 0, a, b)


def select_backward(dy: Reals, c: Reals) -> tuple[Reals, Reals]:
    return np.where(c != 0, dy, 0), np.where(c != 0, 0, dy)


def hard_sigmoid(x: Reals, *, scale: float, shift: float) -> Reals:
    return np.maximum(0, np.minimum(1, scale * x + shift))


def hard_sigmoid_backward(dy: Reals, x: Reals, *, scale: float, shift: float) -> Reals:
    line = scale * x + shift
    return np.where((line > 0) & (line < 1), dy * scale, 0)


def hard_swish(x: Reals, *, scale: float, shift: float) -> Reals:
    return x * hard_sigmoid(x, scale=scale, shift=shift)


def hard_swish_backward(dy: Reals, x: Reals, *, scale: float, shift: float) -> Reals:
    gate = hard_sigmoid(x, scale=scale, shift=shift)
    return dy * np.where((gate > 0) & (gate < 1), gate + scale * x, gate)


def error_function(x: Reals) -> Reals:
    return np.asarray(_error_function(x), np.float64)


_error_function = np.frompyfunc(math.erf, 1, 1)


def error_function_backward(dy: Reals, x: Reals) -> Reals:
    dx: Reals = dy * 2 / math.sqrt(math.pi) * np.exp(-x * x)
    return dx


def floor(x: Reals) -> Reals:
    return np.floor(x)


def nearest(x: Reals) -> Reals:
    return np.rint(x)


def sine(x: Reals, *, scale: float, shift: float) -> Reals:
    return np.sin(scale * x + shift)


def sine_backward(dy: Reals, x: Reals, *, scale: float, shift: float) -> Reals:
    return dy * scale * np.cos(scale * x + shift)


def gelu(x: Reals) -> Reals:
    """Hendrycks and Gimpel 2016."""
    return x * _share_below(x)


def gelu_backward(dy: Reals, x: Reals) -> Reals:
    return dy * (_share_below(x) + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi))


def _share_below(x: Reals) -> Reals:
    """Return the share of normally distributed numbers that are below x."""
    return (1 + error_function(x / math.sqrt(2))) / 2


KERNELS: Kernels = {
    "permute": permute,
    "permute_backward": permute_backward,
    "resample": resample,
    "resample_backward": resample_backward,
    "select": select,
    "select_backward": select_backward,
    "hard_sigmoid": hard_sigmoid,
    "hard_sigmoid_backward": hard_sigmoid_backward,
    "hard_swish": hard_swish,
    "hard_swish_backward": hard_swish_backward,
    "error_function": error_function,
    "error_function_backward": error_function_backward,
    "floor": floor,
    "round": nearest,
    "sine": sine,
    "sine_backward": sine_backward,
    "gelu": gelu,
    "gelu_backward": gelu_backward,
}
