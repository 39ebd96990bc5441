"""Moving and preparing tensors: views, layout changes, running totals, images turned into blobs."""

from collections.abc import Sequence
from functools import partial

from demitasse.operations.record import (
    REQUIRED,
    Attributes,
    Shape,
    Shapes,
    count,
    define,
    nothing,
    per_element,
    same_as,
)

_define = partial(define, "memory")
_no_flops = per_element("x", 0.0)
_DRAWN = {"seed": REQUIRED, "stream": REQUIRED}


def _reshape_shapes(shapes: Shapes, attributes: Attributes) -> Sequence[Shape]:
    if count(shapes["x"]) != count(attributes["shape"]):
        raise ValueError(f"cannot view x {shapes['x']} as {attributes['shape']}")
    return (attributes["shape"],)


def _image_shapes(shapes: Shapes, attributes: Attributes) -> Sequence[Shape]:
    x, crop, mean = shapes["x"], attributes["crop"], shapes["mean"]
    if mean is not None and mean not in (x[1:], (x[1], 1, 1), (1, 1, 1)):
        raise ValueError(f"a mean of shape {mean} does not fit images of {x[1:]}")
    if crop and (len(x) != 4 or crop > min(x[2:])):
        raise ValueError(f"a crop of {crop} does not fit images of {x[1:]}")
    return ((*x[:2], crop, crop) if crop else x,)


OPERATIONS = (
    _define(
        "reshape",
        "y is x in another shape, sharing its memory",
        inputs="x",
        outputs="y",
        shapes=_reshape_shapes,
        flops=_no_flops,
        attributes={"shape": REQUIRED},
        gradients=["x = reshape(dy)"],
        view=True,
    ),
    _define("reorder", "y holds the values of x in another layout", "x", "y", same_as("x"), _no_flops),
    _define("fill", "every element of x becomes value", "x!", "", nothing, _no_flops, {"value": 0.0}),
    _define("accumulate", "total += x", "total! x", "", nothing, per_element("x")),
    _define(
        "image_transform",
        "y = (x - mean) * scale, cropped (at random when random is set, else in the middle) and, when "
        "mirror and random are set, mirrored at random; the offsets and the mirroring are "
        "demitasse.crop_and_mirror of seed, stream, iteration and sample",
        inputs="x mean? iteration sample",
        outputs="y:real",
        shapes=_image_shapes,
        flops=per_element("y", 2),
        attributes={"scale": 1.0, "crop": 0, "mirror": False, "random": False, **_DRAWN},
    ),
)
