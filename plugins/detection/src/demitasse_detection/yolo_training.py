"""What the losses of YOLO's maps have in common: the objects in the images, the boxes that the maps
predict, and the places of the objects in the maps. Redmon and Farhadi 2017, *YOLO9000*, section 2."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from demitasse import SampleError
from demitasse_detection.boxes import Reals, centres, corners, overlaps
from demitasse_detection.matching import ROW, objects
from demitasse_detection.yolo import LARGEST

OF_DARKNET = 5
"""The numbers of an object in Darknet's labels: class, centre and sides as fractions of the image."""


@dataclass(frozen=True)
class Found:
    """The content of an image: classes (G,), from 0 on, and boxes (G, 4) as centre and sides."""

    labels: NDArray[np.int64]
    boxes: Reals


OfImage: TypeAlias = Callable[[Reals, Found], tuple[float, Reals]]
"""A function that returns the loss and its slopes, given the map of one image (A, H, W, 5 +
C) and its objects."""


def over_images(
    maps: Any, truth: Any, anchors: int, about: Mapping[str, Any], of_image: OfImage
) -> tuple[float, Reals]:
    """Return the loss of maps (N, A (5 + C), H, W) with that many anchors, as the mean over
    images, and its slopes, in the shape of the maps. Raise SampleError for a row of ``truth`` that
    is not a valid object."""
    images, _, rows, columns = maps.shape
    told = np.asarray(maps, np.float64).reshape(images, anchors, -1, rows, columns)
    told = np.moveaxis(told, 2, -1)  # images, anchors, rows, columns, numbers
    slopes, loss = np.zeros_like(told), 0.0
    for image, mine in enumerate(_found(truth, images, about)):
        part, slopes[image] = of_image(told[image], mine)
        loss += part
    return loss / images, np.moveaxis(slopes, -1, 2).reshape(maps.shape) / images


def boxes_told(told: Reals, within: Reals, anchors: Reals) -> Reals:
    """Return the predicted boxes (A, H, W, 4), as centre and sides in fractions of the image. ``within``
    (A, H, W, 2) are the centres relative to their places; ``anchors`` (A, 2) are widths and heights."""
    rows, columns = told.shape[1:3]
    x = (np.arange(columns) + within[..., 0]) / columns
    y = (np.arange(rows)[:, None] + within[..., 1]) / rows
    sides = np.exp(told[..., 2:4].clip(max=LARGEST)) * anchors[:, None, None]
    return np.concatenate([x[..., None], y[..., None], sides], -1)


def nearness(boxes: Reals, mine: Found) -> Reals:
    """Return each box's (..., 4) largest overlap with an object."""
    shared = overlaps(corners(boxes)[..., None, :], corners(mine.boxes))
    found: Reals = shared.max(-1, initial=0.0)
    return found


def places(boxes: Reals, rows: int, columns: int) -> NDArray[np.int64]:
    """Return the column and the row (G, 2) of a map that contain the centres of boxes (G, 4). The last
    column and row include their far border."""
    extent = np.array([columns, rows])
    found: NDArray[np.int64] = np.clip(boxes[:, :2] * extent, 0, extent - 1).astype(np.int64)
    return found


def _found(truth: Any, images: int, about: Mapping[str, Any]) -> list[Found]:
    """Return the content of each image. Rows of 8 are SSD's, with classes from 1 on; rows of 5 are
    Darknet's, up to one without width. Raise SampleError for a class that does not exist, for a box
    without sides, and for one whose centre is outside the image."""
    if truth.shape[-1] == ROW:
        known = {"classes": about["classes"] + 1, "background": 0, "difficult": True}
        each = objects(truth, images, {**about, **known})
        return [_checked(o.labels - 1, centres(o.boxes), image, about) for image, o in enumerate(each)]
    rows = np.asarray(truth, np.float64).reshape(images, -1, OF_DARKNET)
    return [_checked(*_until_none(mine), image, about) for image, mine in enumerate(rows)]


def _until_none(rows: Reals) -> tuple[Reals, Reals]:
    none = np.flatnonzero(rows[:, 3] == 0)
    rows = rows[: none[0]] if len(none) else rows
    return rows[:, 0], rows[:, 1:]


def _checked(labels: Any, boxes: Reals, image: int, about: Mapping[str, Any]) -> Found:
    inside = (boxes[:, :2] >= 0) & (boxes[:, :2] <= 1)
    right = np.isin(labels, np.arange(about["classes"])) & inside.all(1) & (boxes[:, 2:] > 0).all(1)
    if not right.all():
        at = int(right.argmin())
        told = " ".join(f"{number:g}" for number in boxes[at])
        raise SampleError(
            f"{about['source']}: object {at} of image {image} has class {labels[at]:g}, centre "
            f"and sides {told} (valid: classes from 0 to {about['classes'] - 1}, sides above 0, and "
            f"centres from 0 to 1, shares of the image)",
            image,
        )
    return Found(np.asarray(labels, np.int64), boxes)
