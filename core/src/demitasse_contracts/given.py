"""Checks of a hook's arguments and of its answer: a list, a table by name, or an object of a
protocol."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from demitasse import PluginError, unknown
from demitasse_contracts.levels import check_probed
from demitasse_contracts.owners import whose

LISTS = {
    "probe": ("name", "workers"),
    "operations": ("name", "shapes"),
    "kernels": ("kernel", "bind"),
    "layer_types": ("name", "build"),
}
"""What each item has that such a hook gives."""

OBJECTS = {
    "allocator": ("allocate",),
    "tuner": ("pick", "choices", "prefer"),
    "processes": ("rank", "size", "gather", "check"),
    "stream_engine": ("place", "default", "stream"),
    "data_source": ("fields", "size", "stream", "close"),
    "model_reader": ("net", "solver", "weights"),
}
"""What the one object has that such a hook gives, where it is not None."""

TABLES = {
    "collectives": ("algorithms", ("make", "schedule")),
    "programs": ("functions", ("__call__",)),
    "commands": ("commands", ("__call__",)),
}
"""What a table by name holds, and what each of them has."""


def check_given(plugin: str, role: str, made: Any, asked: Mapping[str, Any]) -> Any:
    """Check the answer ``made`` of a hook that was ``asked`` with these arguments, and return it; None
    becomes an empty list or table where the hook gives one. Raises PluginError for a wrong answer, or if
    a file that was to be written does not exist."""
    parts: tuple[str, ...] = ()
    if role in LISTS:
        made = [] if made is None else made
        parts, items = LISTS[role], made if isinstance(made, Iterable) else (made,)
        valid, right = f"a list of objects with {_listed(parts)}", isinstance(made, Iterable)
    elif role in TABLES:
        made = {} if made is None else made
        what, parts = TABLES[role]
        items = made.values() if isinstance(made, Mapping) else ()
        valid, right = f"a table of {what} by name", isinstance(made, Mapping)
    elif role in OBJECTS and made is not None:
        parts, items, right = OBJECTS[role], (made,), True
        valid = f"None, or an object with {_listed(parts)}"
    else:
        path = asked.get("path")
        if role == "model_writer" and isinstance(path, Path) and not path.exists():
            raise PluginError(f"plugin {plugin!r}: hook model_writer wrote no file {path}")
        return made
    if not right or not all(hasattr(item, part) for item in items for part in parts):
        raise PluginError(f"plugin {plugin!r}: hook {role} returned {made!r:.99} (valid: {valid})")
    for level in made if role == "probe" else ():
        check_probed(plugin, level)
    return made


RUN = {"trainer": "demitasse.Trainer", "interactive trainer": "a trainer", "net": "demitasse.Net"}
"""Programs that make what others run, and what that is."""


def check_program(name: str, program: Callable[..., Any], made: Any) -> None:
    """Raise PluginError if a program that is to return an object for its caller returned None."""
    if made is None and name in RUN:
        raise PluginError(f"{whose(program)}: the program {name!r} returned None (valid: {RUN[name]})")


def _listed(parts: tuple[str, ...]) -> str:
    *others, last = parts
    return f"{', '.join(others)} and {last}" if others else last


def broken_contract(module: Any, hooks: Mapping[str, Any], error: Exception) -> str:
    """Which argument of one of a module's hooks is none that such a hook is given, and the valid
    ones."""
    for role, spec in hooks.items():
        hook: Any = getattr(module, role, None) if hasattr(spec, "demitasse_spec") else None
        if hasattr(hook, "demitasse_impl"):
            valid = inspect.signature(spec).parameters
            for name in inspect.signature(hook).parameters:
                if name not in valid:
                    return unknown("argument", name, valid, f"hook {role}")
    return " ".join(str(error).split())


def disagreement(declared: Sequence[str], implemented: Sequence[str], hooks: Collection[str]) -> str:
    """How a manifest's roles and the hooks of its module differ, and how to mend it."""
    told = f"its manifest declares the roles {declared}, but its module implements {implemented}"
    for name in implemented:
        if name not in hooks:
            return f"{told}: {unknown('hook', name, hooks)}"
    missing = [name for name in declared if name not in implemented]
    silent = [name for name in implemented if name not in declared]
    steps = [f"mark a function {name} of the module with hookimpl" for name in missing]
    steps += [f"add a table [roles.{name}] to plugin.toml" for name in silent]
    return f"{told}: {'; '.join(steps)}"
