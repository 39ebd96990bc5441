"""Operations that stop gradients, or reverse their sign."""

from demitasse.operations import REQUIRED, define, per_element, same_as

_SCHEDULE = {"lower": REQUIRED, "upper": REQUIRED, "steepness": REQUIRED, "iterations": REQUIRED}

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
    define(
        "propagation",
        "reverse_gradient",
        "y = x; dx = -c dy, where c rises with the iteration i (Ganin et al. 2016, "
        "Domain-Adversarial Training of Neural Networks, section 5.2.2)",
        inputs="x iteration",
        outputs="y",
        shapes=same_as("x"),
        flops=per_element("x", 0.0),
        attributes=_SCHEDULE,
        gradients=["x = reverse_gradient_backward(dy, iteration)"],
        aliases=["y = x"],
    ),
    define(
        "propagation",
        "reverse_gradient_backward",
        "dx = -c dy, c = lower + (upper - lower) (2 / (1 + exp(-steepness p)) - 1), p = i / iterations "
        "and 1 behind them",
        inputs="dy iteration",
        outputs="dx",
        shapes=same_as("dy"),
        attributes=_SCHEDULE,
        aliases=["dx = dy"],
    ),
)
