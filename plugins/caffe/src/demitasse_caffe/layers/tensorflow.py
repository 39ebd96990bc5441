"""TensorFlow's spatial layers, as in Synopsys's fork: resizing, padding, and places that become channels
or samples. ``data_format`` says whether channels come last (NHWC, the default) or second (NCHW)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from demitasse import GraphBuilder, Layer, Tensor, unknown
from demitasse_caffe.layers.base import CaffeLayer, check_size, rearranged
from demitasse_caffe.layers.resampling import repeated, resampled

FORMATS = {"NHWC": 1, "NCHW": 2}
"""The axis of the rows; the columns follow."""
_HALF = np.float32(0.5)


class ResizeBilinear(CaffeLayer):
    """Linear interpolation of rows and columns. ``align_corners`` keeps corners in place; with
    ``half_pixel_centers`` (or ``pytorch_half_pixel``) the coordinate of a pixel is its centre. As in the
    fork, positions are computed in 32 bits."""

    name = "ResizeBilinear"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        about = message.resize_bilinear_param
        x, ways = bottoms[0], ("align_corners", "half_pixel_centers", "pytorch_half_pixel")
        way, first, sizes = _resizing(layer, about, x, ways)
        for axis, size in enumerate(sizes, first):
            extent, at = x.shape[axis], np.arange(size, dtype=np.float32)
            scale = _scale(extent, size, way)
            if way in ("half_pixel_centers", "pytorch_half_pixel"):
                alone = way == "pytorch_half_pixel" and size == 1
                at = np.full(1, -_HALF) if alone else (at + _HALF) * scale - _HALF
            else:
                at = at * scale
            low, high = np.floor(at), np.ceil(at)
            share = (at - low).astype(np.float64)
            places = np.clip(np.stack([low, high], 1).astype(np.int64), 0, extent - 1)
            x = resampled(layer, graph, x, axis, places, np.stack([1 - share, share], 1))
        return [x]


class ResizeNearestNeighbor(CaffeLayer):
    """Each row and column is a copy of one of the bottom's: the one before its position or, with
    ``align_corners``, the nearest; with ``half_pixel_centers`` the one that contains its centre
    (``half_pixel_onnx``: the one before that). As in the fork, positions are computed in 32 bits."""

    name = "ResizeNearestNeighbor"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        about = message.resize_nearest_neighbor_param
        x, ways = bottoms[0], ("align_corners", "half_pixel_centers", "half_pixel_onnx")
        way, first, sizes = _resizing(layer, about, x, ways)
        for axis, size in enumerate(sizes, first):
            at = np.arange(size, dtype=np.float32)
            scale = _scale(x.shape[axis], size, way)
            if way.startswith("half"):
                at = (at + _HALF) * scale - (_HALF if way == "half_pixel_onnx" else 0 * _HALF)
            else:
                at = at * scale + (_HALF if way == "align_corners" else 0 * _HALF)
            places = np.clip(np.floor(at).astype(np.int64), 0, x.shape[axis] - 1)[:, None]
            x = resampled(layer, graph, x, axis, places, np.ones(places.shape))
        return [x]


class UpsampleDarknet(CaffeLayer):
    """Each element repeated ``stride`` times along rows and columns. Redmon and Farhadi 2018, *YOLOv3*,
    section 2.3."""

    name = "UpsampleDarknet"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        x, stride = bottoms[0], message.upsample_darknet_param.stride
        if len(x.shape) != 4 or stride < 1:
            raise ValueError(
                f"repeats pixels of images, by a stride of 1 or more, not {x!r} by {stride}"
            )
        size = [extent * stride for extent in x.shape[2:]]
        check_size(f"top {layer.tops[0]!r}", (*x.shape[:2], *size))
        return [repeated(layer, graph, x, size)]


class Pad(CaffeLayer):
    """The bottom with ``constant_values`` around it; ``paddings`` are the numbers of places before and
    after, for each axis."""

    name = "Pad"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        about, x = message.pad_param, bottoms[0]
        sides = _pairs("paddings", about.paddings, len(x.shape), f"the axes of {x!r}")
        if not about.constant_values:
            return [_surrounded(layer, x, sides, graph)]
        if any(sides[0]):
            raise ValueError("paddings of the first axis add samples, which are padded only with 0")
        around = _surrounded(layer, x, sides, graph)
        inside = tuple(slice(before, extent + before) for extent, (before, _) in _each(x, sides))
        values = np.full(around.shape[1:], about.constant_values, np.float32)
        values[inside[1:]] = 0
        one = graph.constant(f"{layer.name}.one", np.ones(values.shape, np.float32))
        value = graph.constant(f"{layer.name}.value", values)
        return [graph.apply("scale", around, one, value, axis=1)]


class DepthToSpace(CaffeLayer):
    """The channels of a place become ``block_size`` x ``block_size`` places. In the order CRD the places
    of a channel are adjacent, otherwise (NCHW, DCR, NHWC) the channels of a place."""

    name = "DepthToSpace"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        x, block, form = _blocks(message.depth_to_space_param, bottoms, ("DCR", "CRD"))
        n, c, h, w = (x.shape[axis] for axis in ((0, 3, 1, 2) if form == "NHWC" else range(4)))
        if c % block**2:
            raise ValueError(f"{c} channels do not make {block} x {block} places")
        less = c // block**2
        if form == "NHWC":
            parts, order = (n, h, w, block, block, less), (0, 1, 3, 2, 4, 5)
            result = (n, h * block, w * block, less)
        else:
            depth = form != "CRD"
            parts = (n, block, block, less, h, w) if depth else (n, less, block, block, h, w)
            order = (0, 3, 4, 1, 5, 2) if depth else (0, 1, 4, 2, 5, 3)
            result = (n, less, h * block, w * block)
        return [_moved(x, parts, order, result, graph)]


class SpaceToDepth(CaffeLayer):
    """``block_size`` x ``block_size`` places become the channels of one place."""

    name = "SpaceToDepth"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        x, block, form = _blocks(message.space_to_depth_param, bottoms)
        n, c, h, w = (x.shape[axis] for axis in ((0, 3, 1, 2) if form == "NHWC" else range(4)))
        if h % block or w % block:
            raise ValueError(f"{h} x {w} places do not divide into blocks of {block} x {block}")
        high, wide, more = h // block, w // block, c * block**2
        if form == "NHWC":
            parts, order = (n, high, block, wide, block, c), (0, 1, 3, 2, 4, 5)
            return [_moved(x, parts, order, (n, high, wide, more), graph)]
        parts, order = (n, c, high, block, wide, block), (0, 3, 5, 1, 2, 4)
        return [_moved(x, parts, order, (n, more, high, wide), graph)]


class SpaceToBatchND(CaffeLayer):
    """Along the axes after the samples, padded with zeros, every ``block_shape``-th place goes to the
    same new sample."""

    name = "SpaceToBatchND"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        about, x = message.space_to_batch_nd_param, bottoms[0]
        block = _block_shape(about.block_shape, x)
        count = len(block)
        sides = _pairs("paddings", about.paddings, count, "the axes of block_shape")
        rest = ((0, 0),) * (len(x.shape) - 1 - count)
        x = _surrounded(layer, x, ((0, 0), *sides, *rest), graph)
        for axis, (extent, each) in enumerate(zip(x.shape[1:], block, strict=False), 1):
            if extent % each:
                raise ValueError(f"axis {axis} has {extent} padded places, not a multiple of {each}")
        places = [extent // each for extent, each in zip(x.shape[1:], block, strict=False)]
        behind = x.shape[1 + count :]
        apart = [each for pair in zip(places, block, strict=True) for each in pair]
        order = [*range(2, 2 * count + 1, 2), 0, *range(1, 2 * count, 2)]
        order += range(2 * count + 1, 2 * count + 1 + len(behind))
        result = (x.shape[0] * math.prod(block), *places, *behind)
        return [_moved(x, (x.shape[0], *apart, *behind), order, result, graph)]


class BatchToSpaceND(CaffeLayer):
    """Samples are interleaved as places, which undoes SpaceToBatchND; then ``crops`` are cut off."""

    name = "BatchToSpaceND"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        about, x = message.batch_to_space_nd_param, bottoms[0]
        block = _block_shape(about.block_shape, x)
        count, samples = len(block), x.shape[0] // math.prod(block)
        if x.shape[0] % math.prod(block):
            raise ValueError(f"{x.shape[0]} samples are not a multiple of blocks of {block}")
        crops = _pairs("crops", about.crops, count, "the axes of block_shape")
        order = [count, *(axis for each in range(count) for axis in (count + 1 + each, each))]
        order += range(2 * count + 1, count + len(x.shape))
        whole = [extent * each for extent, each in zip(x.shape[1:], block, strict=False)]
        behind = x.shape[1 + count :]
        parts = (*block, samples, *x.shape[1:])
        y = _moved(x, parts, order, (samples, *whole, *behind), graph)
        left = [extent - sum(pair) for extent, pair in zip(whole, crops, strict=True)]
        if min(left) < 1:
            raise ValueError(f"crops {crops} leave nothing of {tuple(whole)}")
        if any(map(any, crops)):
            offset = (0, *(before for before, _ in crops), *(0 for _ in behind))
            y = graph.apply("crop", y, offset=offset, extent=(samples, *left, *behind))
        return [y]


def _resizing(
    layer: Layer, about: Any, x: Tensor, ways: Sequence[str]
) -> tuple[str, int, tuple[int, int]]:
    """Return which of the ways is requested ("" for none), the axis of rows, and the number of rows and
    columns. Raise ValueError."""
    asked = [way for way in ways if getattr(about, way)]
    if len(asked) > 1:
        raise ValueError(f"{asked[0]} and {asked[1]} cannot be combined")
    first = _rows(about.data_format, x)
    sizes = []
    for axis, side in enumerate(("height", "width"), first):
        said = about.HasField(f"output_{side}")
        factor = np.float32(getattr(about, f"scale_{side}"))
        if not said and not (np.isfinite(factor) and factor > 0):
            raise ValueError(f"scale_{side} {factor} must be above 0")
        scaled = math.floor(np.float32(x.shape[axis]) * factor)
        sizes.append(getattr(about, f"output_{side}") if said else scaled)
    if min(sizes) < 1:
        raise ValueError(f"would make an image of {sizes[0]} x {sizes[1]}")
    check_size(f"top {layer.tops[0]!r}", (*x.shape[:first], *sizes, *x.shape[first + 2 :]))
    return "".join(asked), first, (sizes[0], sizes[1])


def _rows(form: str, x: Tensor) -> int:
    if form not in FORMATS:
        raise ValueError(unknown("data_format", form, FORMATS))
    if len(x.shape) != 4:
        raise ValueError(f"is for images (four axes); its bottom is {x!r}")
    return FORMATS[form]


def _scale(extent: int, size: int, way: str) -> np.float32:
    """Return the distance in the bottom between adjacent places of the result."""
    if way == "align_corners" and size > 1:
        return np.float32(extent - 1) / np.float32(size - 1)
    return np.float32(extent) / np.float32(size)


def _blocks(about: Any, bottoms: Sequence[Tensor], more: Sequence[str] = ()) -> tuple[Tensor, int, str]:
    x, form = bottoms[0], about.data_format
    if form not in more:
        _rows(form, x)
    if len(x.shape) != 4 or about.block_size < 1:
        raise ValueError(
            f"is for images and a block_size of 1 or more, not {x!r} and {about.block_size}"
        )
    return x, about.block_size, form


def _block_shape(given: Sequence[int], x: Tensor) -> tuple[int, ...]:
    block = tuple(given)
    if not 0 < len(block) < len(x.shape) or min(block) < 1:
        raise ValueError(
            f"block_shape {block} is not 1 or more for some of the axes behind {x!r}'s first"
        )
    return block


def _pairs(name: str, given: Sequence[int], count: int, of: str) -> tuple[tuple[int, int], ...]:
    """Return the numbers before and after, for each axis. Raise ValueError."""
    if len(given) != 2 * count:
        raise ValueError(f"{len(given)} {name}; two are needed for each of {of}, {2 * count}")
    return tuple(pair for number, pair in enumerate(pairwise(given)) if number % 2 == 0)


def _each(x: Tensor, sides: Sequence[tuple[int, int]]) -> zip[tuple[int, tuple[int, int]]]:
    return zip(x.shape, sides, strict=True)


def _surrounded(
    layer: Layer, x: Tensor, sides: Sequence[tuple[int, int]], graph: GraphBuilder
) -> Tensor:
    """Return x with zeros around it."""
    if not any(map(any, sides)):
        return x
    shape = tuple(before + extent + behind for extent, (before, behind) in _each(x, sides))
    check_size(f"top {layer.tops[0]!r}", shape)
    offset = tuple(before for before, _ in sides)
    made: Tensor = graph.apply("crop_backward", x, offset=offset, extent=x.shape, shape=shape)
    return made


def _moved(
    x: Tensor, parts: Sequence[int], order: Sequence[int], result: Sequence[int], graph: GraphBuilder
) -> Tensor:
    """Return x split into parts, permuted, and reshaped."""
    apart = graph.apply("reshape", x, shape=tuple(parts))
    turned = rearranged(graph, "permute", apart, order=tuple(order))
    made: Tensor = graph.apply("reshape", turned, shape=tuple(result))
    return made
