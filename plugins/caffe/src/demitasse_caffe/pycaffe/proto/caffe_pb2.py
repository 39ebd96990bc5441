"""Caffe's messages and enumerations by name, like those of a generated module. They belong to the
plugin's own schema and descriptor pool, so another caffe_pb2 in the same process is not affected."""

from __future__ import annotations

from typing import Any

from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

from demitasse_caffe.schema import schema


def __getattr__(name: str) -> Any:
    messages = schema({})
    file = messages.descriptor("NetParameter").file
    if name == "DESCRIPTOR":
        return file
    if name == "__all__":
        numbers = (value for e in file.enum_types_by_name.values() for value in e.values_by_name)
        return [*__dir__(), *numbers]
    if name in file.message_types_by_name:
        return type(messages.message(name))
    if name in file.enum_types_by_name:
        return EnumTypeWrapper(file.enum_types_by_name[name])
    for enumeration in file.enum_types_by_name.values():
        if name in enumeration.values_by_name:
            return enumeration.values_by_name[name].number
    for found in file.message_types_by_name.values():
        own = f"_{found.name.upper()}"
        if name == own:
            return found
        for enumeration in found.enum_types if name.startswith(own) else ():
            if name == f"{own}_{enumeration.name.upper()}":
                return enumeration
    raise AttributeError(f"caffe_pb2 has no {name!r}")


def __dir__() -> list[str]:
    file = schema({}).descriptor("NetParameter").file
    return sorted([*file.message_types_by_name, *file.enum_types_by_name])
