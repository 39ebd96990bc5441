"""Element-wise non-linearities, dropout, and softmax."""

from functools import partial

from demitasse.operations.record import REQUIRED, define, per_element, same_as

_define = partial(define, "activation")

OPERATIONS = (
    _define(
        "relu",
        "y = x where x > 0, else negative_slope * x",
        inputs="x",
        outputs="y",
        shapes=same_as("x"),
        attributes={"negative_slope": 0.0},
        gradients=["x = relu_backward(dy, y)"],
        aliases=["y = x"],
    ),
    _define(
        "relu_backward",
        "dx = dy where y > 0, else negative_slope * dy (y has the sign of x)",
        inputs="dy y",
        outputs="dx",
        shapes=same_as("dy"),
        attributes={"negative_slope": 0.0},
        aliases=["dx = dy"],
    ),
    _define(
        "dropout",
        "y = x * mask / (1 - ratio); mask is demitasse.keep_mask of the seed, the stream (one per "
        "layer), the iteration and each sample's number in the iteration",
        inputs="x iteration sample",
        outputs="y mask?:uint8",
        shapes=lambda shapes, attributes: (shapes["x"], shapes["x"]),
        flops=per_element("x", 12),
        attributes={"ratio": 0.5, "seed": REQUIRED, "stream": REQUIRED},
        gradients=["x = dropout_backward(dy, mask)"],
        aliases=["y = x"],
    ),
    _define(
        "dropout_backward",
        "dx = dy * mask / (1 - ratio)",
        inputs="dy mask",
        outputs="dx",
        shapes=same_as("dy"),
        attributes={"ratio": 0.5},
        aliases=["dx = dy"],
    ),
    _define(
        "softmax",
        "y = exp(x) over its sum along axis",
        inputs="x",
        outputs="y",
        shapes=same_as("x"),
        flops=per_element("x", 5),
        attributes={"axis": 1},
        gradients=["x = softmax_backward(dy, y)"],
        aliases=["y = x"],
    ),
    _define(
        "softmax_backward",
        "dx = y * (dy - the sum of dy * y along axis)",
        inputs="dy y",
        outputs="dx",
        shapes=same_as("dy"),
        flops=per_element("dy", 4),
        attributes={"axis": 1},
        aliases=["dx = dy"],
    ),
)
