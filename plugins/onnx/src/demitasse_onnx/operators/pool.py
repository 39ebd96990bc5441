"""Pooling: the maximum, the mean, or a p-norm of each window over spatial axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from demitasse import Tensor
from demitasse.operations import VOCABULARY
from demitasse_onnx.call import Operands, Operator, Shape
from demitasse_onnx.constants import bounded
from demitasse_onnx.operators.resampling import edged, resampled, surrounded, taken
from demitasse_onnx.operators.window import EXTENTS, numbers_of, pads_of, space_of


@dataclass(frozen=True)
class _Windows:
    """The arguments of a pooling operation: x, padded where the operation cannot pad, and its
    attributes. ``before`` and ``behind`` say how far the operator's own pads reach on each axis of
    ``extents``, including the zeros of a preceding Pad."""

    x: Tensor
    attributes: Mapping[str, Any]
    before: Shape
    behind: Shape
    zeros: Shape
    extents: Shape
    surrounded: bool = False


def _windows(given: Operands, word: str) -> _Windows:
    """Return the windows in a form that the vocabulary supports. It pads equally before and after, and
    its last windows may extend beyond the padding. For any other windows, x is padded first: with zeros
    or, for a maximum, with copies of its edges, which lie in every window that extends beyond them."""
    x = given.tensor()
    spatial = space_of(x)
    kernel = numbers_of(given, "kernel_shape", spatial, 0, 1)
    strides = numbers_of(given, "strides", spatial, 1, 1)
    before, behind = pads_of(given, x, kernel, strides)
    zeros = given.call.zeros or (0,) * (2 * spatial)
    if any(zeros) and (any(before) or given["count_include_pad"]):  # both pad: the zeros join x
        x = surrounded(given, x, (0, 0, *zeros[:spatial]), (0, 0, *zeros[spatial:]))
        zeros = (0,) * (2 * spatial)
        before, behind = pads_of(given, x, kernel, strides)
    extents = x.shape[2:]
    before = tuple(a + b for a, b in zip(before, zeros[:spatial], strict=True))
    behind = tuple(a + b for a, b in zip(behind, zeros[spatial:], strict=True))
    outputs = []
    for n, k, s, first, last in zip(x.shape[2:], kernel, strides, before, behind, strict=True):
        room = n + first + last - k
        if room < 0:
            raise ValueError(f"a window of {k} does not fit {n} + {first} + {last}")
        outputs.append(_count(given, room, s, n + first))
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


def _count(given: Operands, room: int, stride: int, end: int) -> int:
    """Return the number of windows along an axis; none begins after its ``end``."""
    count = (-(-room // stride) if given["ceil_mode"] else room // stride) + 1
    return count - 1 if (count - 1) * stride >= end else count


def _dilated(given: Operands) -> bool:
    return set(numbers_of(given, "dilations", space_of(given.tensor()), 1, 1)) != {1}


def _places(given: Operands, x: Tensor) -> list[tuple[np.ndarray, int]]:
    """Return, for each spatial axis, the places in each window, some of which may be before the first
    element or after the last, and the end of the padding."""
    spatial = space_of(x)
    kernel = numbers_of(given, "kernel_shape", spatial, 0, 1)
    strides = numbers_of(given, "strides", spatial, 1, 1)
    dilations = numbers_of(given, "dilations", spatial, 1, 1)
    reach = tuple(d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True))
    before, behind = pads_of(given, x, reach, strides)
    made = []
    for axis, n in enumerate(x.shape[2:]):
        first, end = before[axis], n + behind[axis]
        room = end + first - reach[axis]
        if room < 0:
            raise ValueError(f"a window of {reach[axis]} does not fit {n} + {first} + {behind[axis]}")
        count = _count(given, room, strides[axis], n + first)
        bounded(float(count) * kernel[axis], "table of places")
        starts = np.arange(count) * strides[axis] - first
        made.append((starts[:, None] + np.arange(kernel[axis]) * dilations[axis], end))
    return made


def _dilated_max(given: Operands) -> Sequence[Tensor]:
    """Line up the elements of all windows, one window after the other. A padded place is replaced by
    another place of the same window, which does not change its maximum."""
    x = given.tensor()
    kernel = []
    for axis, (places, _) in enumerate(_places(given, x), 2):
        inside = (places >= 0) & (places < x.shape[axis])
        if not inside.any(1).all():
            raise ValueError(f"a window along axis {axis} of {x!r} has nothing but padding")
        some = np.take_along_axis(places, inside.argmax(1)[:, None], 1)
        x = taken(given, x, axis, np.where(inside, places, some).reshape(-1))
        kernel.append(places.shape[1])
    zeros = (0,) * len(kernel)
    attributes = {"kernel": tuple(kernel), "stride": tuple(kernel), "pad": zeros, "rounding": "floor"}
    return [given.apply("pooling_max", x, **attributes)[0]]


def _dilated_average(given: Operands, total: bool) -> Tensor:
    """Average along one axis after the other, which is exact because the weights are products."""
    x, zeros = given.tensor(), given.call.zeros
    if zeros:
        spatial = len(zeros) // 2
        x = surrounded(given, x, (0, 0, *zeros[:spatial]), (0, 0, *zeros[spatial:]))
    for axis, (places, end) in enumerate(_places(given, x), 2):
        inside = (places >= 0) & (places < x.shape[axis])
        counted = (places < end if given["count_include_pad"] else inside).sum(1, keepdims=True)
        if not counted.all():
            raise ValueError(f"a window along axis {axis} of {x!r} has nothing but padding")
        weights = inside / (1 if total else counted)
        x = resampled(given, x, axis, (np.clip(places, 0, x.shape[axis] - 1), weights))
    return x


def _pooled_max(given: Operands) -> Sequence[Tensor]:
    if given["storage_order"]:
        raise ValueError("storage_order 1 is not supported")
    if _dilated(given):
        return _dilated_max(given)
    windows = _windows(given, "pooling_max")
    return [given.apply("pooling_max", windows.x, **windows.attributes)[0]]


def _pooled_average(given: Operands) -> Sequence[Tensor]:
    return [_averaged(given)]


def _pooled_powers(given: Operands) -> Sequence[Tensor]:
    x, p = given.tensor(), given["p"]
    if p <= 0:
        raise ValueError(f"p {p} is not above 0")
    powers = given.apply("absolute", x)
    powers = powers if p == 1 else given.apply("power", powers, power=float(p))
    counted = {**given.attributes, "count_include_pad": 1}
    total = _averaged(replace(given, attributes=counted, values=[powers]), total=True)
    return [total if p == 1 else given.apply("power", total, power=1 / p)]


def _averaged(given: Operands, total: bool = False) -> Tensor:
    """Average windows. The vocabulary counts the padding; if the operator does not, the result is scaled
    up. For a ``total`` it is multiplied by the number of elements that were counted."""
    if _dilated(given):
        return _dilated_average(given, total)
    windows = _windows(given, "pooling_average")
    y: Tensor = given.apply("pooling_average", windows.x, **windows.attributes)
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
        factor = np.multiply.outer(factor, ours / (1 if total else counted))
    if (factor == 1).all():
        return y
    made: Tensor = given.apply("scale", y, given.fixed("share", factor), None, axis=2)
    return made


_POOLED = {**EXTENTS, "ceil_mode": 0, "count_include_pad": 0}

OPERATORS = (
    Operator("AveragePool", _pooled_average, _POOLED),
    Operator("LpPool", _pooled_powers, {**EXTENTS, "ceil_mode": 0, "p": 2}),
    Operator("MaxPool", _pooled_max, {**_POOLED, "storage_order": 0}),
)
