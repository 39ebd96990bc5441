"""Boxes as rows of xmin, ymin, xmax, ymax: their overlaps, how they are told beside others, and which of
many that lie on each other stay. Liu et al. 2016, *SSD*, section 2.2; Girshick et al. 2014, *R-CNN*.

All in float64. An array of boxes is (..., 4); sides are shares of an image.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Reals: TypeAlias = NDArray[np.float64]
CODES = ("CORNER", "CENTER_SIZE", "CORNER_SIZE")
"""How a box is told beside a prior, in the order of their numbers in files: by what its corners, its
centre and the logarithm of its size, or its corners in sizes of the prior differ."""


def areas(boxes: Reals) -> Reals:
    """Of each box; 0 for one whose corners are the wrong way round."""
    sides: Reals = boxes[..., 2:] - boxes[..., :2]
    found: Reals = np.where((sides < 0).any(-1), 0.0, sides.prod(-1))
    return found


def overlaps(one: Reals, others: Reals) -> Reals:
    """The area that boxes have in common over what they cover together; 0 where they only touch."""
    low = np.maximum(one[..., :2], others[..., :2])
    sides = np.minimum(one[..., 2:], others[..., 2:]) - low
    common = np.where((sides > 0).all(-1), sides.prod(-1), 0.0)
    whole = areas(one) + areas(others) - common
    found: Reals = np.divide(common, whole, out=np.zeros_like(common), where=common > 0)
    return found


def corners(boxes: Reals) -> Reals:
    """Of boxes (..., 4) that are a centre and sides."""
    half = boxes[..., 2:] / 2
    return np.concatenate([boxes[..., :2] - half, boxes[..., :2] + half], -1)


def centres(boxes: Reals) -> Reals:
    """Centres and sides (..., 4) of boxes."""
    low, high = boxes[..., :2], boxes[..., 2:]
    return np.concatenate([(low + high) / 2, high - low], -1)


def alike(one: Reals, others: Reals) -> Reals:
    """The overlaps of boxes with these sides (..., 2) whose centres are one."""
    return overlaps(*(np.concatenate([-sides / 2, sides / 2], -1) for sides in (one, others)))


def decode(told: Reals, priors: Reals, variances: Reals, code: str) -> Reals:
    """The boxes that ``told`` (..., P, 4) says beside priors (P, 4), each number times its variance."""
    told = told * variances
    if code == "CORNER":
        return priors + told
    size = priors[:, 2:] - priors[:, :2]
    if code == "CORNER_SIZE":
        return priors + told * np.tile(size, 2)
    centre = (priors[:, :2] + priors[:, 2:]) / 2 + told[..., :2] * size
    with np.errstate(over="ignore", invalid="ignore"):  # a size without bounds is one
        half = np.exp(told[..., 2:]) * size / 2
        return np.concatenate([centre - half, centre + half], -1)


def encode(boxes: Reals, priors: Reals, variances: Reals, code: str) -> Reals:
    """What tells boxes (P, 4) beside priors (P, 4): ``decode`` gives them back."""
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
    """Which of boxes (N, 4), the best first, overlap no better one that stays by more than ``limit``,
    which is multiplied by ``eta`` at each that stays as long as it is above 0.5. The first ``most``."""
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
