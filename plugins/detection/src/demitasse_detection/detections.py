"""What a net finds in images: for each class the boxes that do not overlap a better one, and the best of
all. Liu et al. 2016, *SSD*, sections 2 and 3.6."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from demitasse_detection.boxes import Reals, decode, survivors

ROW = 7
"""The numbers of a row: image, class, confidence, xmin, ymin, xmax, ymax."""


def capacity(priors: int, about: Mapping[str, Any]) -> int:
    """Return the maximum number of rows for an image with ``priors`` priors."""
    objects = about["classes"] - (0 <= about["background"] < about["classes"])
    each = priors if about["top_k"] < 0 else min(priors, about["top_k"])
    most: int = objects * each if about["keep"] < 0 else min(objects * each, about["keep"])
    return most


def detections(location: Any, confidence: Any, priors: Any, about: Mapping[str, Any]) -> list[Reals]:
    """Return, for each image, rows (found, 7), sorted by class and then by confidence.

    ``location`` has 4 numbers for each image, prior and class (or for all classes together, if
    ``shared``), ``confidence`` one for each image, prior and class. ``priors`` (2, P, 4) are boxes and
    variances.
    """
    count, classes = prod(priors.shape[1:]) // (2 * 4), about["classes"]
    boxes, variances = np.asarray(priors, np.float64).reshape(2, count, 4)
    if about["encoded"]:
        variances = np.ones_like(variances)
    told = np.asarray(location, np.float64).reshape(len(location), count, -1, 4).swapaxes(1, 2)
    scores = np.asarray(confidence, np.float64).reshape(len(confidence), count, classes)
    places = decode(told, boxes, variances, about["code"])
    return [
        _in_image(number, *each, about) for number, each in enumerate(zip(places, scores, strict=True))
    ]


def _in_image(number: int, places: Reals, scores: Reals, about: Mapping[str, Any]) -> Reals:
    rows = [np.empty((0, ROW))]
    for label in range(about["classes"]):
        if label != about["background"]:
            boxes, mine = places[0 if about["shared"] else label], scores[:, label]
            best = _best(mine, about["confidence"], about["top_k"])
            best = best[survivors(boxes[best], about["overlap"], about["eta"])]
            told = np.full((len(best), 2), (number, label), np.float64)
            rows.append(np.concatenate([told, mine[best, None], boxes[best]], 1))
    found = np.concatenate(rows)
    if 0 <= about["keep"] < len(found):
        chosen = np.argsort(-found[:, 2], kind="stable")[: about["keep"]]
        found = found[np.sort(chosen)]
    return found


def _best(scores: Reals, least: float, most: int) -> Any:
    """Return the indices of scores above ``least``, the best first; at most ``most``, or all if
    that is negative."""
    above = np.flatnonzero(scores > least)
    order = above[np.argsort(-scores[above], kind="stable")]
    return order if most < 0 else order[:most]
