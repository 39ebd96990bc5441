"""Convolution and Pooling: windows over spatial axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from demitasse import GraphBuilder, Layer, Tensor
from demitasse_caffe.layers.base import CaffeLayer, Shape, canonical, learned


class Convolution(CaffeLayer):
    """Correlation with learned kernels, in groups, in any number of spatial dimensions. Several
    bottoms go through the same kernels, each to its top."""

    name = "Convolution"
    bottoms = (1, None)
    tops = (1, None)

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        convolution = message.convolution_param
        x = bottoms[0]
        if len(layer.tops) != len(bottoms):
            raise ValueError(f"has {len(bottoms)} bottoms and {len(layer.tops)} tops; each has its own")
        if len(x.shape) < 3:
            raise ValueError(f"convolves samples x channels x space; its bottom is {x!r}")
        if canonical(convolution.axis, x) != 1:
            raise ValueError(f"axis {convolution.axis}: channels stand at axis 1 here; reshape before")
        spatial = len(x.shape) - 2
        kernel = _extents(convolution, "kernel_size", "kernel", spatial, None)
        stride = _extents(convolution, "stride", "stride", spatial, 1)
        pad = _extents(convolution, "pad", "pad", spatial, 0)
        dilation = _extents(convolution, "dilation", None, spatial, 1)
        for field, extents in (("kernel_size", kernel), ("stride", stride), ("dilation", dilation)):
            if min(extents) < 1:
                raise ValueError(f"{field} {extents} is not positive")
        outputs, groups, channels = convolution.num_output, convolution.group, x.shape[1]
        if outputs < 1:
            raise ValueError("convolution_param needs a num_output of 1 or more")
        if groups < 1 or channels % groups or outputs % groups:
            raise ValueError(
                f"group {groups} does not divide {channels} input channels and num_output {outputs}"
            )
        shape = (outputs, channels // groups, *kernel)
        w = learned(graph, message, 0, shape, convolution.weight_filler)
        b = None
        if convolution.bias_term:
            b = learned(graph, message, 1, (outputs,), convolution.bias_filler)
        return [
            graph.apply(
                "convolution", each, w, b, stride=stride, pad=pad, dilation=dilation, groups=groups
            )
            for each in bottoms
        ]


class Pooling(CaffeLayer):
    """The maximum or average of windows, with Caffe's rounding up; of all of the space with
    global_pooling. A second top of MAX is the place of each maximum."""

    name = "Pooling"
    tops = (1, 2)

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        pooling, x = message.pooling_param, bottoms[0]
        if len(x.shape) < 3:
            raise ValueError(f"pools samples x channels x space; its bottom is {x!r}")
        spatial = len(x.shape) - 2
        method = pooling.PoolMethod.Name(pooling.pool)
        if method == "STOCHASTIC":
            raise ValueError("pool STOCHASTIC is not supported (supported: MAX, AVE)")
        stride = _extents(pooling, "stride", "stride", spatial, 1)
        pad = _extents(pooling, "pad", "pad", spatial, 0)
        if pooling.global_pooling:
            if any(pooling.HasField(field) for field in ("kernel_size", "kernel_h", "kernel_w")):
                raise ValueError("global_pooling takes all of the space: give no kernel_size with it")
            if max(pad) > 0 or set(stride) != {1}:
                raise ValueError(f"global_pooling has pad 0 and stride 1, not {pad} and {stride}")
            kernel = x.shape[2:]
        else:
            kernel = _extents(pooling, "kernel_size", "kernel", spatial, None)
        for field, extents in (("kernel_size", kernel), ("stride", stride)):
            if min(extents) < 1:
                raise ValueError(f"{field} {extents} is not positive")
        attributes: dict[str, Any] = {
            "kernel": kernel,
            "stride": stride,
            "pad": pad,
            "rounding": pooling.RoundMode.Name(pooling.round_mode).lower(),
        }
        if method == "MAX":
            largest, places = graph.apply("pooling_max", x, **attributes)
            return [largest, places][: len(layer.tops)]
        if len(layer.tops) > 1:
            raise ValueError("only pool MAX has a second top (the place of each maximum)")
        return [graph.apply("pooling_average", x, **attributes)]


def _extents(message: Any, field: str, stem: str | None, spatial: int, default: int | None) -> Shape:
    """A number for each spatial axis: from ``field`` (one for all, or one each), or from the pair
    ``<stem>_h`` and ``<stem>_w``. Raises ValueError where Caffe would stop."""
    # Pooling's fields are single numbers, Convolution's are lists.
    value = {f.name: v for f, v in message.ListFields()}.get(field, ())
    given = [value] if isinstance(value, int) else list(value)
    pair = [f"{stem}_h", f"{stem}_w"] if stem else []
    if any(message.HasField(name) for name in pair):
        if given:
            raise ValueError(f"{field} and {' or '.join(pair)} exclude each other")
        if spatial != 2:
            raise ValueError(f"{' and '.join(pair)} are for 2 spatial axes, here are {spatial}")
        if not all(message.HasField(name) for name in pair) and default is None:
            raise ValueError(f"needs both {pair[0]} and {pair[1]}")
        return tuple(getattr(message, name) if message.HasField(name) else default or 0 for name in pair)
    if not given:
        if default is None:
            raise ValueError(f"needs a {field}")
        given = [default]
    if len(given) not in (1, spatial):
        raise ValueError(f"{field} has {len(given)} numbers for {spatial} spatial axes")
    return tuple(given * spatial if len(given) == 1 else given)
