"""Inner product (a fully connected layer's affine map) and its backward passes."""

from collections.abc import Sequence
from functools import partial

from demitasse.operations.record import Attributes, Shape, Shapes, count, define, shape_attribute

_ATTRIBUTES = {"axis": 1, "transpose": False}
_BACKWARD = {**_ATTRIBUTES, "shape": None}
_define = partial(define, "inner product")


def _shapes(shapes: Shapes, attributes: Attributes) -> Sequence[Shape]:
    x, w, b, axis = shapes["x"], shapes["w"], shapes["b"], attributes["axis"]
    outputs, inputs = reversed(w) if attributes["transpose"] else w
    if count(x[axis:]) != inputs:
        raise ValueError(f"w {w} takes {inputs} inputs, x {x} from axis {axis} on has {count(x[axis:])}")
    if b is not None and b != (outputs,):
        raise ValueError(f"b {b} should be ({outputs},)")
    return ((*x[:axis], outputs),)


def _weights_shapes(shapes: Shapes, attributes: Attributes) -> Sequence[Shape]:
    w = attributes["shape"]
    return (w, (w[1] if attributes["transpose"] else w[0],))


OPERATIONS = (
    _define(
        "inner_product",
        "y = x w^T + b, x flattened from axis on; w is (outputs, inputs) unless transpose",
        inputs="x w b?",
        outputs="y",
        shapes=_shapes,
        flops=lambda shapes, attributes: 2.0 * count(shapes["x"]) * shapes["y"][-1],
        attributes=_ATTRIBUTES,
        gradients=[
            "w b = inner_product_backward_weights(dy, x)",
            "x = inner_product_backward_data(dy, w)",
        ],
        fuses=["relu"],
    ),
    _define(
        "inner_product_backward_data",
        "dx = dy w; shape is that of x",
        inputs="dy w",
        outputs="dx",
        shapes=shape_attribute,
        flops=lambda shapes, attributes: 2.0 * count(attributes["shape"]) * shapes["dy"][-1],
        attributes=_BACKWARD,
    ),
    _define(
        "inner_product_backward_weights",
        "dw = dy^T x and db = the sum of dy over all but its last axis; shape is that of w",
        inputs="dy x",
        outputs="dw db?",
        shapes=_weights_shapes,
        flops=lambda shapes, attributes: 2.0 * count(shapes["x"]) * shapes["dy"][-1],
        attributes=_BACKWARD,
    ),
)
