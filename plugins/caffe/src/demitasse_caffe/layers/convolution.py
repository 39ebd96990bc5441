"""Windows over spatial axes: Convolution, Deconvolution, Im2col, Pooling and SPP."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from demitasse import GraphBuilder, Layer, Tensor
from demitasse_caffe.layers.base import CaffeLayer, Shape, canonical, check_whole, in_training, learned
from demitasse_caffe.layers.sides import Sides, pooled, sides, surrounded
from demitasse_caffe.layers.transformation import as_numbers

Windows = dict[str, Shape]
"""stride, pad and dilation, each with one number for each spatial axis."""


class Convolution(CaffeLayer):
    """Correlation with learned kernels, in groups. The axes after the channels' are spatial, any number
    of them; those before it count as samples. Several bottoms are convolved with the same kernels, each
    to its own top."""

    name = "Convolution"
    bottoms = (1, None)
    tops = (1, None)

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        convolution, x = self._parameters(message), bottoms[0]
        if len(layer.tops) != len(bottoms):
            raise ValueError(
                f"has {len(bottoms)} bottoms and {len(layer.tops)} tops; give each bottom its own top"
            )
        axis = canonical(convolution.axis, x)
        kernel, windows = _windows(convolution, len(x.shape) - axis - 1)
        channels = x.shape[axis]
        outputs = self._outputs(convolution, channels)
        groups = self._groups(convolution, channels)
        if outputs < 1:
            raise ValueError("convolution_param needs a num_output of 1 or more")
        if groups < 1 or channels % groups or outputs % groups:
            raise ValueError(
                f"group {groups} does not divide {channels} input channels and num_output {outputs}"
            )
        shape = (*self._ends(channels, outputs, groups), *kernel)
        w = learned(graph, message, 0, shape, convolution.weight_filler)
        b = None
        if convolution.bias_term:
            b = learned(graph, message, 1, (outputs,), convolution.bias_filler)
        if not kernel:  # no spatial axis: use one of extent 1
            w = graph.apply("reshape", w, shape=(*shape, 1))
            windows = {"stride": (1,), "pad": (0,), "dilation": (1,)}
        made = []
        for each in bottoms:
            images = _as_images(each, axis, graph)
            about: dict[str, Any] = {**windows, "groups": groups}
            extents = zip(windows["dilation"], w.shape[2:], strict=True)
            reach = tuple(d * (k - 1) + 1 for d, k in extents)
            around = sides(convolution, images, reach, windows["stride"], windows["pad"])
            if around is not None:
                images, about = self._around(images, around, about, graph)
            y = self._emit(layer, images, w, b, graph, outputs, about)
            made.append(_as_before(each, axis, y, graph))
        return made

    def _around(
        self, x: Tensor, around: Sides, attributes: dict[str, Any], graph: GraphBuilder
    ) -> tuple[Tensor, dict[str, Any]]:
        """Return the images and attributes of a convolution with different padding on each side."""
        if around.alike:
            return x, {**attributes, "pad": around.before}
        return surrounded(x, around.before, around.behind, graph), {**attributes, "pad": (0, 0)}

    def _parameters(self, message: Any) -> Any:
        return message.convolution_param

    def _groups(self, convolution: Any, channels: int) -> int:
        return int(convolution.group)

    def _outputs(self, convolution: Any, channels: int) -> int:
        return int(convolution.num_output)

    def _ends(self, channels: int, outputs: int, groups: int) -> Shape:
        """Return the first two extents of the weights."""
        return outputs, channels // groups

    def _emit(
        self,
        layer: Layer,
        x: Tensor,
        w: Tensor,
        b: Tensor | None,
        graph: GraphBuilder,
        outputs: int,
        attributes: dict[str, Any],
    ) -> Tensor:
        y: Tensor = graph.apply("convolution", x, w, b, **attributes)
        return y


class Deconvolution(Convolution):
    """The transpose of a convolution, which spreads each element over a window of its top. Its weights
    are (input channels, outputs per group, window). Zeiler et al. 2010; Long, Shelhamer and Darrell 2015
    for learned interpolation (``weight_filler { type: "bilinear" }``)."""

    name = "Deconvolution"

    def _ends(self, channels: int, outputs: int, groups: int) -> Shape:
        return channels, outputs // groups

    def _around(
        self, x: Tensor, around: Sides, attributes: dict[str, Any], graph: GraphBuilder
    ) -> tuple[Tensor, dict[str, Any]]:
        if around.alike:
            return x, {**attributes, "pad": around.before}
        raise ValueError("must cut the same amount off each side of its top; give pad, pad_h or pad_w")

    def _emit(
        self,
        layer: Layer,
        x: Tensor,
        w: Tensor,
        b: Tensor | None,
        graph: GraphBuilder,
        outputs: int,
        attributes: dict[str, Any],
    ) -> Tensor:
        if x.shape[1] != w.shape[0]:
            raise ValueError(f"its weights {w!r} take {w.shape[0]} channels; its bottom is {x!r}")
        numbers = (attributes[name] for name in ("stride", "pad", "dilation"))
        spatial = tuple(
            s * (extent - 1) + d * (kernel - 1) + 1 - 2 * p
            for extent, kernel, s, p, d in zip(x.shape[2:], w.shape[2:], *numbers, strict=True)
        )
        if min(spatial) < 1:
            raise ValueError(f"a pad of {attributes['pad']} leaves nothing of its top: {spatial}")
        shape = (x.shape[0], outputs, *spatial)
        y: Tensor = graph.apply("convolution_backward_data", x, w, **attributes, shape=shape)
        return y if b is None else biased(layer, y, b, 1, graph)


class Im2col(CaffeLayer):
    """What each tap of a convolution's window sees, as channels: a channel of the bottom becomes as many
    channels as the window has taps."""

    name = "Im2col"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        convolution, x = message.convolution_param, bottoms[0]
        axis = canonical(convolution.axis, x)
        if axis == len(x.shape) - 1:
            raise ValueError(f"axis {convolution.axis} of {x!r} has no spatial axis after it")
        kernel, windows = _windows(convolution, len(x.shape) - axis - 1)
        y = graph.apply("im2col", _as_images(x, axis, graph), kernel=kernel, **windows)
        return [_as_before(x, axis, y, graph)]


class Pooling(CaffeLayer):
    """The maximum, the average or a random element of each window over the axes after the channels',
    with Caffe's rounding up. In tests STOCHASTIC is the average weighted by the elements themselves.
    With global_pooling the window covers the whole space. A second top of MAX, for images only, holds
    the place of each maximum."""

    name = "Pooling"
    tops = (1, 2)

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        pooling, x = self._parameters(message), bottoms[0]
        spatial = len(x.shape) - 2
        if spatial < 1:
            raise ValueError(f"pools samples x channels x space; its bottom is {x!r}")
        stride = window_extents(pooling, "stride", "stride", spatial, 1)
        pad = window_extents(pooling, "pad", "pad", spatial, 0)
        if self._is_global(pooling):
            if any(pooling.HasField(field) for field in ("kernel_size", "kernel_h", "kernel_w")):
                raise ValueError("global_pooling covers all of the space: leave kernel_size out")
            if max(pad) > 0 or set(stride) != {1}:
                raise ValueError(f"global_pooling needs pad 0 and stride 1, not {pad} and {stride}")
            kernel = x.shape[2:]
        else:
            kernel = window_extents(pooling, "kernel_size", "kernel", spatial, None)
        for field, extents in (("kernel_size", kernel), ("stride", stride)):
            if min(extents) < 1:
                raise ValueError(f"{field} {extents} is not positive")
        rounding, around = self._rounding(pooling), None
        if "pad_t" in pooling.DESCRIPTOR.fields_by_name:
            around = sides(pooling, x, kernel, stride, pad)
        if rounding == "ceil":
            kernel = _no_larger(kernel, stride, around or Sides(pad, pad), x.shape[2:])
        method = pooling.DESCRIPTOR.fields_by_name["pool"].enum_type.values_by_number[pooling.pool].name
        method = "AVE_EXC_PAD" if method == "AVE_TF" else method
        if len(layer.tops) > 1 and (method != "MAX" or spatial != 2):
            raise ValueError("only pool MAX of images has a second top (the place of each maximum)")
        if around is not None and around.alike:
            pad = around.before
        windows = {"kernel": kernel, "stride": stride, "pad": pad}
        if method == "AVE_EXC_PAD" and any(windows["pad"]):
            around = around or Sides(pad, pad)
        elif around is not None and around.alike:
            around = None
        if around is not None:
            if method == "STOCHASTIC" or len(layer.tops) > 1 or spatial != 2:
                told = "one side is padded more than the other" if not around.alike else method
                raise ValueError(f"{told}: supported for images, with MAX or AVE, and one top")
            return [pooled(layer, x, method, kernel, stride, around, rounding, graph)]
        method = "AVE" if method == "AVE_EXC_PAD" else method
        if spatial != 2:
            return [_in_turn(x, method, windows, rounding, graph)]
        attributes: dict[str, Any] = {**windows, "rounding": rounding}
        if len(layer.tops) > 1:
            check_whole("the size of an image, in which maxima have places,", math.prod(x.shape[2:]), x)
        y, *places = _pooled(x, method, attributes, in_training(message, graph), graph)
        return [y] if len(layer.tops) == 1 else [y, as_numbers(places[0], graph)]

    def _parameters(self, message: Any) -> Any:
        pooling = message.pooling_param
        if not any(pooling.HasField(f"{stem}_shape") for stem in ("kernel", "stride", "pad")):
            return pooling
        if not pooling.HasField("kernel_shape"):
            raise ValueError("repeats stride or pad; repeat kernel_size as often")
        if pooling.global_pooling or pooling.HasField("round_mode"):
            raise ValueError(
                "a kernel_size for each axis cannot be combined with global_pooling or round_mode"
            )
        return by_shapes(pooling, type(message.pooling_nd_param)(pool=pooling.pool))

    def _is_global(self, pooling: Any) -> bool:
        return bool(getattr(pooling, "global_pooling", False))

    def _rounding(self, pooling: Any) -> str:
        if "round_mode" not in pooling.DESCRIPTOR.fields_by_name:
            return "ceil"
        name: str = pooling.RoundMode.Name(pooling.round_mode)
        return name.lower()


class SPP(CaffeLayer):
    """A pyramid of poolings, with 1, 2 x 2, 4 x 4, ... windows over the whole image at its
    levels, flattened and concatenated, so that images of any size give rows of the same
    length. He et al. 2014."""

    name = "SPP"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        spp, x = message.spp_param, bottoms[0]
        _check_images(x)
        if spp.pyramid_height < 1:
            raise ValueError("spp_param needs a pyramid_height of 1 or more")
        method, levels = spp.PoolMethod.Name(spp.pool), []
        for level in range(spp.pyramid_height):
            bins = 2**level
            kernel = tuple(-(-extent // bins) for extent in x.shape[2:])
            pad = tuple((k * bins - n + 1) // 2 for k, n in zip(kernel, x.shape[2:], strict=True))
            if any(p >= k for p, k in zip(pad, kernel, strict=True)):
                raise ValueError(
                    f"pyramid_height {spp.pyramid_height}: level {level} cuts {x.shape[2:]} into "
                    f"{bins} x {bins} windows of {kernel}, whose pad {pad} would be as large as the "
                    f"window"
                )
            attributes = {"kernel": kernel, "stride": kernel, "pad": pad}
            levels.append(_pooled(x, method, attributes, in_training(message, graph), graph, level)[0])
        if len(levels) == 1:
            return levels
        rows = [graph.apply("reshape", y, shape=(y.shape[0], math.prod(y.shape[1:]))) for y in levels]
        return [graph.apply("concat", *rows, axis=1)]


def biased(layer: Layer, x: Tensor, b: Tensor, axis: int, graph: GraphBuilder) -> Tensor:
    """Return x plus b, broadcast along the axes from ``axis`` on."""
    one = graph.constant(f"{layer.name}.one", np.ones(b.shape))
    y: Tensor = graph.apply("scale", x, one, b, axis=axis)
    return y


def _pooled(
    x: Tensor,
    method: str,
    attributes: dict[str, Any],
    draws: bool,
    graph: GraphBuilder,
    level: int = 0,
) -> list[Tensor]:
    """Return the pooled x and, for a maximum, its places. Each ``level`` of a layer draws its
    own random numbers."""
    if method == "MAX":
        return list(graph.apply("pooling_max", x, **attributes))
    if method == "AVE":
        return [graph.apply("pooling_average", x, **attributes)]
    if any(attributes["pad"]):
        raise ValueError(
            f"pool STOCHASTIC supports no padding (pad {attributes['pad']}); MAX and AVE do"
        )
    if not draws:
        return [graph.apply("pooling_self_weighted", x, **attributes)]
    counters = graph.scalar("iteration"), graph.scalar("sample")
    random = {"seed": graph.seed + level, "stream": graph.stream}
    return list(graph.apply("pooling_stochastic", x, *counters, **attributes, **random))[:1]


def _in_turn(x: Tensor, method: str, windows: Windows, rounding: str, graph: GraphBuilder) -> Tensor:
    """Pool x over any number of axes: over the last two, then over each of those before. The maximum of
    a window is the maximum of its planes' maxima; its average likewise, because it divides by the
    window's extents."""
    if method not in ("MAX", "AVE"):
        raise ValueError(f"pool {method} is for images, samples x channels x rows x columns, not {x!r}")
    axes = tuple(range(2, len(x.shape)))
    for group in (axes[-2:], *((axis,) for axis in reversed(axes[:-2]))):
        about = {name: tuple(extents[axis - 2] for axis in group) for name, extents in windows.items()}
        if set(about["kernel"] + about["stride"]) == {1} and not any(about["pad"]):
            continue
        before, behind = x.shape[: group[0]], x.shape[group[-1] + 1 :]
        plane = (*(x.shape[axis] for axis in group), math.prod(behind))[:2]
        images = _reshaped(x, (x.shape[0], math.prod(before[1:]), *plane), graph)
        if len(group) == 1:
            point = {"kernel": 1, "stride": 1, "pad": 0}
            about = {name: (*extents, point[name]) for name, extents in about.items()}
        pooled, *_ = _pooled(images, method, {**about, "rounding": rounding}, False, graph)
        x = _reshaped(pooled, (*before, *pooled.shape[2 : 2 + len(group)], *behind), graph)
    return x


def _reshaped(x: Tensor, shape: Shape, graph: GraphBuilder) -> Tensor:
    if x.shape == shape:
        return x
    made: Tensor = graph.apply("reshape", x, shape=shape)
    return made


def _no_larger(kernel: Shape, stride: Shape, around: Sides, space: Shape) -> Shape:
    """Return the kernel. Where rounding up would leave a single window larger than the padded space, the
    kernel is reduced to the size of that space."""
    wholes = map(sum, zip(space, around.before, around.behind, strict=True))
    fits = zip(kernel, stride, wholes, strict=True)
    return tuple(whole if whole < k < whole + step else k for k, step, whole in fits)


def _check_images(x: Tensor) -> None:
    if len(x.shape) != 4:
        raise ValueError(f"pools samples x channels x rows x columns; its bottom is {x!r}")


def _as_images(x: Tensor, axis: int, graph: GraphBuilder) -> Tensor:
    """Return x as (samples, channels, space). The axes before ``axis`` become one; if there are none
    after it, a spatial axis of extent 1 is added."""
    return _reshaped(
        x, (math.prod(x.shape[:axis]), x.shape[axis], *(x.shape[axis + 1 :] or (1,))), graph
    )


def _as_before(x: Tensor, axis: int, y: Tensor, graph: GraphBuilder) -> Tensor:
    """Return y, computed from x as images, with the axes of x."""
    return _reshaped(y, (*x.shape[:axis], *y.shape[1 : 1 + len(x.shape) - axis]), graph)


def _windows(convolution: Any, spatial: int) -> tuple[Shape, Windows]:
    """Return the kernel's extents, and its stride, pad and dilation, for a number of spatial axes."""
    kernel = window_extents(convolution, "kernel_size", "kernel", spatial, None)
    windows = {
        "stride": window_extents(convolution, "stride", "stride", spatial, 1),
        "pad": window_extents(convolution, "pad", "pad", spatial, 0),
        "dilation": window_extents(convolution, "dilation", None, spatial, 1),
    }
    positive = {"kernel_size": kernel, "stride": windows["stride"], "dilation": windows["dilation"]}
    for field, extents in positive.items():
        if min(extents, default=1) < 1:
            raise ValueError(f"{field} {extents} is not positive")
    return kernel, windows


def window_extents(
    message: Any, field: str, stem: str | None, spatial: int, default: int | None
) -> Shape:
    """Return a number for each spatial axis: from ``field`` (one for all, or one for each), or from the
    pair ``<stem>_h`` and ``<stem>_w``. Raise ValueError where Caffe would stop."""
    shape = f"{stem}_shape"
    if shape in message.DESCRIPTOR.fields_by_name and message.HasField(shape):
        raise ValueError(f"{shape} is for the layer types NdConvolution and NdPooling; give a {field}")
    if field in _FIRST_AXIS and (named := of_first_axis(message)):
        if spatial != 3:
            raise ValueError(f"{named[0]} is for 3 spatial axes, but there are {spatial}")
        first = [getattr(message, name) for name in _FIRST_AXIS[field] if name in named]
        if not first and default is None:
            raise ValueError(f"has {named[0]}, so it also needs a {' or a '.join(_FIRST_AXIS[field])}")
        return (*(first or [default or 0])[:1], *_plane(message, field, stem, 2, default))
    return _plane(message, field, stem, spatial, default)


_FIRST_AXIS = {
    "kernel_size": ("kernel_depth", "kernel_l"),
    "stride": ("temporal_stride", "stride_l"),
    "pad": ("temporal_pad", "pad_l"),
}
"""C3D's and P3D's names for the extents along a video's time axis; the other fields then mean
rows and columns."""


def of_first_axis(message: Any) -> list[str]:
    """Return the fields of a video's time axis that are given."""
    known = message.DESCRIPTOR.fields_by_name
    left = {"pad_l"} & set(known) if "pad_t" in known else set()  # here it is the left one of four sides
    names = (name for names in _FIRST_AXIS.values() for name in names if name not in left)
    return [name for name in names if name in known and message.HasField(name)]


def _plane(message: Any, field: str, stem: str | None, spatial: int, default: int | None) -> Shape:
    # Pooling's fields are single numbers, Convolution's are lists.
    value = {f.name: v for f, v in message.ListFields()}.get(field, ())
    given = [value] if isinstance(value, int) else list(value)
    pair = (
        [f"{stem}_h", f"{stem}_w"] if stem and f"{stem}_h" in message.DESCRIPTOR.fields_by_name else []
    )
    if any(message.HasField(name) for name in pair):
        if given:
            raise ValueError(f"{field} and {' or '.join(pair)} cannot be combined")
        if spatial != 2:
            raise ValueError(f"{' and '.join(pair)} are for 2 spatial axes, but there are {spatial}")
        if not all(message.HasField(name) for name in pair) and default is None:
            raise ValueError(f"needs both {pair[0]} and {pair[1]}")
        return tuple(getattr(message, name) if message.HasField(name) else default or 0 for name in pair)
    if not given:
        if default is None and spatial:
            raise ValueError(f"needs a {field}")
        given = [default or 0]
    if len(given) not in (1, spatial):
        raise ValueError(f"{field} has {len(given)} numbers for {spatial} spatial axes")
    return tuple(given * spatial if len(given) == 1 else given)


def by_shapes(parameters: Any, made: Any) -> Any:
    """Return the message ``made``, whose sizes are lists, with the numbers from the shapes of
    ``parameters``. Raise ValueError if there is no kernel_shape, or if the shapes have different numbers
    of axes."""
    kernel = list(parameters.kernel_shape.dim)
    if not kernel:
        raise ValueError("needs a kernel_shape { dim: ... }")
    for stem, default in (("kernel", 0), ("stride", 1), ("pad", 0)):
        given = list(getattr(parameters, f"{stem}_shape").dim) or [default] * len(kernel)
        if len(given) != len(kernel):
            raise ValueError(
                f"{stem}_shape has {len(given)} numbers, but kernel_shape has {len(kernel)}"
            )
        if min(given) < 0:
            raise ValueError(f"{stem}_shape {given} has a number below 0")
        field = "kernel_size" if stem == "kernel" else stem
        made.ClearField(field)
        getattr(made, field).extend(given)
    return made
