"""Fields of a solver or net set from outside, in the terms of the file.

A key is a path of field names with dots: ``max_iter``, ``layer.conv1.param.0.lr_mult``. For a solver, a
path that begins with ``layer.`` or ``net.`` means its nets in both phases, one that begins with
``train_net.`` or ``test_net.`` those of one phase. An element of a repeated message is selected by its
number, a layer by its name. Paths of files are relative to the working directory.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from google.protobuf import text_format

from demitasse import ModelError, unknown
from demitasse_caffe.field_errors import familiar_field
from demitasse_caffe.fork_fields import engine_word, fork_field
from demitasse_caffe.net import NetFile
from demitasse_caffe.paths import given
from demitasse_caffe.schema import is_repeated
from demitasse_caffe.upgrade import settle_forks

_PREFIXES = {"net": ("train", "test"), "train_net": ("train",), "test_net": ("test",)}
_FILES = ("net", "train_net", "test_net", "source", "mean_file")
_TRUE, _FALSE = ("true", "t", "1", "yes", "on"), ("false", "f", "0", "no", "off")


class Overrides:
    """Overrides, separated into those of the solver and those of each phase's nets."""

    def __init__(self, given: Mapping[str, Any] | None, where: object, *, solver: bool) -> None:
        self._where = where
        self.own: dict[str, Any] = {}
        self.nets: dict[str, dict[str, tuple[str, Any]]] = {"train": {}, "test": {}}
        for key, value in (given or {}).items():
            prefix, dot, rest = key.partition(".")
            if not dot or (prefix not in _PREFIXES and prefix != "layer" and solver):
                phases: tuple[str, ...] = () if solver else ("train", "test")
                rest = key
            elif prefix in _PREFIXES:
                phases = _PREFIXES[prefix]
            else:
                phases, rest = ("train", "test"), key
            if not phases:
                self.own[key] = value
            for phase in phases:
                self.nets[phase][key] = (rest, value)

    def apply(self, message: Any) -> None:
        """Set the solver's own fields in its message."""
        for key, value in self.own.items():
            _set(message, key, value, self._told(key))

    def told(self, field: str) -> str:
        """Return how to refer to the override that sets a solver's field or part of
        it; "" if none does."""
        keys = [key for key in self.own if key.partition(".")[0] == field]
        return self._told(keys[-1]) if keys else ""

    def _told(self, key: str) -> str:
        return f"{self._where}: override {key!r}"

    def apply_to_net(self, net: NetFile, phase: str) -> NetFile:
        """Return a net with the fields of its phase set; the file's record is not changed."""
        if not self.nets[phase]:
            return net
        message = type(net.message)()
        message.CopyFrom(net.message)
        for key, (path, value) in self.nets[phase].items():
            where = f"{net.location}: override {key!r}"
            if path.startswith("layer."):
                _set_in_layers(message, path.removeprefix("layer."), value, where)
            else:
                _set(message, path, value, where)
        for layer in message.layer:
            settle_forks(layer, f"{net.location}: overrides")
        return replace(net, message=message)


def _set_in_layers(net: Any, path: str, value: Any, where: str) -> None:
    """Set a field in all layers of a name. Names may contain dots; the longest name
    that matches counts."""
    names = {layer.name for layer in net.layer if path.startswith(f"{layer.name}.")}
    if path in (layer.name for layer in net.layer):
        raise ModelError(f"{where}: names a layer but none of its fields: set layer.{path}.FIELD")
    if not names:
        raise ModelError(
            unknown(
                "layer",
                path.partition(".")[0],
                (layer.name for layer in net.layer),
                where,
                "as the net's file names them",
            )
        )
    name = max(names, key=len)
    for layer in net.layer:
        if layer.name == name:
            _set(layer, path[len(name) + 1 :], value, where)


def _set(message: Any, path: str, value: Any, where: str) -> None:
    """Set the field at a path below a message."""
    name, _, rest = path.partition(".")
    field = message.DESCRIPTOR.fields_by_name.get(name)
    if field is None:
        raise ModelError(f"{_no_field(message.DESCRIPTOR, name, where)}{_deeper(message, path)}")
    repeated = is_repeated(field)
    if field.message_type is None:
        if rest:
            raise ModelError(f"{where}: {name} is a value and has no field {rest!r}")
        _assign(message, field, value, where)
    elif repeated:
        index, _, inner = rest.partition(".")
        elements = getattr(message, name)
        if not index.isdigit() or int(index) > min(len(elements), 1000):
            raise ModelError(f"{where}: {name} is a list of {len(elements)}; {name}.0 is the first one")
        element = elements.add() if int(index) == len(elements) else elements[int(index)]
        _descend(element, f"{name}.{index}", inner, value, where)
    else:
        inner_message = getattr(message, name)
        inner_message.SetInParent()
        _descend(inner_message, name, rest, value, where)


def _deeper(message: Any, path: str) -> str:
    """Return the end of a sentence about a path that begins one level too early: before a
    layer, or before a message that has its first name, as the ``convolution_param`` of a layer
    has ``num_output``."""
    name, dot, _ = path.partition(".")
    kind = message.DESCRIPTOR.name
    if kind == "SolverParameter" and dot:
        return "; a layer's is layer.NAME.FIELD, a net's net.FIELD"
    if kind == "NetParameter" and any(layer.name == name for layer in message.layer):
        return f"; {name!r} is a layer: layer.{path}"
    for field, _ in message.ListFields():
        inner = field.message_type
        if inner is not None and not is_repeated(field) and name in inner.fields_by_name:
            return f"; {field.name} has it: {field.name}.{path}"
    return ""


def _no_field(descriptor: Any, name: str, where: str) -> str:
    """Return the error for a field that Caffe's message does not have: which fork has it, or
    the nearest name."""
    if fork := fork_field(descriptor.name, name):
        return f"{where}: {fork.told(name)}"
    if familiar := familiar_field(descriptor, name):
        return f"{where}: {familiar}"
    return unknown(f"field of {descriptor.name}", name, descriptor.fields_by_name, where)


def _descend(message: Any, name: str, rest: str, value: Any, where: str) -> None:
    if rest:
        _set(message, rest, value, where)
        return
    text = str(value).strip()
    if not isinstance(value, str) or not (text.startswith("{") and text.endswith("}")):
        raise ModelError(
            f"{where}: {name} is a message: set one of its fields "
            f"({', '.join(message.DESCRIPTOR.fields_by_name)}), or the whole as '{{ ... }}'"
        )
    message.Clear()
    try:
        text_format.Parse(text[1:-1], message)
    except text_format.ParseError as error:
        found = re.search(r'Message type "(?:\w+\.)*(\w+)" has no field named "(\w+)"', str(error))
        kind = message.DESCRIPTOR.file.message_types_by_name.get(found[1]) if found else None
        told = f"{where}: {error}" if found is None or kind is None else _no_field(kind, found[2], where)
        raise ModelError(told) from error


def _items(value: Any) -> list[Any]:
    if isinstance(value, str):
        return [item.strip() for item in value.strip("[] ").split(",") if item.strip()]
    return list(value) if isinstance(value, list | tuple) else [value]


def _assign(message: Any, field: Any, value: Any, where: str) -> None:
    """Set a value or a list. Raise ModelError with the value and what is expected."""
    try:
        if is_repeated(field):
            values = [_scalar(field, each, where) for each in _items(value)]
            message.ClearField(field.name)
            getattr(message, field.name).extend(values)
        elif field.name in _FILES and value == "":
            raise ModelError(f"{where}: the value is empty; {field.name} names a file")
        else:
            setattr(message, field.name, _scalar(field, value, where))
    except (TypeError, ValueError, OverflowError) as error:
        kind = {
            field.TYPE_BOOL: "true or false",
            field.TYPE_FLOAT: "a number",
            field.TYPE_DOUBLE: "a number",
            field.TYPE_STRING: "text in UTF-8, as the format has it",
        }.get(field.type, f"a whole number that {field.name} can hold")
        raise ModelError(f"{where}: {value!r} is not {kind}") from error


def _scalar(field: Any, value: Any, where: str) -> Any:
    if field.enum_type is not None:
        return _enum(field, value, where)
    if field.type == field.TYPE_BOOL:
        return _bool(value)
    if field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE):
        return float(value)
    if field.type in (field.TYPE_STRING, field.TYPE_BYTES):
        text = _unquoted(str(value))
        if field.name == "weights":  # several, separated by commas
            return ",".join(given(_unquoted(name.strip())) for name in text.split(","))
        return given(text) if field.name in _FILES else text
    return _int(value)


def _unquoted(text: str) -> str:
    """Return a text without enclosing quotes, written as in the file."""
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text


def _enum(field: Any, value: Any, where: str) -> int:
    word, valid = str(value).strip(), field.enum_type.values_by_name
    for name, entry in valid.items():
        if word.casefold() in (name.casefold(), str(entry.number)):
            return int(entry.number)
    if fork := engine_word(field.name, word.upper()):
        raise ModelError(f"{where}: {fork.told(word, 'an engine')}")
    raise ModelError(unknown("value", str(value), valid, where))


def _bool(value: Any) -> bool:
    word = str(value).strip().casefold()
    if word not in _TRUE + _FALSE:
        raise ValueError(word)
    return word in _TRUE


def _int(value: Any) -> int:
    whole = int(value.strip()) if isinstance(value, str) else int(value)
    if isinstance(value, bool) or (isinstance(value, float) and whole != value):
        raise ValueError(value)
    return whole
