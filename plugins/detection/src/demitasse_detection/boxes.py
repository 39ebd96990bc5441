"""Boxes as rows of xmin, ymin, xmax, ymax: their overlaps, their encoding relative to others, and
non-maximum suppression. Liu et al. 2016, *SSD*, section 2.2; Girshick et al. 2014, *R-CNN*.

Everything is in float64. An array of boxes is (..., 4); sides are fractions of the image.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Reals: TypeAlias = NDArray[np.float64]
CODES = ("CORNER", "CENTER_SIZE", "CORNER_SIZE")
"""How a box is encoded relative to a prior, in the order of the codes' numbers in files: as the
difference of the corners; of the centres and of the logarithms of the sizes; or of the corners, divided
by the prior's size."""


def areas(boxes: Reals) -> Reals:
    """Return the area of each box; 0 if its corners are the wrong way round."""
    sides: Reals = boxes[..., 2:] - boxes[..., :2]
    found: Reals = np.where((sides < 0).any(-1), 0.0, sides.prod(-1))
    return found


def overlaps(one: Reals, others: Reals) -> Reals:
    """Return the intersection of boxes over their union; 0 if they only touch."""
    low = np.maximum(one[..., :2], others[..., :2])
    sides = np.minimum(one[..., 2:], others[..., 2:]) - low
    common = np.where((sides > 0).all(-1), sides.prod(-1), 0.0)
    whole = areas(one) + areas(others) - common
    found: Reals = np.divide(common, whole, out=np.zeros_like(common), where=common > 0)
    return found


def corners(boxes: Reals) -> Reals:
    """Return the corners of boxes (..., 4) given as a centre and sides."""
    half = boxes[..., 2:] / 2
    return np.concatenate([boxes[..., :2] - half, boxes[..., :2] + half], -1)


def centres(boxes: Reals) -> Reals:
    """Return the centres and sides (..., 4) of boxes."""
    low, high = boxes[..., :2], boxes[..., 2:]
    return np.concatenate([(low + high) / 2, high - low], -1)


def alike(one: Reals, others: Reals) -> Reals:
    """Return the overlaps of boxes with these sides (..., 2) if they had the same centre."""
    return overlaps(*(np.concatenate([-sides / 2, sides / 2], -1) for sides in (one, others)))


def decode(told: Reals, priors: Reals, variances: Reals, code: str) -> Reals:
    """Decode boxes: ``told`` (..., P, 4) are their codes relative to priors (P, 4), to be
    multiplied by variances."""
    told = told * variances
    if code == "CORNER":
        return priors + told
    size = priors[:, 2:] - priors[:, :2]
    if code == "CORNER_SIZE":
        return priors + told * np.tile(size, 2)
    centre = (priors[:, :2] + priors[:, 2:]) / 2 + told[..., :2] * size
    with np.errstate(over="ignore", invalid="ignore"):  # an unbounded size becomes inf
        half = np.exp(told[..., 2:]) * size / 2
        return np.concatenate([centre - half, centre + half], -1)


def encode(boxes: Reals, priors: Reals, variances: Reals, code: str) -> Reals:
    """Encode boxes (P, 4) relative to priors (P, 4), the inverse of ``decode``."""
    size = priors[:, 2:] - priors[:, :2]
    if code == "CORNER":
        told = boxes - priors
    elif code == "CORNER_SIZE":
        told = (boxes - priors) / np.tile(size, 2)
    else:
        centre = (boxes[:, :2] + boxes[:, 2:] - priors[:, :2] - priors[:, 2:]) / 2
        told = np.concatenate([centre / size, np.log((boxes[:, 2:] - boxes[:, :2]) / size)], -1)
    return told / variances


def survivors(boxes: Reals, limit: float, eta: float, most: int | None = None) -> list[int]:
    """Return the indices of boxes (N, 4), sorted from best to worst, that do not overlap any better
    surviving box by more than ``limit``; at most the first ``most``. At each survivor ``limit`` is
    multiplied by ``eta`` as long as it is above 0.5."""
    kept, worst = list[int](), np.zeros(len(boxes))
    for number, box in enumerate(boxes):
        if len(kept) == most:
            break
        if worst[number] <= limit:
            kept.append(number)
            rest = slice(number + 1, None)
            worst[rest] = np.maximum(worst[rest], overlaps(box, boxes[rest]))
            if limit > 0.5:
                limit *= eta
    return kept
