"""Manifests: what each installed plugin declares about itself, read without importing it, and what is
wrong with a manifest that is not valid."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from demitasse import HOOKS, Installed, __version__, installed, unknown

KEYS: Mapping[str, type] = {
    "name": str,
    "summary": str,
    "api": str,
    "automatic": bool,
    "requires": tuple,
    "conflicts": tuple,
    "options": tuple,
    "values": dict,
    "roles": dict,
}
"""The keys of a manifest and the type of each value."""

FACTS: Mapping[str, tuple[type, tuple[str, ...]]] = {
    "priority": (int, HOOKS),
    "kinds": (tuple, HOOKS),
    "spaces": (tuple, ("allocator", "kernels", "stream_engine", "tuner")),
    "otherwise": (str, ("kernels",)),
    "suffixes": (tuple, ("model_reader", "model_writer")),
    "largest": (dict, ("model_writer",)),
    "states": (dict, ("model_writer",)),
    "instead": (dict, ("data_source",)),
    "behind": (tuple, ("data_source",)),
    "types": (tuple, ("layer_types",)),
    "programs": (tuple, ("programs",)),
    "converts": (dict, ("programs",)),
    "with_weights": (tuple, ("programs",)),
    "commands": (dict, ("commands",)),
    "topics": (dict, ("diagnose",)),
    "papers": (tuple, ("reproductions",)),
}
"""The facts that a role's table may state: the type of the value and the roles that it applies to."""

_KINDS = {
    str: "a string",
    bool: "true or false",
    int: "a whole number",
    tuple: "a list of strings",
    dict: "a table",
}


@dataclass(frozen=True)
class Manifest:
    """A plugin's manifest. ``options`` are those that the plugin accepts (``*``: any), and ``values``
    the allowed values of some of them. ``roles`` has each hook that it implements, with the facts by
    which it is chosen. If the plugin cannot be used, ``problem`` says why. ``module`` is a name to
    import, or an object."""

    name: str
    distribution: str = field(default="", repr=False)
    version: str = ""
    summary: str = field(default="", repr=False)
    api: str = field(default="", repr=False)
    automatic: bool = field(default=False, repr=False)
    requires: tuple[str, ...] = field(default=(), repr=False)
    conflicts: tuple[str, ...] = field(default=(), repr=False)
    options: tuple[str, ...] = field(default=("*",), repr=False)
    values: Mapping[str, Sequence[str]] = field(default_factory=dict, hash=False, repr=False)
    roles: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False, repr=False)
    module: Any = field(default=None, repr=False)
    problem: str = ""

    def serves(self, role: str, **facts: str) -> bool:
        """Return whether the plugin has a role and, if the role lists such facts, lists these: for
        ``space="npu:1"``, its ``spaces`` must have ``npu:1`` or a pattern such as ``npu:*``."""
        given = self.roles.get(role)
        return given is not None and all(
            any(fnmatchcase(value, each) for each in given.get(f"{name}s", (value,)))
            for name, value in facts.items()
        )

    @property
    def priority(self) -> int:
        """The highest priority of its roles."""
        return max((int(facts.get("priority", 0)) for facts in self.roles.values()), default=0)

    def filled(self, data: Mapping[str, Any], where: str) -> Manifest:
        """Return this manifest with the contents of a ``plugin.toml``, or with their ``problem``."""
        given: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in data.items()
        }
        if problem := _wrong(given, KEYS, "key", where):
            return replace(self, problem=problem)
        made = replace(self, **given)
        if problem := _malformed(made, where):
            return replace(self, problem=problem)
        named = given.get("name", "")
        if named != self.name:
            problem = f"{where}: the name is {named!r}, but the entry point's is {self.name!r}"
        elif not _fits(made.api):
            problem = _unfit(made.api)
        return replace(made, name=self.name, problem=problem)


def discover() -> tuple[Manifest, ...]:
    """Return the manifests of all installed plugins, sorted by name."""
    return tuple(map(_read, installed("demitasse.plugins")))


def _read(plugin: Installed) -> Manifest:
    bare = Manifest(plugin.name, plugin.distribution, plugin.version, module=plugin.module)
    if plugin.folder is None:
        return replace(bare, problem=_no_package(plugin.module, plugin.distribution))
    path = plugin.folder / "plugin.toml"
    try:
        return _parsed(plugin.text("plugin.toml"), bare, str(path))
    except (OSError, ValueError) as error:
        return replace(bare, problem=_unreadable(path, error))


@lru_cache
def _parsed(text: str, bare: Manifest, where: str) -> Manifest:
    return bare.filled(tomllib.loads(text), where)


def _fits(api: str) -> bool:
    try:
        return api != "" and SpecifierSet(api).contains(__version__, prereleases=True)
    except InvalidSpecifier:
        return False


def _malformed(manifest: Manifest, where: str) -> str:
    options = dict.fromkeys(manifest.options, tuple)
    problem = _wrong(manifest.values, options, "option", f"{where}: values")
    for role, facts in manifest.roles.items():
        if role not in HOOKS:
            return unknown("role", role, HOOKS, where)
        at = f"{where}: role {role}"
        if not isinstance(facts, dict):
            problem = problem or f"{at} = {facts!r} (valid: a table)"
            continue
        known = {fact: kind for fact, (kind, roles) in FACTS.items() if role in roles}
        problem = problem or _wrong(facts, known, "fact", at)
        for suffix, limit in facts.get("largest", {}).items() if not problem else ():
            if type(limit) is not int:
                problem = f"{at}: largest: {suffix} = {limit!r} (valid: a whole number of bytes)"
        states = facts.get("states", {}) if not problem else {}
        problem = problem or _wrong(states, dict.fromkeys(states, tuple), "suffix", f"{at}: states")
    return problem


def _wrong(given: Mapping[str, Any], types: Mapping[str, type], what: str, where: str) -> str:
    """Return what is wrong with the first key that is unknown or has a value of another type, or ""."""
    for key, value in given.items():
        if key not in types:
            return unknown(what, key, types, where)
        plain = tuple(value) if isinstance(value, list) else value
        texts = plain if isinstance(plain, tuple) else ()
        if type(plain) is not types[key] or not all(isinstance(text, str) for text in texts):
            return f"{where}: {key} = {value!r} (valid: {_KINDS[types[key]]})"
    return ""


def _no_package(module: str, distribution: str) -> str:
    """Return why the package of a plugin's entry point is not found."""
    if _is_module(module):
        return f"its package {module} is missing; reinstall {distribution}"
    meant = re.sub(r"[^\w.]+", "_", module.strip(" :'\""))
    valid = f"valid: a module's name, like {meant if _is_module(meant) else 'package.plugin'!r}"
    return (
        f"its entry point {module!r} does not name a module ({valid}); fix pyproject.toml and reinstall"
    )


def _is_module(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


def _unreadable(manifest: Path, error: Exception) -> str:
    """Return why a plugin's manifest could not be read."""
    if not isinstance(error, FileNotFoundError):
        return f"its manifest {manifest} cannot be read: {error}"
    package = manifest.parent.name
    data = f'with setuptools, [tool.setuptools.package-data] {package} = ["plugin.toml"]'
    return f"its manifest is missing: {manifest} does not exist; add it to the package ({data})"


def _unfit(api: str) -> str:
    """Return why a plugin for the versions ``api`` of Demitasse does not fit this version."""
    if not api:
        return "its manifest does not say which versions of demitasse it is for (add api = '>=0.1,<0.2')"
    told, valid = f"it is for demitasse {api!r}", "valid: like '>=0.1,<0.2'"
    try:
        SpecifierSet(api)
    except InvalidSpecifier:
        told += f", which is not a version range ({valid})"
    return f"{told}, but this is {__version__}; install versions that match"
