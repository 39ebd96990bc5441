"""The two operations of the plugin: whatever a user's object computes."""

from __future__ import annotations

from demitasse.operations import REQUIRED, Attributes, Shape, Shapes, define


def _tops(shapes: Shapes, attributes: Attributes) -> tuple[Shape, ...]:
    made: tuple[Shape, ...] = attributes["layer"].top_shapes
    return made


def _bottoms(shapes: Shapes, attributes: Attributes) -> tuple[Shape, ...]:
    made: tuple[Shape, ...] = attributes["shapes"]
    return made


FORWARD = define(
    "python",
    "python_forward",
    "ys = layer.forward(xs), of bottoms and then parameters; anew at every iteration",
    inputs="iteration *xs",
    outputs="*ys:real",
    shapes=_tops,
    flops=lambda shapes, attributes: 0.0,
    attributes={"layer": REQUIRED},
    gradients=["xs = python_backward(dys, ys, xs)"],
)
BACKWARD = define(
    "python",
    "python_backward",
    "dxs = layer.backward(dys, ys, xs), as far as wanted; the operands are all of dys, ys and xs",
    inputs="*operands",
    outputs="*dxs:real",
    shapes=_bottoms,
    flops=lambda shapes, attributes: 0.0,
    attributes={"layer": REQUIRED, "shapes": REQUIRED, "wanted": REQUIRED},
)
OPERATIONS = (FORWARD, BACKWARD)
