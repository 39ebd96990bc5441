"""Binary nets and solvers: serialized messages, which have no text and therefore no lines. A caffemodel
that Caffe wrote is such a net too, with the weights of its layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from demitasse import ModelError
from demitasse_caffe.outline import Outline
from demitasse_caffe.schema import Schema, is_repeated, video_width, wire_classes
from demitasse_caffe.unknown_fields import told, unknown_fields
from demitasse_caffe.whole_file import read_whole

_NET, _SOLVER, _BLOB = "NetParameter", "SolverParameter", "BlobProto"
NO_OUTLINE = Outline("")
"""The outline of a file without lines."""
_CLIP = 148
"""The field number of clip_param."""

_SOLVERS = ("net", "net_param", "train_net", "train_net_param", "base_lr", "lr_policy", "max_iter")


def binary_kind(path: Path) -> str | None:
    """Return NetParameter, SolverParameter or BlobProto (for example a mean) by the content of a file,
    or None for anything else. Raise ModelError if the file cannot be read."""
    data = read_whole(path)
    kinds = ((_NET, _is_net), (_SOLVER, _is_solver), (_BLOB, _is_blob))
    return next((name for name, fits in kinds if _fits(data, name, fits)), None)


def _fits(data: bytes, name: str, fits: Any) -> bool:
    message = wire_classes()[name]()
    try:
        message.ParseFromString(data)
    except (DecodeError, ValueError):
        return False
    known = len(UnknownFieldSet(message)) == 0 or (
        # A fork's own fields may occur next to layers, whose field number no other kind of file has.
        (name == _NET and any(layer.name and layer.type for layer in message.layer))
        or (name == _BLOB and video_width(message) is not None)
    )
    return known and bool(fits(message))


def _is_net(message: Any) -> bool:
    named = any(layer.name or layer.type for layer in message.layer)
    older = any(layer.name or layer.type or layer.HasField("layer") for layer in message.layers)
    return bool(named or older)


def _is_solver(message: Any) -> bool:
    return sum(bool(message.HasField(name)) for name in _SOLVERS) >= 2


def _is_blob(message: Any) -> bool:
    return bool(message.data or message.double_data or message.raw_data or video_width(message))


def parse_binary(path: Path, name: str, schema: Schema) -> tuple[Any, Outline]:
    """Return a file as a message of the schema, without the weights of its layers and without a
    fork's fields, and an outline. The outline has no lines; its notes say what was left out.
    Raise ModelError."""
    wire, message, data = wire_classes()[name](), schema.message(name), read_whole(path)
    try:
        wire.ParseFromString(data)
        likenesses = 0
        for net in _nets(wire):
            _drop_weights(net)
            likenesses += _drop_likenesses(net)
        message.ParseFromString(wire.SerializePartialToString())
    except (DecodeError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read as {name}: it is damaged or cut off") from error
    _check_text(message, path)
    if missing := message.FindInitializationErrors():
        raise ModelError(f"{path}: lacks {', '.join(missing)}, which Caffe requires")
    found = unknown_fields(message)
    found["LayerParameter", _CLIP] += likenesses
    outline = Outline("")
    outline.notes = told(path, +found)
    message.DiscardUnknownFields()
    return message, outline


def has_weights(path: Path) -> bool:
    """Return whether a layer of a binary net has arrays."""
    wire = wire_classes()[_NET]()
    wire.ParseFromString(path.read_bytes())
    return any(layer.blobs for layer in (*wire.layer, *wire.layers, *(v1.layer for v1 in wire.layers)))


def _nets(message: Any) -> list[Any]:
    if message.DESCRIPTOR.name == _NET:
        return [message]
    return [message.net_param, message.train_net_param, *message.test_net_param]


def _drop_weights(net: Any) -> None:
    for layer in (*net.layer, *net.layers):
        layer.ClearField("blobs")
    for layer in net.layers:
        if layer.HasField("layer"):
            layer.layer.ClearField("blobs")


def _drop_likenesses(net: Any) -> int:
    """Remove fork messages stored under the number of Caffe's clip_param, the only one with required
    fields; for example the parameters of a SmoothL1Loss. Return how many there were."""
    like = [layer for layer in net.layer if layer.type != "Clip" and layer.HasField("clip_param")]
    for layer in like:
        layer.ClearField("clip_param")
    return len(like)


def _check_text(message: Any, path: Path) -> None:
    """Raise ModelError if a string is not UTF-8; protobuf returns such a string as bytes."""
    for field, value in message.ListFields():
        for each in value if is_repeated(field) else (value,):
            if field.message_type is not None:
                _check_text(each, path)
            elif field.type == field.TYPE_STRING and not isinstance(each, str):
                raise ModelError(f"{path}: is damaged: {field.name} {each!r} is not text")
