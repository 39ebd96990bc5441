"""How far the map of a YOLO net is from the objects in the images. Redmon and Farhadi 2017, *YOLO9000:
Better, Faster, Stronger*, section 2, *Direct location prediction* and *Training for detection*; Redmon
et al. 2016, *You Only Look Once*, section 2.2, for the sum of squares that it goes on with.

Slopes are those of Darknet and of Caffe's forks of it, number by number; the loss is what has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from demitasse import DataError
from demitasse_detection.boxes import Reals, overlaps
from demitasse_detection.matching import ROW, objects
from demitasse_detection.yolo import LARGEST, sigmoid, softmax

OF_DARKNET = 5
"""Numbers of an object in Darknet's labels: class, centre and sides in shares of the image."""


@dataclass(frozen=True)
class Found:
    """What is in an image: classes (G,), from 0 on, and boxes (G, 4) as centre and sides."""

    labels: NDArray[np.int64]
    boxes: Reals


def region_loss(maps: Any, truth: Any, about: Mapping[str, Any]) -> tuple[float, Reals]:
    """Of maps (N, A (5 + C), H, W) the loss, over images the mean, and its slopes, in that shape."""
    images, _, rows, columns = maps.shape
    anchors = np.asarray(about["anchors"], np.float64) / [columns, rows]
    told = np.asarray(maps, np.float64).reshape(images, len(anchors), -1, rows, columns)
    told = np.moveaxis(told, 2, -1)  # images, anchors, rows, columns, numbers
    slopes, loss = np.zeros_like(told), 0.0
    for image, mine in enumerate(_found(truth, images, about)):
        part, slopes[image] = _of_image(told[image], mine, anchors, about)
        loss += part
    return loss / images, np.moveaxis(slopes, -1, 2).reshape(maps.shape) / images


def _of_image(told: Reals, mine: Found, anchors: Reals, about: Mapping[str, Any]) -> tuple[float, Reals]:
    centres, objects_, classes = sigmoid(told[..., :2]), sigmoid(told[..., 4]), softmax(told[..., 5:])
    boxes = _boxes(told, centres, anchors)
    slopes = np.zeros_like(told)
    # Nothing is there, unless the box that is told overlaps an object by more than the limit.
    near = overlaps(_corners(boxes)[..., None, :], _corners(mine.boxes)).max(-1, initial=0.0)
    weight = np.where(near > about["overlap"], 0.0, about["absent"])
    wanted = np.zeros_like(objects_)
    owner = _owners(boxes, mine, anchors, about)
    at = np.nonzero(owner >= 0)
    box, label = mine.boxes[owner[at]], mine.labels[owner[at]]
    weight[at] = about["present"]
    shared = overlaps(_corners(boxes[at]), _corners(box))
    wanted[at] = shared if about["rescored"] else 1.0
    away = objects_ - wanted
    slopes[..., 4] = weight * away * objects_ * (1 - objects_)
    loss = float((weight * away**2).sum()) / 2
    if len(label):
        extent = np.array(told.shape[1:3][::-1])
        places = np.stack(at[:0:-1], -1)  # columns, rows
        off = centres[at] - (box[:, :2] * extent - places)
        bent = told[at][:, 2:4] - np.log(box[:, 2:] / anchors[at[0]])
        part = slopes[at]
        part[:, :2] = about["placed"] * off * centres[at] * (1 - centres[at])
        part[:, 2:4] = about["placed"] * bent
        part[:, 5:] = about["classed"] * (classes[at] - np.eye(about["classes"])[label])
        slopes[at] = part
        numbers = told[at][:, 5:]
        top = numbers.max(1)
        surprise = (
            np.log(np.exp(numbers - top[:, None]).sum(1)) + top - numbers[range(len(label)), label]
        )
        loss += about["placed"] * float((off**2).sum() + (bent**2).sum()) / 2
        loss += about["classed"] * float(surprise.sum())
    return loss, slopes


def _owners(boxes: Reals, mine: Found, anchors: Reals, about: Mapping[str, Any]) -> NDArray[np.int64]:
    """For each anchor, row and column the number of the object that it is to find, -1 for none: the
    place is that of the object's centre, the anchor the one of the most alike sides. Of two objects the
    last has the place."""
    count, rows, columns = boxes.shape[:3]
    owner = np.full((count, rows, columns), -1)
    for number, box in enumerate(mine.boxes):
        column = int(np.clip(box[0] * columns, 0, columns - 1))
        row = int(np.clip(box[1] * rows, 0, rows - 1))
        sides = anchors if about["by_anchors"] else boxes[:, row, column, 2:]
        alike = overlaps(_corners(_centred(sides)), _corners(_centred(box[2:])))
        owner[alike.argmax(), row, column] = number
    return owner


def _boxes(told: Reals, centres: Reals, anchors: Reals) -> Reals:
    """The boxes (A, H, W, 4) that are told, as centre and sides in shares of the image."""
    rows, columns = told.shape[1:3]
    x = (np.arange(columns) + centres[..., 0]) / columns
    y = (np.arange(rows)[:, None] + centres[..., 1]) / rows
    sides = np.exp(told[..., 2:4].clip(max=LARGEST)) * anchors[:, None, None]
    return np.concatenate([x[..., None], y[..., None], sides], -1)


def _corners(boxes: Reals) -> Reals:
    half = boxes[..., 2:] / 2
    return np.concatenate([boxes[..., :2] - half, boxes[..., :2] + half], -1)


def _centred(sides: Reals) -> Reals:
    return np.concatenate([np.zeros_like(sides), sides], -1)


def _found(truth: Any, images: int, about: Mapping[str, Any]) -> list[Found]:
    """What is in each image. Rows of 8 are SSD's, with classes from 1 on; else they are Darknet's, of 5,
    up to one without width. Raises DataError for a class that there is not, and a box without sides."""
    if truth.shape[-1] == ROW:
        known = {"classes": about["classes"] + 1, "background": 0, "difficult": True}
        each = objects(truth, images, {**about, **known})
        return [
            _checked(o.labels - 1, _of_corners(o.boxes), number, about) for number, o in enumerate(each)
        ]
    rows = np.asarray(truth, np.float64).reshape(images, -1, OF_DARKNET)
    return [_checked(*_until_none(mine), number, about) for number, mine in enumerate(rows)]


def _until_none(rows: Reals) -> tuple[Reals, Reals]:
    none = np.flatnonzero(rows[:, 3] == 0)
    rows = rows[: none[0]] if len(none) else rows
    return rows[:, 0], rows[:, 1:]


def _of_corners(boxes: Reals) -> Reals:
    low, high = boxes[:, :2], boxes[:, 2:]
    return np.concatenate([(low + high) / 2, high - low], 1)


def _checked(labels: Any, boxes: Reals, image: int, about: Mapping[str, Any]) -> Found:
    wrong = ~np.isin(labels, np.arange(about["classes"])) | ~(boxes[:, 2:] > 0).all(1)
    if wrong.any():
        at = int(wrong.argmax())
        told = " ".join(f"{number:g}" for number in boxes[at])
        raise DataError(
            f"{about['source']}: object {at} of image {image} is of class {labels[at]:g}, with centre "
            f"and sides {told} (valid: classes from 0 to {about['classes'] - 1}, sides above 0)"
        )
    return Found(np.asarray(labels, np.int64), boxes)
