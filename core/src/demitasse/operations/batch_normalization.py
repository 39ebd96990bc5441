"""Normalisation of channels (axis 1) by a batch's or by kept statistics, and scales along an axis."""

from functools import partial

from demitasse.operations.record import Attributes, Shape, Shapes, define, per_element, same_as

_define = partial(define, "batch_normalization")


def _normalised(shapes: Shapes, attributes: Attributes) -> tuple[Shape, Shape]:
    x, kept = shapes["x"], tuple(shapes[name] for name in ("mean", "variance", "factor"))
    if len(x) < 2 or kept != (x[1:2], x[1:2], (1,)):
        raise ValueError(f"statistics {kept} do not fit x {x}: they are of its channels, and of all")
    return (x, x[1:2])


def _scaled(shapes: Shapes, attributes: Attributes) -> tuple[Shape]:
    x, w, b, axis = shapes["x"], shapes["w"], shapes["b"], attributes["axis"]
    if x[axis : axis + len(w)] != w or b not in (None, w):
        raise ValueError(f"w {w} and b {b} do not fit x {x} from axis {axis} on")
    return (x,)


# A word in a few lines, as a table.
# fmt: off
OPERATIONS = (
    _define("batch_norm", "y = (x - m) * inverse, inverse = (v + epsilon)^-1/2; m and v are the batch's"
        " mean and variance; mean, variance, factor = keep * themselves + m, v n / (n - 1), 1",
        "x mean! variance! factor!", "y inverse?", _normalised, per_element("x", 6),
        {"keep": 0.999, "epsilon": 1e-5}, ["x = batch_norm_backward(dy, y, inverse)"], ["y = x"]),
    _define("batch_norm_backward", "dx = inverse * (dy - the means of dy and of y * (dy * y)'s mean)",
        "dy y inverse", "dx", same_as("dy"), per_element("dy", 6), aliases=["dx = dy"]),
    _define("batch_norm_inference", "y = (x - mean / factor) * (variance / factor + epsilon)^-1/2",
        "x mean variance factor", "y", lambda *given: _normalised(*given)[:1], per_element("x", 2),
        {"epsilon": 1e-5}, ["x = batch_norm_inference_backward(dy, variance, factor)"], ["y = x"]),
    _define("batch_norm_inference_backward", "dx = dy * (variance / factor + epsilon)^-1/2",
        "dy variance factor", "dx", same_as("dy"), None, {"epsilon": 1e-5}, aliases=["dx = dy"]),
    _define("scale", "y = x * w + b, w and b along the axes of x from axis on",
        "x w b?", "y", _scaled, per_element("x", 2), {"axis": 1},
        ["x w b = scale_backward(dy, x, w)"], ["y = x"], ["relu"]),
    _define("scale_backward", "dx = dy * w; dw and db are the sums of dy * x and of dy", "dy x w",
        "dx? dw? db?", lambda shapes, attributes: (shapes["dy"], shapes["w"], shapes["w"]),
        per_element("dy", 4), {"axis": 1}, aliases=["dx = dy"]),
)
