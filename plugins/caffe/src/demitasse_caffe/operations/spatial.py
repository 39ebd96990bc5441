"""Windows over images: as columns of a matrix, pooled stochastically, and put back where
they were taken from."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod

from demitasse.operations import (
    REQUIRED,
    VOCABULARY,
    Attributes,
    Shape,
    Shapes,
    count,
    define,
    per_element,
    shape_attribute,
)

_define = partial(define, "spatial")
_COLUMNS = {"kernel": REQUIRED, "stride": (1, 1), "pad": (0, 0), "dilation": (1, 1)}
_POOLING = dict(VOCABULARY["pooling_average"].attributes)
_CHANCE = {"seed": REQUIRED, "stream": REQUIRED}


def _columns_shapes(shapes: Shapes, attributes: Attributes) -> Sequence[Shape]:
    x, kernel = shapes["x"], tuple(attributes["kernel"])
    numbers = {name: attributes[name] for name in ("stride", "pad", "dilation")}
    w = (1, x[1], *kernel)
    (y,) = VOCABULARY["convolution"].shapes({"x": x, "w": w, "b": None}, {**numbers, "groups": 1})
    return ((x[0], x[1] * prod(kernel), *y[2:]),)


_AFFINE = {"size": REQUIRED, "fixed": REQUIRED}


def _sampled(shapes: Shapes, attributes: Attributes) -> Sequence[Shape]:
    x, theta = shapes["x"], shapes["theta"]
    learned = attributes["fixed"].count(None)
    if len(x) != 4 or theta != (x[0], learned):
        raise ValueError(
            f"theta {theta} does not have {learned} numbers for each sample of x {x}, which are "
            f"samples x channels x rows x columns"
        )
    return ((*x[:2], *attributes["size"]),)


def _pooled_shapes(shapes: Shapes, attributes: Attributes) -> Sequence[Shape]:
    if any(attributes["pad"]):
        raise ValueError(f"pad {tuple(attributes['pad'])}: only maxima and plain averages are padded")
    return VOCABULARY["pooling_average"].shapes(shapes, attributes)


def _unpooled_shapes(shapes: Shapes, attributes: Attributes) -> Sequence[Shape]:
    x, place, size = shapes["x"], shapes["place"], tuple(attributes["size"])
    if len(x) != 4 or place != x or len(size) != 2:
        raise ValueError(
            f"x {x} is not samples x channels x rows x columns with a place each (place {place})"
        )
    return ((*x[:2], *size),)


def _window_flops(shapes: Shapes, attributes: Attributes) -> float:
    return float(count(shapes["y"]) * count(attributes["kernel"]))


OPERATIONS = (
    _define(
        "im2col",
        "y[n, c * taps + t] = what tap t of convolution's window sees of x[n, c], 0 beyond its edge",
        inputs="x",
        outputs="y",
        shapes=_columns_shapes,
        flops=per_element("y", 0.0),
        attributes=_COLUMNS,
        gradients=["x = col2im(dy)"],
    ),
    _define(
        "col2im",
        "dx = for each element the sum of dy over the taps that saw it; shape is that of x",
        inputs="dy",
        outputs="dx",
        shapes=shape_attribute,
        flops=per_element("dy"),
        attributes={**_COLUMNS, "shape": None},
    ),
    _define(
        "pooling_stochastic",
        "an element of each window, drawn with probability x / the window's sum, and its flat index in "
        "the spatial plane of x: the first whose running sum, in float64, reaches (word + 1) / 2**32 of "
        "the whole, else the last; element e of sample n's y draws the word that keep_mask of seed, "
        "stream, iteration and sample draws for it (Zeiler and Fergus 2013)",
        inputs="x iteration sample",
        outputs="y choice?:int32",
        shapes=lambda shapes, attributes: (*_pooled_shapes(shapes, attributes),) * 2,
        flops=_window_flops,
        attributes={**_POOLING, **_CHANCE},
        gradients=["x = pooling_max_backward(dy, choice)"],
    ),
    _define(
        "pooling_self_weighted",
        "the average of each window weighted by its own elements: the sum of x^2 over the sum of x, 0 "
        "where that is not positive",
        inputs="x",
        outputs="y",
        shapes=_pooled_shapes,
        flops=lambda shapes, attributes: 3.0 * _window_flops(shapes, attributes),
        attributes=_POOLING,
        gradients=["x = pooling_self_weighted_backward(dy, x, y)"],
    ),
    _define(
        "pooling_self_weighted_backward",
        "dx = the sum over its windows of dy (2 x - y) / the sum of x",
        inputs="dy x y",
        outputs="dx",
        shapes=lambda shapes, attributes: (shapes["x"],),
        flops=lambda shapes, attributes: 4.0 * _window_flops(shapes, attributes),
        attributes=_POOLING,
    ),
    _define(
        "unpooling",
        "y has each element of x at its place, a flat index in a plane of size, as pooling_max gives it "
        "(of several at one place the last), and is 0 elsewhere. What is no place is an error, which "
        "says that it was in source (Badrinarayanan et al. 2017, SegNet, section 3)",
        inputs="x place",
        outputs="y",
        shapes=_unpooled_shapes,
        flops=per_element("x", 0.0),
        attributes={"size": REQUIRED, "source": ""},
        gradients=["x = unpooling_backward(dy, place)"],
    ),
    _define(
        "unpooling_backward",
        "dx = dy at each place",
        inputs="dy place",
        outputs="dx",
        shapes=lambda shapes, attributes: (shapes["place"],),
        flops=per_element("place", 0.0),
    ),
    _define(
        "affine_sampling",
        "y[n, c, i, j] = x[n, c] at row (u + 1) H / 2 and column (v + 1) W / 2, by straight lines "
        "between pixels, 0 outside, where (u, v) = A (2 i / rows - 1, 2 j / columns - 1, 1) and A, "
        "2 x 3, has theta[n] in the places that are None in fixed (Jaderberg et al. 2015, Spatial "
        "Transformer Networks, section 3)",
        inputs="x theta",
        outputs="y",
        shapes=_sampled,
        flops=per_element("y", 12),
        attributes=_AFFINE,
        gradients=["x theta = affine_sampling_backward(dy, x, theta)"],
    ),
    _define(
        "affine_sampling_backward",
        "dx and dtheta of affine_sampling; at a whole row or column the slope towards the next",
        inputs="dy x theta",
        outputs="dx? dtheta?",
        shapes=lambda shapes, attributes: (shapes["x"], shapes["theta"]),
        flops=per_element("dy", 30),
        attributes=_AFFINE,
    ),
)
