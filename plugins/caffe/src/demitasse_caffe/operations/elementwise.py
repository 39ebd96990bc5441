"""Functions of one element, and products and maxima of several.

A gradient reads the result if that is enough, so that the argument's memory is free after the forward
pass; otherwise it reads the argument.
"""

from collections.abc import Sequence
from functools import partial

from demitasse.operations import (
    Attributes,
    Shape,
    Shapes,
    count,
    define,
    define_function,
    per_element,
    same_as,
)

_define = partial(define, "elementwise")


def _slopes_fit(shapes: Shapes, attributes: Attributes) -> tuple[Shape, ...]:
    x, w = shapes.get("x"), shapes["w"]
    if x is None or len(x) < 2 or w not in ((), x[1:2]):
        raise ValueError(f"slopes {w} do not fit x {x}: one for each channel (axis 1), or one for all")
    return (x, w)


def _alike(shapes: Shapes, attributes: Attributes) -> tuple[Shape, Shape]:
    first, *others = shapes["xs"]
    for other in others:
        if other != first:
            raise ValueError(f"cannot combine {first} and {other} element by element")
    return (first, first)


def _shapes_attribute(shapes: Shapes, attributes: Attributes) -> Sequence[Shape]:
    return tuple(attributes["shapes"])


def _for_each(shapes: Shapes, attributes: Attributes) -> float:
    return float(len(shapes["xs"]) * count(shapes["xs"][0]))


OPERATIONS = (
    _define(
        "leaky_relu",
        "y = x where x > 0, else negative_slope * x, whatever the slope's sign (so that y may not have "
        "the sign of x, which the gradient needs)",
        inputs="x",
        outputs="y",
        shapes=same_as("x"),
        attributes={"negative_slope": 0.0},
        gradients=["x = relu_backward(dy, x)"],
        aliases=["y = x"],
    ),
    _define(
        "parametric_relu",
        "y = x where x > 0, else w * x, w one for each channel (axis 1) or, of shape (), one for all",
        inputs="x w",
        outputs="y",
        shapes=lambda *given: _slopes_fit(*given)[:1],
        gradients=["x w = parametric_relu_backward(dy, x, w)"],
        aliases=["y = x"],
    ),
    _define(
        "parametric_relu_backward",
        "dx = dy where x > 0, else w * dy; dw = the sum of dy * x where x <= 0",
        inputs="dy x w",
        outputs="dx? dw?",
        shapes=_slopes_fit,
        flops=per_element("dy", 3),
        aliases=["dx = dy"],
    ),
    *define_function("absolute", "|x|", "dy * the sign of x, 0 where x is 0", "x", 1),
    *define_function("softplus", "log(1 + exp(x))", "dy / (1 + exp(-x))", "x", 30),
    *define_function(
        "clip",
        "x, but least where x is below and most where x is above that",
        "dy where least <= x <= most, else 0",
        "x",
        2,
        {"least": 0.0, "most": 1.0},
    ),
    *define_function(
        "elu",
        "x where x > 0, else alpha * (exp(x) - 1), alpha >= 0",
        "dy where y > 0, else dy * (y + alpha)",
        "y",
        20,
        {"alpha": 1.0},
    ),
    *define_function(
        "exponential",
        "exp(scale * x + shift)",
        "dy * y * scale",
        "y",
        20,
        {"scale": 1.0, "shift": 0.0},
    ),
    *define_function(
        "logarithm",
        "factor * log(scale * x + shift)",
        "dy * factor * scale / (scale * x + shift)",
        "x",
        20,
        {"factor": 1.0, "scale": 1.0, "shift": 0.0},
    ),
    *define_function(
        "power",
        "(scale * x + shift) ^ power, 1 for a power of 0",
        "dy * power * scale * (scale * x + shift) ^ (power - 1), 0 for a power or a scale of 0",
        "x",
        40,
        {"power": 1.0, "scale": 1.0, "shift": 0.0},
    ),
    *define_function("sigmoid", "1 / (1 + exp(-x))", "dy * y * (1 - y)", "y", 20),
    *define_function(
        "swish",
        "x s, s = 1 / (1 + exp(-beta * x))",
        "dy * (s + beta * x * s * (1 - s))",
        "x",
        20,
        {"beta": 1.0},
    ),
    *define_function("tanh", "(exp(x) - exp(-x)) / (exp(x) + exp(-x))", "dy * (1 - y^2)", "y", 20),
    _define(
        "greater",
        "y = 1 where x > threshold, else 0",
        inputs="x",
        outputs="y",
        shapes=same_as("x"),
        attributes={"threshold": 0.0},
        aliases=["y = x"],
    ),
    _define(
        "product",
        "y = the product of xs",
        inputs="*xs",
        outputs="y",
        shapes=lambda *given: _alike(*given)[:1],
        flops=_for_each,
        attributes={"by_division": False},
        gradients=["xs = product_backward(dy, xs)"],
        aliases=["y = xs"],
    ),
    _define(
        "product_backward",
        "dx = dy * the product of the other xs, for each of xs: multiplied out, or by_division the "
        "product of all over x, which is not a number where x is 0",
        inputs="dy *xs",
        outputs="*dxs",
        shapes=_shapes_attribute,
        flops=lambda shapes, attributes: len(shapes["xs"]) * _for_each(shapes, attributes),
        attributes={"by_division": False, "shapes": None},
    ),
    _define(
        "maximum",
        "y = the largest of xs, argmax its number among them; of equals the earliest counts, except "
        "that the second comes before the first",
        inputs="*xs",
        outputs="y argmax?:int32",
        shapes=_alike,
        flops=_for_each,
        gradients=["xs = maximum_backward(dy, argmax)"],
        aliases=["y = xs"],
    ),
    _define(
        "maximum_backward",
        "dx = dy where argmax is the number of x, else 0, for each of xs",
        inputs="dy argmax",
        outputs="*dxs",
        shapes=_shapes_attribute,
        attributes={"shapes": None},
    ),
)
