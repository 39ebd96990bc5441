"""Windows over spatial axes: convolution, its transpose, and pooling."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from demitasse import Tensor
from demitasse.operations import VOCABULARY
from demitasse_onnx.call import Call, Operands, Operator, Shape, constant_of, has

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
    if before != behind:
        raise ValueError(f"pads {before} before and {behind} behind: only equal ones are supported")
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
        before = behind = tuple(each // 2 for each in total)
        if any(each % 2 or each < 0 for each in total):
            raise ValueError(f"pads of {total} in all cannot be alike before and behind")
    else:
        before, behind = _pads(given, x, reach, strides)
    if before != behind:
        raise ValueError(f"pads {before} before and {behind} behind: only equal ones are supported")
    if any(m >= s for m, s in zip(more, strides, strict=True)):
        raise ValueError(f"output_padding {more} is not smaller than the strides {strides}")
    size = tuple(full - 2 * pad for full, pad in zip(spread, before, strict=True))
    if min(size) < 1:
        raise ValueError(f"leaves no output: {size}")
    groups = given["group"]
    if x.shape[1] != w.shape[0] or w.shape[0] % groups:
        raise ValueError(f"its weights {w.shape} in {groups} groups do not fit its input {x!r}")
    y = given.apply(
        "convolution_backward_data",
        *(x, w),
        stride=strides,
        pad=before,
        dilation=dilations,
        groups=groups,
        shape=(x.shape[0], w.shape[1] * groups, *size),
    )
    if given.learned[1:]:
        ones = given.fixed("one", np.ones(y.shape[1:2]))
        y = given.apply("scale", y, ones, given.learned[1], axis=1)
    return [y]


def _windows(given: Operands, x: Tensor, word: str) -> tuple[dict[str, Any], Shape]:
    """The attributes of a pooling word whose windows are the operator's, and the pads behind.

    Raises ValueError where there are none: the vocabulary pads alike before and behind, and its last
    windows may reach beyond what is padded.
    """
    spatial = _spatial(x)
    kernel = _numbers(given, "kernel_shape", spatial, 0, 1)
    strides = _numbers(given, "strides", spatial, 1, 1)
    if set(_numbers(given, "dilations", spatial, 1, 1)) != {1}:
        raise ValueError(f"dilations {given['dilations']} are not supported")
    before, behind = _pads(given, x, kernel, strides)
    if given.call.zeros and (any(before) or given["count_include_pad"]):
        raise ValueError("a Pad before it is only supported where it has no pads of its own in front")
    zeros = given.call.zeros or (0,) * (2 * spatial)
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
        if VOCABULARY[word].shapes({"x": x.shape}, attributes)[0][2:] == tuple(outputs):
            return attributes, behind
    raise ValueError(
        f"pads {before} before and {behind} behind make an output of {tuple(outputs)}, which windows "
        f"with the same pads on both sides do not"
    )


def _pooled_max(given: Operands) -> Sequence[Tensor]:
    if given["storage_order"]:
        raise ValueError("storage_order 1 is not supported")
    attributes, _ = _windows(given, given.tensor(), "pooling_max")
    return [given.apply("pooling_max", given.tensor(), **attributes)[0]]


def _pooled_average(given: Operands) -> Sequence[Tensor]:
    """The vocabulary counts what is padded; where the operator does not, the result is scaled up."""
    x = given.tensor()
    attributes, behind = _windows(given, x, "pooling_average")
    y = given.apply("pooling_average", x, **attributes)
    zeros = given.call.zeros or (0,) * (2 * len(behind))
    factor = np.ones(())
    for axis, (n, k, s, pad) in enumerate(
        zip(x.shape[2:], *(attributes[name] for name in ("kernel", "stride", "pad")), strict=True)
    ):
        first = np.arange(y.shape[2 + axis]) * s - pad
        ours = np.minimum(first + k, n + pad) - first
        if given["count_include_pad"]:
            counted = np.minimum(first + k, n + behind[axis]) - first
        else:
            head, tail = zeros[axis], zeros[len(behind) + axis]
            counted = np.minimum(first + k, n + tail) - np.maximum(first, -head)
        factor = np.multiply.outer(factor, ours / counted)
    if (factor == 1).all():
        return [y]
    return [given.apply("scale", y, given.fixed("share", factor), None, axis=2)]


def _global(word: str) -> Any:
    def expand(given: Operands) -> Sequence[Tensor]:
        x = given.tensor()
        spatial = _spatial(x)
        ones, zeros = (1,) * spatial, (0,) * spatial
        made = given.apply(word, x, kernel=x.shape[2:], stride=ones, pad=zeros, rounding="floor")
        return [made[0] if isinstance(made, tuple) else made]

    return expand


def _mean(given: Operands) -> Sequence[Tensor]:
    """Over all of the space as a pooling, over other trailing axes as a sum."""
    x = given.tensor()
    axes = given.constant(1)
    listed = given["axes"] if axes is None else tuple(int(axis) for axis in axes.reshape(-1))
    if any(not -len(x.shape) <= axis < len(x.shape) for axis in listed):
        raise ValueError(f"axes {listed} are not of {x!r}")
    chosen = sorted({axis % len(x.shape) for axis in listed}) or list(range(len(x.shape)))
    if chosen != list(range(chosen[0], len(x.shape))):
        raise ValueError(f"means over axes {chosen} of {x!r}: only trailing axes are supported")
    kept = x.shape[: chosen[0]] + ((1,) * len(chosen) if given["keepdims"] else ())
    if chosen[0] == 2:
        y = _global("pooling_average")(given)[0]
    else:
        size = math.prod(x.shape[chosen[0] :])
        y = given.apply("total", x, axis=chosen[0], coefficient=1 / size)
    return [y if y.shape == kept else given.apply("reshape", y, shape=kept)]


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
    Operator("GlobalAveragePool", _global("pooling_average")),
    Operator("GlobalMaxPool", _global("pooling_max")),
    Operator("ReduceMean", _mean, {"axes": (), "keepdims": 1, "noop_with_empty_axes": 0}),
)
