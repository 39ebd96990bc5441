"""Caffe's messages in a descriptor pool of our own, with a message for each third-party layer type.

Nothing is ever added to protobuf's default pool, which may hold another library's caffe.proto.
"""

from __future__ import annotations

import copyreg
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import cache, lru_cache, partial
from importlib.resources import files
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.unknown_fields import UnknownFieldSet

from demitasse import LayerType, PluginError, whose

FIRST_OWN_NUMBER, _OWN_NUMBERS = 100_000_000, 400_000_000
LARGEST_BLOB, MOST_AXES = 2**31 - 1, 32
"""The maximum number of elements and axes of a blob, as in Caffe, whose counts are 32 bits wide."""

_FIELD = descriptor_pb2.FieldDescriptorProto
_KINDS = {
    bool: _FIELD.TYPE_BOOL,
    int: _FIELD.TYPE_INT64,
    float: _FIELD.TYPE_DOUBLE,
    str: _FIELD.TYPE_STRING,
}

Declared = tuple[tuple[str, tuple[tuple[str, int, bool], ...]], ...]
"""(layer type, ((parameter, protobuf type, repeated), ...)) for each type that declares parameters."""

_TYPES = """
AbsVal Accuracy ArgMax BNLL BatchNorm BatchReindex Bias Clip Concat ContrastiveLoss Convolution Crop
Data Deconvolution Dropout DummyData ELU Eltwise Embed EuclideanLoss Exp Filter Flatten HDF5Data
HDF5Output HingeLoss Im2col ImageData InfogainLoss InnerProduct Input LRN LSTM LSTMUnit Log MVN
MemoryData MultinomialLogisticLoss PReLU Parameter Pooling Power Python RNN ReLU Reduction Reshape
SPP Scale Sigmoid SigmoidCrossEntropyLoss Silence Slice Softmax SoftmaxWithLoss Split Swish TanH
Threshold Tile WindowData
"""
CAFFE_TYPES = frozenset(_TYPES.split())
"""The layer types that the schema's messages were made for."""


class Given(Mapping[str, Any]):
    """What a file gives a layer type: the value of each parameter that the type declares, read-only.
    ``message`` is the layer as it is in the file."""

    def __init__(self, values: Mapping[str, Any], message: Any) -> None:
        self._values, self.message = values, message

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return repr(self._values)


class Schema:
    """Message classes by name, and what third-party layer types declare."""

    def __init__(self, classes: Mapping[str, Any], layer_types: Mapping[str, LayerType]) -> None:
        self._classes = classes
        self.declared = {n: kind.parameters for n, kind in layer_types.items() if kind.parameters}
        self.types = CAFFE_TYPES | set(layer_types)
        self.runs_python = "Python" in layer_types

    def message(self, name: str) -> Any:
        """Return a new, empty message."""
        return self._classes[name]()

    def descriptor(self, name: str) -> Any:
        """Return the descriptor of a message."""
        return self._classes[name].DESCRIPTOR

    def parameters(self, layer: Any) -> Any:
        """Return what a layer's type receives: the parameters that it declares, or else
        the whole message."""
        if layer.type not in self.declared:
            return layer
        message = getattr(layer, parameter_field(layer.type, layer.DESCRIPTOR.fields_by_name))
        declared = self.declared[layer.type].items()
        return Given({name: _value(message, name, default) for name, default in declared}, layer)


def schema(layer_types: Mapping[str, LayerType]) -> Schema:
    """Return the schema for a set of layer types. Raise PluginError for a declaration that a file cannot
    express: a type whose name is not an identifier, or a default of an unknown kind."""
    declared = tuple(
        (name, tuple(_declaration(kind, *item) for item in sorted(kind.parameters.items())))
        for name, kind in sorted(layer_types.items())
        if kind.parameters
    )
    return Schema(_classes(declared), layer_types)


def number(value: float) -> float:
    """Return the shortest decimal that a 32-bit field stores as ``value``: 0.1, not 0.100000001."""
    return float(str(np.float32(value)))


def is_repeated(field: Any) -> bool:
    """Return whether a field's descriptor is that of a list; version 6 of protobuf renamed this."""
    if hasattr(field, "is_repeated"):
        return bool(field.is_repeated)
    return bool(field.label == field.LABEL_REPEATED)


def parameter_field(kind: str, fields: Mapping[str, Any]) -> str:
    """Return the LayerParameter field of a layer type: Caffe's, or else snake_case_param."""
    folded = f"{kind}param".casefold()
    for name in fields:
        if name.replace("_", "") == folded:
            return name
    words = kind.replace("ReLU", "Relu").replace("TanH", "Tanh")
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", words)
    return f"{words.lower()}_param"


def _declaration(kind: LayerType, name: str, default: Any) -> tuple[str, int, bool]:
    repeated = isinstance(default, list | tuple)
    example = (default[0] if default else 0.0) if repeated else default
    for part in (kind.name, name):
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", part):
            told = f"layer type {kind.name!r}: {part!r} cannot be written in a prototxt"
            raise PluginError(f"{whose(kind)}: {told}")
    if type(example) not in _KINDS:
        raise PluginError(
            f"{whose(kind)}: layer type {kind.name!r}: parameter {name!r} has the default {default!r}; "
            f"a prototxt holds bool, int, float, str, or a list of one of them"
        )
    return name, _KINDS[type(example)], repeated


def _value(message: Any, name: str, default: Any) -> Any:
    field = message.DESCRIPTOR.fields_by_name[name]
    if isinstance(default, list | tuple):
        values = [_scalar(field, value) for value in getattr(message, name)]
        return type(default)(values) if values else default
    return _scalar(field, getattr(message, name)) if message.HasField(name) else default


def _scalar(field: Any, value: Any) -> Any:
    if field.enum_type is not None:
        return field.enum_type.values_by_number[value].name
    return number(value) if field.type == field.TYPE_FLOAT else value


@cache
def _file() -> Any:
    data = files("demitasse_caffe").joinpath("caffe.binpb").read_bytes()
    return descriptor_pb2.FileDescriptorSet.FromString(data).file[0]


@lru_cache(maxsize=16)
def _classes(declared: Declared) -> Mapping[str, Any]:
    """Return message classes by name, from a pool that includes the declared types."""
    file = descriptor_pb2.FileDescriptorProto()
    file.CopyFrom(_file())
    layer = next(m for m in file.message_type if m.name == "LayerParameter")
    for kind, parameters in declared:
        _extend(file, layer, kind, parameters)
    classes = _load(file)
    for name, made in classes.items():  # a Solver's messages can then be sent to processes
        copyreg.pickle(made, partial(_reduced, declared, name))
    return classes


def _reduced(declared: Declared, name: str, message: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    return _restored, (declared, name, message.SerializeToString(deterministic=True))


def _restored(declared: Declared, name: str, data: bytes) -> Any:
    return _classes(declared)[name].FromString(data)


@cache
def wire_classes() -> Mapping[str, Any]:
    """Return message classes that keep a blob's numbers as the packed bytes of the file, so that no
    Python number is made of them. (Reading 244 MB takes 0.55 s, as numbers 1.2 s.)"""
    file = descriptor_pb2.FileDescriptorProto()
    file.CopyFrom(_file())
    blob = next(m for m in file.message_type if m.name == "BlobProto")
    for field in blob.field:
        if field.name in ("data", "diff", "double_data", "double_diff"):
            field.type = _FIELD.TYPE_BYTES
            field.ClearField("options")
    return _load(file)


def video_width(blob: Any) -> int | None:
    """Return the width of a blob (of wire_classes) if it is C3D's, or None if it is Caffe's. C3D's
    fields are num, channels, length, height, width and data, so field 5 is the width instead of a list
    of numbers, and data is in field 6."""
    if blob.data or not blob.diff:
        return None
    found = (each for each in UnknownFieldSet(blob) if (each.field_number, each.wire_type) == (5, 0))
    return next((int(each.data) for each in found), None)


def _load(file: Any) -> Mapping[str, Any]:
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    found = pool.FindFileByName(file.name)
    return {
        name: message_factory.GetMessageClass(message)
        for name, message in found.message_types_by_name.items()
    }


def _extend(file: Any, layer: Any, kind: str, parameters: tuple[tuple[str, int, bool], ...]) -> None:
    """Add a message for a layer type, or add to the message that Caffe has for the
    type what it lacks."""
    fields = {field.name: field for field in layer.field}
    name = parameter_field(kind, fields)
    if name in fields:
        wanted = fields[name].type_name.rpartition(".")[2]
        message = next(m for m in file.message_type if m.name == wanted)
    else:
        wanted = f"{kind}Parameter"
        while any(m.name == wanted for m in file.message_type):
            wanted += "_"
        message = file.message_type.add(name=wanted)
        layer.field.add(
            name=name,
            number=_free_number(name, layer),
            label=_FIELD.LABEL_OPTIONAL,
            type=_FIELD.TYPE_MESSAGE,
            type_name=f".{file.package}.{wanted}",
        )
    present = {field.name for field in message.field}
    for parameter, type_number, repeated in parameters:
        if parameter not in present:
            message.field.add(
                name=parameter,
                number=_free_number(parameter, message),
                label=_FIELD.LABEL_REPEATED if repeated else _FIELD.LABEL_OPTIONAL,
                type=type_number,
            )


def _free_number(name: str, message: Any) -> int:
    """Return a field number that depends on the name alone, far above those of Caffe and all forks."""
    taken = {field.number for field in message.field}
    return next(n for n in _numbers(name) if n not in taken)


def _numbers(name: str) -> Iterator[int]:
    start = zlib.crc32(name.encode())
    for offset in range(1000):
        yield FIRST_OWN_NUMBER + (start + offset) % _OWN_NUMBERS
