"""Windows over images with more padding on one side than on the other, as in nets that come from
TensorFlow in Synopsys's fork: ``pad_t``, ``pad_b``, ``pad_l`` and ``pad_r``, or ``pad_type: 1``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from demitasse import GraphBuilder, Layer, Tensor
from demitasse_caffe.layers.base import Shape

FIELDS = ("pad_t", "pad_b", "pad_l", "pad_r")
"""Above, below, left and right."""


@dataclass(frozen=True)
class Sides:
    """The number of padding rows and columns before an image and after it."""

    before: Shape
    behind: Shape

    @property
    def alike(self) -> bool:
        return self.before == self.behind


def sides(message: Any, x: Tensor, reach: Shape, stride: Shape, pad: Shape) -> Sides | None:
    """Return the padding if each side has its own field, or with ``pad_type: 1``; None if neither is
    given. With ``pad_type: 1`` the top's extents are those of x divided by the stride, rounded up, and
    the larger half of the padding comes after. ``reach`` is a window's extent. Raise ValueError for
    fields that cannot be combined with these."""
    spatial = len(x.shape) - 2
    given = [getattr(message, name) for name in FIELDS]
    if message.pad_type not in (0, 1):
        raise ValueError(
            f"unknown pad_type {message.pad_type} (valid: 0, as the fields say, and 1, SAME)"
        )
    if not any(given) and not message.pad_type:
        return None
    named = next((name for name, value in zip(FIELDS, given, strict=True) if value), "pad_type")
    if spatial != 2:
        raise ValueError(f"{named} is for 2 spatial axes, but there are {spatial}")
    if not any(given):  # pad has no effect in this case
        extents = zip(x.shape[2:], reach, stride, strict=True)
        total = [max(0, (-(-n // s) - 1) * s + k - n) for n, k, s in extents]
        return Sides(tuple(each // 2 for each in total), tuple(each - each // 2 for each in total))
    if any(pad):
        raise ValueError(f"pad and {named} cannot be combined")
    if min(given) < 0:
        negative = next(name for name, value in zip(FIELDS, given, strict=True) if value < 0)
        raise ValueError(f"{negative} {min(given)} is negative")
    top, bottom, left, right = given
    return Sides((top, left), (bottom, right))


def surrounded(x: Tensor, before: Shape, behind: Shape, graph: GraphBuilder) -> Tensor:
    """Return images with rows and columns of zeros around them."""
    if not any(before + behind):
        return x
    offset = (0, 0, *before)
    shape = tuple(a + n + b for a, n, b in zip(offset, x.shape, (0, 0, *behind), strict=True))
    made: Tensor = graph.apply("crop_backward", x, offset=offset, extent=x.shape, shape=shape)
    return made


def pooled(
    layer: Layer,
    x: Tensor,
    method: str,
    kernel: Shape,
    stride: Shape,
    around: Sides,
    rounding: str,
    graph: GraphBuilder,
) -> Tensor:
    """Pool x by MAX, or by averages of windows: AVE counts the padding, AVE_EXC_PAD does not. The
    vocabulary pads both sides equally; if neither rounding mode gives the required windows, x is
    extended first. Raise ValueError."""
    before, behind, space = around.before, around.behind, x.shape[2:]
    axes = tuple(zip(space, kernel, stride, before, strict=True))
    counts = [_count(*each, last, rounding) for each, last in zip(axes, behind, strict=True)]
    attributes: dict[str, Any] = {"kernel": kernel, "stride": stride}
    continued = False
    for known in ("ceil", "floor"):
        if counts == [_count(*each, each[-1], known, least=0) for each in axes]:
            attributes |= {"pad": before, "rounding": known}
            break
    else:
        continued = True
        attributes |= {"pad": (0, 0), "rounding": "floor"}
        reached = zip(counts, axes, strict=True)
        beyond = tuple(max(0, (count - 1) * s + k - n - first) for count, (n, k, s, first) in reached)
        if method != "MAX":
            x = surrounded(x, before, beyond, graph)
        else:  # an edge element is in every window that extends beyond that edge
            for axis in range(2):
                x = _continued(x, 2 + axis, before[axis], beyond[axis], graph)
    if method == "MAX":
        largest: Tensor = graph.apply("pooling_max", x, **attributes)[0]
        return largest
    y: Tensor = graph.apply("pooling_average", x, **attributes)
    factor = np.ones(())
    for count, (n, k, s, first), last in zip(counts, axes, behind, strict=True):
        start = np.arange(count) * s - first
        ours = k if continued else np.minimum(start + k, n + first) - start
        counted = np.minimum(start + k, n + last) - start
        if method == "AVE_EXC_PAD":
            counted = np.minimum(start + k, n) - np.maximum(start, 0)
        factor = np.multiply.outer(factor, ours / counted)
    if (factor == 1).all():
        return y
    scaled: Tensor = graph.apply("scale", y, graph.constant(f"{layer.name}.share", factor), None, axis=2)
    return scaled


def _count(n: int, k: int, s: int, before: int, behind: int, rounding: str, least: int = 1) -> int:
    """Return the number of windows along an axis; none begins after the image. Raise ValueError if no
    window fits or a pad is not smaller than the window; with ``least`` 0, return 0 instead."""
    room = n + before + behind - k
    if room < 0 or max(before, behind) >= k:
        if not least:
            return 0
        if room < 0:
            raise ValueError(f"a window of {k} does not fit {before} + {n} + {behind}")
        raise ValueError(f"a pad of {max(before, behind)} is not smaller than the window of {k}")
    count = (-(-room // s) if rounding == "ceil" else room // s) + 1
    return count - 1 if (count - 1) * s >= n + before else count


def _continued(x: Tensor, axis: int, before: int, behind: int, graph: GraphBuilder) -> Tensor:
    """Return x extended along an axis by copies of its edges."""

    def edge(place: int) -> Tensor:
        offset = tuple(place if each == axis else 0 for each in range(len(x.shape)))
        extent = tuple(1 if each == axis else n for each, n in enumerate(x.shape))
        made: Tensor = graph.apply("crop", x, offset=offset, extent=extent)
        return made

    parts: Sequence[Tensor] = [x]
    if before:
        parts = [*[edge(0)] * before, *parts]
    if behind:
        parts = [*parts, *[edge(x.shape[axis] - 1)] * behind]
    if len(parts) == 1:
        return x
    made: Tensor = graph.apply("concat", *parts, axis=axis)
    return made
