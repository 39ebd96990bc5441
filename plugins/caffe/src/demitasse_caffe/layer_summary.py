"""What a person wants to know about a layer at a glance: its family, and a line or two of numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from demitasse import Layer
from demitasse_caffe.layers.convolution import of_first_axis, window_extents
from demitasse_caffe.schema import is_repeated, number, parameter_field

FAMILIES: dict[str, tuple[str, str]] = {
    "data": ("#e3f4e4", "#6fb374"),
    "convolution": ("#dfecfb", "#5b93d3"),
    "inner product": ("#e9e3fa", "#8d76cf"),
    "pooling": ("#fdeedd", "#dd9a4d"),
    "activation": ("#fde6ea", "#dd7f90"),
    "normalization": ("#dcf3f1", "#4fada4"),
    "combination": ("#fbf5d6", "#c9ac3b"),
    "shape": ("#eceff2", "#9aa6b2"),
    "recurrent": ("#f3e2f4", "#b276b8"),
    "loss": ("#fbdcd6", "#cf6d57"),
    "other": ("#f7f7f4", "#a5a59a"),
}
"""The fill and outline colours of each family, in the order of the legend."""

_MEMBERS = {
    "data": "AnnotatedData ContinuationIndicator Data DenseImageData DummyData HDF5Data HDF5Output "
    "ImageData ImageLabelmapData ImageSegData Input MemoryData Parameter VideoData WindowData",
    "convolution": "Convolution Convolution3D ConvolutionDepthwise Deconvolution Deconvolution3D "
    "DenseBlock DepthwiseConvolution Im2col NdConvolution",
    "inner product": "CosinAddm Embed InnerProduct LabelSpecificAdd LargeMarginInnerProduct "
    "MarginInnerProduct",
    "pooling": "NdPooling PSROIPooling Pooling Pooling3D PoolingND Proposal ROIAlign ROIPooling SPP",
    "activation": "AbsVal BNLL Clip Dropout ELU Exp GradientScaler HardSwish Log PReLU Power ReLU ReLU6 "
    "Sigmoid Softmax SpatialDropout Swish TanH Threshold",
    "normalization": "BN BatchNorm Bias ChannelScale GroupNorm LRN MVN Normalize Scale",
    "combination": "Axpy BroadcastMul Concat Eltwise Mul Slice Split",
    "shape": "ArgMax BatchReindex BatchToSpaceND Crop DepthToSpace Filter Flatten Flip Interp Pad "
    "Permute Reduction Reorg Reshape ResizeBilinear ResizeNearestNeighbor Reverse ShuffleChannel "
    "Silence SpaceToBatchND SpaceToDepth SpatialTransformer Squeeze Tile Transpose "
    "Unpooling Upsample UpsampleDarknet",
    "recurrent": "LSTM LSTMUnit Lstm RNN",
    "loss": "Accuracy BoxAnnotatorOHEM CTCGreedyDecoder CTCLoss CenterLoss ContrastiveLoss CtcLoss "
    "DiceCoefLoss EuclideanLoss FocalLoss HingeLoss InfogainLoss L1Loss LabelsequenceAccuracy "
    "MultiBoxLoss MultinomialLogisticLoss RegionLoss SegAccuracy SigmoidCrossEntropyBalanceLoss "
    "SigmoidCrossEntropyLoss SmoothL1Loss SmoothL1LossOHEM SoftmaxCrossEntropyLoss SoftmaxWithLoss "
    "SoftmaxWithLossOHEM TripletLoss WarpCTCLoss WeightedSoftmaxWithLoss Yolov3",
}
_FAMILY = {kind: family for family, kinds in _MEMBERS.items() for kind in kinds.split()}
_BORROWED = dict.fromkeys(
    ("ConvolutionDepthwise", "Deconvolution", "DepthwiseConvolution", "Im2col", "NdConvolution"),
    "convolution_param",
) | {
    "AnnotatedData": "data_param",
    "NdPooling": "pooling_param",
    "PriorBoxClustered": "prior_box_param",
    "ROIAlign": "roi_pooling_param",
    "ImageLabelmapData": "image_data_param",
    "CTCGreedyDecoder": "ctc_decoder_param",
    "DenseBlock": "denseblock_param",
    "CTCLoss": "ctc_loss_param",
    "WarpCTCLoss": "ctc_loss_param",
    "ImageSegData": "image_data_param",
    "SpatialDropout": "dropout_param",
    "Deconvolution3D": "convolution3d_param",
    "LSTM": "recurrent_param",
    "RNN": "recurrent_param",
}
_SHARING = {
    "Convolution3D": "convolution_param",
    "Deconvolution3D": "convolution_param",
    "Pooling3D": "pooling_param",
}
"""Where C3D's first version has the parameters of types that have a message of their own."""

_MOST = 3


def family(kind: str) -> str:
    """Return the family of a layer type; ``other`` for a third-party type."""
    return _FAMILY.get(kind, "other")


def summary(layer: Layer) -> list[str]:
    """Return the type, and below it the layer's numbers, one string for each line."""
    if isinstance(layer.parameters, Mapping):
        said = [f"{name} {value}" for name, value in list(layer.parameters.items())[:_MOST]]
    else:
        field = parameter_field(layer.type, layer.parameters.DESCRIPTOR.fields_by_name)
        field = _BORROWED.get(layer.type, field)
        if layer.type in _SHARING and not layer.parameters.HasField(field):
            field = _SHARING[layer.type]
        message = getattr(layer.parameters, field, None)
        said = _DESCRIBED.get(layer.type, _set_fields)(message) if message is not None else []
    return [layer.type, *([" · ".join(said)] if said else [])]


def _convolution(message: Any) -> list[str]:
    parts = [_by_axis(message, "kernel_size", "kernel")]
    parts += _unless(1, "stride", _by_axis(message, "stride", "stride"))
    parts += _unless(0, "pad", _by_axis(message, "pad", "pad"))
    parts += _unless(1, "dilation", "×".join(map(str, message.dilation)))
    parts += _unless(1, "group", str(message.group))
    parts.append(f"{message.num_output} outputs")
    return [part for part in parts if part]


def _pooling(message: Any) -> list[str]:
    method = {0: "max", 1: "average", 2: "stochastic"}[message.pool]
    if getattr(message, "global_pooling", False):
        return [f"{method} of all"]
    parts = [f"{method} {_by_axis(message, 'kernel_size', 'kernel')}"]
    parts += _unless(1, "stride", _by_axis(message, "stride", "stride"))
    return parts + _unless(0, "pad", _by_axis(message, "pad", "pad"))


def _by_axis(message: Any, field: str, stem: str) -> str:
    """Return ``3×3`` or ``3×1``, from the field's number or numbers, or from its ``_h`` and ``_w``
    variants; for videos, whose frames come first, ``2×3×3``."""
    if (shape := f"{stem}_shape") in message.DESCRIPTOR.fields_by_name and message.HasField(shape):
        return "×".join(map(str, getattr(message, shape).dim))
    if of_first_axis(message):
        return "×".join(map(str, window_extents(message, field, stem, 3, int(field == "stride"))))
    if f"{stem}_h" in message.DESCRIPTOR.fields_by_name:
        height, width = getattr(message, f"{stem}_h"), getattr(message, f"{stem}_w")
        if message.HasField(f"{stem}_h") or message.HasField(f"{stem}_w"):
            return f"{height}×{width}"
    value = getattr(message, field)
    if is_repeated(message.DESCRIPTOR.fields_by_name[field]):
        value = list(value)
    elif message.HasField(field):
        value = [value]
    else:
        return ""
    twice = len(value) == 1 and field == "kernel_size"
    return "×".join(map(str, value * 2 if twice else value))


def _unless(default: int, name: str, value: str) -> list[str]:
    return [f"{name} {value}"] if set(value.split("×")) - {"", str(default)} else []


def _inner_product(message: Any) -> list[str]:
    return [f"{message.num_output} outputs"]


def _embed(message: Any) -> list[str]:
    return [f"{message.input_dim} words", f"{message.num_output} outputs"]


def _lrn(message: Any) -> list[str]:
    region = "within channel" if message.norm_region else "across channels"
    return [f"{message.local_size} {region}"]


def _dropout(message: Any) -> list[str]:
    return [f"{number(message.dropout_ratio):g}"]


def _relu(message: Any) -> list[str]:
    slope = number(message.negative_slope)
    return [f"slope {slope:g}"] if slope else []


def _eltwise(message: Any) -> list[str]:
    word = message.EltwiseOp.Name(message.operation).lower()
    return [word, *(f"{number(value):g}" for value in message.coeff)][: 1 + _MOST]


def _data(message: Any) -> list[str]:
    source = str(message.source).rstrip("/").rpartition("/")[2]
    return [part for part in (source, f"batch {message.batch_size}") if part]


def _nothing(message: Any) -> list[str]:
    return []


def _set_fields(message: Any) -> list[str]:
    """Return the simple fields that the file sets: what is worth writing is often worth showing."""
    said = []
    for field, value in message.ListFields():
        if field.message_type is None:
            values = list(value) if is_repeated(field) else [value]
            said.append(f"{field.name} {' '.join(_text(field, each) for each in values[:4])}")
        elif field.name == "shape":
            said.append(_shapes(value if is_repeated(field) else [value]))
    return said[:_MOST]


def _shapes(shapes: Iterable[Any]) -> str:
    return ", ".join("×".join(map(str, shape.dim)) for shape in list(shapes)[:2])


def _text(field: Any, value: Any) -> str:
    if field.enum_type is not None:
        return str(field.enum_type.values_by_number[value].name).lower()
    return f"{number(value):g}" if field.type == field.TYPE_FLOAT else str(value)


_DESCRIBED: dict[str, Callable[[Any], list[str]]] = {
    "Convolution": _convolution,
    "ConvolutionDepthwise": _convolution,
    "Deconvolution": _convolution,
    "DepthwiseConvolution": _convolution,
    "NdConvolution": _convolution,
    "NdPooling": _pooling,
    "Im2col": lambda message: _convolution(message)[:-1],
    "Convolution3D": _convolution,
    "Deconvolution3D": _convolution,
    "Pooling": _pooling,
    "Pooling3D": _pooling,
    "PoolingND": _pooling,
    "InnerProduct": _inner_product,
    "Embed": _embed,
    "LRN": _lrn,
    "Dropout": _dropout,
    "ReLU": _relu,
    "Eltwise": _eltwise,
    "Data": _data,
    "ImageData": _data,
    "HDF5Data": _data,
    "AnnotatedData": _data,
    "VideoData": _data,
    "WindowData": _data,
    "BatchNorm": _nothing,
    "Scale": _nothing,
    "Bias": _nothing,
    "Input": _nothing,
    "Split": _nothing,
    "Silence": _nothing,
}
