"""Normalisation of channels (axis 1) by the batch's or by kept statistics, and scales along an axis."""

from functools import partial

from demitasse.operations.record import Attributes, Shape, Shapes, define, per_element

_define = partial(define, "batch_normalization")
_MORE, _SUM = {"epsilon": 1e-5, "relu": False}, ["sum", "sum_relu"]
_KEPT = {"keep": 0.999, "averaged": False, **_MORE}


def _normalised(shapes: Shapes, attributes: Attributes) -> tuple[Shape, ...]:
    x, others = shapes["x"], [shapes.get(name) for name in ("mean", "variance", "factor", "w", "b")]
    fitting = (x[1:2], x[1:2], (1,), x[1:2], x[1:2])
    if len(x) < 2 or any(each not in (None, fit) for each, fit in zip(others, fitting, strict=True)):
        raise ValueError(f"statistics, w and b {others} do not fit x {x}: they are of its channels")
    return (x, x[1:2], x[1:2])


def _scaled(shapes: Shapes, attributes: Attributes) -> tuple[Shape]:
    x, w, b, axis = shapes["x"], shapes["w"], shapes["b"], attributes["axis"]
    if x[axis : axis + len(w)] != w or b not in (None, w):
        raise ValueError(f"w {w} and b {b} do not fit x {x} from axis {axis} on")
    return (x,)


# fmt: off
OPERATIONS = (
    _define("batch_norm", "y = w * xhat + b, with relu max(0, that); xhat = (x - average) * inverse,"
        " inverse = (v + epsilon)^-1/2, average and v the batch's mean and variance; mean, variance,"
        " factor = keep * themselves + average, v n / (n - 1), 1; where these are averaged: mean,"
        " variance = keep * themselves + (1 - keep) * average, v", "x mean! variance! factor! w? b?",
        "y average? inverse?", _normalised, per_element("x", 7), _KEPT,
        ["x w b = batch_norm_backward(dy, x, w, b, average, inverse)"], ["y = x"], _SUM),
    _define("batch_norm_backward", "db, dw are the sums of dz, dz * xhat; dz = dy, with relu where y > 0"
        "; dx = w * inverse * (dz - db / n - xhat * dw / n)", "dy x w? b? average inverse",
        "dx? dw? db?", _normalised, per_element("dy", 12), {"relu": False}, aliases=["dx = dy"]),
    _define("batch_norm_inference", "as batch_norm, by average, v = mean / factor, variance / factor",
        "x mean variance factor w? b?", "y", lambda *a: _normalised(*a)[:1], per_element("x", 3), _MORE,
        ["x w b = batch_norm_inference_backward(dy, x, mean, variance, factor, w, b)"], ["y = x"], _SUM),
    _define("batch_norm_inference_backward", "dx = w * inverse * dz; dz, dw, db as batch_norm_backward",
        "dy x mean variance factor w? b?", "dx? dw? db?", _normalised, per_element("dy", 7), _MORE,
        aliases=["dx = dy"]),
    _define("scale", "y = x * w + b, w and b along the axes of x from axis on",
        "x w b?", "y", _scaled, per_element("x", 2), {"axis": 1},
        ["x w b = scale_backward(dy, x, w)"], ["y = x"], ["relu"]),
    _define("scale_backward", "dx = dy * w; dw and db are the sums of dy * x and of dy", "dy x w",
        "dx? dw? db?", lambda shapes, attributes: (shapes["dy"], shapes["w"], shapes["w"]),
        per_element("dy", 4), {"axis": 1}, aliases=["dx = dy"]),
)
