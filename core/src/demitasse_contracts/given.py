"""Checks of a hook's arguments and of its result: a list, a table by name, or an object that follows a
protocol."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import demitasse
from demitasse import DemitasseError, PluginError, unknown
from demitasse_contracts.levels import check_probed
from demitasse_contracts.owners import raised, whose

LISTS = {
    "probe": ("name", "workers"),
    "operations": ("name", "shapes"),
    "kernels": ("kernel", "bind"),
    "layer_types": ("name", "build"),
}
"""Attributes of each item in the list that these hooks return."""

OBJECTS = {
    "allocator": ("allocate",),
    "tuner": ("pick", "choices", "prefer"),
    "processes": ("rank", "size", "gather", "check"),
    "stream_engine": ("place", "default", "stream"),
    "data_source": ("fields", "size", "stream", "close"),
    "model_reader": ("net", "solver", "weights"),
}
"""Attributes of the object that these hooks return, if it is not None."""

TABLES = {
    "collectives": ("algorithms", ("make", "schedule")),
    "programs": ("functions", ("__call__",)),
    "commands": ("commands", ("__call__",)),
}
"""What the tables that these hooks return hold by name, and the attributes of each entry."""


def checked_hook(plugin: str, role: str, hook: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a hook: it gets only the arguments that it takes, an iterator that it returns is read to its
    end, and the result is checked; errors name the hook and the plugin."""
    takes = inspect.signature(hook).parameters

    def call(**given: Any) -> Any:
        try:
            made = hook(**{name: value for name, value in given.items() if name in takes})
            made = [*made] if isinstance(made, Iterator) else made
        except DemitasseError:
            raise
        except (Exception, SystemExit) as error:
            raise PluginError(f"plugin {plugin!r}: hook {role} raised {raised(error)}") from error
        return _checked(plugin, role, made, given)

    return call


def _checked(plugin: str, role: str, made: Any, asked: Mapping[str, Any]) -> Any:
    """Check the result ``made`` of a hook that was called with the arguments ``asked``, and return it;
    None becomes an empty list or table if the hook returns one. Raises PluginError for a wrong result,
    or if a file that should have been written does not exist."""
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
"""Programs that return an object for their caller to run, and what that object is."""


def check_program(name: str, program: Callable[..., Any], made: Any) -> None:
    """Raise PluginError if a program that should return an object for its caller returned None, or an
    object that has nothing its callers use."""
    if name not in RUN:
        return
    kind = getattr(demitasse, RUN[name].removeprefix("demitasse."), None)
    used = [each for each in vars(kind) if not each.startswith("_")] if kind is not None else []
    forwards = hasattr(type(made), "__getattr__")  # to an object that may have all of them
    if made is None or not (forwards or not used or {*used} & {*dir(made)}):
        has = f", which has, say, {_listed(tuple(used[-3:]))}" if made is not None else ""
        told = f"the program {name!r} returned {made!r:.99} (valid: {RUN[name]}{has})"
        raise PluginError(f"{whose(program)}: {told}")


def _listed(parts: tuple[str, ...]) -> str:
    *others, last = parts
    return f"{', '.join(others)} and {last}" if others else last


def broken_contract(module: Any, hooks: Mapping[str, Any], error: Exception) -> str:
    """Return which argument of a module's hook that hook does not receive, and the valid arguments."""
    for role, spec in hooks.items():
        hook: Any = getattr(module, role, None) if hasattr(spec, "demitasse_spec") else None
        if hasattr(hook, "demitasse_impl"):
            valid = inspect.signature(spec).parameters
            for name in inspect.signature(hook).parameters:
                if name not in valid:
                    return unknown("argument", name, valid, f"hook {role}")
    return " ".join(str(error).split())


def disagreement(declared: Sequence[str], implemented: Sequence[str], hooks: Collection[str]) -> str:
    """Return how a manifest's roles and the hooks of its module differ, and how to fix it."""
    told = f"its manifest declares the roles {declared}, but its module implements {implemented}"
    for name in implemented:
        if name not in hooks:
            return f"{told}: {unknown('hook', name, hooks)}"
    missing = [name for name in declared if name not in implemented]
    silent = [name for name in implemented if name not in declared]
    steps = [f"mark a function {name} of the module with hookimpl" for name in missing]
    steps += [f"add a table [roles.{name}] to plugin.toml" for name in silent]
    return f"{told}: {'; '.join(steps)}"
