"""Parts and copies of tensors: cropped boxes, tiles, rows by index, and selected rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from demitasse.operations import (
    REQUIRED,
    VOCABULARY,
    Attributes,
    Shape,
    Shapes,
    define,
    per_element,
    same_as,
    shape_attribute,
)

_define = partial(define, "indexing")
_no_flops = per_element("x", 0.0)


def _crop_shapes(shapes: Shapes, attributes: Attributes) -> Sequence[Shape]:
    x, offset, extent = shapes["x"], attributes["offset"], attributes["extent"]
    if not len(x) == len(offset) == len(extent):
        raise ValueError(f"offset {offset} and extent {extent} need a number for each axis of x {x}")
    for axis, (whole, start, size) in enumerate(zip(x, offset, extent, strict=True)):
        if start < 0 or size < 1 or start + size > whole:
            raise ValueError(
                f"axis {axis} of x {x} has no {size} elements from {start} on "
                f"(a crop to {tuple(extent)} at {tuple(offset)})"
            )
    return (tuple(extent),)


def _slice_shapes(shapes: Shapes, attributes: Attributes) -> Sequence[Shape]:
    x, axis, pieces = shapes["x"], attributes["axis"], attributes["shapes"]
    (whole,) = VOCABULARY["concat"].shapes({"xs": pieces}, {"axis": axis})
    if whole != x:
        raise ValueError(f"x {x} is not what pieces {pieces} along axis {axis} make")
    return tuple(pieces)


def _tile_shapes(shapes: Shapes, attributes: Attributes) -> Sequence[Shape]:
    x, axis, tiles = shapes["x"], attributes["axis"], attributes["tiles"]
    if tiles < 1:
        raise ValueError(f"tiles {tiles} is not positive")
    return ((*x[:axis], tiles * x[axis], *x[axis + 1 :]),)


def _gather_shapes(shapes: Shapes, attributes: Attributes) -> Sequence[Shape]:
    return ((*shapes["index"], *shapes["x"][1:]),)


def _compress_shapes(shapes: Shapes, attributes: Attributes) -> Sequence[Shape]:
    x, selector = shapes["x"], shapes["selector"]
    if not x or selector[:1] != x[:1] or any(extent != 1 for extent in selector[1:]):
        raise ValueError(f"selector {selector} does not have one number for each row of x {x}")
    return (x, ())


OPERATIONS = (
    _define(
        "crop",
        "y is the box of x with the given extents that starts at offset",
        inputs="x",
        outputs="y",
        shapes=_crop_shapes,
        flops=_no_flops,
        attributes={"offset": REQUIRED, "extent": REQUIRED},
        gradients=["x = crop_backward(dy)"],
    ),
    _define(
        "crop_backward",
        "dx is dy in its box and 0 around it; shape is that of x, extent that of dy. As a layer's own "
        "operation: zeros around dy",
        inputs="dy",
        outputs="dx",
        shapes=shape_attribute,
        flops=per_element("dy", 0.0),
        attributes={"offset": REQUIRED, "extent": None, "shape": None},
        gradients=["dy = crop(ddx)"],
    ),
    _define(
        "slice",
        "ys = x cut along axis into pieces of the given shapes",
        inputs="x",
        outputs="*ys",
        shapes=_slice_shapes,
        flops=_no_flops,
        attributes={"axis": 1, "shapes": REQUIRED},
        gradients=["x = concat(dys)"],
    ),
    _define(
        "tile",
        "y = x repeated along axis, one copy behind the other",
        inputs="x",
        outputs="y",
        shapes=_tile_shapes,
        flops=_no_flops,
        attributes={"axis": 1, "tiles": REQUIRED},
        gradients=["x = tile_backward(dy)"],
    ),
    _define(
        "tile_backward",
        "dx = the sum over the copies in dy; shape is that of x",
        inputs="dy",
        outputs="dx",
        shapes=shape_attribute,
        flops=per_element("dy"),
        attributes={"axis": 1, "tiles": REQUIRED, "shape": None},
    ),
    _define(
        "gather",
        "y[i] = x[index[i]]: rows of x by whole numbers from 0 on, of any shape; one that is no row is "
        "an error, which says that it was in source",
        inputs="x index",
        outputs="y",
        shapes=_gather_shapes,
        flops=_no_flops,
        attributes={"source": ""},
        gradients=["x = gather_backward(dy, index)"],
    ),
    _define(
        "gather_backward",
        "dx[j] = the sum, in order, of the dy[i] with index[i] = j; shape is that of x",
        inputs="dy index",
        outputs="dx",
        shapes=shape_attribute,
        flops=per_element("dy"),
        attributes={"shape": None},
    ),
    _define(
        "compress",
        "y = the rows of x whose number in selector is not 0, in their order, with rows of 0 behind "
        "them; count is how many there are",
        inputs="x selector",
        outputs="y count?:int32",
        shapes=_compress_shapes,
        flops=_no_flops,
        gradients=["x = compress_backward(dy, selector)"],
    ),
    _define(
        "compress_backward",
        "dx: the rows of dy back where they were, and rows of 0 for those that were left out",
        inputs="dy selector",
        outputs="dx",
        shapes=same_as("dy"),
        flops=per_element("dy", 0.0),
    ),
)
