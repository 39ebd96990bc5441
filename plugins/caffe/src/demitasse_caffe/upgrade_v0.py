"""Upgrade of layers of 2013 (``layers { layer { type: "conv" ... } }``) to those of 2014.

Source: the rules of Caffe's upgrade from V0 to V1. In V0 all types share one message; as in Caffe,
fields that do not belong to a layer's type are dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from demitasse import Location, ModelError, unknown
from demitasse_caffe.schema import Schema, is_repeated

V0_TYPES = {
    "accuracy": "ACCURACY",
    "bnll": "BNLL",
    "concat": "CONCAT",
    "conv": "CONVOLUTION",
    "data": "DATA",
    "dropout": "DROPOUT",
    "euclidean_loss": "EUCLIDEAN_LOSS",
    "flatten": "FLATTEN",
    "hdf5_data": "HDF5_DATA",
    "hdf5_output": "HDF5_OUTPUT",
    "im2col": "IM2COL",
    "images": "IMAGE_DATA",
    "infogain_loss": "INFOGAIN_LOSS",
    "innerproduct": "INNER_PRODUCT",
    "lrn": "LRN",
    "multinomial_logistic_loss": "MULTINOMIAL_LOGISTIC_LOSS",
    "pool": "POOLING",
    "relu": "RELU",
    "sigmoid": "SIGMOID",
    "softmax": "SOFTMAX",
    "softmax_loss": "SOFTMAX_LOSS",
    "split": "SPLIT",
    "tanh": "TANH",
    "window_data": "WINDOW_DATA",
}
"""V0 layer types by their V1 names. ``padding`` is not among them: it is folded into other layers."""

_FILTERS = {
    "num_output": "num_output",
    "biasterm": "bias_term",
    "weight_filler": "weight_filler",
    "bias_filler": "bias_filler",
}
_WINDOWS = {"pad": "pad", "kernelsize": "kernel_size", "stride": "stride"}
_SAMPLES = {"source": "source", "batchsize": "batch_size"}
_FIELDS: dict[str, tuple[str, dict[str, str]]] = {
    "concat": ("concat_param", {"concat_dim": "concat_dim"}),
    "conv": ("convolution_param", {**_FILTERS, **_WINDOWS, "group": "group"}),
    "data": ("data_param", {**_SAMPLES, "rand_skip": "rand_skip"}),
    "dropout": ("dropout_param", {"dropout_ratio": "dropout_ratio"}),
    "hdf5_data": ("hdf5_data_param", _SAMPLES),
    "images": (
        "image_data_param",
        {
            **_SAMPLES,
            "rand_skip": "rand_skip",
            "shuffle_images": "shuffle",
            "new_height": "new_height",
            "new_width": "new_width",
        },
    ),
    "infogain_loss": ("infogain_loss_param", {"source": "source"}),
    "innerproduct": ("inner_product_param", _FILTERS),
    "lrn": ("lrn_param", {name: name for name in ("local_size", "alpha", "beta", "k")}),
    "pool": ("pooling_param", {**_WINDOWS, "pool": "pool"}),
    "window_data": (
        "window_data_param",
        {
            **_SAMPLES,
            "det_fg_threshold": "fg_threshold",
            "det_bg_threshold": "bg_threshold",
            "det_fg_fraction": "fg_fraction",
            "det_context_pad": "context_pad",
            "det_crop_mode": "crop_mode",
        },
    ),
}
"""For each type, the V1 message, and its fields by their V0 names."""

_TRANSFORMATIONS = {
    "scale": "scale",
    "meanfile": "mean_file",
    "cropsize": "crop_size",
    "mirror": "mirror",
}
_BLOBS = ("blobs", "blobs_lr", "weight_decay")


def upgrade_v0(
    layers: Sequence[Any], places: Sequence[Location], schema: Schema
) -> tuple[list[Any], list[Location]]:
    """Return V1 layers for a net's ``layers``, some of which are V0, and the location of each. A
    padding layer becomes the ``pad`` of the convolutions and poolings that read it. Raise ModelError
    with the location."""
    kept, where = [], []
    for layer, place in zip(_without_padding(layers, places), places, strict=True):
        if layer is not None:
            kept.append(_upgrade(layer, place, schema) if layer.HasField("layer") else layer)
            where.append(place)
    return kept, where


def _without_padding(layers: Sequence[Any], places: Sequence[Location]) -> list[Any]:
    """Return the layers, with None in place of padding layers; their readers are replaced
    by copies that pad."""
    makers: dict[str, Any] = {}
    result: list[Any] = []
    for layer, place in zip(layers, places, strict=True):
        padding = [makers[name] for name in layer.bottom if _pads(makers.get(name))]
        own = layer
        if padding:
            own = _padded(layer, padding[0], place)
        result.append(None if _pads(layer) else own)
        makers.update((top, own) for top in layer.top)
    return result


def _pads(layer: Any) -> bool:
    return layer is not None and layer.layer.type == "padding"


def _padded(layer: Any, padding: Any, place: Location) -> Any:
    name, kind = layer.layer.name, layer.layer.type
    if kind not in ("conv", "pool"):
        raise ModelError(
            f"{place}: layer {name!r} of type {kind!r} reads the padding layer {padding.layer.name!r}; "
            f"only conv and pool can"
        )
    if not len(layer.bottom) == len(padding.bottom) == len(padding.top) == 1:
        raise ModelError(
            f"{place}: layer {name!r} and the padding layer {padding.layer.name!r} that it reads must "
            f"have one bottom each"
        )
    own = type(layer)()
    own.CopyFrom(layer)
    own.layer.pad = padding.layer.pad
    own.bottom[0] = padding.bottom[0]
    return own


def _upgrade(old: Any, place: Location, schema: Schema) -> Any:
    inner, new = old.layer, schema.message("V1LayerParameter")
    new.bottom.extend(old.bottom)
    new.top.extend(old.top)
    if inner.HasField("name"):
        new.name = inner.name
    if inner.HasField("type"):
        if inner.type not in V0_TYPES:
            where = f"{place}: layer {inner.name!r}"
            raise ModelError(unknown("type of the V0 form", inner.type, [*V0_TYPES, "padding"], where))
        enum = new.DESCRIPTOR.fields_by_name["type"].enum_type
        new.type = enum.values_by_name[V0_TYPES[inner.type]].number
    for name in _BLOBS:
        getattr(new, name).extend(getattr(inner, name) or getattr(old, name))
    _move(inner, new, *_FIELDS.get(inner.type, ("", {})))
    _move(inner, new, "transform_param", _TRANSFORMATIONS)
    if inner.type == "hdf5_output" and inner.HasField("hdf5_output_param"):
        new.hdf5_output_param.CopyFrom(inner.hdf5_output_param)
    return new


def _move(source: Any, layer: Any, message: str, fields: dict[str, str]) -> None:
    for old, new in fields.items():
        if not source.HasField(old):
            continue
        value, target = getattr(source, old), getattr(layer, message)
        descriptor = target.DESCRIPTOR.fields_by_name[new]
        if is_repeated(descriptor):
            getattr(target, new).append(value)
        elif descriptor.message_type is not None:
            getattr(target, new).CopyFrom(value)
        else:
            setattr(target, new, value)
