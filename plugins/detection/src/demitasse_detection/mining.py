"""The hardest regions of each image, the only ones that are trained on. Shrivastava et al. 2016,
*Training Region-based Object Detectors with Online Hard Example Mining*, section 4; Dai et al. 2016,
*R-FCN*, section 2, *Training*."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from demitasse import DataError
from demitasse_detection.boxes import Reals

_LEAST = float(np.finfo(np.float32).tiny)
"""The minimum probability that a loss is computed from."""


def label_losses(probability: Any, label: Any, about: Mapping[str, Any]) -> Reals:
    """Return -log of the probability of each label, in the shape of ``label``; 0 if it is ignored. Raise
    DataError for a label that is not a class."""
    numbers, counted = class_numbers(probability, label, about)
    of_class = np.asarray(probability, np.float64).reshape(
        len(numbers), probability.shape[about["axis"]], -1
    )
    own = np.take_along_axis(of_class, numbers, 1)
    losses: Reals = np.where(counted, -np.log(np.maximum(own, _LEAST)), 0.0)
    return losses.reshape(np.shape(label))


def class_numbers(
    x: Any, label: Any, about: Mapping[str, Any]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the class of each label, and whether it counts (an ignored one is 0 and does not), both in
    the shape (outer, 1, inner); ``axis`` is the axis of classes in x. Raise DataError for a label that
    is not a class."""
    axis, classes = about["axis"], x.shape[about["axis"]]
    outer = int(np.prod(x.shape[:axis], dtype=np.int64))
    numbers = np.asarray(label).reshape(outer, 1, -1).astype(np.int64)  # the integer part: 2 for 2.7
    counted = numbers != about["ignore_label"]  # all, if no number is ignored
    wrong = counted & ((numbers < 0) | (numbers >= classes))
    if wrong.any():
        ignored = "" if about["ignore_label"] is None else f", or {about['ignore_label']}, ignored"
        raise DataError(
            f"{about['source']}: label {numbers[wrong][0]} (valid: a class from 0 to {classes - 1}"
            f"{ignored})"
        )
    return np.where(counted, numbers, 0), np.asarray(counted)


def hardest(
    regions: Any, losses: Any, label: Any, weights: Any, about: Mapping[str, Any]
) -> tuple[Reals, Reals]:
    """Return labels and weights of the ``count`` regions of each image with the largest losses (of equal
    ones the first); those of the others are ``ignored`` and 0. Raise DataError for a region without a
    valid image."""
    samples, channels = weights.shape[:2]
    image = np.asarray(regions, np.float64).reshape(samples, 5, -1)[:, 0].reshape(-1)
    valid = (image >= 0) & (image < 2**31) & (image == np.floor(image))
    if not valid.all():
        r = int(valid.argmin())
        raise DataError(f"{about['source']}: region {r} has image {image[r]:g} (valid: 0 or more)")
    order = np.argsort(-np.asarray(losses, np.float64).reshape(-1), kind="stable")
    chosen = np.zeros(len(image), bool)
    for number in np.unique(image):
        chosen[order[image[order] == number][: about["count"]]] = True
    labels: Reals = np.where(chosen, np.asarray(label).reshape(-1), about["ignored"])
    kept: Reals = np.where(
        chosen.reshape(samples, 1, -1), np.asarray(weights).reshape(samples, channels, -1), 0.0
    )
    return labels, kept
