"""The loss of one of the maps of a YOLOv3 net, given the objects in the images. Redmon and Farhadi 2018,
*YOLOv3: An Incremental Improvement*, sections 2.1 to 2.3; Szegedy et al. 2016, *Rethinking the Inception
Architecture*, section 7, for label smoothing.

The slopes are exactly those of the current layer in MobileNet-YOLO's fork of Caffe. The loss is the
function that has these slopes, and is 0 where they are 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from demitasse_detection.boxes import Reals, alike
from demitasse_detection.yolo import sigmoid
from demitasse_detection.yolo_training import Found, boxes_told, nearness, over_images, places


def yolov3_loss(maps: Any, truth: Any, about: Mapping[str, Any]) -> tuple[float, Reals]:
    """Return the loss of maps (N, A (5 + C), H, W), as the mean over images, and its slopes, in the
    shape of the maps."""
    anchors, mask = np.asarray(about["anchors"], np.float64), np.asarray(about["mask"], np.int64)
    return over_images(
        maps, truth, len(mask), about, lambda told, mine: _of_image(told, mine, anchors, mask, about)
    )


def _of_image(
    told: Reals, mine: Found, anchors: Reals, mask: NDArray[np.int64], about: Mapping[str, Any]
) -> tuple[float, Reals]:
    slopes, own = np.zeros_like(told), anchors[mask]
    near = nearness(boxes_told(told, sigmoid(told[..., :2]), own), mine)
    owner, shown = _owners(told.shape[:3], mine, anchors, mask, about)
    # A place is empty unless its predicted box overlaps an object by more than the limit.
    empty = (near <= about["overlap"]) & (owner < 0)
    loss, slopes[empty, 4] = _towards(told[empty, 4], 0.0, about)
    at = np.nonzero(owner >= 0)
    numbers, box, pulls = told[at], mine.boxes[owner[at]], slopes[at]
    extent, place = np.array(told.shape[2:0:-1]), np.stack(at[:0:-1], -1)  # columns, rows
    placed = about["placed"] * (2 - box[:, 2:].prod(1, keepdims=True))  # small boxes count more
    bent = numbers[:, 2:4] - np.log(box[:, 2:] / own[at[0]])
    pulls[:, 2:4] = placed * bent
    loss += float((placed * bent**2).sum()) / 2
    certain = 1 - about["smoothed"] / 2
    for part, wanted, weight in (
        (slice(0, 2), box[:, :2] * extent - place, placed),
        (slice(4, 5), 1.0, about["present"]),
        (slice(5, None), np.where(shown[at], certain, 1 - certain), about["classed"]),
    ):
        more, pulls[:, part] = _towards(numbers[:, part], wanted, about, weight)
        loss += more
    slopes[at] = pulls
    return loss, slopes


def _towards(x: Reals, wanted: Any, about: Mapping[str, Any], weight: Any = 1.0) -> tuple[float, Reals]:
    """Return the sum of ``weight`` times the distance of the logits' probabilities from ``wanted``, from
    0 to 1, and its slopes. The distance is half the squared difference if ``squared``, otherwise the
    relative entropy."""
    likely = sigmoid(x)
    away = likely - wanted
    if about["squared"]:
        return float((weight * away**2).sum()) / 2, weight * away * likely * (1 - likely)
    entropy = -_times_logarithm(wanted) - _times_logarithm(1 - np.asarray(wanted))
    cross = np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))) - wanted * x
    return float((weight * (cross - entropy)).sum()), weight * away


def _times_logarithm(share: Any) -> Any:
    """Return share log share; 0 where share is 0."""
    return share * np.log(np.maximum(share, np.finfo(np.float64).tiny))


def _owners(
    shape: tuple[int, ...],
    mine: Found,
    anchors: Reals,
    mask: NDArray[np.int64],
    about: Mapping[str, Any],
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return, for each anchor of the map, row and column, the number of the object whose box it is to
    predict (-1 for none), and the classes (A, H, W, C) that it is to predict. An object's place is that
    of its centre. Its anchors are the one of all maps with the most similar sides, and any other of this
    map with sides that are similar enough. Of two objects at one place the last one's box counts, and
    the classes of both."""
    owner = np.full(shape, -1)
    shown = np.zeros((*shape, about["classes"]), bool)
    shared = alike(mine.boxes[:, None, 2:], anchors)  # objects, anchors of all maps
    taken = (shared[:, mask] > about["alike"]) | (shared.argmax(1)[:, None] == mask)
    number, anchor = np.nonzero(taken)
    column, row = places(mine.boxes, *shape[1:])[number].T
    np.maximum.at(owner, (anchor, row, column), number)
    shown[anchor, row, column, mine.labels[number]] = True
    return owner, shown
