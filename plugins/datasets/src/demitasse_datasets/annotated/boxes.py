"""Boxes as rows of xmin, ymin, xmax, ymax, shares of an image's width and height: what they have in
common, and where they lie in a part of the image. All in float64; an array of boxes is (..., 4)."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Reals: TypeAlias = NDArray[np.float64]
WHOLE = np.array([0.0, 0.0, 1.0, 1.0])


def areas(boxes: Reals) -> Reals:
    """Of each box; 0 for one whose corners are the wrong way round."""
    sides: Reals = (boxes[..., 2:] - boxes[..., :2]).clip(0)
    found: Reals = sides.prod(-1)
    return found


def common(one: Reals, others: Reals) -> Reals:
    """The areas that boxes have in common."""
    low = np.maximum(one[..., :2], others[..., :2])
    found: Reals = (np.minimum(one[..., 2:], others[..., 2:]) - low).clip(0).prod(-1)
    return found


def within(part: Reals, boxes: Reals) -> Reals:
    """Boxes as shares of a part of the image, cut off at its sides; without area where none is left."""
    corner = np.tile(part[:2], 2)
    size = np.tile(part[2:] - part[:2], 2)
    found: Reals = ((boxes - corner) / size).clip(0, 1)
    return found


def mirrored(boxes: Reals) -> Reals:
    """Boxes in the image whose left is its right."""
    left, top, right, bottom = np.moveaxis(boxes, -1, 0)
    return np.stack([1 - right, top, 1 - left, bottom], -1)


def shares(amount: Reals, whole: Reals) -> Reals:
    """``amount`` over ``whole``, 0 where that is 0."""
    amount, whole = np.broadcast_arrays(amount, whole)
    found: Reals = np.divide(amount, whole, out=np.zeros(amount.shape), where=whole > 0)
    return found
