"""Where a blob's pixels lie in another's: crops that align them, as nets that score every pixel need.

Each layer maps coordinates of its bottom to those of its top by ``a x + b`` along the spatial axes; a
pixel's coordinate is its middle.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from demitasse import ModelError
from demitasse_caffe.pycaffe.net_spec import Top, layers, to_proto

_WINDOWED = ("Convolution", "Deconvolution", "Pooling", "Im2col")
_SAME = (
    *(
        "AbsVal",
        "BNLL",
        "BatchNorm",
        "Bias",
        "Clip",
        "Concat",
        "Dropout",
        "ELU",
        "Eltwise",
        "Exp",
        "LRN",
    ),
    *("Log", "MVN", "PReLU", "Power", "ReLU", "Scale", "Sigmoid", "Softmax", "Split", "Swish", "TanH"),
    "Threshold",
)


class Map(NamedTuple):
    """x of the one is ``a * x + b`` of the other, on the axes behind ``axis`` (None: any)."""

    axis: int | None
    a: np.ndarray
    b: np.ndarray


_IDENTITY = Map(None, np.ones(1), np.zeros(1))


def crop(top_from: Top, top_to: Top) -> Any:
    """A Crop of ``top_from`` to where ``top_to`` lies in it, of its size. Raises ModelError when their
    pixels are not the same distance apart, or no whole number of pixels would be cut off."""
    axis, a, b = coord_map_from_to(top_from, top_to)
    if not np.allclose(a, 1):
        raise ModelError(f"cannot crop: pixels are {a.tolist()} times as far apart")
    if (b > 1e-9).any() or not np.allclose(b, np.round(b)):
        raise ModelError(f"cannot crop: the offset is {(-b).tolist()}, not whole pixels from 0 up")
    offset = np.round(-b).astype(int).tolist()
    return layers.Crop(
        top_from, top_to, crop_param={"axis": 2 if axis is None else axis + 1, "offset": offset}
    )


def coord_map_from_to(top_from: Top, top_to: Top) -> Map:
    """The map from the coordinates of one top to another's, by the nearest top that both are made of.
    Raises ModelError when there is none, or a layer between has no such map."""
    theirs, mine = _ancestors(top_to), _ancestors(top_from)
    shared = next((top for top in mine if top in theirs), None)
    if shared is None:
        raise ModelError("the two tops are made of no common one by layers that map coordinates")
    here, there = mine[shared], theirs[shared]
    axis = here.axis if here.axis is not None else there.axis
    return Map(axis, there.a / here.a, there.b - there.a / here.a * here.b)


def _ancestors(top: Top) -> dict[Top, Map]:
    """The tops that one is made of, nearest first, with the map from their coordinates to its own."""
    found, frontier = {top: _IDENTITY}, [top]
    while frontier:
        last = frontier.pop(0)
        kind = last.fn.type_name
        if kind not in (*_WINDOWED, *_SAME, "Crop"):
            continue
        step = _step(last)
        for given in last.fn.inputs[:1] if kind == "Crop" else last.fn.inputs:
            if given not in found:
                found[given] = _compose(found[last], step)
                frontier.append(given)
    return found


def _compose(outer: Map, inner: Map) -> Map:
    if outer.axis is not None and inner.axis is not None and outer.axis != inner.axis:
        raise ModelError(f"layers work on axes from {outer.axis} and from {inner.axis} on")
    axis = outer.axis if outer.axis is not None else inner.axis
    return Map(axis, outer.a * inner.a, outer.a * inner.b + outer.b)


def _step(top: Top) -> Map:
    """The map of the layer that makes a top."""
    kind = top.fn.type_name
    if kind in _SAME:
        return _IDENTITY
    layer = to_proto(top).layer[-1]
    if kind == "Crop":
        offset = np.array(list(layer.crop_param.offset) or [0], float)
        return Map(layer.crop_param.axis - 1, np.ones(1), -offset)
    pooling = kind == "Pooling"
    message = layer.pooling_param if pooling else layer.convolution_param
    kernel, stride, pad = (_extents(message, name, pooling) for name in ("kernel", "stride", "pad"))
    if not pooling and message.dilation:
        kernel = (kernel - 1) * np.array(list(message.dilation), float) + 1
    axis = 1 if pooling else message.axis
    if kind == "Deconvolution":
        return Map(axis, stride, (kernel - 1) / 2 - pad)
    return Map(axis, 1 / stride, (pad - (kernel - 1) / 2) / stride)


def _extents(message: Any, name: str, pooling: bool) -> np.ndarray:
    """Kernel, stride or pad by spatial axis."""
    if message.HasField(f"{name}_h") or message.HasField(f"{name}_w"):
        return np.array([getattr(message, f"{name}_h"), getattr(message, f"{name}_w")], float)
    value = getattr(message, "kernel_size" if name == "kernel" else name)
    default = 0.0 if name == "pad" else 1.0
    return np.array([value] if pooling else list(value) or [default], float)
