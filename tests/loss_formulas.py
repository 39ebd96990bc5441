"""Formulas of losses, in float64."""

from __future__ import annotations

import numpy as np


def softmax(x: np.ndarray, axis: int = 1) -> np.ndarray:
    """The shares of classes along an axis."""
    return np.exp(x) / np.exp(x).sum(axis, keepdims=True)


def picked(x: np.ndarray, label: np.ndarray, axis: int) -> np.ndarray:
    """What an array has at the labels along an axis."""
    return np.take_along_axis(x, np.expand_dims(label.astype(int), axis), axis).squeeze(axis)


def hinges(x: np.ndarray, label: np.ndarray) -> np.ndarray:
    """How much each score, (N, classes), lacks of its margin of 1."""
    truth = 2 * np.eye(x[0].size)[label.astype(int)] - 1
    return np.maximum(0, 1 - truth * x.reshape(len(x), -1))


def cross_entropy(x: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Of the sigmoids of x, element by element."""
    p = 1 / (1 + np.exp(-x))
    return -(target * np.log(p) + (1 - target) * np.log(1 - p))


def contrast(a: np.ndarray, b: np.ndarray, alike: np.ndarray) -> float:
    """Hadsell et al. 2006, equation 4, with a margin of 60 for what is not alike."""
    d = np.linalg.norm(a - b, axis=1)
    return float(np.where(alike, d**2, np.maximum(0, 60 - d) ** 2).mean() / 2)


def squared_contrast(a: np.ndarray, b: np.ndarray, alike: np.ndarray) -> float:
    """With the squared distance in the margin, of 9, as Caffe's first versions had it."""
    d = ((a - b) ** 2).reshape(len(a), -1).sum(1)
    return float(np.where(alike, d, np.maximum(0, 9 - d)).mean() / 2)


def dice(a: np.ndarray, b: np.ndarray) -> float:
    """V-Net's, with 1 above and below."""
    a, b = a.reshape(len(a), -1), b.reshape(len(b), -1)
    shares = (1 + 2 * (a * b).sum(1)) / (1 + (a**2).sum(1) + (b**2).sum(1))
    return float(1 - shares.mean())


def balance(target: np.ndarray) -> np.ndarray:
    """What each of a sample's targets counts for, as in HED's equation 2."""
    rows = target.reshape(len(target), -1)
    ones, zeros = (rows == 1).sum(1, keepdims=True), (rows == 0).sum(1, keepdims=True)
    both = np.maximum(ones + zeros, 1)
    weights = np.where(rows == 1, zeros / both, np.where(rows == 0, ones / both, 0))
    return weights.reshape(target.shape)


def smooth(d: np.ndarray, square: float) -> np.ndarray:
    """Huber's function as Girshick 2015 has it, for sigma^2."""
    near = np.abs(d) < 1 / square
    return np.where(near, 0.5 * square * d * d, np.abs(d) - 0.5 / square)
