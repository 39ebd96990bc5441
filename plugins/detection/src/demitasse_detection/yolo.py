"""The meaning of a YOLO net's maps: for each place and anchor a box, the confidence that it contains an
object, and the object's class. Redmon and Farhadi 2017, *YOLO9000*, section 2; 2018, *YOLOv3*, section
2.1.

The preceding convolutions end in maps (N, A (5 + C), H, W): for each anchor two numbers for the centre,
two for the sides, one for the object, one for each class. With ``uncertain`` each of the first four is
followed by its uncertainty. Choi et al. 2019, *Gaussian YOLOv3*, section 3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from demitasse_detection.boxes import Reals, survivors

Anchors = Sequence[tuple[float, float]]
"""Widths and heights, as fractions of the image."""


LARGEST = 40.0
"""The logarithm of a size whose area can still be represented; such a box is many times as
large as the image."""


def numbers(about: Mapping[str, Any]) -> int:
    """Return how many numbers a map has for each anchor."""
    return (9 if about["uncertain"] else 5) + int(about["classes"])


def found_in_maps(maps: Sequence[Any], about: Mapping[str, Any]) -> list[Reals]:
    """Return, for each image, rows of its number, class (from 1 on), confidence and two corners as
    fractions of the image, the most confident first. Of overlapping boxes the best one is kept, whatever
    its class."""
    read = [_read(each, anchors, about) for each, anchors in zip(maps, about["anchors"], strict=True)]
    boxes, scores = (np.concatenate(parts, 1) for parts in zip(*read, strict=True))
    return [
        _in_image(number, *each, about) for number, each in enumerate(zip(boxes, scores, strict=True))
    ]


def _read(given: Any, anchors: Anchors, about: Mapping[str, Any]) -> tuple[Reals, Reals]:
    """Return the boxes (N, P, 4) and scores (N, P, C) of a map, at all places and for all anchors."""
    images, _, rows, columns = given.shape
    told = np.asarray(given, np.float64).reshape(images, len(anchors), numbers(about), rows, columns)
    told = np.moveaxis(told, 2, -1).swapaxes(1, 2).swapaxes(2, 3)  # images, rows, columns, anchors
    step = 2 if about["uncertain"] else 1
    x, y, w, h = (told[..., number * step] for number in range(4))
    centre = np.stack(
        [
            (np.arange(columns)[:, None] + sigmoid(x)) / columns,
            (np.arange(rows)[:, None, None] + sigmoid(y)) / rows,
        ],
        -1,
    )
    half = np.exp(np.stack([w, h], -1).clip(max=LARGEST)) * np.asarray(anchors) / 2
    objects = sigmoid(told[..., 4 * step])
    if about["uncertain"]:
        objects *= 1 - sigmoid(told[..., 1:8:2]).mean(-1)
    classes = told[..., 4 * step + 1 :]
    beliefs = softmax(classes) if about["exclusive"] else sigmoid(classes)
    boxes = np.concatenate([centre - half, centre + half], -1)
    return boxes.reshape(images, -1, 4), (beliefs * objects[..., None]).reshape(
        images, -1, classes.shape[-1]
    )


def _in_image(number: int, boxes: Reals, scores: Reals, about: Mapping[str, Any]) -> Reals:
    label: NDArray[np.int64] = scores.argmax(1)
    best = scores.max(1)
    sure = np.flatnonzero(best >= about["confidence"])
    sure = sure[np.argsort(-best[sure], kind="stable")]
    # A box that overlaps by exactly the limit is dropped, too.
    sure = sure[survivors(boxes[sure], float(np.nextafter(about["overlap"], -1)), 1.0)]
    told = np.stack([np.full(len(sure), number), label[sure] + 1, best[sure]], 1)
    return np.concatenate([told, boxes[sure]], 1)


def sigmoid(x: Reals) -> Reals:
    """Return 1 / (1 + exp(-x)), without overflow where it is almost 0."""
    size = np.exp(-np.abs(x))
    found: Reals = np.where(x >= 0, 1, size) / (1 + size)
    return found


def softmax(x: Reals) -> Reals:
    """Return the softmax over the last axis."""
    shifted = np.exp(x - x.max(-1, keepdims=True))
    found: Reals = shifted / shifted.sum(-1, keepdims=True)
    return found
