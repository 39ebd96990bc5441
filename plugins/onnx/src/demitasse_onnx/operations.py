"""Operations that nets of other frameworks need beyond the core's vocabulary: permuted axes, weighted
sums along an axis, selection by conditions, and gates.

When an axis is resized, reversed, gathered from, or padded with copies of its edges, each place of the
result is a sum of a few elements times constants. All of these are one operation, ``resample``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from demitasse.operations import (
    REQUIRED,
    Attributes,
    Shape,
    Shapes,
    count,
    define,
    define_function,
    per_element,
    same_as,
    shape_attribute,
)

_define = partial(define, "rearrangement")
_HARD = {"scale": 1 / 6, "shift": 0.5}


def _permuted(shapes: Shapes, attributes: Attributes) -> Sequence[Shape]:
    x, order = shapes["x"], tuple(attributes["order"])
    if sorted(order) != list(range(len(x))):
        raise ValueError(f"{order} is not an order of the {len(x)} axes of x {x}")
    return (tuple(x[axis] for axis in order),)


def _resampled(shapes: Shapes, attributes: Attributes) -> Sequence[Shape]:
    x, places, weights, axis = shapes["x"], shapes["places"], shapes["weights"], attributes["axis"]
    if len(places) != 2 or places != weights or not 0 <= axis < len(x):
        raise ValueError(
            f"places {places} and weights {weights} need rows of the same length for each result along "
            f"axis {axis} of x {x}"
        )
    return ((*x[:axis], places[0], *x[axis + 1 :]),)


def _sums(shapes: Shapes, attributes: Attributes) -> float:
    whole = shapes["y"] if "y" in shapes else shapes["dy"]
    return 2.0 * count(whole) * int(shapes["places"][1])


def _chosen(shapes: Shapes, attributes: Attributes) -> Sequence[Shape]:
    if len({tuple(shape) for shape in shapes.values()}) != 1:
        raise ValueError(f"cannot choose element by element: {', '.join(map(str, shapes.values()))}")
    return (shapes["c"],)


OPERATIONS = (
    _define(
        "permute",
        "y has the axes of x in order: its axis i is axis order[i] of x",
        inputs="x",
        outputs="y",
        shapes=_permuted,
        flops=per_element("x", 0.0),
        attributes={"order": REQUIRED},
        gradients=["x = permute_backward(dy)"],
    ),
    _define(
        "permute_backward",
        "dx: what permute moved by order, back in its place; shape is that of x",
        inputs="dy",
        outputs="dx",
        shapes=shape_attribute,
        flops=per_element("dy", 0.0),
        attributes={"order": REQUIRED, "shape": None},
    ),
    _define(
        "resample",
        "y[i] = the sum over k of weights[i, k] * x[places[i, k]], i and the places (whole numbers from "
        "0 on) along axis",
        inputs="x places weights",
        outputs="y",
        shapes=_resampled,
        flops=_sums,
        attributes={"axis": REQUIRED},
        gradients=["x = resample_backward(dy, places, weights)"],
    ),
    _define(
        "resample_backward",
        "dx[j] = the sum, in order, of the weights[i, k] * dy[i] with places[i, k] = j; shape is that "
        "of x",
        inputs="dy places weights",
        outputs="dx",
        shapes=shape_attribute,
        flops=_sums,
        attributes={"axis": REQUIRED, "shape": None},
    ),
    _define(
        "select",
        "y = a where c is not 0, else b, whatever the one that is not chosen is",
        inputs="c a b",
        outputs="y",
        shapes=_chosen,
        gradients=["a b = select_backward(dy, c)"],
        aliases=["y = a", "y = b"],
    ),
    _define(
        "select_backward",
        "da = dy where c is not 0, else 0; db = 0 where c is not 0, else dy",
        inputs="dy c",
        outputs="da? db?",
        shapes=lambda shapes, attributes: (shapes["dy"], shapes["dy"]),
        flops=per_element("dy"),
    ),
    *define_function(
        "hard_sigmoid",
        "max(0, min(1, scale * x + shift))",
        "dy * scale where 0 < scale * x + shift < 1, else 0",
        "x",
        3,
        _HARD,
    ),
    *define_function(
        "hard_swish",
        "x h, h = max(0, min(1, scale * x + shift))",
        "dy * (h + scale * x) where 0 < h < 1, else dy * h",
        "x",
        4,
        _HARD,
    ),
    *define_function(
        "error_function",
        "2 / sqrt(pi) * the integral of exp(-t^2) from 0 to x",
        "dy * 2 / sqrt(pi) * exp(-x^2)",
        "x",
        30,
    ),
    *(
        _define(
            word,
            f"y = {formula}",
            inputs="x",
            outputs="y",
            shapes=same_as("x"),
            flops=per_element("x"),
            aliases=["y = x"],
        )
        for word, formula in (
            ("floor", "the largest whole number that is not above x"),
            ("round", "the whole number next to x, of two the even one"),
        )
    ),
    *define_function(
        "sine",
        "sin(scale * x + shift)",
        "dy * scale * cos(scale * x + shift)",
        "x",
        20,
        {"scale": 1.0, "shift": 0.0},
    ),
    *define_function(
        "gelu",
        "x p, p = (1 + error_function(x / sqrt(2))) / 2",
        "dy * (p + x * exp(-x^2 / 2) / sqrt(2 pi))",
        "x",
        35,
    ),
)
