"""Windows over the three axes of videos and volumes, under the names that forks give them: those of C3D
and P3D, which have separate fields for the first axis, PoolingND, and those of video-caffe, which have
shapes. Tran et al. 2015, *Learning Spatiotemporal Features with 3D Convolutional Networks*, section 3;
Qiu et al. 2017, *Pseudo-3D Residual Networks*."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from demitasse import GraphBuilder, Layer, Tensor
from demitasse_caffe.layers.convolution import Convolution, Deconvolution, Pooling, by_shapes


class Convolution3D(Convolution):
    """A convolution over frames, rows and columns. Its parameters are in convolution3d_param or, in
    C3D's first version, in convolution_param."""

    name = "Convolution3D"

    def _parameters(self, message: Any) -> Any:
        return _deep(message, "convolution3d_param", "convolution_param", ("kernel_depth",))


class Deconvolution3D(Deconvolution):
    """The transpose of Convolution3D."""

    name = "Deconvolution3D"

    def _parameters(self, message: Any) -> Any:
        return _deep(message, "convolution3d_param", "convolution_param", ("kernel_depth",))


class Pooling3D(Pooling):
    """Pooling over frames, rows and columns. Its parameters are in pooling3d_param or, in C3D's first
    version, in pooling_param."""

    name = "Pooling3D"
    tops = (1, 1)

    def _parameters(self, message: Any) -> Any:
        return _deep(message, "pooling3d_param", "pooling_param", ("kernel_depth", "kernel_l"))

    def _is_global(self, pooling: Any) -> bool:
        return False

    def _rounding(self, pooling: Any) -> str:
        return "ceil"


class PoolingND(Pooling):
    """Pooling over any number of axes, with one number for each or one for all."""

    name = "PoolingND"
    tops = (1, 1)

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        if not message.pooling_nd_param.kernel_size:
            raise ValueError("pooling_nd_param needs a kernel_size")
        return super().expand(layer, message, bottoms, graph)

    def _parameters(self, message: Any) -> Any:
        return message.pooling_nd_param

    def _is_global(self, pooling: Any) -> bool:
        return False

    def _rounding(self, pooling: Any) -> str:
        return "ceil"


class NdConvolution(Convolution):
    """A convolution over as many axes as its kernel_shape has numbers."""

    name = "NdConvolution"

    def _parameters(self, message: Any) -> Any:
        convolution = message.convolution_param
        return by_shapes(convolution, _without_shapes(convolution))


class NdPooling(Pooling):
    """Pooling over as many axes as its kernel_shape has numbers, or over all of them."""

    name = "NdPooling"
    tops = (1, 1)

    def _parameters(self, message: Any) -> Any:
        pooling = message.pooling_param
        if pooling.global_pooling:
            return _without_shapes(pooling)
        return by_shapes(pooling, type(message.pooling_nd_param)(pool=pooling.pool))

    def _is_global(self, pooling: Any) -> bool:
        return bool(getattr(pooling, "global_pooling", False))

    def _rounding(self, pooling: Any) -> str:
        return "ceil"


def _without_shapes(parameters: Any) -> Any:
    """Return a copy without the shapes."""
    made = type(parameters)()
    made.CopyFrom(parameters)
    for field in ("kernel_shape", "stride_shape", "pad_shape"):
        made.ClearField(field)
    return made


def _deep(message: Any, own: str, shared: str, depths: tuple[str, ...]) -> Any:
    """Return the parameters of a layer: those in its own field, or else in the field that it shares with
    the layer for images. Raise ValueError unless they give the extent of the first axis exactly once."""
    parameters = getattr(message, own if message.HasField(own) else shared)
    known = parameters.DESCRIPTOR.fields_by_name
    given = [name for name in depths if name in known and parameters.HasField(name)]
    if len(given) != 1:
        where = own if message.HasField(own) else f"{own} (or {shared})"
        raise ValueError(
            f"{where} needs one of {', '.join(depths)}, the window's frames; given: {len(given)}"
        )
    return parameters
