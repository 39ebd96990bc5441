"""Local response normalisation, across channels and within one."""

from functools import partial

from demitasse.operations.record import Attributes, Operation, Shape, Shapes, count, define, same_as

_define = partial(define, "normalization")


def _shapes(shapes: Shapes, attributes: Attributes) -> tuple[Shape, Shape]:
    if attributes["size"] % 2 == 0:
        raise ValueError(f"a window of {attributes['size']} has no middle: size must be odd")
    return (shapes["x"], shapes["x"])


def _lrn(name: str, window: str, reach: int) -> tuple[Operation, Operation]:
    def flops(shapes: Shapes, attributes: Attributes) -> float:
        return float(count(shapes["x"]) * (2 * attributes["size"] ** reach + 12))

    attributes = {"size": 5, "alpha": 1.0, "beta": 0.75, "k": 1.0}
    forward = _define(
        name,
        f"y = x * scale^-beta, scale = k + alpha / n * the sum of x^2 over {window}",
        inputs="x",
        outputs="y scale?",
        shapes=_shapes,
        flops=flops,
        attributes=attributes,
        gradients=[f"x = {name}_backward(dy, x, y, scale)"],
    )
    backward = _define(
        f"{name}_backward",
        "dx = dy * scale^-beta - 2 alpha beta / n * x * the window's sum of dy * y / scale",
        inputs="dy x y scale",
        outputs="dx",
        shapes=same_as("x"),
        flops=flops,
        attributes=attributes,
    )
    return forward, backward


OPERATIONS = (
    *_lrn("lrn_across_channels", "the n = size channels around", 1),
    *_lrn("lrn_within_channel", "the n = size x size square around, zero beyond the edge", 2),
)
