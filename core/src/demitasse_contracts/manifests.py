"""What a plugin's manifest may say, and why a plugin that was found, or not, cannot be used."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from demitasse import HOOKS, __version__, unknown

KEYS: Mapping[str, Any] = {
    "name": "",
    "summary": "",
    "api": "",
    "automatic": False,
    "requires": (),
    "conflicts": (),
    "options": ("*",),
    "values": {},
    "roles": {},
}
"""Each key of a manifest with its default, which also has the type that a value must have."""

FACTS: Mapping[str, tuple[type, tuple[str, ...]]] = {
    "priority": (int, HOOKS),
    "kinds": (tuple, HOOKS),
    "spaces": (tuple, ("allocator", "kernels", "stream_engine", "tuner")),
    "otherwise": (str, ("kernels",)),
    "suffixes": (tuple, ("model_reader", "model_writer")),
    "instead": (dict, ("data_source",)),
    "types": (tuple, ("layer_types",)),
    "programs": (tuple, ("programs",)),
    "converts": (dict, ("programs",)),
    "with_weights": (tuple, ("programs",)),
    "commands": (dict, ("commands",)),
    "topics": (dict, ("diagnose",)),
    "papers": (tuple, ("reproductions",)),
}
"""Each fact that a role's table may give: the type of its value and the roles that it belongs to."""

_KINDS = {
    str: "a text",
    bool: "true or false",
    int: "a whole number",
    tuple: "a list of texts",
    dict: "a table",
}


def checked_manifest(data: Mapping[str, Any], name: str, where: str) -> tuple[dict[str, Any], str]:
    """A manifest's table with defaults for what it leaves out, and what is wrong with it: "" if
    nothing is. ``name`` is the one that the plugin was found under. A table whose keys or types are
    wrong comes back empty."""
    given = {**KEYS, **{key: tuple(v) if isinstance(v, list) else v for key, v in data.items()}}
    if problem := _malformed(given, where):
        return {}, problem
    if given["name"] != name:
        return given, f"{where}: the name is {given['name']!r}, the entry point's {name!r}"
    return given, "" if _fits(given["api"]) else unfit(given["api"], __version__)


def _fits(api: str) -> bool:
    try:
        return api != "" and SpecifierSet(api).contains(__version__, prereleases=True)
    except InvalidSpecifier:
        return False


def _malformed(given: Mapping[str, Any], where: str) -> str:
    types = {key: type(default) for key, default in KEYS.items()}
    if problem := _wrong(given, types, "key", where):
        return problem
    problem = _wrong(
        given["values"], dict.fromkeys(given["options"], tuple), "option", f"{where}: values"
    )
    for role, facts in given["roles"].items():
        if role not in HOOKS:
            return unknown("role", role, HOOKS, where)
        at = f"{where}: role {role}"
        if not isinstance(facts, dict):
            problem = problem or f"{at} = {facts!r} (valid: a table)"
            continue
        known = {fact: kind for fact, (kind, roles) in FACTS.items() if role in roles}
        problem = problem or _wrong(facts, known, "fact", at)
    return problem


def _wrong(given: Mapping[str, Any], types: Mapping[str, type], what: str, where: str) -> str:
    """The first key that is not known, or whose value is not of its type."""
    for key, value in given.items():
        if key not in types:
            return unknown(what, key, types, where)
        plain = tuple(value) if isinstance(value, list) else value
        texts = plain if isinstance(plain, tuple) else ()
        if type(plain) is not types[key] or not all(isinstance(text, str) for text in texts):
            return f"{where}: {key} = {value!r} (valid: {_KINDS[types[key]]})"
    return ""


def absent(plugin: str) -> str:
    """Why a plugin of that name is not found, and what to do."""
    distribution = f"demitasse-{plugin}"
    try:
        importlib.metadata.distribution(distribution)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return f"it is misspelled or not installed (pip install {distribution})"
    group = "in the group 'demitasse.plugins'"
    lacking = f"{distribution} is installed, but has no entry point {group}"
    return f"{lacking} of that name; mend its pyproject.toml, and install it again"


def no_package(module: str, distribution: str) -> str:
    """Why a plugin of an entry point has no package."""
    if _is_module(module):
        return f"its package {module} is not there; reinstall {distribution}"
    meant = re.sub(r"[^\w.]+", "_", module.strip(" :'\""))
    valid = f"valid: a module's name, as {meant if _is_module(meant) else 'package.plugin'!r}"
    return f"its entry point {module!r} names no module ({valid}); mend pyproject.toml and reinstall"


def _is_module(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


def unreadable(manifest: Path, error: Exception) -> str:
    """Why a plugin's manifest is none."""
    if not isinstance(error, FileNotFoundError):
        return f"its manifest {manifest} cannot be read: {error}"
    package = manifest.parent.name
    data = f'with setuptools, [tool.setuptools.package-data] {package} = ["plugin.toml"]'
    return f"it came without its manifest: {manifest} is not there; have it packaged ({data})"


def unfit(api: str, version: str) -> str:
    """Why a plugin for the versions ``api`` of Demitasse is not for this one."""
    if not api:
        return "its manifest does not say for which versions of demitasse it is (api = '>=0.1,<0.2')"
    told, valid = f"it is for demitasse {api!r}", "valid: as '>=0.1,<0.2'"
    try:
        SpecifierSet(api)
    except InvalidSpecifier:
        told += f", which is no range of versions ({valid})"
    return f"{told}, this is {version}; install versions that match"
