"""Nets written in Python: ``n.conv1 = L.Convolution(n.data, num_output=20, kernel_size=5)``."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from demitasse import ModelError, unknown
from demitasse_caffe.fork_fields import fork_field
from demitasse_caffe.pycaffe.proto import caffe_pb2
from demitasse_caffe.pycaffe.runtime import LOG, current
from demitasse_caffe.schema import CAFFE_TYPES, Schema, is_repeated, parameter_field, schema

_BORROWED = {
    "Deconvolution": "convolution_param",
    "Deconvolution3D": "convolution3d_param",
    "Im2col": "convolution_param",
    "LSTM": "recurrent_param",
    "Normalize": "norm_param",
    "RNN": "recurrent_param",
}
"""The parameter message of layer types that have no message of their own name."""

_WHOLE = (
    FieldDescriptor.CPPTYPE_INT32,
    FieldDescriptor.CPPTYPE_INT64,
    FieldDescriptor.CPPTYPE_UINT32,
    FieldDescriptor.CPPTYPE_UINT64,
)


class Top:
    """An output of a layer, to be passed to other layers."""

    def __init__(self, function: Function, number: int) -> None:
        self.fn, self.n = function, number

    def to_proto(self) -> Any:
        """Return the net that computes this top, as a NetParameter."""
        return to_proto(self)


class Function:
    """A layer: its type, its inputs and its parameters."""

    def __init__(self, type_name: str, inputs: tuple[Any, ...], params: Mapping[str, Any]) -> None:
        for position, given in enumerate(inputs):
            if not isinstance(given, Top):
                raise TypeError(f"{type_name} input {position} is not a Top (type is {type(given)})")
        self.type_name, self.inputs, self.params = type_name, inputs, dict(params)
        self.ntop = int(self.params.pop("ntop", 1))
        self.in_place = bool(self.params.pop("in_place", False))
        if self.in_place and len(inputs) != self.ntop:
            raise ValueError(f"{type_name}: in place it must have as many tops as inputs: {len(inputs)}")
        self.tops = tuple(Top(self, number) for number in range(self.ntop))

    def to_proto(self) -> Any:
        """Return the net of this layer and all layers that it depends on, as a NetParameter."""
        return to_proto(self)


class Layers:
    """Constructors of layers: ``L.Convolution(...)`` makes a layer of type Convolution and returns its
    top, a tuple if it has several, or with ``ntop=0`` the layer itself."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)

        def layer(*inputs: Any, **params: Any) -> Any:
            function = Function(name, inputs, params)
            if function.ntop == 0:
                return function
            return function.tops[0] if function.ntop == 1 else function.tops

        return layer


class Parameters:
    """Enumerations of parameters: ``P.Pooling.MAX`` is the number of MAX in PoolingParameter."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(caffe_pb2, f"{name}Parameter")


class NetSpec:
    """A net whose tops are attributes; the attributes' names become the names of the tops."""

    def __init__(self) -> None:
        super().__setattr__("tops", OrderedDict())

    def __setattr__(self, name: str, value: Any) -> None:
        self.tops[name] = value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name]

    def __delattr__(self, name: str) -> None:
        del self.tops[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.tops[name] = value

    def __getitem__(self, name: str) -> Any:
        if name not in self.tops:
            raise AttributeError(unknown("top", name, self.tops))
        return self.tops[name]

    def __delitem__(self, name: str) -> None:
        del self.tops[name]

    def keys(self) -> list[str]:
        """Return the names of all tops."""
        return list(self.tops)

    def vals(self) -> list[Any]:
        """Return all tops."""
        return list(self.tops.values())

    def update(self, name: str, params: Mapping[str, Any]) -> None:
        """Set further parameters of the layer of a top, or change those that it has, as
        SSD's scripts do."""
        self[name].fn.params.update(params)

    def to_proto(self) -> Any:
        """Return the net as a NetParameter. Raise ModelError if a layer does not have a parameter that
        it was given."""
        return _Writer(self.tops).write(self.tops.values())


def to_proto(*tops: Any) -> Any:
    """Return the net that computes some tops, as a NetParameter. Tops and layers are named by type and
    number, or by a last argument that maps tops to names, as in scripts of early 2015."""
    *given, last = tops or ((),)
    if not isinstance(last, Mapping):
        return _Writer({}).write(tops)
    names = {name: top for top, name in last.items() if isinstance(top, Top)}
    return _Writer(names).write(given)


class _Writer:
    """Writes layers as messages, each after those that it depends on."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        self._names: dict[Any, str] = {top: name for name, top in names.items()}
        self._counts = Counter[str]()
        self._layers: dict[Function, Any] = {}

    def write(self, tops: Any) -> Any:
        functions = list(dict.fromkeys(top.fn if isinstance(top, Top) else top for top in tops))
        order: dict[Function, None] = {}
        for function in functions:
            order.update(dict.fromkeys(_before(function, set())))
        messages = _schema_for(order)
        net = messages.message("NetParameter")
        for function in order:
            net.layer.add().CopyFrom(self._layer(function, messages))
        return net

    def _layer(self, function: Function, messages: Schema) -> Any:
        layer = messages.message("LayerParameter")
        layer.type = function.type_name
        layer.bottom.extend(self._layers[given.fn].top[given.n] for given in function.inputs)
        if function.in_place:
            layer.top.extend(layer.bottom)
        else:
            layer.top.extend(self._name(top) for top in function.tops)
        named = function.tops[0] if function.tops else function
        layer.name = self._name(named)
        kind = function.type_name
        own = _BORROWED.get(kind) or parameter_field(kind, layer.DESCRIPTOR.fields_by_name)
        mine = layer.DESCRIPTOR.fields_by_name.get(own)
        for name, value in function.params.items():
            fields = mine.message_type.fields_by_name if mine is not None else {}
            if name in fields and not name.endswith("param"):
                _assign(getattr(layer, own), name, value)
            elif name in layer.DESCRIPTOR.fields_by_name:
                _assign(layer, name, value)
            elif not any(
                _passed_over(each, name, value) for each in (f"{kind}Parameter", "LayerParameter")
            ):
                valid = [*fields, *layer.DESCRIPTOR.fields_by_name, "ntop", "in_place"]
                raise ModelError(
                    unknown("parameter", name, valid, f"layer {layer.name!r} ({layer.type})")
                )
        self._layers[function] = layer
        return layer

    def _name(self, thing: Any) -> str:
        if thing not in self._names:
            kind = thing.fn.type_name if isinstance(thing, Top) else thing.type_name
            self._counts[kind] += 1
            self._names[thing] = f"{kind}{self._counts[kind]}"
        return self._names[thing]


def _before(function: Function, seen: set[Function]) -> Iterator[Function]:
    """Yield the layers that a layer depends on, then the layer itself, in order."""
    stack = [(function, iter(function.inputs))]
    seen.add(function)
    while stack:
        last, inputs = stack[-1]
        given = next(inputs, None)
        if given is None:
            stack.pop()
            yield last
        elif given.fn not in seen:
            seen.add(given.fn)
            stack.append((given.fn, iter(given.fn.inputs)))


def _schema_for(functions: Mapping[Function, None]) -> Schema:
    """Return Caffe's own messages, or those of all plugins if the net has layers of other types."""
    foreign = any(function.type_name not in CAFFE_TYPES for function in functions)
    return schema(current().layer_types if foreign else {})


def _assign(message: Any, name: str, value: Any) -> None:
    """Set a field from a number, a text, a dict, or a list of them."""
    field = message.DESCRIPTOR.fields_by_name.get(name)
    if field is None:
        if _passed_over(message.DESCRIPTOR.name, name, value):
            return
        kind = f"field of {message.DESCRIPTOR.name}"
        raise ModelError(unknown(kind, name, message.DESCRIPTOR.fields_by_name))
    try:
        if is_repeated(field):
            values = list(value) if isinstance(value, list | tuple) else [value]
            for each in values:
                if isinstance(each, Mapping):
                    _fill(getattr(message, name).add(), each)
                elif field.message_type is not None:
                    getattr(message, name).add().CopyFrom(each)
                else:
                    getattr(message, name).append(_scalar(field, each))
        elif isinstance(value, Mapping):
            getattr(message, name).SetInParent()
            _fill(getattr(message, name), value)
        elif field.message_type is not None:
            getattr(message, name).CopyFrom(value)
        else:
            setattr(message, name, _scalar(field, value))
    except (TypeError, ValueError) as error:
        raise ModelError(f"{message.DESCRIPTOR.name}.{name} cannot be {value!r}: {error}") from error


def _passed_over(message: str, name: str, value: Any) -> bool:
    """Return whether some fork has a field of that name that changes nothing here; if so, log a line.
    Raise ModelError if the field changes something with that value."""
    found = fork_field(message, name)
    if found is None:
        return False
    plain = isinstance(value, bool | int | float | str)
    if found.has_effect(str(value) if plain else None):
        raise ModelError(f"{message}: {found.told(name)}")
    LOG.info("%s: %s", message, found.told(name))
    return True


def _fill(message: Any, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        _assign(message, name, value)


def _scalar(field: Any, value: Any) -> Any:
    if field.enum_type is not None and isinstance(value, str):
        if value not in field.enum_type.values_by_name:
            raise ModelError(unknown(f"value of {field.name}", value, field.enum_type.values_by_name))
        return field.enum_type.values_by_name[value].number
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, float) and value.is_integer() and field.cpp_type in _WHOLE:
        return int(value)  # Python 2 makes a whole number of (kernel_size - 1) / 2
    return value


layers = Layers()
params = Parameters()
