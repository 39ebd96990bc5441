"""Where gradients stop."""

from demitasse.operations import define, per_element, same_as

OPERATIONS = (
    define(
        "propagation",
        "stop_gradient",
        "y is x, sharing its memory; no gradient passes to x",
        inputs="x",
        outputs="y",
        shapes=same_as("x"),
        flops=per_element("x", 0.0),
        view=True,
    ),
)
