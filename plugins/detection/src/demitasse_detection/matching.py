"""Matching of priors with the objects of an image, and the choice of priors that are trained as
background. Liu et al. 2016, *SSD*, section 2.2: *Matching strategy* and *Hard negative mining*."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from demitasse import DataError, SampleError
from demitasse_detection.boxes import Reals, overlaps

ROW = 8
"""The numbers of an object: image, class, number, xmin, ymin, xmax, ymax, and
whether it is difficult."""
_LEAST = 1e-6
"""An overlap that is not larger than this counts as none."""


@dataclass(frozen=True)
class Objects:
    """The content of an image: classes (G,), boxes (G, 4), and which of them are difficult."""

    labels: NDArray[np.int64]
    boxes: Reals
    difficult: NDArray[np.bool_]


def objects(truth: Any, images: int, about: Mapping[str, Any]) -> list[Objects]:
    """Return the objects of each image. Rows are (..., 8). If ``truth`` has one part for each of several
    images, the part determines a row's image, otherwise the row itself. A first number of -1 means no
    object, and so does a row of zeros. Raise DataError for a row with an invalid image or class; the
    error begins with the source in ``about``."""
    rows = np.asarray(truth, np.float64).reshape(-1, ROW)
    there = (rows[:, 0] != -1) & rows.any(1)
    if 1 < images == len(truth):
        rows = rows.copy()
        rows[:, 0] = np.repeat(np.arange(images), len(rows) // images)
    valid = np.isin(rows[:, 0], np.arange(images)) & np.isin(rows[:, 1], np.arange(about["classes"]))
    wrong = there & ~(valid & (rows[:, 1] != about["background"]))
    if wrong.any():
        at = int(wrong.argmax())
        told = (
            f"{about['source']}: row {at} of the objects has image {rows[at, 0]:g} and class "
            f"{rows[at, 1]:g} (valid: images from 0 to {images - 1}, classes from 0 to "
            f"{about['classes'] - 1} except the background {about['background']}; -1: no object)"
        )
        known = rows[at, 0] in range(images)
        raise SampleError(told, int(rows[at, 0])) if known else DataError(told)
    if not about["difficult"]:
        there &= rows[:, 7] == 0
    each = (rows[there & (rows[:, 0] == image)] for image in range(images))
    return [Objects(mine[:, 1].astype(np.int64), mine[:, 3:7], mine[:, 7] != 0) for mine in each]


def matches(boxes: Reals, found: Reals, about: Mapping[str, Any]) -> tuple[NDArray[np.int64], Reals]:
    """Return, for each of boxes (P, 4), the number of the object among boxes (G, 4) that it is to find,
    and its largest overlap with an object. The number is -1 for no object, and -2 for a box beyond the
    image that is to be ignored."""
    index = np.full(len(boxes), -1)
    shared = overlaps(boxes[:, None], found[None])
    shared[shared <= _LEAST] = 0
    if about["inside"]:
        beyond = ((boxes < 0) | (boxes > 1)).any(1)
        index[beyond], shared[beyond] = -2, 0
    most = shared.max(1, initial=0)
    free = shared.copy()
    for _ in range(len(found)):  # each object gets the best remaining box
        box, number = np.unravel_index(free.argmax(), free.shape)
        if free[box, number] == 0:
            break
        index[box] = number
        free[box], free[:, number] = 0, 0
    if about["per_prediction"] and len(found):
        also = (index == -1) & (most >= about["overlap"]) & (most > 0)
        index[also] = shared[also].argmax(1)
    return index, most


def negatives(
    index: NDArray[np.int64], overlap: Reals, losses: Reals, about: Mapping[str, Any]
) -> NDArray[np.int64]:
    """Return the boxes that are trained as background. Among those without an object that overlap none
    by much, they are the ones with the largest losses, a fixed number for each matched box."""
    eligible = np.flatnonzero((index == -1) & (overlap < about["apart"]))
    count = int(np.count_nonzero(index > -1) * about["ratio"])
    hardest: NDArray[np.int64] = eligible[np.argsort(-losses[eligible], kind="stable")[:count]]
    return hardest
