"""Sums over trailing axes, the maximum along one axis, and normalization of rows by
mean and deviation."""

from functools import partial

from demitasse.operations import (
    Attributes,
    Operation,
    Shape,
    Shapes,
    define,
    per_element,
    same_as,
    shape_attribute,
)

_define = partial(define, "reduction")
_OVER = {"axis": 0, "coefficient": 1.0}
_KIND = {"normalization": "none"}


def _leading(shapes: Shapes, attributes: Attributes) -> tuple[Shape]:
    return (shapes["x"][: attributes["axis"]],)


def _total(name: str, term: str, slope: str) -> tuple[Operation, Operation]:
    """Define a sum of each element's ``term``, and its gradient, which reads x if ``slope`` mentions it.
    Whether the sum is a mean matters when samples are divided among workers."""
    reads = "x" if "x" in slope else ""
    forward = _define(
        name,
        f"y = coefficient * the sum of {term} over the axes from axis on; normalization says that the "
        f"coefficient makes it a mean (full), or does not (none)",
        inputs="x",
        outputs="y",
        shapes=_leading,
        flops=per_element("x", 2),
        attributes={**_OVER, **_KIND},
        gradients=[f"x = {name}_backward({'dy, x' if reads else 'dy'})"],
    )
    backward = _define(
        f"{name}_backward",
        f"dx = coefficient * dy{slope}",
        inputs=f"dy {reads}",
        outputs="dx",
        shapes=same_as("x") if reads else shape_attribute,
        attributes=_OVER if reads else {**_OVER, "shape": None},
        aliases=["dx = x"] if reads else [],
    )
    return forward, backward


def _largest_shapes(shapes: Shapes, attributes: Attributes) -> tuple[Shape]:
    x, axis, wanted = shapes["x"], attributes["axis"], attributes["count"]
    if not 1 <= wanted <= x[axis]:
        raise ValueError(
            f"cannot take the {wanted} largest of the {x[axis]} elements of x {x} along axis {axis}"
        )
    both = (2,) if attributes["give"] == "both" else ()
    return ((*x[:axis], *both, wanted, *x[axis + 1 :]),)


OPERATIONS = (
    *_total("total", "x", ""),
    *_total("absolute_total", "|x|", " * the sign of x, 0 where x is 0"),
    *_total("square_total", "x^2", " * 2 x"),
    _define(
        "largest",
        "y = of the count largest along axis, in falling order (of equals the last first), their places "
        "along it, their values, or both, one after the other along an axis before it: places, values, "
        "both",
        inputs="x",
        outputs="y",
        shapes=_largest_shapes,
        flops=per_element("x"),
        attributes={"axis": 1, "count": 1, "give": "places"},
    ),
    _define(
        "centre",
        "y = x less its mean over the axes from axis on",
        inputs="x",
        outputs="y",
        shapes=same_as("x"),
        flops=per_element("x", 2),
        attributes={"axis": 1},
        gradients=["x = centre(dy)"],
        aliases=["y = x"],
    ),
    _define(
        "standardize",
        "y = (x - mean) / (deviation + epsilon), mean and deviation (the root of the mean square of "
        "x - mean) over the axes from axis on",
        inputs="x",
        outputs="y deviation?",
        shapes=lambda shapes, attributes: (shapes["x"], *_leading(shapes, attributes)),
        flops=per_element("x", 5),
        attributes={"axis": 1, "epsilon": 1e-9},
        gradients=["x = standardize_backward(dy, y, deviation)"],
        aliases=["y = x"],
    ),
    _define(
        "standardize_backward",
        "dx = (dy - the mean of dy) / (deviation + epsilon) - y * the mean of dy * y / deviation, "
        "without the latter where the deviation is 0",
        inputs="dy y deviation",
        outputs="dx",
        shapes=same_as("dy"),
        flops=per_element("dy", 7),
        attributes={"axis": 1, "epsilon": 1e-9},
        aliases=["dx = dy"],
    ),
)
