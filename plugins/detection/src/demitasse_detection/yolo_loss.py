"""The loss of a YOLO net's map, given the objects in the images. Redmon and Farhadi 2017, *YOLO9000:
Better, Faster, Stronger*, section 2, *Direct location prediction* and *Training for detection*; Redmon
et al. 2016, *You Only Look Once*, section 2.2, for the sum of squares that it builds on.

The slopes are exactly those of Darknet and of its Caffe forks; the loss is the function that has these
slopes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from demitasse_detection.boxes import Reals, alike, corners, overlaps
from demitasse_detection.yolo import sigmoid, softmax
from demitasse_detection.yolo_training import Found, boxes_told, nearness, over_images, places


def region_loss(maps: Any, truth: Any, about: Mapping[str, Any]) -> tuple[float, Reals]:
    """Return the loss of maps (N, A (5 + C), H, W), as the mean over images, and its slopes, in the
    shape of the maps."""
    rows, columns = maps.shape[2:]
    anchors = np.asarray(about["anchors"], np.float64) / [columns, rows]
    return over_images(
        maps, truth, len(anchors), about, lambda told, mine: _of_image(told, mine, anchors, about)
    )


def _of_image(told: Reals, mine: Found, anchors: Reals, about: Mapping[str, Any]) -> tuple[float, Reals]:
    centres, objects_, classes = sigmoid(told[..., :2]), sigmoid(told[..., 4]), softmax(told[..., 5:])
    boxes = boxes_told(told, centres, anchors)
    slopes = np.zeros_like(told)
    # A place is empty unless its predicted box overlaps an object by more than the limit.
    weight = np.where(nearness(boxes, mine) > about["overlap"], 0.0, about["absent"])
    wanted = np.zeros_like(objects_)
    owner = _owners(boxes, mine, anchors, about)
    at = np.nonzero(owner >= 0)
    box, label = mine.boxes[owner[at]], mine.labels[owner[at]]
    weight[at] = about["present"]
    shared = overlaps(corners(boxes[at]), corners(box))
    wanted[at] = shared if about["rescored"] else 1.0
    away = objects_ - wanted
    slopes[..., 4] = weight * away * objects_ * (1 - objects_)
    loss = float((weight * away**2).sum()) / 2
    if len(label):
        extent = np.array(told.shape[1:3][::-1])
        place = np.stack(at[:0:-1], -1)  # columns, rows
        off = centres[at] - (box[:, :2] * extent - place)
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
    """Return, for each anchor, row and column, the number of the object that it is to find, or -1 for
    none. The place is that of the object's centre, and the anchor the one with the most similar sides.
    Of two objects at one place the last one counts."""
    count, rows, columns = boxes.shape[:3]
    owner = np.full((count, rows, columns), -1)
    for number, (column, row) in enumerate(places(mine.boxes, rows, columns)):
        sides = anchors if about["by_anchors"] else boxes[:, row, column, 2:]
        owner[alike(sides, mine.boxes[number, 2:]).argmax(), row, column] = number
    return owner
