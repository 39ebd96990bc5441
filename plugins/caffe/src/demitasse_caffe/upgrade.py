"""Upgrade, in memory, of nets and solvers written by older versions of Caffe to the current format.

Source: the rules of Caffe's upgrade tools, and files from before and after Caffe's own upgrade.
"""

from __future__ import annotations

from typing import Any

from demitasse import Location, ModelError
from demitasse_caffe.coordinates import align_crops
from demitasse_caffe.schema import Schema, is_repeated
from demitasse_caffe.upgrade_v0 import upgrade_v0

V1_TYPES = {
    "ABSVAL": "AbsVal",
    "ACCURACY": "Accuracy",
    "ARGMAX": "ArgMax",
    "BNLL": "BNLL",
    "CONCAT": "Concat",
    "CONTRASTIVE_LOSS": "ContrastiveLoss",
    "CONVOLUTION": "Convolution",
    "DATA": "Data",
    "DECONVOLUTION": "Deconvolution",
    "DROPOUT": "Dropout",
    "DUMMY_DATA": "DummyData",
    "ELTWISE": "Eltwise",
    "EUCLIDEAN_LOSS": "EuclideanLoss",
    "EXP": "Exp",
    "FLATTEN": "Flatten",
    "HDF5_DATA": "HDF5Data",
    "HDF5_OUTPUT": "HDF5Output",
    "HINGE_LOSS": "HingeLoss",
    "IM2COL": "Im2col",
    "IMAGE_DATA": "ImageData",
    "INFOGAIN_LOSS": "InfogainLoss",
    "INNER_PRODUCT": "InnerProduct",
    "LRN": "LRN",
    "MEMORY_DATA": "MemoryData",
    "MULTINOMIAL_LOGISTIC_LOSS": "MultinomialLogisticLoss",
    "MVN": "MVN",
    "NONE": "",
    "POOLING": "Pooling",
    "POWER": "Power",
    "RELU": "ReLU",
    "SIGMOID": "Sigmoid",
    "SIGMOID_CROSS_ENTROPY_LOSS": "SigmoidCrossEntropyLoss",
    "SILENCE": "Silence",
    "SLICE": "Slice",
    "SOFTMAX": "Softmax",
    "SOFTMAX_LOSS": "SoftmaxWithLoss",
    "SPLIT": "Split",
    "TANH": "TanH",
    "THRESHOLD": "Threshold",
    "WINDOW_DATA": "WindowData",
    # From forks.
    "BN": "BN",
    "CONVOLUTION3D": "Convolution3D",
    "CROP": "Crop",
    "DECONVOLUTION3D": "Deconvolution3D",
    "IMAGE_SEG_DATA": "ImageSegData",
    "INTERP": "Interp",
    "MAT_WRITE": "MatWrite",
    "POOLING3D": "Pooling3D",
    "SEG_ACCURACY": "SegAccuracy",
    "UNPOOLING": "Unpooling",
    "VIDEO_DATA": "VideoData",
}
"""The current names of V1 layer types."""

_SOLVER_TYPES = {
    "SGD": "SGD",
    "NESTEROV": "Nesterov",
    "ADAGRAD": "AdaGrad",
    "RMSPROP": "RMSProp",
    "ADADELTA": "AdaDelta",
    "ADAM": "Adam",
}
_TRANSFORMED = ("data_param", "image_data_param", "window_data_param")
_TRANSFORMATIONS = ("scale", "mean_file", "crop_size", "mirror")
_RENAMED = {"softmaxloss_param": "loss_param"}
"""V1 layer fields by their current names: DeepLab's older fork had its own field for a loss."""

_SPECIAL = ("type", "layer", "param", "blob_share_mode", "blobs_lr", "weight_decay")


def v1_type(layer: Any) -> str:
    """Return the current name of a V1 layer's type."""
    return V1_TYPES[layer.DESCRIPTOR.fields_by_name["type"].enum_type.values_by_number[layer.type].name]


def upgrade_net(
    net: Any, lines: list[int], input_line: int | None, location: Location, schema: Schema
) -> tuple[Any, list[Location]]:
    """Return a net in the current format, and the location of each of its layers.

    ``lines`` are the lines of the file's layers, ``input_line`` that of its first input. Raise
    ModelError for what no format has, and for a mixture of formats.
    """
    if net.layer and net.layers:
        raise ModelError(
            f"{location}: has both 'layer' and 'layers' (the form before 2014); use one of them"
        )
    places = [Location(location.file, line) for line in lines]
    places += [location] * (len(net.layer) + len(net.layers) - len(places))
    result = schema.message("NetParameter")
    result.CopyFrom(net)
    for field in ("layer", "layers", "input", "input_shape", "input_dim"):
        result.ClearField(field)
    place = Location(location.file, input_line)
    if (layer := _input_layer(net, place, schema)) is not None:
        result.layer.append(layer)
        places.insert(0, place)
    result.layer.extend(net.layer)
    if net.layers:
        first = len(places) - len(net.layers)
        layers, own = upgrade_v0(net.layers, places[first:], schema)
        result.layer.extend(_upgrade_v1(*pair, schema) for pair in zip(layers, own, strict=True))
        places[first:] = own
    for layer, place in zip(result.layer, places, strict=True):
        settle_forks(layer, place)
        # Older BatchNorms needed three multipliers; they hold statistics, which are not trained.
        if layer.type == "BatchNorm" and len(layer.param) == 3:
            for spec in layer.param:
                spec.lr_mult = spec.decay_mult = 0
    if net.layers:
        align_crops(result.layer, places)
    align_crops(result.layer, places, "AutoCrop")
    return result, places


def settle_forks(layer: Any, place: object) -> None:
    """Replace forks' fields for features that Caffe has, too, by Caffe's, in place. Raise ModelError,
    starting with ``place``, if both are given and differ."""
    _settle_rounding(layer, place)
    _settle_holes(layer, place)
    _settle_labels(layer, place)


def _settle_labels(layer: Any, place: object) -> None:
    """Turn ``has_label``, from the first version of DeepLab's fork, into ``label_type``, in place. True
    said nothing about the kind of label, so a given ``label_type`` stays."""
    data = layer.image_data_param
    if not data.HasField("has_label"):
        return
    if data.HasField("label_type") and data.has_label == (data.label_type == data.NONE):
        told, kind = str(data.has_label).lower(), data.LabelType.Name(data.label_type)
        raise ModelError(
            f"{place}: layer {layer.name!r}: has_label: {told} and label_type: {kind} differ; "
            f"give label_type alone"
        )
    if not data.has_label:
        data.label_type = data.NONE
    data.ClearField("has_label")


def _settle_holes(layer: Any, place: object) -> None:
    """Turn DeepLab's ``hole``, or ``hole_h`` and ``hole_w``, into ``dilation``, in place."""
    for convolution in (layer.convolution_param, layer.convolution3d_param):
        given = [name for name in ("hole", "hole_h", "hole_w") if convolution.HasField(name)]
        if not given:
            continue
        told = ", ".join(f"{name}: {getattr(convolution, name)}" for name in given)
        if "hole" in given and len(given) > 1:
            raise ModelError(
                f"{place}: layer {layer.name!r}: {told}: hole applies to both axes; give dilation"
            )
        axes = ["hole"] if "hole" in given else ["hole_h", "hole_w"]
        holes, dilation = [getattr(convolution, name) for name in axes], list(convolution.dilation)
        count = max(len(holes), len(dilation))
        if not dilation:
            convolution.dilation.extend(holes)
        elif _for_each(holes, count) != _for_each(dilation, count):
            raise ModelError(
                f"{place}: layer {layer.name!r}: {told} and dilation: {', '.join(map(str, dilation))} "
                f"differ; give dilation alone"
            )
        for name in given:
            convolution.ClearField(name)


def _for_each(extents: list[int], count: int) -> list[int]:
    """Return one number for each of ``count`` axes; a single number applies to all of them."""
    return extents * count if len(extents) == 1 else extents


def _settle_rounding(layer: Any, place: object) -> None:
    """Turn the forks' ``ceil_mode`` and ``torch_pooling`` into ``round_mode``, in place."""
    pooling = layer.pooling_param
    for name, down in (("ceil_mode", False), ("torch_pooling", True)):
        given = getattr(pooling, name)
        if not pooling.HasField(name) or (down and not given):
            continue
        rounding = pooling.FLOOR if given == down else pooling.CEIL
        if pooling.HasField("round_mode") and pooling.round_mode != rounding:
            told = "true" if given else "false"
            mode = pooling.RoundMode.Name(pooling.round_mode)
            raise ModelError(
                f"{place}: layer {layer.name!r}: {name}: {told} and round_mode: {mode} differ; "
                f"give round_mode alone"
            )
        pooling.round_mode = rounding
        pooling.ClearField(name)


def upgrade_solver(solver: Any, location: Location) -> None:
    """Turn the old ``solver_type`` into ``type``, in place."""
    if solver.HasField("solver_type"):
        if solver.HasField("type"):
            raise ModelError(f"{location}: has both type and the old solver_type; use type")
        enum = solver.DESCRIPTOR.fields_by_name["solver_type"].enum_type
        solver.type = _SOLVER_TYPES[enum.values_by_number[solver.solver_type].name]
        solver.ClearField("solver_type")


def _input_layer(net: Any, location: Location, schema: Schema) -> Any:
    """Return the Input layer for a net's ``input`` fields, or None if it has none. As in Caffe,
    input_shape takes precedence over the older input_dim, and surplus shapes are ignored. A name without
    a shape is ignored if a layer makes that blob, as in nets that came with weights."""
    names, shapes, dims = list(net.input), list(net.input_shape), list(net.input_dim)
    if shapes:
        dims = []
    elif not dims:
        made = {top for layer in (*net.layer, *net.layers) for top in layer.top}
        names = [name for name in names if name not in made]
    if not names:
        return None
    if shapes and len(shapes) < len(names):
        raise ModelError(f"{location}: {len(shapes)} input_shape for {len(names)} input")
    if dims and len(dims) < 4 * len(names):
        raise ModelError(
            f"{location}: {len(dims)} input_dim for {len(names)} input: each input has 4 "
            f"(num, channels, height, width)"
        )
    taken = {layer.name for layer in (*net.layer, *net.layers)}
    name = next(n for n in ("input", *(f"input_{i}" for i in range(1, 1000))) if n not in taken)
    layer = schema.message("LayerParameter")
    layer.name, layer.type = name, "Input"
    layer.top.extend(names)
    for shape in shapes[: len(names)]:
        layer.input_param.shape.add().CopyFrom(shape)
    for first in range(0, 4 * len(names) if dims else 0, 4):
        layer.input_param.shape.add().dim.extend(dims[first : first + 4])
    return layer


def _upgrade_v1(old: Any, place: Location, schema: Schema) -> Any:
    new = schema.message("LayerParameter")
    if old.HasField("type"):
        new.type = v1_type(old)
    for field, value in old.ListFields():
        if field.name in _SPECIAL:
            continue
        if is_repeated(field):
            getattr(new, field.name).extend(value)
        elif field.message_type is not None:
            getattr(new, _RENAMED.get(field.name, field.name)).MergeFrom(value)
        else:
            setattr(new, field.name, value)
    _upgrade_parameters(old, new, place)
    for name in _TRANSFORMED:
        if new.HasField(name):
            _move_transformations(getattr(new, name), new)
    if new.type == "VideoData" and new.HasField("image_data_param"):
        _move_videos(new, place)
    return new


def _upgrade_parameters(old: Any, new: Any, place: Location) -> None:
    """Combine param, blob_share_mode, blobs_lr and weight_decay into one ``param``
    for each parameter."""
    lists = (old.param, old.blob_share_mode, old.blobs_lr, old.weight_decay)
    if len(old.blob_share_mode) > len(old.param):
        raise ModelError(f"{place}: layer {old.name!r}: more blob_share_mode than param names")
    for index in range(max(map(len, lists))):
        spec = new.param.add()
        if index < len(old.param) and old.param[index]:
            spec.name = old.param[index]
        if index < len(old.blob_share_mode):
            spec.share_mode = old.blob_share_mode[index]
        if index < len(old.blobs_lr):
            spec.lr_mult = old.blobs_lr[index]
        if index < len(old.weight_decay):
            spec.decay_mult = old.weight_decay[index]


def _move_videos(layer: Any, place: Location) -> None:
    """Move what C3D's first version has in image_data_param to video_data_param. Raise ModelError for
    fields that a VideoData layer does not have."""
    for field, value in layer.image_data_param.ListFields():
        if field.name == "mean_value":
            layer.transform_param.mean_value.append(value)
        elif field.name in layer.video_data_param.DESCRIPTOR.fields_by_name:
            setattr(layer.video_data_param, field.name, value)
        else:
            raise ModelError(
                f"{place}: layer {layer.name!r}: image_data_param {{ {field.name} }} is for images "
                f"only; a VideoData layer does not have it"
            )
    layer.ClearField("image_data_param")


def _move_transformations(source: Any, layer: Any) -> None:
    for name in _TRANSFORMATIONS:
        if source.HasField(name):
            setattr(layer.transform_param, name, getattr(source, name))
            source.ClearField(name)
