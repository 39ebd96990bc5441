"""Layer types that BVLC Caffe has not, but the published nets of many: MobileNet, ShuffleNet, SENet,
SSD, PSPNet, SegNet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from demitasse import GraphBuilder, Layer, Tensor
from demitasse_caffe.fillers import Constant, filler
from demitasse_caffe.layers.activation import dropped, drops_now
from demitasse_caffe.layers.base import CaffeLayer, check_size, in_training, rearranged
from demitasse_caffe.layers.convolution import Convolution
from demitasse_caffe.layers.indexing import place_of
from demitasse_caffe.layers.normalization import LEAST_EPSILON, filled, untrained
from demitasse_caffe.schema import number

_LENGTH = 1e-6
"""What NormFace adds to the square of a length."""


class DepthwiseConvolution(Convolution):
    """A convolution with a group for each channel, whose file need not say so; where the type is called
    ConvolutionDepthwise, a ``group`` has no effect, nor has a ``num_output`` that is no multiple of the
    channels. Howard et al. 2017, *MobileNets*, section 3.1."""

    def __init__(self, name: str) -> None:
        self.name = name

    def _groups(self, convolution: Any, channels: int) -> int:
        if self.name != "ConvolutionDepthwise" and convolution.group not in (1, channels):
            raise ValueError(f"has a group for each of its {channels} channels, not {convolution.group}")
        return channels

    def _outputs(self, convolution: Any, channels: int) -> int:
        given = int(convolution.num_output)
        alone = self.name == "ConvolutionDepthwise" and (given < 1 or given % channels)
        return channels if alone else given


class ReLU6(CaffeLayer):
    """min(max(x, 0), 6). Sandler et al. 2018, *MobileNetV2*, section 3."""

    name = "ReLU6"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        return [graph.apply("clip", bottoms[0], least=0.0, most=6.0)]


class Axpy(CaffeLayer):
    """a * x + y, with a number of a for each sample and channel of x; the bottoms are a, x, y. Hu et al.
    2018, *Squeeze-and-Excitation Networks*, section 3."""

    name = "Axpy"
    bottoms = (3, 3)

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        a, x, y = bottoms
        rows = x.shape[:2]
        if len(rows) < 2 or a.shape[:2] != rows or any(extent != 1 for extent in a.shape[2:]):
            raise ValueError(f"its first bottom {a!r} has no number for each channel of {x!r}")
        if len(a.shape) > 2:
            a = graph.apply("reshape", a, shape=rows)
        return [graph.apply("sum", graph.apply("scale", x, a, None, axis=0), y)]


class ShuffleChannel(CaffeLayer):
    """The channels dealt out: as a table with a row for each group, read by columns. Zhang et al. 2018,
    *ShuffleNet*, section 3.1."""

    name = "ShuffleChannel"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        x, groups = bottoms[0], message.shuffle_channel_param.group
        if len(x.shape) < 2:
            raise ValueError(f"shuffles channels, axis 1, which its bottom {x!r} lacks")
        samples, channels = x.shape[:2]
        if groups < 1 or channels % groups:
            raise ValueError(f"group {groups} does not divide {channels} channels")
        order = np.arange(samples * channels).reshape(samples, groups, -1).swapaxes(1, 2)
        index = graph.constant(f"{layer.name}.order", order.reshape(-1))
        rows = graph.apply("reshape", x, shape=(samples * channels, *x.shape[2:]))
        dealt = graph.apply("gather", rows, index, source=place_of(layer))
        return [graph.apply("reshape", dealt, shape=x.shape)]


class SpatialDropout(CaffeLayer):
    """Drops a share of the channels of each sample in training and scales the rest up; the identity in
    tests, unless ``sample_weights_test``. Tompson et al. 2015, *Efficient Object Localization Using
    Convolutional Networks*, section 3.2; Paszke et al. 2016, *ENet*, section 4."""

    name = "SpatialDropout"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        x, ratio = bottoms[0], number(message.dropout_param.dropout_ratio)
        if len(x.shape) < 2:
            raise ValueError(f"drops channels, axis 1, which its bottom {x!r} lacks")
        if ratio == 0 or not drops_now(message, graph):
            return [x]
        ones = graph.constant(f"{layer.name}.ones", np.ones(x.shape[:2]))
        return [graph.apply("scale", x, dropped(ones, ratio, graph), None, axis=0)]


class Permute(CaffeLayer):
    """The axes in another order; those that it does not name stay behind those that it does. Liu et al.
    2016, *SSD*."""

    name = "Permute"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        x, named = bottoms[0], list(message.permute_param.order)
        axes = range(len(x.shape))
        if not named:
            raise ValueError("permute_param { order } is not given")
        if len(set(named)) != len(named) or not set(named) <= set(axes):
            raise ValueError(f"order {named} does not name axes of {x!r}, each at most once")
        order = (*named, *(axis for axis in axes if axis not in named))
        return [rearranged(graph, "permute", x, order=order)]


class Transpose(CaffeLayer):
    """The axes in another order, of which each is named: Permute, of the forks with CTC."""

    name = "Transpose"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        x, order = bottoms[0], tuple(message.transpose_param.dim)
        if sorted(order) != list(range(len(x.shape))):
            raise ValueError(
                f"transpose_param {{ dim }} {list(order)} does not name each axis of {x!r} once"
            )
        return [rearranged(graph, "permute", x, order=order)]


class Reverse(CaffeLayer):
    """An axis from its end to its beginning, of the forks with CTC: a recurrent layer between two goes
    through time the other way."""

    name = "Reverse"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        x, axis = bottoms[0], message.reverse_param.axis
        if not 0 <= axis < len(x.shape):
            raise ValueError(f"reverse_param {{ axis }} {axis} is no axis of {x!r}, counted from 0 on")
        last_first = np.arange(x.shape[axis], dtype=np.float32)[::-1].copy()
        index = graph.constant(f"{layer.name}.order", last_first)
        if not axis:
            return [graph.apply("gather", x, index, source=place_of(layer))]
        rest = tuple(each for each in range(len(x.shape)) if each != axis)
        lines = rearranged(graph, "permute", x, order=(axis, *rest))
        turned = graph.apply("gather", lines, index, source=place_of(layer))
        back = tuple((axis, *rest).index(each) for each in range(len(x.shape)))
        return [rearranged(graph, "permute", turned, order=back)]


class Normalize(CaffeLayer):
    """Each place's channels over the root of the sum of their squares, or, with ``across_spatial``, each
    sample's elements, times a learned scale of each channel or of all. Liu et al. 2016, *ParseNet*,
    section 3.2."""

    name = "Normalize"
    tops = (1, 2)

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        norm, x = message.norm_param, bottoms[0]
        if len(x.shape) < 2:
            raise ValueError(f"normalises samples x channels x space; its bottom is {x!r}")
        if message.HasField("normalize_param") or len(layer.tops) > 1:
            return _unit_lengths(layer, message, x, graph)
        last = len(x.shape) - 1
        behind, back = (0, *range(2, last + 1), 1), (0, last, *range(1, last))
        shape = () if norm.channel_shared else (x.shape[1],)
        w = filled(graph, message, 0, shape, norm, "scale_filler", 1.0)
        epsilon, whole = number(norm.eps) or LEAST_EPSILON, norm.across_spatial
        rows = x if whole else rearranged(graph, "permute", x, order=behind)
        squares = graph.apply("square_total", rows, axis=1 if whole else last)
        over = graph.apply("power", squares, power=-0.5, shift=epsilon)
        y = graph.apply("scale", rows, over, None, axis=0)
        if not whole:
            y = rearranged(graph, "permute", y, order=back)
        return [graph.apply("scale", y, w, None, axis=0 if norm.channel_shared else 1)]


def _unit_lengths(layer: Layer, message: Any, x: Tensor, graph: GraphBuilder) -> Sequence[Tensor]:
    """NormFace's Normalize, told apart by its field and its second top, the lengths; it has no scale.
    Wang et al. 2017, *NormFace: L2 Hypersphere Embedding for Face Verification*, section 3."""
    about = message.normalize_param
    if message.HasField("norm_param"):
        raise ValueError(
            "norm_param is of SSD's Normalize, a second top and normalize_param of NormFace's"
        )
    if about.normalize_type != "L2" or about.fix_gradient:
        raise ValueError("normalize_param: normalize_type L2 without fix_gradient is supported")
    last = len(x.shape) - 1
    behind, back = (0, *range(2, last + 1), 1), (0, last, *range(1, last))
    rows = rearranged(graph, "permute", x, order=behind) if last > 1 else x
    squares = graph.apply("square_total", rows, axis=last)
    over = graph.apply("power", squares, power=-0.5, shift=_LENGTH)
    y = graph.apply("scale", rows, over, None, axis=0)
    y = rearranged(graph, "permute", y, order=back) if last > 1 else y
    if len(layer.tops) == 1:
        return [y]
    lengths = graph.apply("power", squares, power=0.5, shift=_LENGTH)
    lengths = lengths if about.bp_norm else graph.apply("stop_gradient", lengths)
    return [y, graph.apply("reshape", lengths, shape=(x.shape[0], 1, *x.shape[2:]))]


class Interp(CaffeLayer):
    """Resized by straight lines between places, so that corners stay corners; pads, which are not above
    0, cut off first. Chen et al. 2015, *DeepLab*."""

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
            raise ValueError(f"pad_beg {-cut[0]} and pad_end {-cut[1]}: what is cut off is 0 or less")
        if min(inner) < 1:
            raise ValueError(f"pad_beg {-cut[0]} and pad_end {-cut[1]} do not leave a part of {x!r}")
        if any(cut):
            x = graph.apply("crop", x, offset=(0, 0, cut[0], cut[0]), extent=(*x.shape[:2], *inner))
        sizes = _resized(interp, inner)
        check_size(f"top {layer.tops[0]!r}", (*x.shape[:2], *sizes))
        for axis, size in enumerate(sizes, 2):
            if size != x.shape[axis]:
                x = _along_lines(layer, graph, x, axis, size)
        return [x]


def _resized(interp: Any, inner: Sequence[int]) -> list[int]:
    """The extents of a result: so many times fewer steps, then so many times more, or as given, which
    counts where nothing or both of these are said."""
    given = [name for name in ("shrink_factor", "zoom_factor") if interp.HasField(name)]
    named = interp.HasField("height") and interp.HasField("width")
    if not given and not named:
        raise ValueError("interp_param needs height and width, zoom_factor or shrink_factor")
    sizes = [interp.height, interp.width]
    if len(given) == 1 or not named:
        if min(getattr(interp, name) for name in given) < 1:
            raise ValueError(f"interp_param {{ {given[0]} }} is not 1 or more")
        fewer = ((extent - 1) // interp.shrink_factor for extent in inner)
        sizes = [steps * interp.zoom_factor + 1 for steps in fewer]
    return list(_some(*sizes))


class BN(CaffeLayer):
    """A learned scale and shift of each channel of a normalised blob. Ioffe and Szegedy 2015.

    SegNet's, in mode LEARN, normalises by the batch (in tests, too), whose mean and variance are further
    tops; those of INFERENCE have the training's statistics in them. Badrinarayanan et al. 2017,
    *SegNet*, section 3. The one of TSN's and PSPNet's forks keeps moving averages, in two more blobs,
    for tests, and for training too where it is ``frozen``. Wang et al. 2016, *Temporal Segment
    Networks*, section 3.2.
    """

    name = "BN"
    tops = (1, 3)

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        norm, x = message.bn_param, bottoms[0]
        if len(x.shape) < 2:
            raise ValueError(f"normalises samples x channels x space; its bottom is {x!r}")
        given = {field.name for field, _ in norm.ListFields()}
        further = len(layer.tops) - 1
        if further and (given & _KEEPING or norm.bn_mode != norm.LEARN):
            raise ValueError(
                "has further tops, a batch's mean and variance, in SegNet's mode LEARN alone"
            )
        if given & _KEEPING or (len(message.param) == 4 and not given & _SEGNETS):
            if mixed := sorted(given & _SEGNETS):
                keeping = sorted(given & _KEEPING)
                raise ValueError(
                    f"bn_param has {', '.join(mixed)} of SegNet's fork and {', '.join(keeping)} of "
                    f"PSPNet's and TSN's; which layer is it?"
                )
            return [self._by_averages(message, x, graph)]
        w = filled(graph, message, 0, x.shape[1:2], norm, "scale_filler", 0.0)
        b = filled(graph, message, 1, x.shape[1:2], norm, "shift_filler", 0.0)
        statistics: list[Tensor] = []
        if norm.bn_mode == norm.LEARN:
            x, *statistics = _by_the_batch(x, further, graph)
        return [graph.apply("scale", x, w, b, axis=1), *statistics]

    def _by_averages(self, message: Any, x: Tensor, graph: GraphBuilder) -> Tensor:
        """As PSPNet's and TSN's forks have it: blobs are scale, shift, average mean and variance."""
        norm, shape = message.bn_param, x.shape[1:2]
        keep, epsilon = number(norm.momentum), number(norm.eps)
        if not (0 <= keep <= 1 and 0 <= epsilon < math.inf):
            raise ValueError(
                f"momentum {keep:g} is not from 0 to 1, or eps {epsilon:g} not a number >= 0"
            )
        if norm.frozen:
            fills = (filler(each, shape) for each in (norm.slope_filler, norm.bias_filler))
            w, b = (untrained(graph, message, index, shape, fill) for index, fill in enumerate(fills))
        else:
            w = filled(graph, message, 0, shape, norm, "slope_filler", 0.0)
            b = filled(graph, message, 1, shape, norm, "bias_filler", 0.0)
        mean = untrained(graph, message, 2, shape, Constant())
        variance = untrained(graph, message, 3, shape, Constant(1.0 if norm.frozen else 0.0))
        one = graph.constant(f"{message.name}.one", np.ones(1))
        about = {"epsilon": epsilon or LEAST_EPSILON}
        if norm.frozen or not in_training(message, graph):
            y: Tensor = graph.apply("batch_norm_inference", x, mean, variance, one, w, b, **about)
            return y
        normalised: Tensor = graph.apply(
            "batch_norm", x, mean, variance, one, w, b, keep=keep, averaged=True, **about
        )[0]
        return normalised


_SEGNETS = {"scale_filler", "shift_filler", "bn_mode"}
_KEEPING = {"slope_filler", "bias_filler", "momentum", "eps", "frozen"}
"""The fields of a BN that tell whose it is."""


def _by_the_batch(x: Tensor, further: int, graph: GraphBuilder) -> list[Tensor]:
    """Each channel less its mean over the batch, over the root of its variance and 1e-9; and ``further``
    of mean and variance, 1 x channels x 1 x 1, through which no gradient passes."""
    swapped, each = (1, 0, *range(2, len(x.shape))), x.shape[1] / math.prod(x.shape)
    turned = rearranged(graph, "permute", x, order=swapped)
    rows = graph.apply("centre", turned, axis=1)
    squares = graph.apply("square_total", rows, axis=1)
    over = graph.apply("power", squares, power=-0.5, scale=each, shift=1e-9)
    y = rearranged(graph, "permute", graph.apply("scale", rows, over, None, axis=0), order=swapped)
    statistics = []
    if further > 0:
        statistics.append(graph.apply("total", turned, axis=1, coefficient=each, normalization="full"))
    if further > 1:
        statistics.append(graph.apply("power", squares, power=1.0, scale=each, shift=0.0))
    shape = (1, x.shape[1], *[1] * (len(x.shape) - 2))
    stopped = [graph.apply("stop_gradient", statistic) for statistic in statistics]
    return [y, *(graph.apply("reshape", statistic, shape=shape) for statistic in stopped)]


class Upsample(CaffeLayer):
    """Each element of the first bottom where the second, the places of a Pooling layer's maxima (its
    second top), says, and 0 around. Badrinarayanan et al. 2017, *SegNet*, section 3. Of one bottom each
    element ``scale`` times ``scale`` times. Redmon and Farhadi 2018, *YOLOv3*, section 2.3."""

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
        for axis, extent in enumerate(size, 2):
            if extent != x.shape[axis]:
                places = np.arange(extent)[:, None] * x.shape[axis] // extent
                x = _resampled(layer, graph, x, axis, places, np.ones(places.shape))
        return [x]


class Reorg(CaffeLayer):
    """Fewer places with more channels, as Darknet has it, or with ``reverse`` more places with fewer.

    In reverse the channels of a place become ``stride`` x ``stride`` places. The other way what that
    would read is written, of an image that is taken to have ``stride`` squared times fewer channels
    than it has and as much larger sides, and its result to have its elements in the order of more
    channels: so are the weights that Darknet's nets were trained with. Redmon and Farhadi 2017,
    *YOLO9000*, section 2.
    """

    name = "Reorg"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        about, x = message.reorg_param, bottoms[0]
        stride = about.stride
        if stride < 1 or len(x.shape) != 4:
            raise ValueError(f"reorg_param {{ stride }} is not given, or its bottom {x!r} no image")
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
    """Upsample by the names of DeconvNet's fork, which say the result's rows and columns. Noh et al.
    2015, *Learning Deconvolution Network for Semantic Segmentation*, section 3.2."""

    name = "Unpooling"
    bottoms = (2, 2)
    no_gradient = MappingProxyType({1: "places"})

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        unpooling, x = message.unpooling_param, bottoms[0]
        if unpooling.unpool != unpooling.MAX or unpooling.pad:
            raise ValueError("puts maxima back where they were: unpool is MAX, and pad 0")
        if len(x.shape) != 4:
            raise ValueError(f"puts images on a larger plane; its bottom is {x!r}")
        sides = [name for name in ("unpool_h", "unpool_w") if unpooling.HasField(name)]
        if unpooling.HasField("unpool_size") == bool(sides) or len(sides) == 1:
            raise ValueError("unpooling_param needs unpool_size, or both unpool_h and unpool_w")
        size = [getattr(unpooling, name) for name in sides] or [unpooling.unpool_size] * 2
        return [graph.apply("unpooling", *bottoms, size=_some(*size), source=place_of(layer))]


def _enlarged(upsample: Any, x: Tensor) -> tuple[int, int]:
    """The rows and columns of an unpooled image: as given, or a scale times those of x, one less where
    the pooled image had an odd number of them."""
    if len(x.shape) != 4:
        raise ValueError(f"puts images on a larger plane; its bottom is {x!r}")
    sizes = [name for name in ("upsample_h", "upsample_w") if upsample.HasField(name)]
    scales = [name for name in ("scale_h", "scale_w") if upsample.HasField(name)]
    if len(sizes) == 1 or len(scales) == 1:
        raise ValueError(f"upsample_param {{ {(*sizes, *scales)[0]} }} needs the other side's, too")
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
        raise ValueError(f"makes an image of {height} x {width}")
    return height, width


def _along_lines(layer: Layer, graph: GraphBuilder, x: Tensor, axis: int, size: int) -> Tensor:
    """x with ``size`` places along an axis, the first and the last where they were."""
    extent = x.shape[axis]
    at = np.arange(size) * ((extent - 1) / (size - 1) if size > 1 else 0.0)
    low = np.minimum(at.astype(np.int64), extent - 1)
    places = np.stack([low, np.minimum(low + 1, extent - 1)], 1)
    weights = np.stack([1 - (at - low), at - low], 1)
    return _resampled(layer, graph, x, axis, places, weights)


def _resampled(
    layer: Layer, graph: GraphBuilder, x: Tensor, axis: int, places: np.ndarray, weights: np.ndarray
) -> Tensor:
    table = (
        graph.constant(f"{layer.name}.places{axis}", places),
        graph.constant(f"{layer.name}.weights{axis}", weights),
    )
    return rearranged(graph, "resample", x, *table, axis=axis)
