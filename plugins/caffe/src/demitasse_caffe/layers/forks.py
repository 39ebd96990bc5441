"""Layer types that BVLC Caffe does not have, but many published nets do: MobileNet, ShuffleNet, SENet,
SSD, PSPNet, SegNet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from demitasse import GraphBuilder, Layer, Tensor
from demitasse_caffe.fillers import Constant, filler
from demitasse_caffe.layers.activation import dropped, drops_now
from demitasse_caffe.layers.base import CaffeLayer, in_training, rearranged
from demitasse_caffe.layers.convolution import Convolution
from demitasse_caffe.layers.indexing import place_of
from demitasse_caffe.layers.normalization import LEAST_EPSILON, check_channels, filled, untrained
from demitasse_caffe.schema import number

_STEEPEST = 700
"""Above this, an exponential is no float64."""
_LENGTH = 1e-6
"""What NormFace adds to the square of a length."""


class DepthwiseConvolution(Convolution):
    """A convolution with one group for each channel; the file need not say so. In the type
    ConvolutionDepthwise a ``group`` has no effect, nor does a ``num_output`` that is not a multiple of
    the channels. Howard et al. 2017, *MobileNets*, section 3.1."""

    def __init__(self, name: str) -> None:
        self.name = name

    def _groups(self, convolution: Any, channels: int) -> int:
        if self.name != "ConvolutionDepthwise" and convolution.group not in (1, channels):
            raise ValueError(
                f"needs a group for each of its {channels} channels, not {convolution.group}"
            )
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
    """a * x + y, with one number of a for each sample and channel of x; the bottoms are a, x, y. Hu et
    al. 2018, *Squeeze-and-Excitation Networks*, section 3."""

    name = "Axpy"
    bottoms = (3, 3)

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        a, x, y = bottoms
        rows = x.shape[:2]
        if len(rows) < 2 or a.shape[:2] != rows or any(extent != 1 for extent in a.shape[2:]):
            raise ValueError(f"its first bottom {a!r} does not have a number for each channel of {x!r}")
        if len(a.shape) > 2:
            a = graph.apply("reshape", a, shape=rows)
        return [graph.apply("sum", graph.apply("scale", x, a, None, axis=0), y)]


class BroadcastMul(CaffeLayer):
    """The product of the larger bottom and the other one, which has a number for each of its samples and
    channels. From DeepDetect's fork. Hu et al. 2018, *Squeeze-and-Excitation Networks*, section 3."""

    name = "BroadcastMul"
    bottoms = (2, 2)

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        x, a = bottoms
        if math.prod(x.shape) <= math.prod(a.shape):
            x, a = a, x
        rows = x.shape[:2]
        if len(rows) < 2 or a.shape[:2] != rows or math.prod(a.shape) != math.prod(rows):
            raise ValueError(f"its bottom {a!r} does not have one number for each channel of {x!r}")
        a = graph.apply("reshape", a, shape=rows)
        return [graph.apply("scale", x, a, None, axis=0)]


class ShuffleChannel(CaffeLayer):
    """Channels in a new order: written as a table with one row for each group, and read by columns.
    Zhang et al. 2018, *ShuffleNet*, section 3.1."""

    name = "ShuffleChannel"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        x, groups = bottoms[0], message.shuffle_channel_param.group
        if len(x.shape) < 2:
            raise ValueError(f"shuffles channels (axis 1), but its bottom {x!r} has none")
        samples, channels = x.shape[:2]
        if groups < 1 or channels % groups:
            raise ValueError(f"group {groups} does not divide {channels} channels")
        order = np.arange(samples * channels).reshape(samples, groups, -1).swapaxes(1, 2)
        index = graph.constant(f"{layer.name}.order", order.reshape(-1))
        rows = graph.apply("reshape", x, shape=(samples * channels, *x.shape[2:]))
        dealt = graph.apply("gather", rows, index, source=place_of(layer))
        return [graph.apply("reshape", dealt, shape=x.shape)]


class SpatialDropout(CaffeLayer):
    """Sets a fraction of the channels of each sample to 0 in training and scales the others up; the
    identity in tests, unless ``sample_weights_test``. Tompson et al. 2015, *Efficient Object
    Localization Using Convolutional Networks*, section 3.2; Paszke et al. 2016, *ENet*, section 4."""

    name = "SpatialDropout"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        x, ratio = bottoms[0], number(message.dropout_param.dropout_ratio)
        if len(x.shape) < 2:
            raise ValueError(f"drops channels (axis 1), but its bottom {x!r} has none")
        if ratio == 0 or not drops_now(message, graph):
            return [x]
        ones = graph.constant(f"{layer.name}.ones", np.ones(x.shape[:2]))
        return [graph.apply("scale", x, dropped(ones, ratio, graph), None, axis=0)]


class GradientScaler(CaffeLayer):
    """Passes its bottom on, and multiplies the gradient of its top by -c, so that the layers before it
    learn what is of no use to the layers after it. c rises from ``lower_bound`` to nearly
    ``upper_bound`` in the first ``max_iter`` iterations of a training, more steeply for a larger
    ``alpha``; with a negative ``alpha`` it falls below ``lower_bound`` instead, by as much. Ganin et al.
    2016, *Domain-Adversarial Training of Neural Networks*, section 5.2.2."""

    name = "GradientScaler"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        about = message.gradient_scaler_param
        lower, upper = number(about.lower_bound), number(about.upper_bound)
        steepness, iterations = number(about.alpha), number(about.max_iter)
        if lower > upper:
            raise ValueError(f"lower_bound {lower:g} is above upper_bound {upper:g}")
        if not (abs(steepness) <= _STEEPEST and 1 <= iterations < math.inf):
            raise ValueError(
                f"alpha {steepness:g} and max_iter {iterations:g}: the first must be from "
                f"-{_STEEPEST} to {_STEEPEST}, the second 1 or more"
            )
        given = {"lower": lower, "upper": upper, "steepness": steepness, "iterations": iterations}
        return [graph.apply("reverse_gradient", bottoms[0], graph.scalar("iteration"), **given)]


class SpatialTransformer(CaffeLayer):
    """Samples the first bottom, images, at the places of a grid after an affine transformation. The
    second bottom holds the transformation's six numbers, or those that ``st_param`` does not give. Rows
    come before columns; coordinates run from -1 to just below 1. Jaderberg et al. 2015, *Spatial
    Transformer Networks*, section 3; from the forks with this layer."""

    name = "SpatialTransformer"
    bottoms = (2, 2)

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        about, (x, theta) = message.st_param, bottoms
        for kind, known in (("transform_type", "affine"), ("sampler_type", "bilinear")):
            if getattr(about, kind) != known:
                raise ValueError(f"{kind} {getattr(about, kind)!r} is not supported (valid: {known!r})")
        if len(x.shape) != 4:
            raise ValueError(f"transforms images (four axes); its first bottom is {x!r}")
        size = tuple(
            int(getattr(about, field)) if about.HasField(field) else x.shape[axis]
            for field, axis in (("output_H", 2), ("output_W", 3))
        )
        if min(size) < 1:
            raise ValueError(f"output_H and output_W {size} must be 1 or more")
        names = [f"theta_{row}_{column}" for row in (1, 2) for column in (1, 2, 3)]
        fixed = tuple(float(getattr(about, each)) if about.HasField(each) else None for each in names)
        learned, each = fixed.count(None), math.prod(theta.shape[1:])
        if theta.shape[:1] != x.shape[:1] or each != learned:
            raise ValueError(
                f"its second bottom {theta!r} does not have {learned} numbers for each sample, those of "
                f"the six that st_param does not give"
            )
        theta = graph.apply("reshape", theta, shape=(x.shape[0], learned))
        x = x if about.to_compute_dU else graph.apply("stop_gradient", x)
        return [graph.apply("affine_sampling", x, theta, size=size, fixed=fixed)]


class Permute(CaffeLayer):
    """The axes in a new order; those that are not named follow those that are. Liu
    et al. 2016, *SSD*."""

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
    """The axes in a new order that names each of them: Permute in the forks with CTC."""

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
    """An axis in reverse order, from the forks with CTC: a recurrent layer between two of these runs
    backward in time."""

    name = "Reverse"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        x, axis = bottoms[0], message.reverse_param.axis
        if not 0 <= axis < len(x.shape):
            raise ValueError(f"reverse_param {{ axis }} {axis} is not an axis of {x!r}, counted from 0")
        return [_reversed(layer, x, axis, graph)]


class Flip(CaffeLayer):
    """Mirrored images: each row is reversed unless ``flip_width`` is false, and with ``flip_height`` the
    order of rows is reversed, too. From caffe-windows, whose nets for faces add the results of an image
    and its mirror image."""

    name = "Flip"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        x, about = bottoms[0], message.flip_param
        if len(x.shape) != 4:
            raise ValueError(f"mirrors images (four axes); its bottom is {x!r}")
        for axis, turned in ((2, about.flip_height), (3, about.flip_width)):
            x = _reversed(layer, x, axis, graph) if turned else x
        return [x]


class ChannelScale(CaffeLayer):
    """x times the second bottom, which has one number for each place of each sample, shared by all
    channels. From caffe-windows, where it undoes a Normalize layer with that layer's second top, the
    lengths. Wang et al. 2017, *NormFace*, section 3."""

    name = "ChannelScale"
    bottoms = (2, 2)

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        x, w = bottoms
        check_channels(x)
        samples, channels, *plane = x.shape
        if w.shape[:1] != (samples,) or math.prod(w.shape) * channels != math.prod(x.shape):
            raise ValueError(f"its second bottom {w!r} does not have one number for each place of {x!r}")
        w = graph.apply("reshape", w, shape=(samples, *plane))
        if math.prod(plane) == 1:
            return [graph.apply("scale", x, graph.apply("reshape", w, shape=(samples,)), None, axis=0)]
        last = len(x.shape) - 1
        rows = rearranged(graph, "permute", x, order=(0, *range(2, last + 1), 1))
        y = graph.apply("scale", rows, w, None, axis=0)
        return [rearranged(graph, "permute", y, order=(0, last, *range(1, last)))]


class Normalize(CaffeLayer):
    """The channels at each place divided by the root of the sum of their squares or, with
    ``across_spatial``, all elements of each sample; then times a learned scale for each channel or for
    all. Liu et al. 2016, *ParseNet*, section 3.2."""

    name = "Normalize"
    tops = (1, 2)

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        norm, x = message.norm_param, bottoms[0]
        check_channels(x)
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
    """Emit NormFace's Normalize, which is recognised by its field and by its second top, the
    lengths; it has no scale. Wang et al. 2017, *NormFace: L2 Hypersphere Embedding for Face
    Verification*, section 3."""
    about = message.normalize_param
    if message.HasField("norm_param"):
        raise ValueError(
            "norm_param belongs to SSD's Normalize, a second top and normalize_param to NormFace's"
        )
    if about.normalize_type != "L2" or about.fix_gradient:
        raise ValueError("normalize_param: only normalize_type L2 without fix_gradient is supported")
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


def _reversed(layer: Layer, x: Tensor, axis: int, graph: GraphBuilder) -> Tensor:
    """Return x with the order along an axis reversed."""
    last_first = np.arange(x.shape[axis], dtype=np.float32)[::-1].copy()
    index = graph.constant(f"{layer.name}.order{axis}", last_first)
    if not axis:
        made: Tensor = graph.apply("gather", x, index, source=place_of(layer))
        return made
    rest = tuple(each for each in range(len(x.shape)) if each != axis)
    lines = rearranged(graph, "permute", x, order=(axis, *rest))
    turned = graph.apply("gather", lines, index, source=place_of(layer))
    back = tuple((axis, *rest).index(each) for each in range(len(x.shape)))
    return rearranged(graph, "permute", turned, order=back)


class BN(CaffeLayer):
    """A normalised blob with a learned scale and shift for each channel. Ioffe and Szegedy 2015.

    SegNet's BN, in mode LEARN, normalises by the batch (even in tests), whose mean and variance are
    additional tops. In mode INFERENCE the scale and shift already include the statistics of the
    training. Badrinarayanan et al. 2017, *SegNet*, section 3. The BN of TSN's and PSPNet's forks keeps
    moving averages in two more blobs, for tests and, if it is ``frozen``, for training, too. Wang et al.
    2016, *Temporal Segment Networks*, section 3.2.
    """

    name = "BN"
    tops = (1, 3)

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        norm, x = message.bn_param, bottoms[0]
        check_channels(x)
        given = {field.name for field, _ in norm.ListFields()}
        further = len(layer.tops) - 1
        if further and (given & _KEEPING or norm.bn_mode != norm.LEARN):
            raise ValueError(
                "has further tops, the batch's mean and variance, only in SegNet's mode LEARN"
            )
        if given & _KEEPING or (len(message.param) == 4 and not given & _SEGNETS):
            if mixed := sorted(given & _SEGNETS):
                keeping = sorted(given & _KEEPING)
                raise ValueError(
                    f"bn_param has {', '.join(mixed)} of SegNet's fork and {', '.join(keeping)} of "
                    f"PSPNet's and TSN's; give the fields of one fork"
                )
            return [self._by_averages(message, x, graph)]
        w = filled(graph, message, 0, x.shape[1:2], norm, "scale_filler", 0.0)
        b = filled(graph, message, 1, x.shape[1:2], norm, "shift_filler", 0.0)
        statistics: list[Tensor] = []
        if norm.bn_mode == norm.LEARN:
            x, *statistics = _by_the_batch(x, further, graph)
        return [graph.apply("scale", x, w, b, axis=1), *statistics]

    def _by_averages(self, message: Any, x: Tensor, graph: GraphBuilder) -> Tensor:
        """Emit the BN of PSPNet's and TSN's forks: its blobs are scale, shift, average
        mean and variance."""
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
"""The fields of a BN that show which fork it belongs to."""


def _by_the_batch(x: Tensor, further: int, graph: GraphBuilder) -> list[Tensor]:
    """Normalise each channel by the mean and variance over its batch, with 1e-9 added to the variance.
    Also return the first ``further`` of mean and variance, 1 x channels x 1 x 1, through which no
    gradient passes."""
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
