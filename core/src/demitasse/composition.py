"""Composition: which plugins make up a runtime, which of them serves each role, and why."""

from __future__ import annotations

import importlib
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import pluggy

import demitasse
from demitasse import __version__, hookspecs
from demitasse.errors import PluginError, Rooted, unknown
from demitasse.hookspecs import HOOKS
from demitasse.machine import Machine


@dataclass(frozen=True)
class Choice:
    """A role, what the plugin serves in it (``subject``), the plugin, and why it was chosen."""

    role: str
    subject: str
    plugin: str
    reason: str


@dataclass(frozen=True)
class Composition(Rooted):
    """The plugins of a runtime, preferred first; what each serves and why; and the plugins that are not
    used, and why not. ``modules`` has each plugin's hooks, by the plugin's name."""

    elsewhere = "send its str() or to_dict(), or compose again there"
    machine: str
    plugins: tuple[demitasse.Manifest, ...]
    choices: tuple[Choice, ...] = field(repr=False)
    rejected: tuple[tuple[str, str], ...] = field(repr=False)
    modules: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def serving(self, role: str, **facts: str) -> Iterator[tuple[str, Callable[..., Any]]]:
        """Yield (plugin, hook) for each plugin that serves a role with these facts, preferred first."""
        for manifest in self.plugins:
            if manifest.serves(role, **facts):
                yield manifest.name, getattr(self.modules[manifest.name], role)

    @property
    def versions(self) -> dict[str, str]:
        """Plugin versions by name."""
        return {manifest.name: manifest.version for manifest in self.plugins}

    def offered(self, role: str) -> dict[str, Any]:
        """Return the tables that plugins provide in a role, merged; a preferred plugin's entries win."""
        given = [hook() for _, hook in self.serving(role)]
        return {name: made for each in reversed(given) for name, made in each.items()}

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for reports."""
        choices = [asdict(choice) for choice in self.choices]
        plain = {"machine": self.machine, "plugins": self.versions, "choices": choices}
        return {**plain, "rejected": dict(self.rejected)}

    def __str__(self) -> str:
        lines, wide = [f"machine {self.machine}"], max((len(c.reason) for c in self.choices), default=0)
        lines += [f"{c.role:<14} {c.plugin:<16} {c.reason:<{wide}}  {c.subject}" for c in self.choices]
        lines += [f"{'not used':<14} {name:<16} {reason}" for name, reason in self.rejected]
        return "\n".join(lines)


def compose_plugins(machine: Machine, wanted: Sequence[Any] | None) -> Composition:
    """Choose, import and check the plugins of a runtime. ``wanted`` lists names, preferred first;
    ``+name`` and ``-name`` instead change the default, which is the description's list or else all
    automatic plugins by priority. An object with hooks and a ``manifest`` mapping (as in
    ``plugin.toml``) replaces the installed plugin of the same name. Raises PluginError or
    CompositionError that name the plugin and the remedy."""
    names, objects = list[str](), list[demitasse.Manifest]()
    for item in wanted.split(",") if isinstance(wanted, str) else wanted or ():
        if not isinstance(item, str):
            given = getattr(item, "manifest", None)
            if not isinstance(given, Mapping) or not isinstance(given.get("name"), str):
                valid = "valid: a name, or an object whose manifest has a string 'name'"
                raise PluginError(f"{item!r} is not a plugin ({valid})")
            bare = demitasse.Manifest(given["name"], "an object given", __version__, module=item)
            objects.append(bare.filled(given, f"plugin {bare.name!r}"))
            item = bare.name
        names += filter(None, [item.strip()])
    known = _by_name(demitasse.discover()) | _by_name(objects)
    reasons, rejected = _reasons(machine, names, known)
    demitasse.check_composed(machine, reasons, known)
    modules = {name: _load(known[name]) for name in reasons}
    chosen = tuple(known[name] for name in reasons)
    choices = []
    for role, manifest in itertools.product(HOOKS, chosen):
        if role in manifest.roles:
            lists = [each for each in manifest.roles[role].values() if not isinstance(each, str | int)]
            subject = " ".join(str(item) for value in lists for item in value) or "all"
            choices.append(Choice(role, subject, manifest.name, reasons[manifest.name]))
    return Composition(machine.name, chosen, tuple(choices), tuple(rejected.items()), modules)


def _by_name(manifests: Iterable[demitasse.Manifest]) -> dict[str, demitasse.Manifest]:
    known = dict[str, demitasse.Manifest]()
    for each in manifests:
        if (first := known.setdefault(each.name, each)) is not each:
            both = f"{first.distribution} and {each.distribution} both provide it; remove one"
            raise PluginError(f"plugin {each.name!r}: {both}")
    return known


def _reasons(
    machine: Machine, names: Sequence[str], known: Mapping[str, demitasse.Manifest]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return why each plugin is used, preferred first, and why the others are not."""
    exact = bool(names) and all(name[0] not in "+-" for name in names)
    removed = {name[1:] for name in names if name[0] == "-"}
    reasons = {name.lstrip("+"): "asked for" for name in names if name[0] != "-"}
    rejected = dict.fromkeys(removed, "left out as asked")
    for name in removed - {*known, *(machine.plugins or ())}:
        raise PluginError(unknown("plugin", f"-{name}", map("-{}".format, known), "plugins"))
    if not exact and machine.plugins is not None:
        reasons |= {n: f"named by machine {machine.name!r}" for n in machine.plugins if n not in reasons}
    elif not exact:
        for manifest in sorted(known.values(), key=lambda m: -m.priority):
            if manifest.problem or not manifest.automatic:
                rejected.setdefault(manifest.name, manifest.problem or "only used when named")
            else:
                reasons.setdefault(manifest.name, f"automatic, priority {manifest.priority}")
    for level in machine.levels:
        for plugin in (level.kernels, level.sync.plugin if level.sync else None):
            if plugin:
                reasons.setdefault(plugin, f"named by level {level.name!r} of machine {machine.name!r}")
    reasons = {name: reason for name, reason in reasons.items() if name not in removed}
    return reasons, {name: why for name, why in rejected.items() if name not in reasons}


def _load(manifest: demitasse.Manifest) -> Any:
    module, name, functions = manifest.module, manifest.name, tuple[Any, ...]()
    try:
        if isinstance(module, str):
            module = importlib.import_module(module)
            functions = tuple(filter(inspect.isfunction, vars(module).values()))
        hooks = (_hooks if functions else _hooks.__wrapped__)(module, name, functions)
    except pluggy.PluginValidationError as error:
        told = demitasse.broken_contract(module, vars(hookspecs), error)
        raise PluginError(f"plugin {name!r} breaks a hook's contract: {told}") from error
    except MemoryError as error:
        raise MemoryError(f"importing plugin {name!r}: {error}") from error
    except (Exception, SystemExit) as error:
        which = f"plugin {name!r} ({manifest.distribution} {manifest.version})"
        problem = f"cannot be imported: {demitasse.raised(error)}; reinstall it or leave it out"
        raise PluginError(f"{which} {problem}") from error
    declared, implemented = sorted(manifest.roles), sorted(vars(hooks))
    if implemented != declared:
        raise PluginError(f"plugin {name!r}: {demitasse.disagreement(declared, implemented, HOOKS)}")
    return hooks


@lru_cache  # by a module's functions, in case they change: half of a composition's time is pluggy's
def _hooks(module: Any, name: str, functions: tuple[Any, ...]) -> SimpleNamespace:
    manager = pluggy.PluginManager("demitasse")
    manager.add_hookspecs(hookspecs)
    manager.register(module, name)
    roles = [caller.name for caller in manager.get_hookcallers(module) or ()]
    return SimpleNamespace(**{r: demitasse.checked_hook(name, r, getattr(module, r)) for r in roles})
