"""The hardest regions of each image, which alone are learned from. Shrivastava et al. 2016, *Training
Region-based Object Detectors with Online Hard Example Mining*, section 4; Dai et al. 2016, *R-FCN*,
section 2, *Training*."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from demitasse import DataError
from demitasse_detection.boxes import Reals

_LEAST = float(np.finfo(np.float32).tiny)
"""The least probability that a loss is made of."""


def label_losses(probability: Any, label: Any, about: Mapping[str, Any]) -> Reals:
    """-log of each label's own probability, in the shape of ``label``; 0 where that is ignored. Raises
    DataError for a label that is no class."""
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
    """The class of each label, and whether it counts (one that is ignored is 0 and does not), both
    (outer, 1, inner) by the ``axis`` of x that classes are. Raises DataError for what is no class."""
    axis, classes = about["axis"], x.shape[about["axis"]]
    outer = int(np.prod(x.shape[:axis], dtype=np.int64))
    numbers = np.asarray(label).reshape(outer, 1, -1).astype(np.int64)  # of 2.7 the whole part, 2
    counted = numbers != about["ignore_label"]  # all where no number is ignored
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
    """Labels and weights of the ``count`` regions of each image with the largest losses (of equals the
    first); ``ignored`` and 0 for the others. Raises DataError for a region of no image."""
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
