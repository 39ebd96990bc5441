"""How good what is found is: which of it is there, and average precisions. Everingham et al. 2010, *The
PASCAL Visual Object Classes (VOC) Challenge*, section 4.2."""

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
"""Numbers of a row: image, class, confidence, whether it is right and whether it is wrong; the first
ones have -1, a class, how many objects of it there are, and -1 twice."""


def evaluated(found: Any, truth: Any, about: Mapping[str, Any]) -> Reals:
    """Rows (classes + found, ``ROW``) for what is ``found``, rows (..., 7), in images that show the
    ``truth``, rows (..., 8). Raises DataError for a row of no image or class."""
    told = np.asarray(found, np.float64).reshape(-1, FOUND)
    told = told[told[:, 0] >= 0]
    first = np.asarray(truth, np.float64).reshape(-1, OBJECT)[:, 0]
    images = len(truth)
    if images == 1:  # the rows say whose they are
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
    """What is found of one class in one image, the most confident first: each object is found once, by
    the first that overlaps it enough, and no other more; what finds one that is found already, or none,
    is wrong. What finds a difficult one is neither, where those do not count."""
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
    """By class, of rows (..., ``ROW``) of any number of batches; without classes of which there are no
    objects. ``version`` is one of ``VERSIONS``."""
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
    """The mean of the best precision at a recall of 0, 0.1, ..., 1 or more (VOC until 2009)."""
    best = [precision[recall >= tenth / 10].max(initial=0) for tenth in range(11)]
    return float(np.mean(best))


def _under_the_best(recall: Reals, precision: Reals) -> float:
    """The area under the best precision at a recall or more (VOC from 2010 on)."""
    best = np.maximum.accumulate(precision[::-1])[::-1]
    return _under(recall, best)


def _under(recall: Reals, precision: Reals) -> float:
    """The area under the precision at each recall."""
    return float((np.diff(recall, prepend=0) * precision).sum())


VERSIONS: Mapping[str, Callable[[Reals, Reals], float]] = MappingProxyType(
    {"11point": _at_eleven_recalls, "MaxIntegral": _under_the_best, "Integral": _under}
)
"""What is made of a curve of recalls and precisions, by the name that files have for it."""
