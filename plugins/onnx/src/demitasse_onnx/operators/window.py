"""Windows over spatial axes: convolution, its transpose, and pooling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from demitasse import Tensor
from demitasse.operations import VOCABULARY
from demitasse_onnx.call import Call, Operands, Operator, Shape, constant_of, has
from demitasse_onnx.operators.resampling import boxed, edged, surrounded

_EXTENTS: dict[str, Any] = {
    "kernel_shape": (),
    "strides": (),
    "dilations": (),
    "pads": (),
    "auto_pad": "NOTSET",
}
_AUTO = ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")


def _numbers(given: Operands, name: str, spatial: int, default: int, least: int) -> Shape:
    """An attribute with a number for each spatial axis."""
    value = given[name] or (default,) * spatial
    if len(value) != spatial or not all(isinstance(each, int) and each >= least for each in value):
        raise ValueError(f"{name} {value}: {spatial} whole numbers from {least} on are needed")
    return tuple(value)


def _pads(given: Operands, x: Tensor, reach: Shape, strides: Shape) -> tuple[Shape, Shape]:
    """What is padded before and behind each spatial axis; ``reach`` is a window's extent."""
    spatial, auto = len(x.shape) - 2, given["auto_pad"]
    if auto not in _AUTO:
        raise ValueError(f"auto_pad {auto!r} is none of {', '.join(_AUTO)}")
    if auto in ("NOTSET", "VALID"):
        pads = given["pads"] if auto == "NOTSET" else ()
        pads = pads or (0,) * (2 * spatial)
        if len(pads) != 2 * spatial or not all(isinstance(each, int) and each >= 0 for each in pads):
            raise ValueError(f"pads {pads}: {2 * spatial} whole numbers from 0 on are supported")
        return tuple(pads[:spatial]), tuple(pads[spatial:])
    before, behind = [], []
    for extent, window, stride in zip(x.shape[2:], reach, strides, strict=True):
        total = max(0, (-(-extent // stride) - 1) * stride + window - extent)
        small, large = total // 2, total - total // 2
        before.append(small if auto == "SAME_UPPER" else large)
        behind.append(large if auto == "SAME_UPPER" else small)
    return tuple(before), tuple(behind)


def _spatial(x: Tensor) -> int:
    if len(x.shape) < 3:
        raise ValueError(f"works on samples x channels x space; its input is {x!r}")
    return len(x.shape) - 2


def _weights(call: Call, attributes: Mapping[str, Any]) -> Sequence[np.ndarray]:
    w = constant_of(call, 1, "its weights")
    if w.ndim < 3 or 0 in w.shape:
        raise ValueError(f"its weights have the shape {w.shape}")
    if attributes["kernel_shape"] not in ((), w.shape[2:]):
        raise ValueError(
            f"kernel_shape {attributes['kernel_shape']} is not that of its weights, {w.shape}"
        )
    return [w, constant_of(call, 2, "its bias")] if has(call, 2) else [w]


def _reach(given: Operands, w: Tensor, x: Tensor) -> tuple[int, Shape, Shape, Shape]:
    """Spatial axes, strides, dilations, and the extents of a dilated kernel."""
    spatial = _spatial(x)
    if len(w.shape) != len(x.shape):
        raise ValueError(f"its weights {w.shape} do not fit its input {x!r}")
    strides = _numbers(given, "strides", spatial, 1, 1)
    dilations = _numbers(given, "dilations", spatial, 1, 1)
    if given["group"] < 1:
        raise ValueError(f"group {given['group']} is not positive")
    reach = tuple(d * (k - 1) + 1 for d, k in zip(dilations, w.shape[2:], strict=True))
    return spatial, strides, dilations, reach


def _convolution(given: Operands) -> Sequence[Tensor]:
    x, w = given.tensor(), given.learned[0]
    spatial, strides, dilations, reach = _reach(given, w, x)
    before, behind = _pads(given, x, reach, strides)
    zeros = given.call.zeros or (0,) * (2 * spatial)
    before = tuple(a + b for a, b in zip(before, zeros[:spatial], strict=True))
    behind = tuple(a + b for a, b in zip(behind, zeros[spatial:], strict=True))
    if before != behind:  # zeros of its own: the vocabulary pads alike
        x = surrounded(given, x, (0, 0, *before), (0, 0, *behind))
        before = (0,) * spatial
    b = given.learned[1] if given.learned[1:] else None
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
    """The sizes are those of the convolution whose gradient it is."""
    x, w = given.tensor(), given.learned[0]
    spatial, strides, dilations, reach = _reach(given, w, x)
    more = _numbers(given, "output_padding", spatial, 0, 0)
    wanted = given["output_shape"]
    spread = [s * (n - 1) + m + r for s, n, m, r in zip(strides, x.shape[2:], more, reach, strict=True)]
    if wanted or given["auto_pad"].startswith("SAME"):
        sizes = wanted or tuple(s * n for s, n in zip(strides, x.shape[2:], strict=True))
        if len(sizes) != spatial:
            raise ValueError(f"output_shape {sizes} is not of {spatial} spatial axes")
        total = [full - size for full, size in zip(spread, sizes, strict=True)]
        if any(each < 0 for each in total):
            raise ValueError(f"output_shape {sizes} is larger than what it makes, {spread}")
        small, large = tuple(each // 2 for each in total), tuple(each - each // 2 for each in total)
        # ONNX has the larger half before, but for SAME_UPPER.
        before, behind = (small, large) if given["auto_pad"] == "SAME_UPPER" else (large, small)
    else:
        before, behind = _pads(given, x, reach, strides)
    if any(m >= s for m, s in zip(more, strides, strict=True)):
        raise ValueError(f"output_padding {more} is not smaller than the strides {strides}")
    # What is padded on both sides alike is the operation's; the rest is cut off its result.
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
    if given.learned[1:]:
        ones = given.fixed("one", np.ones(y.shape[1:2]))
        y = given.apply("scale", y, ones, given.learned[1], axis=1)
    return [y]


@dataclass(frozen=True)
class _Windows:
    """What a pooling word is given: x, with what is padded where the word cannot, and its attributes;
    and how far before and behind each axis of ``extents`` the operator's own pads reach, the zeros of a
    Pad before it among them."""

    x: Tensor
    attributes: Mapping[str, Any]
    before: Shape
    behind: Shape
    zeros: Shape
    extents: Shape
    surrounded: bool = False


def _windows(given: Operands, word: str) -> _Windows:
    """The vocabulary pads alike before and behind, and its last windows may reach beyond what is padded.
    Where the operator's windows are others, zeros are put around x, or, for a maximum, what is at its
    edges, which lies in every window that reaches beyond them."""
    x = given.tensor()
    spatial = _spatial(x)
    kernel = _numbers(given, "kernel_shape", spatial, 0, 1)
    strides = _numbers(given, "strides", spatial, 1, 1)
    if set(_numbers(given, "dilations", spatial, 1, 1)) != {1}:
        raise ValueError(f"dilations {given['dilations']} are not supported")
    before, behind = _pads(given, x, kernel, strides)
    zeros = given.call.zeros or (0,) * (2 * spatial)
    if any(zeros) and (any(before) or given["count_include_pad"]):  # both pad: the zeros are part of x
        x = surrounded(given, x, (0, 0, *zeros[:spatial]), (0, 0, *zeros[spatial:]))
        zeros = (0,) * (2 * spatial)
        before, behind = _pads(given, x, kernel, strides)
    extents = x.shape[2:]
    before = tuple(a + b for a, b in zip(before, zeros[:spatial], strict=True))
    behind = tuple(a + b for a, b in zip(behind, zeros[spatial:], strict=True))
    outputs = []
    for n, k, s, first, last in zip(x.shape[2:], kernel, strides, before, behind, strict=True):
        room = n + first + last - k
        if room < 0:
            raise ValueError(f"a window of {k} does not fit {n} + {first} + {last}")
        count = (-(-room // s) if given["ceil_mode"] else room // s) + 1
        outputs.append(count - 1 if (count - 1) * s >= n + first else count)
    for rounding in ("ceil", "floor"):
        attributes = {"kernel": kernel, "stride": strides, "pad": before, "rounding": rounding}
        try:
            shape = VOCABULARY[word].shapes({"x": x.shape}, attributes)[0]
        except ValueError:  # a pad as large as its window
            break
        if shape[2:] == tuple(outputs):
            return _Windows(x, attributes, before, behind, zeros, extents)
    reached = zip(outputs, strides, kernel, x.shape[2:], before, strict=True)
    tail = tuple(max(0, (count - 1) * s + k - n - first) for count, s, k, n, first in reached)
    if word == "pooling_average":
        x = surrounded(given, x, (0, 0, *before), (0, 0, *tail))
    else:
        for axis in range(spatial):
            x = edged(given, x, 2 + axis, before[axis], tail[axis])
    attributes = {"kernel": kernel, "stride": strides, "pad": (0,) * spatial, "rounding": "floor"}
    return _Windows(x, attributes, before, behind, zeros, extents, True)


def _pooled_max(given: Operands) -> Sequence[Tensor]:
    if given["storage_order"]:
        raise ValueError("storage_order 1 is not supported")
    windows = _windows(given, "pooling_max")
    return [given.apply("pooling_max", windows.x, **windows.attributes)[0]]


def _pooled_average(given: Operands) -> Sequence[Tensor]:
    """The vocabulary counts what is padded; where the operator does not, the result is scaled up."""
    windows = _windows(given, "pooling_average")
    y = given.apply("pooling_average", windows.x, **windows.attributes)
    extents, zeros, spatial = windows.extents, windows.zeros, len(windows.extents)
    factor = np.ones(())
    for axis, (n, k, s) in enumerate(
        zip(extents, windows.attributes["kernel"], windows.attributes["stride"], strict=True)
    ):
        before, behind = windows.before[axis], windows.behind[axis]
        first = np.arange(y.shape[2 + axis]) * s - before
        ours = k if windows.surrounded else np.minimum(first + k, n + before) - first
        if given["count_include_pad"]:
            counted = np.minimum(first + k, n + behind) - first
        else:
            head, tail = zeros[axis], zeros[spatial + axis]
            counted = np.minimum(first + k, n + tail) - np.maximum(first, -head)
        factor = np.multiply.outer(factor, ours / counted)
    if (factor == 1).all():
        return [y]
    return [given.apply("scale", y, given.fixed("share", factor), None, axis=2)]


_POOLED = {**_EXTENTS, "ceil_mode": 0, "count_include_pad": 0}

OPERATORS = (
    Operator("Conv", _convolution, {**_EXTENTS, "group": 1}, _weights),
    Operator(
        "ConvTranspose",
        _transposed,
        {**_EXTENTS, "group": 1, "output_padding": (), "output_shape": ()},
        _weights,
    ),
    Operator("MaxPool", _pooled_max, {**_POOLED, "storage_order": 0}),
    Operator("AveragePool", _pooled_average, _POOLED),
)
