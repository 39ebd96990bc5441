"""Manifests: what each installed plugin says of itself, read without importing the plugin."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

import demitasse


@dataclass(frozen=True)
class Manifest:
    """A plugin's manifest: the ``options`` that it takes (``*``: any) and the ``values`` that some of
    them may have; its ``roles``, each hook that it serves with the facts by which it is chosen. One
    that cannot be used says why in ``problem``. ``module`` is a name to import, or an object."""

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
        """Whether the plugin has a role and, where the role lists such facts, lists these: for
        ``space="npu:1"`` its ``spaces`` must have ``npu:1`` or a pattern such as ``npu:*``."""
        given = self.roles.get(role)
        return given is not None and all(
            any(fnmatchcase(value, each) for each in given.get(f"{name}s", (value,)))
            for name, value in facts.items()
        )

    @property
    def priority(self) -> int:
        """The highest priority of its roles."""
        return max((int(facts.get("priority", 0)) for facts in self.roles.values()), default=0)

    def filled(self, data: Mapping[str, Any], where: str) -> "Manifest":
        """This manifest with what the table of a ``plugin.toml`` says, or with what is wrong with it."""
        given, problem = demitasse.checked_manifest(data, self.name, where)
        return replace(self, **{**given, "name": self.name, "problem": problem})


def discover() -> tuple[Manifest, ...]:
    """The manifests of all installed plugins, by name."""
    return tuple(map(_read, demitasse.installed("demitasse.plugins")))


def _read(plugin: "demitasse.Installed") -> Manifest:
    bare = Manifest(plugin.name, plugin.distribution, plugin.version, module=plugin.module)
    if plugin.folder is None:
        return replace(bare, problem=demitasse.no_package(plugin.module, plugin.distribution))
    path = plugin.folder / "plugin.toml"
    try:
        return _parsed(plugin.text("plugin.toml"), bare, str(path))
    except (OSError, ValueError) as error:
        return replace(bare, problem=demitasse.unreadable(path, error))


@lru_cache
def _parsed(text: str, bare: Manifest, where: str) -> Manifest:
    return bare.filled(tomllib.loads(text), where)
