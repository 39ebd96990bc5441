"""Regions that may contain an object: what a small net predicts for boxes of several shapes at each
place. Ren et al. 2015, *Faster R-CNN*, section 3.1, *Anchors*, and section 3.3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from demitasse_detection.boxes import Reals, decode, survivors

ROW = 5
"""The numbers of a region: the image, and two corners in pixels, both inside the region."""

_INSIDE = np.array([0.0, 0.0, 1.0, 1.0])
"""A box ends one pixel after its last one."""


def anchors(size: int, ratios: Sequence[float], scales: Sequence[float]) -> Reals:
    """Return boxes (ratios x scales, 4) around a square of ``size`` pixels at the origin: for each ratio
    of height to width a box of the square's area, in whole pixels, times each scale."""
    ratio, scale = np.asarray(ratios, np.float64), np.asarray(scales, np.float64)
    width = np.rint(np.sqrt(size * size / ratio))
    sides = np.stack([width, np.rint(width * ratio)], -1)[:, None] * scale[:, None]
    half = (sides.reshape(-1, 2) - 1) / 2
    centre = (size - 1) / 2
    return np.concatenate([centre - half, centre + half], -1)


def capacity(places: int, about: Mapping[str, Any]) -> int:
    """Return the number of regions that are planned for an image with ``places`` boxes."""
    limits = [about[name] for name in ("before", "after") if about[name] > 0]
    return min(places, *limits) if limits else places


def proposals(scores: Any, told: Any, images: Any, about: Mapping[str, Any]) -> tuple[Reals, Reals]:
    """Return regions (images * R, ``ROW``) and their scores (images * R).

    ``scores`` (images, 2 A, rows, columns) has the probabilities of background, then of an object, for
    each of A boxes at a place. ``told`` (images, 4 A, rows, columns) is the object's position relative
    to the box. ``images`` (images, 3 or more) has heights, widths, and the images' magnification, or,
    as PVANet has it, that of the height and that of the width.
    """
    boxes = anchors(about["base"], about["ratios"], about["scales"])
    count, _, rows, columns = scores.shape
    steps = (
        np.arange(rows)[:, None, None] * about["stride"],
        np.arange(columns)[:, None] * about["stride"],
    )
    down, across = np.broadcast_arrays(*steps)
    at = np.stack([across, down] * 2, -1) + boxes  # rows, columns, A, 4
    beside = at.reshape(-1, 4) + _INSIDE
    likely = np.asarray(scores[:, len(boxes) :], np.float64).transpose(0, 2, 3, 1).reshape(count, -1)
    deltas = np.asarray(told, np.float64).reshape(count, len(boxes), 4, rows, columns)
    deltas = deltas.transpose(0, 3, 4, 1, 2).reshape(count, -1, 4)
    rows_told = np.asarray(images, np.float64).reshape(-1, images.shape[-1])
    columns_told = [0, 1, 2, min(3, images.shape[-1] - 1)]
    sizes = np.broadcast_to(rows_told[:, columns_told], (count, 4))
    most = capacity(len(beside), about)
    found = [
        _in_image(number, decode(deltas[number], beside, np.ones(4), "CENTER_SIZE"), *each, most, about)
        for number, each in enumerate(zip(likely, sizes, strict=True))
    ]
    regions, how_likely = zip(*found, strict=True)
    return np.concatenate(regions), np.concatenate(how_likely)


def _in_image(
    number: int, boxes: Reals, scores: Reals, image: Reals, most: int, about: Mapping[str, Any]
) -> tuple[Reals, Reals]:
    """Return ``most`` regions of an image and their scores. If fewer are found, the best
    one is repeated, which makes no difference to readers; if no region is large enough, all
    are the whole image."""
    height, width, *enlarged = image
    boxes = boxes.clip(0, [width - 1, height - 1] * 2)
    least = about["least"] * np.array(enlarged[::-1])  # across, then down
    large = np.flatnonzero((boxes[:, 2:] - boxes[:, :2] + 1 >= least).all(-1))
    order = large[np.argsort(-scores[large], kind="stable")]
    if about["before"] > 0:
        order = order[: about["before"]]
    kept = order[survivors(boxes[order] + _INSIDE, about["overlap"], 1.0, most)]
    if not len(kept):
        whole = np.array([[number, 0, 0, width - 1, height - 1]])
        return np.repeat(whole, most, 0), np.zeros(most)
    filled = np.concatenate([kept, np.full(most - len(kept), kept[0])])
    return np.insert(boxes[filled], 0, number, -1), scores[filled]
