"""Losses and scores of predictions: against one label for each, against targets, or of pairs.

x has samples along its first axes and classes along ``axis``. There is a label (or a target, or whether
two samples are ``similar``) for each prediction, as a number in any shape with as many elements. A loss
is a scalar, ``dloss`` its gradient. ``normalization`` says by what a sum is divided: ``valid`` (labels
that are not ignored), ``full`` (all), ``batch_size`` (samples) or ``none``. The vocabulary has the
formulas. contrastive_loss is from Hadsell, Chopra and LeCun 2006, equation 4, angular_margin from Liu et
al. 2017 (*SphereFace*), section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from demitasse import SampleError
from demitasse_reference.kernels.activation import softmax
from demitasse_reference.kernels.arrays import Kernels, Reals, Values

_LEAST = 1e-20
"""The least probability of which a logarithm is taken."""


def softmax_loss(
    x: Reals, label: Values, *, axis: int, ignore_label: int | None, normalization: str
) -> tuple[Reals, Reals]:
    shifted = x - x.max(axis, keepdims=True)
    logarithm = shifted - np.log(np.exp(shifted).sum(axis, keepdims=True))
    labels, valid = _labels(x, label, axis, ignore_label)
    picked = np.take_along_axis(logarithm, labels, axis)
    loss = -np.where(valid, picked, 0.0).sum() / _normaliser(valid, axis, normalization)
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
    dx = dloss * (probability - at_label) / _normaliser(valid, axis, normalization)
    return np.where(valid, dx, 0.0)


def accuracy(
    x: Reals, label: Values, *, axis: int, ignore_label: int | None, top_k: int
) -> tuple[Reals, Reals]:
    labels, valid = _labels(x, label, axis, ignore_label)
    own = np.take_along_axis(x, labels, axis)
    # Comparisons with NaN are false, so predictions that are not numbers never score.
    # Among equal scores, the later class comes first.
    classes = x.shape[axis]
    later = np.arange(classes).reshape(-1, *[1] * (x.ndim - axis - 1)) > labels
    better = (~(x <= own) | (later & (x == own))).sum(axis, keepdims=True)
    hit = valid & (better < top_k)
    hits = np.bincount(labels[hit], minlength=classes)
    occurrences = np.bincount(labels[valid], minlength=classes)
    return np.divide(hits.sum(), max(1, int(occurrences.sum()))), hits / np.maximum(1, occurrences)


def segment_scores(x: Reals, label: Values, *, ignored: Sequence[int]) -> Reals:
    counted = ~np.isin(label, ignored)
    labels, _ = _labels(x, np.where(counted, label, 0), 1, None)
    classes = x.shape[1]
    best = classes - 1 - x[:, ::-1].argmax(axis=1)[:, None]
    pairs = labels[counted] * classes + best[counted]
    table = np.bincount(pairs, minlength=classes**2).reshape(classes, classes).astype(np.float64)
    right, own, taken = table.diagonal(), table.sum(1), table.sum(0)
    recall = right[own > 0] / own[own > 0]
    union = own + taken - right
    shares = np.divide(right, union, out=np.ones(classes), where=union > 0)
    whole = right.sum() / max(1.0, own.sum())
    scores = np.array([whole, recall.mean() if recall.size else 0.0, shares.mean()])
    return scores.reshape(1, 1, 1, 3)


def _labels(x: Reals, label: Values, axis: int, ignore_label: int | None) -> tuple[Values, Values]:
    """Return labels as integers, in the shape of ``x`` with 1 in place of ``axis``, and which of them
    count.

    Ignored labels become 0. Raises DataError that names the first label that is not a class.
    """
    classes = x.shape[axis]
    given = label.reshape(*x.shape[:axis], 1, *x.shape[axis + 1 :])
    valid = np.ones(given.shape, bool) if ignore_label is None else given != ignore_label
    wrong = valid & ~((given >= 0) & (given < classes) & (given == np.floor(given)))
    if wrong.any():
        first = tuple(np.argwhere(wrong)[0])
        ignored = "" if ignore_label is None else f", or {ignore_label}, which is ignored"
        raise SampleError(
            f"label {given[first]:g} of sample {first[0]} of the batch is not one of the {classes} "
            f"classes (valid: whole numbers from 0 to {classes - 1}{ignored})",
            int(first[0]),
            len(given),
        )
    return np.where(valid, given, 0).astype(np.int64), valid


def _normaliser(valid: Values, axis: int, normalization: str) -> float:
    """Return the divisor of the sum, at least 1; samples are everything before ``axis``."""
    return {
        "valid": max(1.0, float(valid.sum())),
        "full": float(valid.size),
        "batch_size": float(prod(valid.shape[:axis])),
        "none": 1.0,
    }[normalization]


def angular_margin(
    x: Reals,
    length: Reals,
    label: Values,
    iteration: Values,
    *,
    margin: int,
    base: float,
    gamma: float,
    power: float,
    least: float,
    first: int,
) -> tuple[Reals, Reals]:
    labels, _ = _labels(x, label, 1, None)
    own, length = np.take_along_axis(x, labels, 1), length.reshape(-1, 1)
    factor = max(least, base * (1.0 + gamma * (first + int(iteration[0]) + 1.0)) ** -power)
    psi, _ = _angular(own / length, margin)
    y = x.copy()
    np.put_along_axis(y, labels, (factor * own + length * psi) / (1.0 + factor), 1)
    return y, np.array([factor])


def angular_margin_backward(
    dy: Reals, x: Reals, length: Reals, label: Values, factor: Reals, *, margin: int
) -> tuple[Reals, Reals]:
    labels, _ = _labels(x, label, 1, None)
    norm, own = length.reshape(-1, 1), np.take_along_axis(dy, labels, 1) / (1.0 + factor)
    cosine = np.take_along_axis(x, labels, 1) / norm
    psi, along = _angular(cosine, margin)
    away = (psi - along * cosine) / norm
    size = np.hypot(along, away)
    dx = dy.copy()
    np.put_along_axis(dx, labels, own * (factor + along / size), 1)
    return dx, (own * norm * away / size).reshape(length.shape)


def _angular(cosine: Reals, margin: int) -> tuple[Reals, Reals]:
    """Return psi of a cosine, and its slope."""
    k = sum(cosine < np.cos(j * np.pi / margin) for j in range(1, margin))
    sign = 1.0 - 2.0 * np.mod(k, 2)
    chebyshev = np.polynomial.Chebyshev.basis(margin)
    psi: Reals = sign * chebyshev(cosine) - 2.0 * k
    return psi, sign * chebyshev.deriv()(cosine)


def infogain_loss(
    x: Reals,
    label: Values,
    matrix: Reals,
    *,
    axis: int,
    ignore_label: int | None,
    normalization: str,
) -> tuple[Reals, Reals]:
    probability = softmax(x, axis=axis)
    gains, valid = _gains(x, label, matrix, axis, ignore_label)
    losses = gains * np.log(np.maximum(probability, _LEAST))
    loss = -np.where(valid, losses, 0.0).sum() / _normaliser(valid, axis, normalization)
    return loss, probability


def infogain_loss_backward(
    dloss: Reals,
    probability: Reals,
    label: Values,
    matrix: Reals,
    *,
    axis: int,
    ignore_label: int | None,
    normalization: str,
) -> Reals:
    gains, valid = _gains(probability, label, matrix, axis, ignore_label)
    dx = dloss * (probability * gains.sum(axis, keepdims=True) - gains)
    return np.where(valid, dx / _normaliser(valid, axis, normalization), 0.0)


def _gains(
    x: Reals, label: Values, matrix: Reals, axis: int, ignore_label: int | None
) -> tuple[Reals, Values]:
    """Return the matrix's row for each label, along ``axis``, and which labels count."""
    labels, valid = _labels(x, label, axis, ignore_label)
    classes = x.shape[axis]
    rows: Reals = matrix.reshape(classes, classes)[labels.squeeze(axis)]
    return np.moveaxis(rows, -1, axis), valid


def hinge_loss(x: Reals, label: Values, *, norm: str) -> Reals:
    _, opening = _hinge(x, label)
    losses: Reals = opening if norm == "L1" else opening**2
    loss: Reals = losses.sum() / x.shape[0]
    return loss


def hinge_loss_backward(dloss: Reals, x: Reals, label: Values, *, norm: str) -> Reals:
    sign, opening = _hinge(x, label)
    slope = np.sign(opening) if norm == "L1" else 2 * opening
    dx: Reals = dloss / x.shape[0] * sign * slope
    return dx.reshape(x.shape)


def _hinge(x: Reals, label: Values) -> tuple[Reals, Reals]:
    """Return -1 at the label and 1 elsewhere, and how far each hinge is open: (samples, classes)."""
    scores = x.reshape(x.shape[0], -1)
    labels, _ = _labels(scores, label, 1, None)
    sign = np.where(np.arange(scores.shape[1]) == labels, -1.0, 1.0)
    return sign, np.maximum(0.0, 1.0 + sign * scores)


def negative_log_likelihood(x: Reals, label: Values) -> Reals:
    scores = x.reshape(x.shape[0], -1)
    labels, _ = _labels(scores, label, 1, None)
    picked = np.take_along_axis(scores, labels, 1)
    loss: Reals = -np.log(np.maximum(picked, _LEAST)).sum() / x.shape[0]
    return loss


def negative_log_likelihood_backward(dloss: Reals, x: Reals, label: Values) -> Reals:
    scores = x.reshape(x.shape[0], -1)
    labels, _ = _labels(scores, label, 1, None)
    at_label = np.arange(scores.shape[1]) == labels
    slope = -dloss / x.shape[0] / np.maximum(scores, _LEAST)
    dx: Reals = np.where(at_label, slope, 0.0)
    return dx.reshape(x.shape)


def sigmoid_cross_entropy_loss(
    x: Reals, target: Values, *, ignore_label: int | None, normalization: str
) -> Reals:
    target = target.reshape(x.shape)
    valid = np.trunc(target) != ignore_label
    losses = np.maximum(x, 0.0) - x * target + np.log1p(np.exp(-np.abs(x)))
    loss: Reals = np.where(valid, losses, 0.0).sum() / _normaliser(valid, 1, normalization)
    return loss


def sigmoid_cross_entropy_loss_backward(
    dloss: Reals, x: Reals, target: Values, *, ignore_label: int | None, normalization: str
) -> Reals:
    target = target.reshape(x.shape)
    valid = np.trunc(target) != ignore_label
    power = np.exp(-np.abs(x))
    probability = np.where(x >= 0, 1.0, power) / (1.0 + power)
    return np.where(valid, dloss * (probability - target) / _normaliser(valid, 1, normalization), 0.0)


def half_squared_distance(a: Reals, b: Reals) -> Reals:
    difference = a.reshape(-1) - b.reshape(-1)
    loss: Reals = difference @ difference / (2 * a.shape[0])
    return loss


def half_squared_distance_backward(dloss: Reals, a: Reals, b: Reals) -> tuple[Reals, Reals]:
    da = dloss * (a - b.reshape(a.shape)) / a.shape[0]
    return da, -da.reshape(b.shape)


def contrastive_loss(a: Reals, b: Reals, similar: Values, *, margin: float, legacy: bool) -> Reals:
    _, square, alike = _apart(a, b, similar)
    open_by = np.maximum(0.0, margin - (square if legacy else np.sqrt(square)))
    losses: Reals = np.where(alike, square, open_by if legacy else open_by**2)
    loss: Reals = losses.sum() / (2 * a.shape[0])
    return loss


def contrastive_loss_backward(
    dloss: Reals, a: Reals, b: Reals, similar: Values, *, margin: float, legacy: bool
) -> tuple[Reals, Reals]:
    difference, square, alike = _apart(a, b, similar)
    distance = np.sqrt(square)
    pushed = square < margin if legacy else np.maximum(0.0, margin - distance) / (distance + 1e-4)
    slope = np.where(alike, 1.0, -pushed.astype(np.float64))
    da = dloss / a.shape[0] * slope[:, None] * difference
    return da.reshape(a.shape), -da.reshape(b.shape)


def _apart(a: Reals, b: Reals, similar: Values) -> tuple[Reals, Reals, Values]:
    """Return for each sample the difference of its vectors, its square, and whether they are similar."""
    difference = a.reshape(a.shape[0], -1) - b.reshape(b.shape[0], -1)
    return difference, (difference**2).sum(1), np.trunc(similar.reshape(-1)) != 0


def count_labels(label: Values, *, ignore_label: int) -> Values:
    return np.array([np.count_nonzero(np.trunc(label) != ignore_label)], np.float64)


def over_divisor(x: Reals, divisor: Reals, *, share: float) -> Reals:
    return x / (share * max(1.0, float(divisor[0])))


KERNELS: Kernels = {
    "count_labels": count_labels,
    "over_divisor": over_divisor,
    "softmax_loss": softmax_loss,
    "softmax_loss_backward": softmax_loss_backward,
    "accuracy": accuracy,
    "segment_scores": segment_scores,
    "angular_margin": angular_margin,
    "angular_margin_backward": angular_margin_backward,
    "infogain_loss": infogain_loss,
    "infogain_loss_backward": infogain_loss_backward,
    "hinge_loss": hinge_loss,
    "hinge_loss_backward": hinge_loss_backward,
    "negative_log_likelihood": negative_log_likelihood,
    "negative_log_likelihood_backward": negative_log_likelihood_backward,
    "sigmoid_cross_entropy_loss": sigmoid_cross_entropy_loss,
    "sigmoid_cross_entropy_loss_backward": sigmoid_cross_entropy_loss_backward,
    "half_squared_distance": half_squared_distance,
    "half_squared_distance_backward": half_squared_distance_backward,
    "contrastive_loss": contrastive_loss,
    "contrastive_loss_backward": contrastive_loss_backward,
}
