"""Layers that give a blob another shape or other readers, and compute nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from demitasse import GraphBuilder, Layer, Tensor
from demitasse_caffe.layers.base import CaffeLayer, Shape, canonical


class Flatten(CaffeLayer):
    """The bottom with the axes from ``axis`` to ``end_axis`` merged into one."""

    name = "Flatten"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        _check_apart(layer)
        x = bottoms[0]
        first = canonical(message.flatten_param.axis, x)
        last = canonical(message.flatten_param.end_axis, x)
        if last < first:
            raise ValueError(f"end_axis {last} comes before axis {first}")
        joined = math.prod(x.shape[first : last + 1])
        return [graph.apply("reshape", x, shape=(*x.shape[:first], joined, *x.shape[last + 1 :]))]


class Reshape(CaffeLayer):
    """The bottom with ``num_axes`` axes from ``axis`` on (-1: all) replaced by ``shape``. In it, 0 keeps
    the extent at its position, and a single -1 is inferred."""

    name = "Reshape"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        _check_apart(layer)
        reshape, x = message.reshape_param, bottoms[0]
        axes = len(x.shape)
        start = reshape.axis if reshape.axis >= 0 else axes + reshape.axis + 1
        if not 0 <= start <= axes:
            raise ValueError(f"axis {reshape.axis} is not one of the {axes} axes of {x!r}, or its end")
        if reshape.num_axes < -1 or start + max(reshape.num_axes, 0) > axes:
            raise ValueError(f"num_axes {reshape.num_axes} from axis {start} on goes beyond {x!r}")
        stop = axes if reshape.num_axes == -1 else start + reshape.num_axes
        if not reshape.HasField("shape") and math.prod(x.shape[start:stop]) != 1:
            raise ValueError("reshape_param { shape { dim: ... } } is not given")
        inner = _filled(tuple(reshape.shape.dim), x, start, stop)
        return [graph.apply("reshape", x, shape=(*x.shape[:start], *inner, *x.shape[stop:]))]


class Squeeze(CaffeLayer):
    """The bottom without the named axes, or without all axes of extent 1 if none are named. From
    Synopsys's fork."""

    name = "Squeeze"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        _check_apart(layer)
        x = bottoms[0]
        axes = {canonical(axis, x) for axis in message.squeeze_param.axis}
        if wide := sorted(axis for axis in axes if x.shape[axis] != 1):
            raise ValueError(f"axis {wide[0]} of {x!r} has an extent of {x.shape[wide[0]]}, not 1")
        if not message.squeeze_param.axis:
            axes = {axis for axis, extent in enumerate(x.shape) if extent == 1}
        kept = tuple(extent for axis, extent in enumerate(x.shape) if axis not in axes)
        return [graph.apply("reshape", x, shape=kept)]


class Silence(CaffeLayer):
    """Reads its bottoms and makes nothing, so that they are not outputs of the net."""

    name = "Silence"
    bottoms = (1, None)
    tops = (0, 0)

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        return []


class Split(CaffeLayer):
    """The bottom under several names. Files do not need it: a blob can be read any number of times."""

    name = "Split"
    tops = (1, None)

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        return [bottoms[0]] * len(layer.tops)


def _check_apart(layer: Layer) -> None:
    """Raise ValueError for an in-place layer: a blob has only one shape."""
    if layer.tops[0] in layer.bottoms:
        raise ValueError("does not work in place: give the top a name of its own")


def _filled(dims: Shape, x: Tensor, start: int, stop: int) -> Shape:
    """Return ``dims`` with its zeros copied from x and its -1 inferred."""
    if any(dim < -1 for dim in dims) or dims.count(-1) > 1:
        raise ValueError(
            f"shape {dims}: an extent must be positive, 0 (as before) or, once, -1 (the rest)"
        )
    copied = []
    for position, dim in enumerate(dims):
        if dim == 0 and start + position >= len(x.shape):
            raise ValueError(f"shape {dims}: the 0 at place {position} has no axis in {x!r} to copy")
        copied.append(x.shape[start + position] if dim == 0 else dim)
    if -1 not in copied:
        return tuple(copied)
    known = -math.prod(copied)
    total = math.prod(x.shape[start:stop])
    if known == 0 or total % known:
        raise ValueError(f"shape {dims}: {total} elements are not divisible by {known}")
    return tuple(total // known if dim == -1 else dim for dim in copied)
