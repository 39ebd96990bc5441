"""Losses and scores of predictions along an axis against one label for each."""

from __future__ import annotations

import numpy as np

from demitasse import DataError
from demitasse_reference.kernels.activation import softmax
from demitasse_reference.kernels.arrays import Kernels, Reals, Values


def softmax_loss(
    x: Reals, label: Values, *, axis: int, ignore_label: int | None, normalization: str
) -> tuple[Reals, Reals]:
    shifted = x - x.max(axis, keepdims=True)
    logarithm = shifted - np.log(np.exp(shifted).sum(axis, keepdims=True))
    labels, valid = _labels(x, label, axis, ignore_label)
    picked = np.take_along_axis(logarithm, labels, axis)
    loss = -np.where(valid, picked, 0.0).sum() / _normaliser(valid, normalization)
    return loss, softmax(x, axis=axis)


def softmax_loss_backward(
    dloss: Reals,
    probability: Reals,
    label: Values,
    *,
    axis: int,
    ignore_label: int | None,
    normalization: str,
) -> Reals:
    labels, valid = _labels(probability, label, axis, ignore_label)
    classes = np.arange(probability.shape[axis])
    at_label = labels == classes.reshape(-1, *[1] * (probability.ndim - axis - 1))
    dx = dloss * (probability - at_label) / _normaliser(valid, normalization)
    return np.where(valid, dx, 0.0)


def accuracy(
    x: Reals, label: Values, *, axis: int, ignore_label: int | None, top_k: int
) -> tuple[Reals, Reals]:
    labels, valid = _labels(x, label, axis, ignore_label)
    own = np.take_along_axis(x, labels, axis)
    # A NaN is at or below nothing, so predictions that are not numbers never score.
    better = (~(x <= own)).sum(axis, keepdims=True)
    hit = valid & (better < top_k)
    classes = x.shape[axis]
    hits = np.bincount(labels[hit], minlength=classes)
    occurrences = np.bincount(labels[valid], minlength=classes)
    return hits.sum() / max(1, occurrences.sum()), hits / np.maximum(1, occurrences)


def _labels(x: Reals, label: Values, axis: int, ignore_label: int | None) -> tuple[Values, Values]:
    """Labels as integers, in the shape of ``x`` with one in place of ``axis``, and which count.

    Ignored labels become 0. Raises DataError that names the first label which is no class.
    """
    classes = x.shape[axis]
    given = label.reshape(*x.shape[:axis], 1, *x.shape[axis + 1 :])
    valid = np.ones(given.shape, bool) if ignore_label is None else given != ignore_label
    wrong = valid & ~((given >= 0) & (given < classes) & (given == np.floor(given)))
    if wrong.any():
        first = tuple(np.argwhere(wrong)[0])
        ignored = "" if ignore_label is None else f", or {ignore_label}, which is ignored"
        raise DataError(
            f"label {given[first]:g} of sample {first[0]} of the batch is none of the {classes} "
            f"classes (valid: whole numbers from 0 to {classes - 1}{ignored})"
        )
    return np.where(valid, given, 0).astype(np.int64), valid


def _normaliser(valid: Reals, normalization: str) -> float:
    """What the sum is divided by, at least 1; ``valid`` has the samples in its first axis."""
    return {
        "valid": max(1.0, float(valid.sum())),
        "full": float(valid.size),
        "batch_size": float(valid.shape[0]),
        "none": 1.0,
    }[normalization]


KERNELS: Kernels = {
    "softmax_loss": softmax_loss,
    "softmax_loss_backward": softmax_loss_backward,
    "accuracy": accuracy,
}
