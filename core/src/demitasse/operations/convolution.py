"""Convolution and its two backward passes, in any number of spatial dimensions."""

from collections.abc import Sequence
from functools import partial

from demitasse.operations.record import Attributes, Shape, Shapes, count, define, shape_attribute

_ATTRIBUTES = {"stride": (1, 1), "pad": (0, 0), "dilation": (1, 1), "groups": 1}
_BACKWARD = {**_ATTRIBUTES, "shape": None}
_define = partial(define, "convolution")


def _shapes(shapes: Shapes, attributes: Attributes) -> Sequence[Shape]:
    x, w, b, groups = shapes["x"], shapes["w"], shapes["b"], attributes["groups"]
    stride, pad, dilation = (attributes[name] for name in ("stride", "pad", "dilation"))
    if len(x) != len(w) or len(stride) != len(x) - 2:
        raise ValueError(f"x {x}, w {w} and stride {stride} disagree on the spatial dimensions")
    if x[1] % groups or w[0] % groups:
        raise ValueError(f"{x[1]} input and {w[0]} output channels do not divide into {groups} groups")
    if w[1] != x[1] // groups:
        raise ValueError(f"w {w} takes {w[1]} channels a group, x {x} has {x[1] // groups}")
    if b is not None and b != (w[0],):
        raise ValueError(f"b {b} should be ({w[0]},)")
    spatial = []
    for extent, kernel, s, p, d in zip(x[2:], w[2:], stride, pad, dilation, strict=True):
        reach = d * (kernel - 1) + 1
        if extent + 2 * p < reach:
            raise ValueError(f"a kernel that reaches {reach} does not fit {extent} + 2 x {p} of x {x}")
        spatial.append((extent + 2 * p - reach) // s + 1)
    return ((x[0], w[0], *spatial),)


def _weights_shapes(shapes: Shapes, attributes: Attributes) -> Sequence[Shape]:
    return (attributes["shape"], (attributes["shape"][0],))


OPERATIONS = (
    _define(
        "convolution",
        "y[n,k] = b[k] + the sum over the group's channels c of x[n,c] * w[k,c] (correlation)",
        inputs="x w b?",
        outputs="y",
        shapes=_shapes,
        flops=lambda shapes, attributes: 2.0 * count(shapes["y"]) * count(shapes["w"][1:]),
        attributes=_ATTRIBUTES,
        gradients=["w b = convolution_backward_weights(dy, x)", "x = convolution_backward_data(dy, w)"],
        fuses=["relu", "sum", "sum_relu"],
    ),
    _define(
        "convolution_backward_data",
        "dx of convolution; shape is that of x. As a layer's own operation: deconvolution of dy",
        inputs="dy w",
        outputs="dx",
        shapes=shape_attribute,
        flops=lambda shapes, attributes: 2.0 * count(shapes["dy"]) * count(shapes["w"][1:]),
        attributes=_BACKWARD,
        gradients=["dy = convolution(ddx, w)", "w = convolution_backward_weights(dy, ddx)"],
    ),
    _define(
        "convolution_backward_weights",
        "dw and db of convolution, summed over the samples; shape is that of w",
        inputs="dy x",
        outputs="dw db?",
        shapes=_weights_shapes,
        flops=lambda shapes, attributes: 2.0 * count(shapes["dy"]) * count(attributes["shape"][1:]),
        attributes=_BACKWARD,
    ),
)
