"""Composition: which plugins make this runtime, which serves each role, and why."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pluggy

from demitasse import __version__, hookspecs
from demitasse.errors import CompositionError, PluginError, unknown
from demitasse.machine import Machine

GROUP = "demitasse.plugins"


@dataclass(frozen=True)
class Finding:
    """One line of a diagnosis: ``level`` is ok, note or problem; ``remedy`` says how to mend it."""

    level: str
    subject: str
    message: str
    remedy: str = ""


@dataclass(frozen=True)
class Manifest:
    """What a plugin says of itself without being imported. ``roles`` maps each hook that it serves
    to the facts that choose it (priority, spaces, suffixes, ...); ``problem`` tells why it cannot be
    used, if so."""

    name: str
    distribution: str = ""
    version: str = ""
    summary: str = ""
    api: str = ""
    automatic: bool = False
    requires: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    roles: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    module: Any = None
    problem: str = ""


@dataclass(frozen=True)
class Choice:
    """A role, what it is asked for, the plugin that serves it, and why that one."""

    role: str
    subject: str
    plugin: str
    reason: str


@dataclass(frozen=True)
class Composition:
    """The plugins of a runtime, in order of preference, and what was chosen and rejected."""

    machine: str
    plugins: tuple[Manifest, ...]
    choices: tuple[Choice, ...]
    rejected: tuple[tuple[str, str], ...]
    modules: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def serving(self, role: str, **facts: str) -> Iterator[tuple[str, Callable[..., Any]]]:
        """(plugin, hook) of those that serve a role, preferred first; ``facts`` must be among the
        lists that the manifest gives for the role (``space="host"`` in ``spaces``)."""
        for manifest in self.order(role):
            given = manifest.roles[role]
            if all(value in given.get(f"{fact}s", (value,)) for fact, value in facts.items()):
                yield manifest.name, getattr(self.modules[manifest.name], role)

    def order(self, role: str) -> list[Manifest]:
        """The plugins that serve a role, preferred first."""
        return [manifest for manifest in self.plugins if role in manifest.roles]

    @cached_property
    def versions(self) -> dict[str, str]:
        return {manifest.name: manifest.version for manifest in self.plugins}

    def to_dict(self) -> dict[str, Any]:
        """Plain data for reports."""
        return {
            "machine": self.machine,
            "plugins": self.versions,
            "choices": [vars(choice) for choice in self.choices],
            "rejected": dict(self.rejected),
        }

    def __str__(self) -> str:
        rows = [
            (choice.role, choice.subject, choice.plugin, choice.reason) for choice in self.choices
        ]
        widths = [max((len(row[i]) for row in rows), default=0) for i in range(3)]
        lines = [f"machine {self.machine}"]
        for role, subject, plugin, reason in rows:
            cells = zip((role, subject, plugin), widths, strict=True)
            lines.append("  ".join(text.ljust(width) for text, width in cells) + f"  {reason}")
        lines += [f"not used: {name} ({reason})" for name, reason in self.rejected]
        return "\n".join(lines)


def discover() -> tuple[Manifest, ...]:
    """The manifests of all installed plugins, by name, read without importing any of them."""
    found: dict[str, Manifest] = {}
    for point in importlib.metadata.entry_points(group=GROUP):
        manifest = _read(point)
        other = found.get(point.name)
        if other is not None and other.distribution != manifest.distribution:
            both = f"{other.distribution} and {manifest.distribution}"
            manifest = Manifest(point.name, both, problem=f"{both} both provide it; uninstall one")
        found[point.name] = manifest
    return tuple(found[name] for name in sorted(found))


def _read(point: importlib.metadata.EntryPoint) -> Manifest:
    distribution = point.dist.name if point.dist else ""
    version = point.dist.version if point.dist else ""
    bare = Manifest(point.name, distribution, version)
    spec = importlib.util.find_spec(point.module.partition(".")[0])
    folder = next(iter(spec.submodule_search_locations or ()), None) if spec else None
    if folder is None:
        return _with(
            bare, problem=f"its package {point.module} is not there; reinstall {distribution}"
        )
    path = Path(folder) / "plugin.toml"
    try:
        data = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        return _with(bare, problem=f"its manifest {path} cannot be read: {error}")
    return manifest_of(data, bare, point.value, str(path))


def manifest_of(data: Mapping[str, Any], bare: Manifest, module: Any, where: str) -> Manifest:
    """A manifest from the table in a plugin's ``plugin.toml``; what is wrong becomes its problem."""
    known = {"name", "summary", "api", "automatic", "requires", "conflicts", "roles"}
    problem = ""
    hooks = {
        name for name in vars(hookspecs) if hasattr(getattr(hookspecs, name), "demitasse_spec")
    }
    if strange := sorted(set(data) - known):
        problem = unknown("key", strange[0], known, where)
    elif data.get("name") != bare.name:
        problem = f"{where}: the name is {data.get('name')!r}, the entry point's {bare.name!r}"
    elif strange := sorted(set(data.get("roles", {})) - hooks):
        problem = unknown("role", strange[0], hooks, where)
    elif not _in_range(__version__, data.get("api", "")):
        problem = f"it is for demitasse {data.get('api')!r}, this is {__version__}; install a matching one"
    return _with(
        bare,
        summary=data.get("summary", ""),
        api=data.get("api", ""),
        automatic=bool(data.get("automatic", False)),
        requires=tuple(data.get("requires", ())),
        conflicts=tuple(data.get("conflicts", ())),
        roles=data.get("roles", {}),
        module=module,
        problem=problem,
    )


def _with(manifest: Manifest, **changes: Any) -> Manifest:
    return Manifest(**{**vars(manifest), **changes})


def _in_range(version: str, wanted: str) -> bool:
    def numbers(text: str) -> tuple[int, ...]:
        return tuple(int(part) for part in re.findall(r"\d+", text))

    tests = {
        ">=": lambda a, b: a >= b,
        "<=": lambda a, b: a <= b,
        ">": lambda a, b: a > b,
        "<": lambda a, b: a < b,
        "==": lambda a, b: a[: len(b)] == b,
    }
    clauses = re.findall(r"(>=|<=|==|>|<)\s*([\d.]+)", wanted)
    return bool(clauses) and all(tests[sign](numbers(version), numbers(to)) for sign, to in clauses)


def compose_plugins(machine: Machine, wanted: Sequence[Any] | None) -> Composition:
    """Choose, import and check the plugins of a runtime.

    ``wanted`` is a list of names, preferred first; names with ``+`` or ``-`` in front change the
    default instead: the description's own list, or all automatic plugins by priority. An object with
    a ``manifest`` mapping (as in ``plugin.toml``) and hooks stands for itself.
    Raises PluginError or CompositionError that name the plugin and the remedy.
    """
    installed = {manifest.name: manifest for manifest in discover()}
    rejected: dict[str, str] = {}
    reasons = _reasons(machine, wanted, installed, rejected)
    chosen = []
    for name, reason in reasons.items():
        if name not in installed:
            raise PluginError(
                unknown("plugin", name, installed, f"{reason}")
                + f"; misspelled, or not installed: pip install demitasse-{name}"
            )
        manifest = installed[name]
        if manifest.problem:
            raise PluginError(f"plugin {name!r} ({reason}) cannot be used: {manifest.problem}")
        chosen.append(manifest)
    names = [manifest.name for manifest in chosen]
    for manifest in chosen:
        for other in manifest.requires:
            if other not in names:
                raise CompositionError(
                    f"plugin {manifest.name!r} requires {other!r}, which is not composed; "
                    f"add it to the plugins ({', '.join(names)})"
                )
        for other in manifest.conflicts:
            if other in names:
                raise CompositionError(
                    f"plugins {manifest.name!r} and {other!r} conflict; leave one out"
                )
    manager = pluggy.PluginManager("demitasse")
    manager.add_hookspecs(hookspecs)
    modules = {manifest.name: _load(manifest, manager) for manifest in chosen}
    choices = [
        Choice(role, _subject(manifest.roles[role]), manifest.name, reasons[manifest.name])
        for role in vars(hookspecs)
        for manifest in chosen
        if role in manifest.roles
    ]
    return Composition(
        machine.name, tuple(chosen), tuple(choices), tuple(rejected.items()), modules
    )


def _reasons(
    machine: Machine,
    wanted: Sequence[Any] | None,
    installed: dict[str, Manifest],
    rejected: dict[str, str],
) -> dict[str, str]:
    """Why each plugin is in, in order of preference."""
    changes: list[str] = []
    for item in wanted or ():
        if not isinstance(item, str):
            data = item.manifest
            bare = Manifest(data["name"], "(given)", __version__)
            installed[bare.name] = manifest_of(data, bare, item, f"plugin {bare.name!r}")
            item = (
                bare.name
                if any(isinstance(w, str) and w[0] not in "+-" for w in wanted or ())
                else (f"+{bare.name}")
            )
        changes.append(item)
    if changes and all(item[0] not in "+-" for item in changes):
        return dict.fromkeys(changes, "asked for") | _named_by_levels(machine, changes)
    default: dict[str, str] = {}
    added = [item[1:] if item[0] == "+" else item for item in changes if item[0] != "-"]
    removed = {item[1:] for item in changes if item[0] == "-"}
    for name in removed - set(installed):
        raise PluginError(unknown("plugin", name, installed, "asked to leave out"))
    default.update(dict.fromkeys(added, "asked for"))
    if machine.plugins is not None:
        default.update((name, f"named by {machine.origin}") for name in machine.plugins)
    else:
        for manifest in sorted(installed.values(), key=_priority, reverse=True):
            if manifest.problem:
                rejected[manifest.name] = manifest.problem
            elif manifest.automatic:
                default.setdefault(manifest.name, f"automatic, priority {_priority(manifest)}")
            elif manifest.name not in default:
                rejected[manifest.name] = "only used when named"
    for name in removed:
        default.pop(name, None)
        rejected[name] = "left out as asked"
    return default | _named_by_levels(machine, default)


def _named_by_levels(machine: Machine, others: Any) -> dict[str, str]:
    named = {}
    for level in machine.levels:
        for name in (level.kernels, level.sync.plugin if level.sync else None):
            if name and name not in others:
                named[name] = f"named by level {level.name!r} of {machine.origin}"
    return named


def _priority(manifest: Manifest) -> int:
    return max((int(facts.get("priority", 0)) for facts in manifest.roles.values()), default=0)


def _subject(facts: Mapping[str, Any]) -> str:
    lists = [value for key, value in facts.items() if key != "priority"]
    return " ".join(str(item) for value in lists for item in (value if value else ())) or "all"


def _load(manifest: Manifest, manager: pluggy.PluginManager) -> Any:
    module = manifest.module
    try:
        if isinstance(module, str):
            module = importlib.import_module(module.partition(":")[0])
        manager.register(module, manifest.name)
    except pluggy.PluginValidationError as error:
        raise PluginError(f"plugin {manifest.name!r} breaks a hook's contract: {error}") from error
    except Exception as error:
        raise PluginError(
            f"plugin {manifest.name!r} ({manifest.distribution} {manifest.version}) cannot be "
            f"imported: {type(error).__name__}: {error}; reinstall it or leave it out"
        ) from error
    implemented = {caller.name for caller in manager.get_hookcallers(module) or ()}
    if implemented != set(manifest.roles):
        raise PluginError(
            f"plugin {manifest.name!r}: its manifest declares the roles "
            f"{', '.join(sorted(manifest.roles)) or 'none'}, its module implements "
            f"{', '.join(sorted(implemented)) or 'none'}"
        )
    return module
