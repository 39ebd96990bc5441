"""Layer types that resize images, or concatenate images of several sizes, as FlowNet's fork does.

Ilg et al. 2017, *FlowNet 2.0*. Positions are computed in single precision as in the fork, so that a
position halfway between two pixels rounds to the same one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from demitasse import GraphBuilder, Layer, Tensor
from demitasse_optical_flow.base import FlowLayer, check_image, resampled

_LINEAR, _CUBIC = 2, 4
"""The distance between the outermost pixels that contribute to a result, by interpolation."""


class Resample(FlowLayer):
    """An image resized to ``width`` and ``height``, or to the size of a second bottom. Each result is
    the nearest pixel, or the mean of the surrounding pixels inside the image with linear or cubic
    weights. ``antialias`` widens the weights in proportion when the image becomes smaller."""

    name = "Resample"
    bottoms = (1, 2)

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        about, x = message.resample_param, bottoms[0]
        check_image(x)
        kind = about.ResampleType.Name(about.type)
        if kind == "AREA":
            raise ValueError(
                "resample_param { type: AREA } is not supported here or in the fork; LINEAR is close to "
                "it"
            )
        sizes = _sizes(bottoms, (about.height, about.width), "resample_param { width height }")
        steps = [_ratio(extent, size) for extent, size in zip(x.shape[2:], sizes, strict=True)]
        smaller = bool(max(steps) > 1 and about.antialias)
        for axis, size in enumerate(sizes, 2):
            own, other = steps[axis - 2], steps[3 - axis]
            if kind == "NEAREST":
                weights = _nearest(x.shape[axis], size, own, other)
            else:
                weights = _around(x.shape[axis], size, own, other, kind, smaller)
            x = resampled(layer, graph, x, axis, weights)
        return [x]


class Downsample(FlowLayer):
    """An image downsampled so that its corners are kept; each place is the mean of the pixels around it.
    NaN is ignored, but a place becomes NaN if the weight of NaN around it is more than half of the
    weight of numbers. No gradient passes, as in the fork."""

    name = "Downsample"
    bottoms = (1, 2)

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        about, x = message.downsample_param, bottoms[0]
        check_image(x)
        given = (about.top_height, about.top_width)
        size = _sizes(bottoms, given, "downsample_param { top_width top_height }")
        if size == x.shape[2:]:
            return [x]
        return [graph.apply("downsample_known", x, size=size)]


class Accum(FlowLayer):
    """The channels of the bottoms concatenated, each bottom stretched linearly so that its corners are
    kept. With ``have_reference`` the size is that of the last bottom, which is not concatenated itself.
    Otherwise it is that of the largest bottom, or larger, as given by ``size_divisible_by`` or by
    ``top_height`` and ``top_width``."""

    name = "Accum"
    bottoms = (1, None)

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        about, joined = message.accum_param, list(bottoms)
        for x in joined:
            check_image(x)
        if about.have_reference:
            if len(joined) < 2:
                raise ValueError(
                    "have_reference: true takes the last of two bottoms or more for its size"
                )
            rows, columns = joined.pop().shape[2:]
        else:
            rows, columns = (max(x.shape[axis] for x in joined) for axis in (2, 3))
            least = (about.top_height, about.top_width)
            if about.HasField("size_divisible_by"):
                if about.size_divisible_by < 1:
                    raise ValueError("accum_param { size_divisible_by } is 0; it must be 1 or more")
                least = tuple(
                    math.ceil(extent / about.size_divisible_by) * about.size_divisible_by
                    for extent in (rows, columns)
                )
            if least[0] > rows and least[1] > columns:  # both must be larger, or neither counts
                rows, columns = least
        stretched = []
        for number, x in enumerate(joined):
            for axis, size in ((2, rows), (3, columns)):
                weights = _stretched(x.shape[axis], size)
                x = resampled(layer, graph, x, axis, weights, f".{number}")
            stretched.append(x)
        return [graph.apply("concat", *stretched) if len(stretched) > 1 else stretched[0]]


def _sizes(bottoms: Sequence[Tensor], given: tuple[int, int], fields: str) -> tuple[int, int]:
    """Return rows and columns: those of a second bottom, else as given. Raise ValueError
    if neither exists."""
    if len(bottoms) > 1:
        check_image(bottoms[1])
        given = (bottoms[1].shape[2], bottoms[1].shape[3])
    if min(given) < 1:
        raise ValueError(f"{fields} are not both given, and there is no second bottom of that size")
    return int(given[0]), int(given[1])


def _ratio(extent: int, size: int) -> np.float32:
    return np.float32(extent) / np.float32(size)


def _places(size: int, own: np.float32, other: np.float32) -> np.ndarray:
    """Return the positions of results among the pixels. The fork shifts columns by half of the
    rows' step and rows by half of the columns' step; the steps differ if the aspect ratio of
    the image changes."""
    half = np.float32(2)
    return np.arange(size, dtype=np.float32) * own + other / half - np.float32(0.5)


def _rounded(places: np.ndarray) -> np.ndarray:
    """Round to integers, with halves away from 0."""
    exact = places.astype(np.float64)
    return np.asarray((np.sign(exact) * np.floor(np.abs(exact) + 0.5)).astype(np.int64))


def _nearest(extent: int, size: int, own: np.float32, other: np.float32) -> np.ndarray:
    """A position outside the image, where the fork would read from the next row, gets the
    last pixel inside."""
    chosen = np.clip(_rounded(_places(size, own, other)), 0, extent - 1)
    return np.asarray(np.arange(extent) == chosen[:, None], np.float64)


def _around(
    extent: int, size: int, own: np.float32, other: np.float32, kind: str, smaller: bool
) -> np.ndarray:
    """Return the weights of the pixels around each position, normalised by their sum; 0 if all are 0."""
    places = _places(size, own, other)
    narrow = np.float32(1) / (own if smaller else np.float32(1))
    width = _LINEAR if kind == "LINEAR" else _CUBIC
    radius = 2 if own < 1 else math.ceil(np.float32(width) / narrow)
    pixels = np.arange(extent)
    distance = places[:, None] - pixels.astype(np.float32)
    weights = _curve(np.abs((narrow * distance).astype(np.float64)), kind)
    weights *= np.abs(pixels - _rounded(places)[:, None]) <= radius
    total = weights.sum(1, keepdims=True)
    return np.asarray(weights / np.where(total == 0, 1, total))


def _curve(x: np.ndarray, kind: str) -> np.ndarray:
    """Return the weight at a distance: a triangle, or the cubic convolution with a slope of -1/2 at 1
    (Keys 1981, *Cubic Convolution Interpolation for Digital Image Processing*)."""
    if kind == "LINEAR":
        return np.asarray(np.maximum(0.0, 1 - x))
    near = x * x * (1.5 * x - 2.5) + 1
    far = x * (x * (-0.5 * x + 2.5) - 4) + 2
    return np.select([x <= 1, x < 2], [near, far], 0.0)


def _stretched(extent: int, size: int) -> np.ndarray:
    """Return linear weights that keep the first and the last place where they were."""
    single = np.float32
    at = np.zeros(1, single)
    if size > 1:
        at = np.arange(size, dtype=single) / single(size - 1) * single(extent - 1)
    places = np.minimum(at.astype(np.float64), extent - 1)
    low = np.floor(places).astype(np.int64)
    weights = np.zeros((size, extent))
    rows = np.arange(size)
    weights[rows, low] = 1 - (places - low)
    weights[rows, np.minimum(low + 1, extent - 1)] += places - low
    return weights
