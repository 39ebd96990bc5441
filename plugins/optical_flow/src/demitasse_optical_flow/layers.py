"""The plugin's layer types: cost volumes, warping, losses, and the layers around them.

Dosovitskiy et al. 2015, *FlowNet*; Mayer et al. 2016, *DispNet*; Ilg et al. 2017, *FlowNet 2.0*; Sun et
al. 2018, *PWC-Net*.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from demitasse import GraphBuilder, Layer, Tensor
from demitasse_optical_flow.augmentation import DataAugmentation
from demitasse_optical_flow.base import FlowLayer, check_image, decimal
from demitasse_optical_flow.resampling import Accum, Downsample, Resample


class Correlation(FlowLayer):
    """The similarity of each patch of the first bottom to the patches around its place in the
    second: the mean of the products of their elements (SUBTRACT: of the absolute differences).
    FlowNet, section 3."""

    name = "Correlation"
    bottoms = (2, 2)

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        about, (a, b) = message.correlation_param, bottoms
        check_image(a)
        if a.shape != b.shape:
            raise ValueError(f"its bottoms {a!r} and {b!r} do not have the same shape")
        for field in ("kernel_size", "max_displacement"):
            if not about.HasField(field):
                raise ValueError(f"correlation_param {{ {field} }} is not given")
        if about.kernel_size % 2 == 0:
            raise ValueError(f"kernel_size {about.kernel_size} has no middle: it must be odd")
        for field in ("stride_1", "stride_2"):
            if getattr(about, field) < 1:
                raise ValueError(f"correlation_param {{ {field} }} is 0; it must be 1 or more")
        across = self._across(about)
        down = self._down(about, across)
        # Without displacements along rows, rows are neither padded nor left out.
        pads = (about.pad if len(down) > 1 or self.name == "Correlation" else 0, about.pad)
        edges = (about.max_displacement if self.name == "Correlation" else 0, about.max_displacement)
        size = []
        for extent, pad, edge in zip(a.shape[2:], pads, edges, strict=True):
            places = extent + 2 * pad - 2 * edge - (about.kernel_size - 1)
            if places < 1:
                raise ValueError(
                    f"no place of {a!r} has all its displacements of up to {edge} and its kernel of "
                    f"{about.kernel_size} within a pad of {pad}"
                )
            size.append(-(-places // about.stride_1))
        return [
            graph.apply(
                "cost_volume",
                a,
                b,
                kernel=int(about.kernel_size),
                stride=int(about.stride_1),
                first=tuple(int(edge) - int(pad) for edge, pad in zip(edges, pads, strict=True)),
                size=tuple(size),
                down=down,
                across=across,
                difference=about.correlation_type == about.SUBTRACT,
            )
        ]

    def _across(self, about: Any) -> tuple[int, ...]:
        if about.single_direction:
            raise ValueError("single_direction belongs to Correlation1D")
        return _displacements(about)

    def _down(self, about: Any, across: tuple[int, ...]) -> tuple[int, ...]:
        return across


class Correlation1D(Correlation):
    """Correlation with places in the same row. With ``single_direction`` 1, only the place itself and
    those to its right; with -1, only those to its left. DispNet, section 5."""

    name = "Correlation1D"

    def _across(self, about: Any) -> tuple[int, ...]:
        direction, both = about.single_direction, _displacements(about)
        if direction not in (-1, 0, 1):
            raise ValueError(f"single_direction {direction} is not -1 (left), 0 (both) or 1 (right)")
        count = len(both) // 2 + 1
        if direction == 0:
            return both
        first = 0 if direction > 0 else -count  # to the left: one further, but without the place itself
        return tuple((first + n) * int(about.stride_2) for n in range(count))

    def _down(self, about: Any, across: tuple[int, ...]) -> tuple[int, ...]:
        return (0,)


def _displacements(about: Any) -> tuple[int, ...]:
    reach = int(about.max_displacement) // int(about.stride_2)
    return tuple(n * int(about.stride_2) for n in range(-reach, reach + 1))


class FlowWarp(FlowLayer):
    """The first bottom warped by a flow, the second bottom: each pixel is taken from where the flow
    points, or is ``fill_value`` if that is outside. FlowNet 2.0, section 4."""

    name = "FlowWarp"
    bottoms = (2, 2)

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        about = message.flow_warp_param
        fill = math.nan if about.fill_value == about.NOT_A_NUMBER else 0.0
        return [graph.apply("warp", *bottoms, fill=fill)]


class Warp(FlowLayer):
    """PWC-Net's FlowWarp, which is 0 beyond the corner pixels. PWC-Net, section 3."""

    name = "Warp"
    bottoms = (2, 2)

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        return [graph.apply("warp", *bottoms, to_corners=True)]


class ChannelNorm(FlowLayer):
    """The root of the sum of squares over channels."""

    name = "ChannelNorm"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        return [graph.apply("channel_norm", bottoms[0])]


class NegReLU(FlowLayer):
    """min(x, 0) + negative_slope * max(x, 0), with the parameters of ReLU."""

    name = "NegReLU"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        turned = graph.apply("sum", bottoms[0], coefficients=(-1.0,))
        slope = decimal(message.relu_param.negative_slope)
        bent = graph.apply("leaky_relu" if slope < 0 else "relu", turned, negative_slope=slope)
        return [graph.apply("sum", bent, coefficients=(-1.0,))]


class Mean(FlowLayer):
    """output_scale * (input_scale * x + mean_scale * mean) for each bottom; with ``operation``
    SUBTRACT the mean is subtracted. The numbers of ``value`` are the channels' means, repeated as
    often as necessary."""

    name = "Mean"
    bottoms = (1, None)
    tops = (1, None)

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        import numpy as np

        about = message.mean_param
        if len(layer.tops) != len(bottoms):
            raise ValueError(f"has {len(layer.tops)} tops for {len(bottoms)} bottoms; give one for each")
        if not about.HasField("operation"):
            raise ValueError("mean_param { operation } is not given (valid: ADD, SUBTRACT)")
        if about.HasField("file"):
            raise ValueError("mean_param { file } is not supported; give the channels' means by value")
        if not about.value:
            raise ValueError(
                "mean_param { value } is not given: a mean for each channel, or one for all"
            )
        sign = -1 if about.operation == about.SUBTRACT else 1
        before, after = decimal(about.input_scale), decimal(about.output_scale)
        means = [sign * decimal(about.mean_scale) * decimal(value) * after for value in about.value]
        made = []
        for number, x in enumerate(bottoms):
            check_image(x)
            if x.shape[1] % len(means):
                raise ValueError(f"{len(means)} means do not fit the {x.shape[1]} channels of {x!r}")
            shift = np.tile(np.array(means), x.shape[1] // len(means))
            factor = np.full(x.shape[1], before * after)
            made.append(
                graph.apply(
                    "scale",
                    x,
                    graph.constant(f"{layer.name}.factor{number}", factor),
                    graph.constant(f"{layer.name}.shift{number}", shift),
                )
            )
        return made


class LpqLoss(FlowLayer):
    """The sum over places of (the sum over channels of (|a - b| + p_epsilon)^p + q_epsilon)^q, divided
    by the number of samples or of known places as in L1Loss (of the plugin caffe). PWC-Net, section 3,
    *Training loss*. ``p`` and ``q`` can change at the iterations in ``pq_episode_starts_at_iter``."""

    name = "LpqLoss"
    bottoms = (1, 2)
    tops = (0, 1)
    loss_weight = 1.0

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        about = message.lpq_loss_param
        for field in ("p_epsilon", "q_epsilon"):
            if getattr(about, field) < 0:
                raise ValueError(
                    f"lpq_loss_param {{ {field}: {getattr(about, field):g} }} is not 0 or more"
                )
        p, q = [decimal(each) for each in about.p], [decimal(each) for each in about.q]
        starts = list(about.pq_episode_starts_at_iter)
        if not starts and len(p) == len(q) == 1:
            starts = [0]
        if not starts or not len(starts) == len(p) == len(q):
            raise ValueError(
                f"has {len(starts)} pq_episode_starts_at_iter, {len(p)} p and {len(q)} q; give as "
                f"many of each"
            )
        if starts[0] != 0 or any(a >= b for a, b in itertools.pairwise(starts)):
            raise ValueError(f"pq_episode_starts_at_iter {', '.join(map(str, starts))} must rise from 0")
        if min(*p, *q) <= 0:
            raise ValueError("p and q must be powers above 0")
        given = {
            "starts": tuple(starts),
            "p": tuple(p),
            "q": tuple(q),
            "p_epsilon": decimal(about.p_epsilon),
            "q_epsilon": decimal(about.q_epsilon),
            "prescale": bool(about.l2_prescale_by_channels),
            "normalization": "valid" if about.normalize_by_num_entries else "batch_size",
        }
        a, b = (*bottoms, None)[:2]
        return [graph.apply("lpq_loss", a, b, graph.scalar("iteration"), **given)[0]]


class FLOWriter(FlowLayer):
    """Writes each flow to a file: ``file``, or one in ``folder`` whose name consists of ``prefix``, the
    number of the pass, the number of the flow in it if there are several, and ``suffix``. Every forward
    pass writes new files."""

    name = "FLOWriter"
    tops = (0, 0)

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        about, x = message.writer_param, bottoms[0]
        fields = ("file", "folder", "prefix", "suffix")
        given = {field: getattr(about, field) for field in fields}
        graph.apply("write_flows", x, graph.scalar("sample"), batch=x.shape[0] * graph.workers, **given)
        return []


LAYER_TYPES = (
    Accum(),
    ChannelNorm(),
    Correlation(),
    Correlation1D(),
    DataAugmentation(),
    Downsample(),
    FLOWriter(),
    FlowWarp(),
    LpqLoss(),
    Mean(),
    NegReLU(),
    Resample(),
    Warp(),
)
