"""Boxes as rows of xmin, ymin, xmax, ymax, in fractions of an image's width and height: their
intersections, and their positions in a part of the image. All in float64; boxes are (..., 4)."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Reals: TypeAlias = NDArray[np.float64]
WHOLE = np.array([0.0, 0.0, 1.0, 1.0])


def areas(boxes: Reals) -> Reals:
    """Return the area of each box; 0 if its corners are reversed."""
    sides: Reals = (boxes[..., 2:] - boxes[..., :2]).clip(0)
    found: Reals = sides.prod(-1)
    return found


def common(one: Reals, others: Reals) -> Reals:
    """Return the areas of the boxes' intersections."""
    low = np.maximum(one[..., :2], others[..., :2])
    found: Reals = (np.minimum(one[..., 2:], others[..., 2:]) - low).clip(0).prod(-1)
    return found


def within(part: Reals, boxes: Reals) -> Reals:
    """Return boxes in fractions of a part of the image, clipped to it; the area is 0 if nothing is
    left."""
    corner = np.tile(part[:2], 2)
    size = np.tile(part[2:] - part[:2], 2)
    found: Reals = ((boxes - corner) / size).clip(0, 1)
    return found


def mirrored(boxes: Reals) -> Reals:
    """Return the boxes in the mirrored image."""
    left, top, right, bottom = np.moveaxis(boxes, -1, 0)
    return np.stack([1 - right, top, 1 - left, bottom], -1)


def shares(amount: Reals, whole: Reals) -> Reals:
    """Return ``amount`` / ``whole``, or 0 where ``whole`` is 0."""
    amount, whole = np.broadcast_arrays(amount, whole)
    found: Reals = np.divide(amount, whole, out=np.zeros(amount.shape), where=whole > 0)
    return found
