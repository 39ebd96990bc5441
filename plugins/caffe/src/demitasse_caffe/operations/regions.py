"""Maxima over the cells of regions of images. Girshick 2015, *Fast R-CNN*, section 2.1."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod

from demitasse.operations import (
    REQUIRED,
    Attributes,
    Shape,
    Shapes,
    define,
    per_element,
    shape_attribute,
)

_define = partial(define, "regions")


def _shapes(shapes: Shapes, attributes: Attributes) -> Sequence[Shape]:
    x, regions, size = shapes["x"], shapes["regions"], tuple(attributes["size"])
    if len(x) != 4:
        raise ValueError(f"x {x} is not samples x channels x rows x columns")
    if not regions or prod(regions[1:]) != 5:
        raise ValueError(f"regions {regions} are not rows of 5 numbers: a sample and two corners")
    return ((regions[0], x[1], *size),) * 2


OPERATIONS = (
    _define(
        "pooling_regions",
        "y[r] = the maxima over size cells of region r: regions[r] is the number of a sample of x, and "
        "the corners x1, y1, x2, y2, times scale and rounded, are places in its planes, both inside. "
        "A region spans a place at least; a cell is from the floor of where it begins to the ceiling of "
        "where it ends, in single precision as its authors have it, less what is beyond the plane; an "
        "empty one is 0. place = the flat index of each maximum in its plane, -1 for none. What is no "
        "region is an error, which says that it was in source",
        inputs="x regions",
        outputs="y place?:int32",
        shapes=_shapes,
        flops=per_element("x"),
        attributes={"size": REQUIRED, "scale": 1.0, "source": ""},
        gradients=["x = pooling_regions_backward(dy, regions, place)"],
    ),
    _define(
        "pooling_regions_backward",
        "dx = for each element the sum, in the order of the regions, of the dy that are from it; shape "
        "is that of x",
        inputs="dy regions place",
        outputs="dx",
        shapes=shape_attribute,
        flops=per_element("dy"),
        attributes={"shape": None},
    ),
)
