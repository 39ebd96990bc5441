"""A process that compiles loops for another one, which reads them from numba's files afterwards.

It is told them as lines of JSON on standard input: a module, a loop in it, and lists of types. For each
line it writes one. It ends with its input, when nothing was asked for a while, and at the first error:
the other process meets that itself.
"""

from __future__ import annotations

import importlib
import json
import select
import sys
from typing import Any

from demitasse import compile_once

IDLE = 20
"""Seconds."""


def serve() -> None:
    """Compile what is asked for, until there is no more."""
    # The other process writes a line only when it has had the answer to the one before.
    while select.select([sys.stdin], [], [], IDLE)[0] and (line := sys.stdin.readline()):
        module, name, types = json.loads(line)
        loop = getattr(importlib.import_module(module), name)
        for each in types:
            compile_once(loop, tuple(map(heard, each)))
        print(name, flush=True)


def told(type_: Any) -> Any:
    """One of numba's types for JSON. Raises ValueError for those that no loop here is given."""
    types = _types()
    known: Any
    said: Any
    if isinstance(type_, types.Array):
        lies = [type_.ndim, type_.layout, not type_.mutable]
        known = types.Array(type_.dtype, *lies, aligned=type_.aligned)
        said = {"of": told(type_.dtype), "lies": lies, "aligned": type_.aligned}
    elif isinstance(type_, types.BaseTuple):
        made = getattr(type_, "instance_class", None)
        known = types.BaseTuple.from_types(tuple(type_), made)
        said = {"tuple": [*map(told, type_)]}
        if made is not None:
            said |= {"module": made.__module__, "name": made.__qualname__}
    else:
        # What numba.types has as boolean calls itself bool in some versions.
        said = "boolean" if isinstance(type_, types.Boolean) else str(type_)
        known = getattr(types, said, None)
    if known != type_:
        raise ValueError(f"{type_} is not told to other processes")
    return said


def heard(said: Any) -> Any:
    """The type that ``told`` said."""
    types = _types()
    if isinstance(said, str):
        return getattr(types, said)
    if "of" in said:
        return types.Array(heard(said["of"]), *said["lies"], aligned=said["aligned"])
    made: Any = None
    if "name" in said:
        made = importlib.import_module(said["module"])
        for part in said["name"].split("."):
            made = getattr(made, part)
    return types.BaseTuple.from_types(tuple(map(heard, said["tuple"])), made)


def _types() -> Any:
    from numba import types

    return types
