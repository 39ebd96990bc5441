"""Pooling, with Caffe's rule for the output size."""

from functools import partial

from demitasse.operations.record import Attributes, Shape, Shapes, count, define, shape_attribute

_ATTRIBUTES = {"kernel": (2, 2), "stride": (1, 1), "pad": (0, 0), "rounding": "ceil"}
_BACKWARD = {**_ATTRIBUTES, "shape": None}
_define = partial(define, "pooling")


def _extent(extent: int, kernel: int, stride: int, pad: int, rounding: str) -> int:
    """Caffe rounds up, then drops a last window that would start beyond the input and its left pad."""
    room = extent + 2 * pad - kernel
    if room < 0 or kernel < 1:
        raise ValueError(f"a window of {kernel} does not fit {extent} + 2 x {pad}")
    if pad >= kernel:
        raise ValueError(f"a pad of {pad} is not smaller than the window of {kernel}")
    outputs = (-(-room // stride) if rounding == "ceil" else room // stride) + 1
    if (outputs - 1) * stride >= extent + pad:
        outputs -= 1
    return outputs


def _pooled(shapes: Shapes, attributes: Attributes) -> Shape:
    x, rounding = shapes["x"], attributes["rounding"]
    windows = zip(x[2:], attributes["kernel"], attributes["stride"], attributes["pad"], strict=True)
    return (*x[:2], *(_extent(n, kernel, stride, pad, rounding) for n, kernel, stride, pad in windows))


def _flops(shapes: Shapes, attributes: Attributes) -> float:
    return float(count(shapes["y"]) * count(attributes["kernel"]))


OPERATIONS = (
    _define(
        "pooling_max",
        "the largest of each window that lies in x (the first of equals), and its flat index in the "
        "spatial plane of x",
        inputs="x",
        outputs="y argmax?:int32",
        shapes=lambda shapes, attributes: (_pooled(shapes, attributes),) * 2,
        flops=_flops,
        attributes=_ATTRIBUTES,
        gradients=["x = pooling_max_backward(dy, argmax)"],
    ),
    _define(
        "pooling_max_backward",
        "dx: each dy added where its window's maximum was; shape is that of x",
        inputs="dy argmax",
        outputs="dx",
        shapes=shape_attribute,
        flops=lambda shapes, attributes: float(count(shapes["dy"])),
        attributes=_BACKWARD,
    ),
    _define(
        "pooling_average",
        "the sum of each window's part in x over the window's size, which counts padding up to one "
        "pad beyond x",
        inputs="x",
        outputs="y",
        shapes=lambda shapes, attributes: (_pooled(shapes, attributes),),
        flops=_flops,
        attributes=_ATTRIBUTES,
        gradients=["x = pooling_average_backward(dy)"],
    ),
    _define(
        "pooling_average_backward",
        "dx: each dy spread evenly over its window; shape is that of x",
        inputs="dy",
        outputs="dx",
        shapes=shape_attribute,
        flops=lambda shapes, attributes: float(count(shapes["dy"]) * count(attributes["kernel"])),
        attributes=_BACKWARD,
    ),
)
