"""The words of the plugin: what is found in images, and the loss of it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod

from demitasse.operations import REQUIRED, Attributes, Shape, Shapes, define, per_element
from demitasse_detection.detections import ROW, capacity

_define = partial(define, "detection")
_BOXES = {"classes": REQUIRED, "background": 0, "code": "CORNER", "encoded": False}


def _priors(shapes: Shapes, attributes: Attributes, places: int) -> int:
    """How many priors there are. Raises ValueError where predictions are not for so many."""
    priors, location, confidence = shapes["priors"], shapes["location"], shapes["confidence"]
    if len(priors) < 3 or priors[:2] != (1, 2) or prod(priors[2:]) % 4:
        raise ValueError(f"priors {priors} are not 1 x 2 x 4 numbers for each: boxes and variances")
    count, classes = prod(priors[2:]) // 4, attributes["classes"]
    images = location[0] if location else 0
    for name, wanted in (("location", 4 * places), ("confidence", classes)):
        if (
            not shapes[name]
            or shapes[name][0] != images
            or prod(shapes[name]) != images * count * wanted
        ):
            raise ValueError(
                f"{name} {shapes[name]} has not {wanted} numbers for each of {count} priors and "
                f"{images} images ({classes} classes; location {location}, confidence {confidence})"
            )
    return int(count)


def _detections(shapes: Shapes, attributes: Attributes) -> Sequence[Shape]:
    count = _priors(shapes, attributes, 1 if attributes["shared"] else attributes["classes"])
    return ((1, 1, shapes["location"][0] * capacity(count, attributes), ROW),)


OPERATIONS = (
    _define(
        "detections",
        "found = a row for each box that is found: image, class, confidence and two corners, by image "
        "and class, with rows of -1 behind them. A box is what location says beside a prior, in code, "
        "times the prior's variance unless that is encoded. Of a class it is found with more than "
        "confidence, among the top_k most confident ones, if it overlaps no better one by more than "
        "overlap, which falls by eta; of an image the keep most confident boxes are",
        inputs="location confidence priors",
        outputs="found",
        shapes=_detections,
        flops=per_element("confidence", 10.0),
        attributes={
            **_BOXES,
            "shared": True,
            "confidence": float("-inf"),
            "overlap": 0.3,
            "eta": 1.0,
            "top_k": -1,
            "keep": -1,
        },
    ),
)
