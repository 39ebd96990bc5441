"""A process that compiles loops for another process, which then reads them from numba's cache files.

It writes a line when it has started up. It receives jobs as lines of JSON on standard input, each with a
module, a loop in that module, and lists of types, and answers each with one line. It exits at the end of
its input, when it has had no job for a while, or at the first error. The other process will meet that
error itself.
"""

from __future__ import annotations

import importlib
import json
import select
import sys
from typing import Any

from demitasse import compile_once, load_numba

IDLE = 20
"""How long to wait for a job before exiting, in seconds."""


def serve() -> None:
    """Compile the requested loops until the input ends."""
    load_numba()
    print("ready", flush=True)
    # The other process writes a line only after it has read the answer to the previous one.
    while select.select([sys.stdin], [], [], IDLE)[0] and (line := sys.stdin.readline()):
        module, name, types = json.loads(line)
        loop = getattr(importlib.import_module(module), name)
        for each in types:
            compile_once(loop, tuple(map(heard, each)))
        print(name, flush=True)


def told(type_: Any) -> Any:
    """Return one of numba's types in a form for JSON. Raises ValueError for types that no loop here
    takes."""
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
        # Some versions of numba call the type bool that numba.types calls boolean.
        said = "boolean" if isinstance(type_, types.Boolean) else str(type_)
        known = getattr(types, said, None)
    if known != type_:
        raise ValueError(f"{type_} is not told to other processes")
    return said


def heard(said: Any) -> Any:
    """Return the type that ``told`` encoded."""
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
