"""Error messages for invalid fields of a prototxt file, and for invalid values."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from demitasse import nearest, unknown
from demitasse_caffe.fork_fields import TYPES, fork_field, old_type_owner
from demitasse_caffe.outline import Block, Entry
from demitasse_caffe.schema import Schema

_LAYERS = ("layer", "layers")
_SCHEMA = "as Caffe's caffe.proto lists them"
"""Where to see all names if there are many."""
_FAMILIAR = {
    "lr": "'base_lr'",
    "learning_rate": "'base_lr'",
    "wd": "'weight_decay'",
    "iterations": "'max_iter'",
    "epochs": "'max_iter', which counts batches",
    "optimizer": "'type'",
    "batch_size": "that of a data layer (as an override: layer.NAME.data_param.batch_size)",
}
"""What other frameworks call a solver's fields, and what is meant by it here."""


def strangers_field(path: Path, entry: Entry, descriptor: Any, schema: Schema) -> str:
    """Return the message for a field in a layer of an unknown type, which would be lost."""
    fork = fork_field(descriptor.name, entry.name)
    what = fork.told(entry.name) if fork else f"{entry.name} is not a field of Caffe's {descriptor.name}"
    block = entry.block
    while block.name != "layer" and block.parent is not None:
        block = block.parent
    name, kind = block.words.get("name", ""), block.words.get("type", "")
    whose = f", a type of {TYPES[kind]} that no composed plugin knows" if kind in TYPES else ""
    if not whose:
        close = nearest(kind, schema.types)
        whose = ", which no composed plugin knows" + (f" (did you mean {close!r}?)" if close else "")
    return (
        f"{path}:{entry.line}:{entry.column}: {what}: layer {name!r} is of type {kind!r}{whose}. The "
        f"plugin that defines the type also declares its fields"
    )


def familiar_field(descriptor: Any, name: str) -> str:
    """Return the end of a message about a solver's field that other frameworks have under this name; ""
    if none does."""
    known = descriptor.name == "SolverParameter" and _FAMILIAR.get(name)
    return f"unknown field {name!r}; did you mean {known}?" if known else ""


def unknown_field(path: Path, entry: Entry, descriptor: Any) -> str:
    """Return the message for a field that a message does not have."""
    where = f"{path}:{entry.line}:{entry.column}: {layer_around(entry)}{descriptor.name}"
    if fork := fork_field(descriptor.name, entry.name):
        return f"{where}: {fork.told(entry.name)}"
    if familiar := familiar_field(descriptor, entry.name):
        return f"{where}: {familiar}"
    message = unknown("field", entry.name, list(descriptor.fields_by_name), where, _SCHEMA)
    block: Block | None = entry.block
    if block is not None and block.name == "layers" and "type" in block.quoted:
        message += "; a layer with a quoted type is written 'layer {', not 'layers {'"
    while block is not None and block.parent is not None and entry.name in _LAYERS:
        if block.name in _LAYERS:
            where = f"{path}:{entry.line}:{entry.column}"
            return f"{where}: '{entry.name}' inside the block {_open(block)}"
        block = block.parent
    return message


def given_twice(path: Path, entry: Entry, first: Entry, descriptor: Any) -> str:
    """Return the message for a second value of a field that is not repeated."""
    place = f"{path}:{entry.line}:{entry.column}: {layer_around(entry, own=True)}{descriptor.name}"
    told = (
        f"{place}: {entry.name} takes one value, but is given again; it was first given in line "
        f"{first.line}"
    )
    axes = [f"{entry.name.removesuffix('_size')}_{axis}" for axis in "hw"]
    if all(axis in descriptor.fields_by_name for axis in axes):
        told += f" (each axis has its own in {axes[0]} and {axes[1]})"
    return told


def layer_around(entry: Entry, own: bool = False) -> str:
    """Return the beginning of a sentence about a field: the layer in whose inner block it stands or,
    with ``own``, also the layer that it is a field of."""
    block: Block | None = entry.block
    while block is not None and block.name not in _LAYERS:
        block = block.parent
    name = block.words.get("name") if block is not None and (own or block is not entry.block) else None
    return f"layer {name!r}: " if name else ""


def _open(block: Block) -> str:
    return f"'{block.name} {{' of line {block.line}: is its '}}' missing?"


def wrong_value(path: Path, entry: Entry, descriptor: Any, schema: Schema) -> str:
    """Describe what is wrong with the value of a field of words; "" if nothing is."""
    value = entry.value or ""
    if descriptor.enum_type is not None and re.fullmatch(r"\d+", value):
        numbers = descriptor.enum_type.values_by_number
        if int(value) not in numbers:
            told = ", ".join(f"{each.name} ({number})" for number, each in sorted(numbers.items()))
            where = f"{path}:{entry.line}:{entry.column}"
            return f"{where}: {layer_around(entry)}{entry.name} has no value {value} (valid: {told})"
    if descriptor.enum_type is None or not re.fullmatch(r"[\"']?[A-Za-z_]\w*[\"']?", value):
        return ""
    bare = value.strip("\"'")
    valid = descriptor.enum_type.values_by_name
    where = f"{path}:{entry.line}:{entry.column}"
    if bare not in valid:
        of_layer = entry.name == "type" and entry.block.name == "layers"
        if of_layer:
            where += f": layer {entry.block.words.get('name', '')!r} ({bare})"
            folded = bare.replace("_", "").casefold()
            newer = {kind.casefold(): kind for kind in schema.types}.get(folded)
            if (
                newer
                and value == bare
                and folded not in {name.replace("_", "").casefold() for name in valid}
            ):
                return (
                    f"{where}: the type {newer} is newer than this form of layers: write "
                    f"layer {{ type: '{newer}' }}, and all other layers of the net in that form too"
                )
        else:
            where += f": {layer_around(entry)}".removesuffix(": ")
        message = unknown(
            "V1 layer type" if of_layer else f"value of {entry.name}", bare, valid, where, _SCHEMA
        )
        if of_layer and (owner := old_type_owner(folded)):
            message = f"{where}: unknown V1 layer type {bare!r}, which belongs to {owner}"
        if value != bare and entry.name == "type":
            message += "; a layer with a quoted type is written 'layer {', not 'layers {'"
        elif of_layer:
            name = "".join(word.capitalize() for word in bare.split("_"))
            message += (
                f"; a type that is newer, or that a plugin adds with the layer_types hook, is written "
                f"layer {{ type: '{name}' }}"
            )
        return message
    if value != bare:
        return f"{where}: {entry.name} is written without quotes: {entry.name}: {bare}"
    return ""
