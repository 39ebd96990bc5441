"""The loss of predicted boxes. Liu et al. 2016, *SSD*, section 2.2, *Training objective*."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from demitasse_detection.boxes import Reals, decode, encode
from demitasse_detection.matching import Objects, matches, negatives, objects

Loss = tuple[float, Reals, Reals, int]
"""A loss, its slopes for the predicted places (N, P, 4) and classes (N, P, C), and the number of boxes
with an object."""


def multibox_loss(
    location: Any, confidence: Any, priors: Any, truth: Any, about: Mapping[str, Any]
) -> Loss:
    """Compute the loss over all images. Boxes with an object contribute their distance from it and the
    loss of its class; boxes chosen as background contribute the loss of the background class."""
    images, classes = len(location), about["classes"]
    count = priors.size // 8
    boxes, variances = np.asarray(priors, np.float64).reshape(2, count, 4)
    told = np.asarray(location, np.float64).reshape(images, count, 4)
    scores = np.asarray(confidence, np.float64).reshape(images, count, classes)
    places, beliefs = np.zeros_like(told), np.zeros_like(scores)
    matched, loss = 0, np.zeros(2)
    for image, mine in enumerate(objects(truth, images, about)):
        index, chosen, labels = _chosen(told[image], scores[image], boxes, variances, mine, about)
        positive = np.flatnonzero(index > -1)
        matched += len(positive)
        if len(positive):
            there = mine.boxes[index[positive]]
            pairs = told[image, positive], there, boxes[positive], variances[positive]
            part, places[image, positive] = _of_places(*pairs, about)
            loss[0] += part
        wrong, slopes = _of_classes(scores[image, chosen], labels[chosen], about["of_classes"])
        loss[1] += wrong.sum()
        beliefs[image, chosen] = slopes
    normaliser = {
        "valid": matched,
        "full": images * count,
        "batch_size": images,
        "none": 1,
    }[about["normalization"]]
    weights = np.array([about["weight"], 1.0]) * about["counted"] / max(1, normaliser)
    return float(weights @ loss), weights[0] * places, weights[1] * beliefs, matched


def _chosen(
    told: Reals, scores: Reals, boxes: Reals, variances: Reals, mine: Objects, about: Mapping[str, Any]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return, for one image, the objects of its boxes, the boxes that count, and the class that each
    should have."""
    if not about["by_priors"]:
        spread = np.ones_like(variances) if about["encoded"] else variances
        index, overlap = matches(decode(told, boxes, spread, about["code"]), mine.boxes, about)
    else:
        index, overlap = matches(boxes, mine.boxes, about)
    positive = np.flatnonzero(index > -1)
    labels = np.full(len(boxes), about["background"])
    labels[positive] = mine.labels[index[positive]]
    if about["mining"] == "NONE":
        return index, np.arange(len(boxes)), labels
    wrong, _ = _of_classes(scores, labels, about["of_classes"])
    return index, np.concatenate([positive, negatives(index, overlap, wrong, about)]), labels


def _of_places(
    told: Reals, there: Reals, boxes: Reals, variances: Reals, about: Mapping[str, Any]
) -> tuple[float, Reals]:
    """Return the distance of the codes ``told`` (M, 4) from those of the true boxes, and the slopes."""
    if about["encoded"]:
        wanted = encode(there, boxes, np.ones_like(variances), about["code"])
        difference, slope = (told - wanted) / variances, 1 / variances
    else:
        difference, slope = told - encode(there, boxes, variances, about["code"]), np.ones_like(told)
    if about["of_places"] == "L2":
        return float((difference**2).sum() / 2), difference * slope
    near = difference.clip(-1, 1)
    return float((near * (difference - near / 2)).sum()), near * slope


def _of_classes(scores: Reals, labels: NDArray[np.int64], kind: str) -> tuple[Reals, Reals]:
    """Return the loss (M,) for each row of scores (M, C), and the slopes."""
    wanted = np.eye(scores.shape[1])[labels]
    if kind == "LOGISTIC":
        size = np.exp(-np.abs(scores))
        losses = np.log1p(size) + scores.clip(0) - scores * wanted
        believed = np.where(scores >= 0, 1, size) / (1 + size)
        return losses.sum(1), believed - wanted
    shifted = scores - scores.max(1, keepdims=True)
    whole = np.exp(shifted).sum(1, keepdims=True)
    return (np.log(whole) - shifted)[wanted == 1], np.exp(shifted) / whole - wanted
