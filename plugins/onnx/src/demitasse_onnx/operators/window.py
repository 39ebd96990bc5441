"""Windows over spatial axes: convolution and its transpose, and the positions of windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from demitasse import Tensor
from demitasse_onnx.call import Call, Operands, Operator, Shape, constant_of, has
from demitasse_onnx.operators.resampling import boxed, surrounded

EXTENTS: dict[str, Any] = {
    "kernel_shape": (),
    "strides": (),
    "dilations": (),
    "pads": (),
    "auto_pad": "NOTSET",
}
_AUTO = ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")


def numbers_of(given: Operands, name: str, spatial: int, default: int, least: int) -> Shape:
    """Return an attribute with a number for each spatial axis."""
    value = given[name] or (default,) * spatial
    if len(value) != spatial or not all(isinstance(each, int) and each >= least for each in value):
        raise ValueError(f"{name} {value}: give {spatial} whole numbers, {least} or more")
    return tuple(value)


def pads_of(given: Operands, x: Tensor, reach: Shape, strides: Shape) -> tuple[Shape, Shape]:
    """Return the padding before and after each spatial axis; ``reach`` is a window's extent."""
    spatial, auto = len(x.shape) - 2, given["auto_pad"]
    if auto not in _AUTO:
        raise ValueError(f"unknown auto_pad {auto!r} (valid: {', '.join(_AUTO)})")
    if auto in ("NOTSET", "VALID"):
        pads = given["pads"] if auto == "NOTSET" else ()
        pads = pads or (0,) * (2 * spatial)
        if len(pads) != 2 * spatial or not all(isinstance(each, int) and each >= 0 for each in pads):
            raise ValueError(f"pads {pads}: give {2 * spatial} whole numbers, 0 or more")
        return tuple(pads[:spatial]), tuple(pads[spatial:])
    before, behind = [], []
    for extent, window, stride in zip(x.shape[2:], reach, strides, strict=True):
        total = max(0, (-(-extent // stride) - 1) * stride + window - extent)
        small, large = total // 2, total - total // 2
        before.append(small if auto == "SAME_UPPER" else large)
        behind.append(large if auto == "SAME_UPPER" else small)
    return tuple(before), tuple(behind)


def space_of(x: Tensor) -> int:
    if len(x.shape) < 3:
        raise ValueError(f"works on samples x channels x space; its input is {x!r}")
    return len(x.shape) - 2


def _weights(call: Call, attributes: Mapping[str, Any]) -> Sequence[np.ndarray]:
    """Weights that the net computes are not learned, nor is a bias."""
    if len(call.operands) > 1 and isinstance(call.operands[1], int):
        return []
    w = constant_of(call, 1, "its weights")
    if w.ndim < 3 or 0 in w.shape:
        raise ValueError(f"its weights have the shape {w.shape}")
    if attributes["kernel_shape"] not in ((), w.shape[2:]):
        raise ValueError(
            f"kernel_shape {attributes['kernel_shape']} is not that of its weights, {w.shape}"
        )
    if not has(call, 2) or isinstance(call.operands[2], int):
        return [w]
    return [w, constant_of(call, 2, "its bias")]


def _learned(given: Operands) -> tuple[Tensor, Tensor | None]:
    """Return the weights and the bias, learned or computed."""
    w = given.learned[0] if given.learned else given.tensor(1)
    if given.learned[1:]:
        return w, given.learned[1]
    return w, given.tensor(2) if given.has(2) else None


def _reach(given: Operands, w: Tensor, x: Tensor) -> tuple[int, Shape, Shape, Shape]:
    """Return the spatial axes, strides, dilations, and the extents of a dilated kernel."""
    spatial = space_of(x)
    if len(w.shape) != len(x.shape):
        raise ValueError(f"its weights {w.shape} do not fit its input {x!r}")
    strides = numbers_of(given, "strides", spatial, 1, 1)
    dilations = numbers_of(given, "dilations", spatial, 1, 1)
    if given["group"] < 1:
        raise ValueError(f"group {given['group']} is not positive")
    reach = tuple(d * (k - 1) + 1 for d, k in zip(dilations, w.shape[2:], strict=True))
    return spatial, strides, dilations, reach


def convolution(given: Operands) -> Sequence[Tensor]:
    x, (w, b) = given.tensor(), _learned(given)
    spatial, strides, dilations, reach = _reach(given, w, x)
    before, behind = pads_of(given, x, reach, strides)
    zeros = given.call.zeros or (0,) * (2 * spatial)
    before = tuple(a + b for a, b in zip(before, zeros[:spatial], strict=True))
    behind = tuple(a + b for a, b in zip(behind, zeros[spatial:], strict=True))
    if before != behind:  # the vocabulary pads both sides equally: pad x first
        x = surrounded(given, x, (0, 0, *before), (0, 0, *behind))
        before = (0,) * spatial
    return [
        given.apply(
            "convolution",
            *(x, w, b),
            stride=strides,
            pad=before,
            dilation=dilations,
            groups=given["group"],
        )
    ]


def _transposed(given: Operands) -> Sequence[Tensor]:
    """The sizes are those of the convolution whose gradient this is."""
    x, (w, b) = given.tensor(), _learned(given)
    spatial, strides, dilations, reach = _reach(given, w, x)
    more = numbers_of(given, "output_padding", spatial, 0, 0)
    wanted, beyond = given["output_shape"], (0,) * spatial
    spread = [s * (n - 1) + m + r for s, n, m, r in zip(strides, x.shape[2:], more, reach, strict=True)]
    if wanted or given["auto_pad"].startswith("SAME"):
        sizes = wanted or tuple(s * n for s, n in zip(strides, x.shape[2:], strict=True))
        if len(sizes) != spatial:
            raise ValueError(f"output_shape {sizes} does not have {spatial} spatial axes")
        total = [full - size for full, size in zip(spread, sizes, strict=True)]
        beyond = tuple(max(0, -each) for each in total)  # zeros at the end, where no window reaches
        total = [max(0, each) for each in total]
        small, large = tuple(each // 2 for each in total), tuple(each - each // 2 for each in total)
        # In ONNX the larger half comes first, except for SAME_UPPER.
        before, behind = (small, large) if given["auto_pad"] == "SAME_UPPER" else (large, small)
    else:
        before, behind = pads_of(given, x, reach, strides)
    if any(m >= s for m, s in zip(more, strides, strict=True)):
        raise ValueError(f"output_padding {more} is not smaller than the strides {strides}")
    # The operation handles padding that is equal on both sides; the rest is cropped from its result.
    both = tuple(min(a, b) for a, b in zip(before, behind, strict=True))
    size = tuple(full - 2 * pad for full, pad in zip(spread, both, strict=True))
    kept = tuple(full - a - b for full, a, b in zip(spread, before, behind, strict=True))
    if min(kept) < 1:
        raise ValueError(f"leaves no output: {kept}")
    groups = given["group"]
    if x.shape[1] != w.shape[0] or w.shape[0] % groups:
        raise ValueError(f"its weights {w.shape} in {groups} groups do not fit its input {x!r}")
    y = given.apply(
        "convolution_backward_data",
        *(x, w),
        stride=strides,
        pad=both,
        dilation=dilations,
        groups=groups,
        shape=(x.shape[0], w.shape[1] * groups, *size),
    )
    y = boxed(given, y, {2 + axis: (before[axis] - both[axis], kept[axis]) for axis in range(spatial)})
    y = surrounded(given, y, (0,) * len(y.shape), (0, 0, *beyond))
    if b is not None:
        ones = given.fixed("one", np.ones(y.shape[1:2]))
        y = given.apply("scale", y, ones, b, axis=1)
    return [y]


OPERATORS = (
    Operator("Conv", convolution, {**EXTENTS, "group": 1}, _weights),
    Operator(
        "ConvTranspose",
        _transposed,
        {**EXTENTS, "group": 1, "output_padding": (), "output_shape": ()},
        _weights,
    ),
)
