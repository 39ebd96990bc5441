"""Evaluation of detections: which of them are right, and average precisions. Everingham et al. 2010,
*The PASCAL Visual Object Classes (VOC) Challenge*, section 4.2."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from demitasse_detection.boxes import Reals, overlaps
from demitasse_detection.detections import ROW as FOUND
from demitasse_detection.matching import ROW as OBJECT
from demitasse_detection.matching import Objects, objects

ROW = 5
"""The numbers of a row: image, class, confidence, whether it is right and whether it is wrong. The first
rows have -1, a class, the number of its objects, and -1 twice."""


def evaluated(found: Any, truth: Any, about: Mapping[str, Any]) -> Reals:
    """Return rows (classes + found, ``ROW``) for the detections ``found``, rows (..., 7), and
    the objects in the images, ``truth``, rows (..., 8). Raise DataError for a row with an
    invalid image or class."""
    told = np.asarray(found, np.float64).reshape(-1, FOUND)
    told = told[told[:, 0] >= 0]
    first = np.asarray(truth, np.float64).reshape(-1, OBJECT)[:, 0]
    images = len(truth)
    if images == 1:  # the rows say which image they belong to
        images = 1 + int(max(first.max(initial=0), told[:, 0].max(initial=0)))
    there = objects(truth, images, {**about, "difficult": True})
    rows = []
    for label in range(about["classes"]):
        if label != about["background"]:
            mine = (each.labels == label for each in there)
            counts = about["difficult"]
            number = sum(
                int((m & (counts | ~each.difficult)).sum()) for m, each in zip(mine, there, strict=True)
            )
            rows.append([-1, label, number, -1, -1])
    made = [np.array(rows, np.float64).reshape(-1, ROW)]
    for image in np.unique(told[:, 0]).astype(int):
        for label in np.unique(told[told[:, 0] == image, 1]):
            chosen = told[(told[:, 0] == image) & (told[:, 1] == label)]
            made.append(_judged(chosen, there[image] if image < images else _NOTHING, about))
    return np.concatenate(made)


_NOTHING = Objects(np.empty(0, np.int64), np.empty((0, 4)), np.empty(0, bool))


def _judged(found: Reals, there: Objects, about: Mapping[str, Any]) -> Reals:
    """Judge the detections of one class in one image, the most confident first. Each object is
    found once, by the first detection that overlaps it enough. A detection of an object that was
    found already, or of none, is wrong. One of a difficult object is neither right nor wrong, if
    these do not count."""
    found = found[np.argsort(-found[:, 2], kind="stable")]
    mine = there.labels == found[0, 1]
    boxes, difficult = there.boxes[mine], there.difficult[mine]
    seen = np.zeros(len(boxes), bool)
    rows = np.zeros((len(found), ROW))
    rows[:, :3] = found[:, :3]
    shared = overlaps(found[:, None, 3:], boxes[None])
    for row, shares in zip(rows, shared, strict=True):
        best = int(shares.argmax()) if len(boxes) else -1
        if best < 0 or shares[best] < about["overlap"]:
            row[4] = 1
        elif about["difficult"] or not difficult[best]:
            row[4 if seen[best] else 3] = 1
            seen[best] = True
    return rows


def average_precisions(batches: Sequence[Reals], version: str) -> dict[int, float]:
    """Return average precisions by class, for rows (..., ``ROW``) of any number of batches. Classes
    without objects are left out. ``version`` is one of ``VERSIONS``."""
    rows = np.concatenate([np.empty((0, ROW)), *batches])
    of_class, found = rows[rows[:, 0] < 0], rows[rows[:, 0] >= 0]
    precisions = {}
    for label in np.unique(of_class[:, 1]):
        objects_there = of_class[of_class[:, 1] == label, 2].sum()
        if objects_there == 0:
            continue
        mine = found[(found[:, 1] == label) & (found[:, 3:].sum(1) > 0)]
        mine = mine[np.argsort(-mine[:, 2], kind="stable")]
        right, wrong = mine[:, 3:].cumsum(0).T
        curve = right / objects_there, right / (right + wrong)
        precisions[int(label)] = float(VERSIONS[version](*curve)) if len(mine) else 0.0
    return precisions


def _at_eleven_recalls(recall: Reals, precision: Reals) -> float:
    """Return the mean, over recalls of 0, 0.1, ..., 1, of the best precision at that recall or more (VOC
    until 2009)."""
    best = [precision[recall >= tenth / 10].max(initial=0) for tenth in range(11)]
    return float(np.mean(best))


def _under_the_best(recall: Reals, precision: Reals) -> float:
    """Return the area under the best precision at each recall or more (VOC from 2010 on)."""
    best = np.maximum.accumulate(precision[::-1])[::-1]
    return _under(recall, best)


def _under(recall: Reals, precision: Reals) -> float:
    """Return the area under the precision at each recall."""
    return float((np.diff(recall, prepend=0) * precision).sum())


VERSIONS: Mapping[str, Callable[[Reals, Reals], float]] = MappingProxyType(
    {"11point": _at_eleven_recalls, "MaxIntegral": _under_the_best, "Integral": _under}
)
"""How a curve of recalls and precisions is summarised, by the names in files."""
