"""Checks that the chosen plugins can be composed, with each other and for a machine."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from typing import TYPE_CHECKING

from demitasse import CompositionError, PluginError, unknown

if TYPE_CHECKING:
    from demitasse import Machine, Manifest, Processes


def check_composed(machine: Machine, reasons: Mapping[str, str], known: Mapping[str, Manifest]) -> None:
    """Raise PluginError if a plugin does not exist or cannot be used, and CompositionError if plugins
    lack or exclude another, or if one that a level of the machine needs is missing. ``reasons`` says why
    each plugin was chosen; ``known`` has the manifests of all available plugins."""
    for name, reason in reasons.items():
        where = _place(machine, name) if reason.startswith("named by ") else ""
        if name not in known:
            source = "plugins" if reason == "asked for" else where + reason
            told = f"{unknown('plugin', name, known, source)}; {_absent(name)}"
            others = [each for each, why in reasons.items() if why == reason and each not in known]
            raise PluginError(told + (_without(others) if reason.startswith("named by machine") else ""))
        if known[name].problem:
            raise PluginError(f"{where}plugin {name!r} ({reason}) cannot be used: {known[name].problem}")
        for other in set(known[name].requires) - set(reasons):
            if other not in known:
                told = unknown("plugin", other, known, f"plugin {name!r} requires {other!r}")
                raise PluginError(f"{told}; {_absent(other)}")
            raise CompositionError(f"plugin {name!r} requires {other!r}: add the plugin +{other}")
        for other in set(known[name].conflicts) & set(reasons):
            raise CompositionError(f"plugins {name!r} and {other!r} conflict; leave one out")
    for level in machine.levels:
        needs = {"kernels": level.kernels, "gradient_sync": level.sync.plugin if level.sync else None}
        for role, plugin in needs.items():
            if plugin and (plugin not in reasons or role not in known[plugin].roles):
                able = ", ".join(n for n, manifest in known.items() if role in manifest.roles) or "none"
                where = f"{level.location or machine.origin}: level {level.name!r} needs plugin"
                lacking = "is not composed" if plugin not in reasons else f"does not provide {role}"
                raise CompositionError(f"{where} {plugin!r}, which {lacking} (with {role}: {able})")


def check_synchronised(machine: Machine, processes: Processes) -> None:
    """Raise CompositionError if a level has several workers and no ``sync`` covers it."""
    covered = [level for _, levels in machine.sync_groups() for level in levels]
    for level in machine.levels:
        own = level.count if level.workers in ("threads", "streams") else 1
        several = processes.size if level.workers == "mpi" else own
        if several > 1 and level not in covered:
            where = f"{level.location or machine.origin}: level {level.name!r}"
            remedy = 'no plugin to synchronise them; add sync = { plugin = "..." }'
            raise CompositionError(f"{where} has {several} workers and {remedy}")


def _place(machine: Machine, plugin: str) -> str:
    """Return the beginning of a message about a plugin that a description names: its file and line."""
    named: list[object] = [getattr(machine.plugins, "place", None)] * (plugin in (machine.plugins or ()))
    for level in machine.levels:
        if level.sync is not None and level.sync.plugin == plugin:
            named.append(level.sync.location)
        named += [level.location] * (level.kernels == plugin)
    place = next(filter(None, named), machine.path)
    return f"{place}: " if place else ""


def _without(plugins: list[str]) -> str:
    """Return how to run on a description's machine without its plugins that are missing."""
    them = "them" if plugins[1:] else "it"
    also = f"; also not found: {', '.join(map(repr, plugins[1:]))}" if plugins[1:] else ""
    return f"{also}; to run without {them}: --plugins {','.join(f'-{each}' for each in plugins)}"


def _absent(plugin: str) -> str:
    """Return why no plugin of that name is found, and what to do."""
    distribution = f"demitasse-{plugin}"
    try:
        importlib.metadata.distribution(distribution)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return f"it is misspelled or not installed (pip install {distribution})"
    lacking = f"{distribution} is installed, but has no entry point of that name in the group"
    return f"{lacking} 'demitasse.plugins'; fix its pyproject.toml and reinstall it"
