"""Sums and concatenations of several tensors."""

from collections.abc import Sequence
from functools import partial

from demitasse.operations.record import Attributes, Shape, Shapes, count, define

_define = partial(define, "elementwise")


def _sum_shapes(shapes: Shapes, attributes: Attributes) -> Sequence[Shape]:
    first, *others = shapes["xs"]
    for other in others:
        if other != first:
            raise ValueError(f"cannot sum {first} and {other}")
    coefficients = attributes["coefficients"]
    if coefficients and len(coefficients) != len(shapes["xs"]):
        raise ValueError(f"{len(coefficients)} coefficients for {len(shapes['xs'])} tensors")
    return (first,)


def _concat_shapes(shapes: Shapes, attributes: Attributes) -> Sequence[Shape]:
    (first, *others), axis = shapes["xs"], attributes["axis"]
    for other in others:
        if len(other) != len(first) or _without(other, axis) != _without(first, axis):
            raise ValueError(f"cannot join {first} and {other} along axis {axis}")
    total = sum(shape[axis] for shape in shapes["xs"])
    return ((*first[:axis], total, *first[axis + 1 :]),)


def _without(shape: Shape, axis: int) -> Shape:
    return shape[:axis] + shape[axis + 1 :]


def _shapes_attribute(shapes: Shapes, attributes: Attributes) -> Sequence[Shape]:
    return tuple(attributes["shapes"])


OPERATIONS = (
    _define(
        "sum",
        "y = the sum of coefficient * x over xs (coefficients of 1 when none are given)",
        inputs="*xs",
        outputs="y",
        shapes=_sum_shapes,
        flops=lambda shapes, attributes: 2.0 * len(shapes["xs"]) * count(shapes["y"]),
        attributes={"coefficients": ()},
        gradients=["xs = sum_backward(dy)"],
        fuses=["relu", "relu_backward"],
        aliases=["y = xs"],
    ),
    _define(
        "sum_backward",
        "dx = coefficient * dy, for each of xs",
        inputs="dy",
        outputs="*dxs",
        shapes=_shapes_attribute,
        attributes={"coefficients": (), "shapes": None},
    ),
    _define(
        "concat",
        "y = xs joined along axis",
        inputs="*xs",
        outputs="y",
        shapes=_concat_shapes,
        flops=lambda shapes, attributes: 0.0,
        attributes={"axis": 1},
        gradients=["xs = concat_backward(dy)"],
    ),
    _define(
        "concat_backward",
        "dxs = dy cut along axis into pieces of the given shapes",
        inputs="dy",
        outputs="*dxs",
        shapes=_shapes_attribute,
        flops=lambda shapes, attributes: 0.0,
        attributes={"axis": 1, "shapes": None},
    ),
)
