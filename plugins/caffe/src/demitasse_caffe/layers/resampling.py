"""Forks' layer types that make images larger or smaller, as in SegNet, PSPNet and YOLO."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from demitasse import GraphBuilder, Layer, Tensor
from demitasse_caffe.layers.base import CaffeLayer, check_size, rearranged
from demitasse_caffe.layers.indexing import place_of


class Interp(CaffeLayer):
    """The bottom resized by linear interpolation, with its corners kept in place. Pads, which must not
    be positive, are cropped first. Chen et al. 2015, *DeepLab*."""

    name = "Interp"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        interp, x = message.interp_param, bottoms[0]
        if len(x.shape) != 4:
            raise ValueError(f"resizes samples x channels x rows x columns; its bottom is {x!r}")
        cut = (-interp.pad_beg, -interp.pad_end)
        inner = [extent - sum(cut) for extent in x.shape[2:]]
        if min(cut) < 0:
            raise ValueError(f"pad_beg {-cut[0]} and pad_end {-cut[1]} cut off, and must be 0 or less")
        if min(inner) < 1:
            raise ValueError(f"pad_beg {-cut[0]} and pad_end {-cut[1]} leave nothing of {x!r}")
        if any(cut):
            x = graph.apply("crop", x, offset=(0, 0, cut[0], cut[0]), extent=(*x.shape[:2], *inner))
        sizes = _resized(interp, inner)
        check_size(f"top {layer.tops[0]!r}", (*x.shape[:2], *sizes))
        for axis, size in enumerate(sizes, 2):
            if size != x.shape[axis]:
                x = _along_lines(layer, graph, x, axis, size)
        return [x]


def _resized(interp: Any, inner: Sequence[int]) -> list[int]:
    """Return the extents of the result: the steps between pixels divided by shrink_factor, then
    multiplied by zoom_factor; or height and width, which count if neither or both of the
    factors are given."""
    given = [name for name in ("shrink_factor", "zoom_factor") if interp.HasField(name)]
    named = interp.HasField("height") and interp.HasField("width")
    if not given and not named:
        raise ValueError("interp_param needs height and width, zoom_factor or shrink_factor")
    sizes = [interp.height, interp.width]
    if len(given) == 1 or not named:
        if min(getattr(interp, name) for name in given) < 1:
            raise ValueError(f"interp_param {{ {given[0]} }} must be 1 or more")
        fewer = ((extent - 1) // interp.shrink_factor for extent in inner)
        sizes = [steps * interp.zoom_factor + 1 for steps in fewer]
    return list(_some(*sizes))


class Upsample(CaffeLayer):
    """Each element of the first bottom, put at the place that the second bottom names, with 0 elsewhere.
    The second bottom is the second top of a Pooling layer: the places of its maxima. Badrinarayanan et
    al. 2017, *SegNet*, section 3. With one bottom, each element is repeated ``scale`` x ``scale`` times.
    Redmon and Farhadi 2018, *YOLOv3*, section 2.3."""

    name = "Upsample"
    bottoms = (1, 2)
    no_gradient = MappingProxyType({1: "places"})

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        about, x = message.upsample_param, bottoms[0]
        if len(bottoms) == 1 and not any(map(about.HasField, ("scale", "scale_h", "scale_w"))):
            raise ValueError(
                "upsample_param { scale } is not given; a second bottom has the places of a Pooling "
                "layer's maxima"
            )
        size = _enlarged(about, x)
        check_size(f"top {layer.tops[0]!r}", (*x.shape[:2], *size))
        if len(bottoms) == 2:
            return [graph.apply("unpooling", *bottoms, size=size, source=place_of(layer))]
        return [repeated(layer, graph, x, size)]


class Reorg(CaffeLayer):
    """Fewer places with more channels, in Darknet's order, or with ``reverse`` more places with fewer
    channels.

    In reverse, the channels of a place become ``stride`` x ``stride`` places. Forward is the exact
    inverse of that, but applied to the elements as if the image had ``stride`` squared times fewer
    channels and correspondingly longer sides; the elements of the result are then read in the order of a
    result with more channels. Darknet's nets were trained with weights in this order. Redmon and Farhadi
    2017, *YOLO9000*, section 2.
    """

    name = "Reorg"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        about, x = message.reorg_param, bottoms[0]
        stride = about.stride
        if stride < 1 or len(x.shape) != 4:
            raise ValueError(
                f"reorg_param {{ stride }} is not given, or its bottom {x!r} is not an image"
            )
        images, channels, rows, columns = x.shape
        if channels % stride**2 or (not about.reverse and (rows % stride or columns % stride)):
            raise ValueError(
                f"stride {stride} does not divide the sides, or its square the channels, of {x!r}"
            )
        fewer = channels // stride**2
        if about.reverse:
            shape, order = (images, stride, stride, fewer, rows, columns), (0, 3, 4, 1, 5, 2)
            result = (images, fewer, rows * stride, columns * stride)
        else:
            shape, order = (images, fewer, rows, stride, columns, stride), (0, 3, 5, 1, 2, 4)
            result = (images, channels * stride**2, rows // stride, columns // stride)
        parts = rearranged(graph, "permute", graph.apply("reshape", x, shape=shape), order=order)
        return [graph.apply("reshape", parts, shape=result)]


class Unpooling(CaffeLayer):
    """Upsample with the field names of DeconvNet's fork, which give the rows and columns of the result.
    Noh et al. 2015, *Learning Deconvolution Network for Semantic Segmentation*, section 3.2."""

    name = "Unpooling"
    bottoms = (2, 2)
    no_gradient = MappingProxyType({1: "places"})

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        unpooling, x = message.unpooling_param, bottoms[0]
        if unpooling.unpool != unpooling.MAX or unpooling.pad:
            raise ValueError("puts maxima back where they were: unpool must be MAX, and pad 0")
        if len(x.shape) != 4:
            raise ValueError(f"puts images on a larger plane; its bottom is {x!r}")
        sides = [name for name in ("unpool_h", "unpool_w") if unpooling.HasField(name)]
        if unpooling.HasField("unpool_size") == bool(sides) or len(sides) == 1:
            raise ValueError("unpooling_param needs unpool_size, or both unpool_h and unpool_w")
        size = [getattr(unpooling, name) for name in sides] or [unpooling.unpool_size] * 2
        return [graph.apply("unpooling", *bottoms, size=_some(*size), source=place_of(layer))]


def _enlarged(upsample: Any, x: Tensor) -> tuple[int, int]:
    """Return the rows and columns of an unpooled image: as given, or those of x times a scale, minus one
    where the pooled image had an odd number of them."""
    if len(x.shape) != 4:
        raise ValueError(f"puts images on a larger plane; its bottom is {x!r}")
    sizes = [name for name in ("upsample_h", "upsample_w") if upsample.HasField(name)]
    scales = [name for name in ("scale_h", "scale_w") if upsample.HasField(name)]
    if len(sizes) == 1 or len(scales) == 1:
        raise ValueError(
            f"upsample_param {{ {(*sizes, *scales)[0]} }} also needs the one of the other side"
        )
    if sizes:
        return _some(upsample.upsample_h, upsample.upsample_w)
    factors = [getattr(upsample, name) for name in scales] or [upsample.scale] * 2
    odd = [upsample.pad_out_h, upsample.pad_out_w]
    if any(pads and factor != 2 for pads, factor in zip(odd, factors, strict=True)):
        raise ValueError(f"pad_out_h and pad_out_w are for a scale of 2, not {factors}")
    pairs = zip(x.shape[2:], factors, odd, strict=True)
    return _some(*(extent * factor - pads for extent, factor, pads in pairs))


def _some(height: int, width: int) -> tuple[int, int]:
    if min(height, width) < 1:
        raise ValueError(f"would make an image of {height} x {width}")
    return height, width


def _along_lines(layer: Layer, graph: GraphBuilder, x: Tensor, axis: int, size: int) -> Tensor:
    """Interpolate x linearly to ``size`` places along an axis; the first and the last place stay where
    they are."""
    extent = x.shape[axis]
    at = np.arange(size) * ((extent - 1) / (size - 1) if size > 1 else 0.0)
    low = np.minimum(at.astype(np.int64), extent - 1)
    places = np.stack([low, np.minimum(low + 1, extent - 1)], 1)
    weights = np.stack([1 - (at - low), at - low], 1)
    return resampled(layer, graph, x, axis, places, weights)


def repeated(layer: Layer, graph: GraphBuilder, x: Tensor, size: Sequence[int]) -> Tensor:
    """Return x with ``size`` rows and columns, each a copy of the one at its position."""
    for axis, extent in enumerate(size, 2):
        if extent != x.shape[axis]:
            places = np.arange(extent)[:, None] * x.shape[axis] // extent
            x = resampled(layer, graph, x, axis, places, np.ones(places.shape))
    return x


def resampled(
    layer: Layer, graph: GraphBuilder, x: Tensor, axis: int, places: np.ndarray, weights: np.ndarray
) -> Tensor:
    table = (
        graph.constant(f"{layer.name}.places{axis}", places),
        graph.constant(f"{layer.name}.weights{axis}", weights),
    )
    return rearranged(graph, "resample", x, *table, axis=axis)
