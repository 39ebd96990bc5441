"""The operations of the plugin: cost volumes, warping by a flow, and losses that ignore unknown places.

Images and flows are samples x channels x rows x columns. A flow's two channels are the movement of each
pixel across and down, in pixels.
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
    per_element,
    same_as,
)

_define = partial(define, "optical flow")
_VOLUME = {
    "kernel": 1,
    "stride": 1,
    "first": (0, 0),
    "size": REQUIRED,
    "down": REQUIRED,
    "across": REQUIRED,
    "difference": False,
}
_WARP = {"fill": 0.0, "to_corners": False}
_LPQ = {
    "starts": (0,),
    "p": REQUIRED,
    "q": REQUIRED,
    "p_epsilon": 0.0,
    "q_epsilon": 0.0,
    "prescale": False,
    "plateau": 0.0,
    "by_location": False,
    "normalization": "batch_size",
}


def _volume(shapes: Shapes, attributes: Attributes) -> Sequence[Shape]:
    a, b, size = shapes["a"], shapes["b"], tuple(attributes["size"])
    if len(a) != 4 or a != b:
        raise ValueError(
            f"a {a} and b {b} are not samples x channels x rows x columns of the same shape"
        )
    if attributes["kernel"] < 1 or attributes["stride"] < 1 or min(size) < 1:
        raise ValueError(
            f"kernel {attributes['kernel']}, stride {attributes['stride']} and size {size} are not all "
            f"1 or more"
        )
    return ((a[0], len(attributes["down"]) * len(attributes["across"]), *size),)


def _volume_flops(shapes: Shapes, attributes: Attributes) -> float:
    volume = shapes["y"] if "y" in shapes else shapes["dy"]
    return float(2 * shapes["a"][1] * attributes["kernel"] ** 2 * count(volume))


def _volume_backward_flops(shapes: Shapes, attributes: Attributes) -> float:
    wanted = (shapes["da"] is not None) + (shapes["db"] is not None)
    return wanted * _volume_flops(shapes, attributes)


def _warped(shapes: Shapes, attributes: Attributes) -> Sequence[Shape]:
    x, flow = shapes["x"], shapes["flow"]
    if len(x) != 4 or flow != (x[0], 2, *x[2:]):
        raise ValueError(
            f"flow {flow} does not have two channels, across and down, for each sample and pixel of x "
            f"{x}"
        )
    return (x,)


def _downsampled(shapes: Shapes, attributes: Attributes) -> Sequence[Shape]:
    x, size = shapes["x"], tuple(attributes["size"])
    if len(x) != 4 or min(size) < 2:
        raise ValueError(
            f"x {x} is not samples x channels x rows x columns, or a size of {size} has a side below 2, "
            f"which cannot have both ends of the image"
        )
    return ((*x[:2], *size),)


def _channels(shapes: Shapes, attributes: Attributes) -> Sequence[Shape]:
    x = shapes["x"]
    if len(x) < 2:
        raise ValueError(f"x {x} has no axis of channels")
    return ((x[0], 1, *x[2:]),)


def _loss(shapes: Shapes, attributes: Attributes) -> Sequence[Shape]:
    a, b = shapes["a"], shapes["b"]
    if len(a) < 2 or (b is not None and b != a):
        raise ValueError(f"a {a} and b {b} are not samples x channels x places of the same shape")
    return ((), (1,))


def _written(shapes: Shapes, attributes: Attributes) -> Sequence[Shape]:
    if len(shapes["x"]) != 4 or shapes["x"][1] != 2:
        raise ValueError(f"x {shapes['x']} is not samples x 2 x rows x columns: flows, across and down")
    return ()


OPERATIONS = (
    _define(
        "cost_volume",
        "y[n, e * len(across) + f, i, j] = the mean, over channels and the kernel x kernel taps from "
        "row first[0] + stride * i and column first[1] + stride * j of a on, of a times b, or with "
        "difference of |a - b|, b taken down[e] rows and across[f] columns further; both are 0 outside "
        "(Dosovitskiy et al. 2015, FlowNet, section 3)",
        inputs="a b",
        outputs="y",
        shapes=_volume,
        flops=_volume_flops,
        attributes=_VOLUME,
        gradients=["a b = cost_volume_backward(dy, a, b)"],
    ),
    _define(
        "cost_volume_backward",
        "da and db of cost_volume; of |a - b| where both are equal the slopes are 1 and -1",
        inputs="dy a b",
        outputs="da? db?",
        shapes=lambda shapes, attributes: (shapes["a"], shapes["b"]),
        flops=_volume_backward_flops,
        attributes=_VOLUME,
    ),
    _define(
        "warp",
        "y[n, c, i, j] = x[n, c] at row i + flow[n, 1, i, j] and column j + flow[n, 0, i, j], by "
        "straight lines between pixels; fill at less than 0 or, in rows or columns, at their number or "
        "more (there the last pixel goes on; to_corners: at more than the last pixel), or if the flow "
        "is no number (Ilg et al. 2017, FlowNet 2.0, section 4; Sun et al. 2018, PWC-Net, section 3)",
        inputs="x flow",
        outputs="y",
        shapes=_warped,
        flops=per_element("y", 8),
        attributes=_WARP,
        gradients=["x flow = warp_backward(dy, x, flow)"],
    ),
    _define(
        "warp_backward",
        "dx and dflow of warp; at a whole row or column the slope of the pixel behind it, to_corners "
        "half of both sides' slopes together, of which one outside is 0",
        inputs="dy x flow",
        outputs="dx? dflow?",
        shapes=lambda shapes, attributes: (shapes["x"], shapes["flow"]),
        flops=per_element("dy", 20),
        attributes=_WARP,
    ),
    _define(
        "downsample_known",
        "y = the mean of x around each of size places, the first and last of which are those of x, "
        "weighted by 1 - distance over the distance of places; NaN of x counts for nothing, and y is "
        "NaN where more than half as much weight is of NaN as of numbers, or all of it",
        inputs="x",
        outputs="y",
        shapes=_downsampled,
        flops=per_element("x", 8),
        attributes={"size": REQUIRED},
    ),
    _define(
        "channel_norm",
        "y = the root of the sum over channels of x^2",
        inputs="x",
        outputs="y",
        shapes=_channels,
        flops=per_element("x", 2),
        gradients=["x = channel_norm_backward(dy, x, y)"],
    ),
    _define(
        "channel_norm_backward",
        "dx = dy * x / (y + 1e-9)",
        inputs="dy x y",
        outputs="dx",
        shapes=same_as("x"),
        flops=per_element("x", 3),
    ),
    _define(
        "lpq_loss",
        "the sum over samples and places of (scale * the sum over channels of (|d| + p_epsilon)^p + "
        "q_epsilon)^q, d = a - b, or a where there is no b, 0 where that is NaN; scale 1, or prescale 1 "
        "/ channels. Over batch_size (the samples), valid (divisor, at least 1: how many d are numbers, "
        "/ channels), or none. What is below a plateau counts as 0: |d|, or by_location the sum below "
        "plateau^2. p and q are those of the last of starts that the iteration has reached",
        inputs="a b? iteration",
        outputs="loss divisor?:float64",
        shapes=_loss,
        flops=per_element("a", 20),
        attributes=_LPQ,
        gradients=["a b = lpq_loss_backward(dloss, a, b, iteration)"],
    ),
    # The operand is marked as updated, because an operation that only reads and produces nothing would
    # be left out.
    _define(
        "write_flows",
        "each flow of x in a file of Middlebury's form: file, or one in folder named by prefix, sample "
        "// batch, sample % batch where a batch is more than 1, and suffix",
        inputs="x! sample",
        outputs="",
        shapes=_written,
        flops=per_element("x", 0.0),
        attributes={"file": "", "folder": "", "prefix": "", "suffix": "", "batch": 1},
    ),
    _define(
        "lpq_loss_backward",
        "da, and db = -da, of lpq_loss: 0 where d is NaN or below a plateau, or where a power below 1 "
        "is of 0; the slope of |d| at 0 is -1",
        inputs="dloss a b? iteration",
        outputs="da? db?",
        shapes=lambda shapes, attributes: (shapes["a"], shapes["b"] or shapes["a"]),
        flops=per_element("a", 30),
        attributes=_LPQ,
    ),
)
