"""The operations on YOLO's maps: the objects found in them, and their losses."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod

from demitasse.operations import REQUIRED, Attributes, Shape, Shapes, define, per_element
from demitasse_detection.detections import ROW
from demitasse_detection.matching import ROW as OBJECT
from demitasse_detection.yolo import numbers
from demitasse_detection.yolo_training import OF_DARKNET

_define = partial(define, "detection")


def _in_maps(shapes: Shapes, attributes: Attributes) -> Sequence[Shape]:
    maps, anchors = shapes["maps"], attributes["anchors"]
    each = numbers(attributes)
    rows = 0
    for shape, mine in zip(maps, anchors, strict=True):
        if len(shape) != 4 or shape[0] != maps[0][0] or shape[1] != len(mine) * each:
            raise ValueError(
                f"map {shape} is not {maps[0][0]} images x {len(mine) * each} x rows x columns: {each} "
                f"numbers ({attributes['classes']} classes) for each of {len(mine)} anchors"
            )
        rows += prod(shape) // each
    return ((1, 1, rows, ROW),)


def _loss(shapes: Shapes, attributes: Attributes) -> Sequence[Shape]:
    maps, label = shapes["maps"], shapes["label"]
    count = len(attributes.get("mask", attributes["anchors"]))
    each = count * (5 + attributes["classes"])
    if len(maps) != 4 or maps[1] != each:
        raise ValueError(
            f"maps {maps} are not images x {each} x rows x columns: 5 numbers and "
            f"{attributes['classes']} classes for each of {count} anchors"
        )
    ssd = bool(label) and label[-1] == OBJECT and label[0] in (1, maps[0])
    if not ssd and (not label or label[0] != maps[0] or prod(label[1:]) % OF_DARKNET):
        raise ValueError(
            f"label {label} has neither rows of {OBJECT} numbers, as AnnotatedData makes, nor rows of "
            f"{OF_DARKNET} for each of {maps[0]} images: class, centre and sides"
        )
    return (), maps


WORDS_OF_YOLO = (
    _define(
        "detections_in_maps",
        "found = a row for each box that is found: image, class (from 1 on), confidence and two "
        "corners in shares of the image, by image and falling confidence, with rows of -1 behind them. "
        "Each map has at each place, for each of its anchors (width and height), logits of the centre "
        "within the place, logarithms of the sides over the anchor's, a logit of an object and for "
        "each class one of it, or, where they are exclusive, numbers for a softmax; where boxes are "
        "uncertain, each of the first four is followed by a logit of how unsure it is. The confidence "
        "is an object's times its best class's, times the mean of how sure the box is. A box is found "
        "with confidence or more, if it overlaps no better one by overlap",
        inputs="*maps",
        outputs="found",
        shapes=_in_maps,
        flops=lambda shapes, attributes: 10.0 * sum(map(prod, shapes["maps"])),
        attributes={
            "classes": REQUIRED,
            "anchors": REQUIRED,
            "exclusive": False,
            "uncertain": False,
            "confidence": 0.01,
            "overlap": 0.45,
        },
    ),
    _define(
        "region_loss",
        "the sum, over images the mean, of half squares: of placed times what is told of the centre in "
        "its place and of the logarithms of sides over the anchor's, less those of the object; of "
        "present times how sure an object is, less 1 or, if rescored, how much the box overlaps it; of "
        "absent times how sure one is elsewhere, unless the box overlaps an object by more than "
        "overlap; and of classed times -log of the softmax at the object's class. An object's place is "
        "that of its centre, with the anchor (by_anchors) or the box whose sides are the most alike. "
        "slopes are those of maps, through which nothing passes to what is overlapped. What is no "
        "object is an error, which says that it was in source",
        inputs="maps label",
        outputs="loss slopes?",
        shapes=_loss,
        flops=per_element("maps", 20.0),
        attributes={
            "classes": REQUIRED,
            "anchors": REQUIRED,
            "overlap": 0.6,
            "placed": 1.0,
            "present": 5.0,
            "absent": 1.0,
            "classed": 1.0,
            "rescored": True,
            "by_anchors": True,
            "normalization": "batch_size",
            "source": "",
        },
        gradients=["maps = region_loss_backward(dloss, slopes)"],
    ),
    _define(
        "region_loss_backward",
        "the slopes times dloss",
        inputs="dloss slopes",
        outputs="dmaps",
        shapes=lambda shapes, attributes: (shapes["slopes"],),
        flops=per_element("slopes"),
    ),
    _define(
        "yolov3_loss",
        "the sum, over images the mean, of placed times 2 less the object's area times how far what is "
        "told of the centre in its place is from it, and half the squares of the logarithms of sides "
        "over the anchor's, less those of the object; of present times how far from 1 it is that an "
        "object is there, and how far from 0 elsewhere, unless the box overlaps an object by more than "
        "overlap; and of classed times how far each class is from 1 less half of smoothed if shown, "
        "from that half if not. How far a logistic function is from a target is their relative entropy, "
        "or half the square of the difference if squared. An object's place is that of its centre, with "
        "the anchor whose sides, shares of the image, are the most alike, if mask has its number, and "
        "each of mask whose sides overlap its own by more than alike; the last of several has the box, "
        "all their classes are shown. slopes are those of maps, through which nothing passes to what is "
        "overlapped. What is no object is an error, which says that it was in source",
        inputs="maps label",
        outputs="loss slopes?",
        shapes=_loss,
        flops=per_element("maps", 20.0),
        attributes={
            "classes": REQUIRED,
            "anchors": REQUIRED,
            "mask": REQUIRED,
            "overlap": 0.7,
            "alike": 0.5,
            "placed": 1.0,
            "present": 1.0,
            "classed": 1.0,
            "smoothed": 0.1,
            "squared": False,
            "normalization": "batch_size",
            "source": "",
        },
        gradients=["maps = region_loss_backward(dloss, slopes)"],
    ),
)
