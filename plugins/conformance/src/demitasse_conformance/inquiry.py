"""What ``demitasse check`` is asked, and the outcomes that it finds."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from demitasse import (
    CompositionError,
    DemitasseError,
    Machine,
    PluginError,
    Runtime,
    compose,
    discover,
    unknown,
)
from demitasse_conformance.machines import BASE, machine_of, roles_of

PRECISIONS = ("f64", "f32", "bf16")
"""The precisions in which kernels are tried by default."""

SHAPE = (2, 4, 5, 3)
"""The shape of the blob on which a layer with one bottom is tried."""

KEPT, BROKEN, UNTRIED = "kept", "BROKEN", "untried"


class UntriedError(Exception):
    """Says why something could not be tried."""


@dataclass(frozen=True)
class Outcome:
    """Whether a promise of a role was kept, was broken or could not be tried, and what was found."""

    role: str
    subject: str
    status: str
    detail: str = ""


@dataclass(frozen=True)
class Inquiry:
    """A plugin, by name, to be composed with ``plugins`` on ``hw`` (None: a machine that suits it), with
    its options and those of its ``sync``; the precisions for kernels, further nets, sources of samples,
    and what its synchronisation promises for which numbers of workers."""

    name: str
    plugins: tuple[Any, ...]
    hw: str | Path | Machine | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    sync: Mapping[str, Any] = field(default_factory=dict)
    precisions: Sequence[str] = PRECISIONS
    nets: Sequence[Path] = ()
    sources: Sequence[str] = ()
    promise: str = "exact"
    workers: Sequence[int] = (2, 3)

    @property
    def roles(self) -> Mapping[str, Mapping[str, Any]]:
        """The plugin's roles, from its manifest."""
        return roles_of(self.plugins, self.name)

    def facts(self, role: str, fact: str) -> tuple[str, ...]:
        """Return what the manifest lists for a role: spaces, suffixes, ..."""
        return tuple(self.roles.get(role, {}).get(fact, ()))

    def runtime(self) -> Runtime:
        """Compose a new runtime, which the caller closes."""
        machine = self.hw if self.hw is not None else machine_of(self.plugins, self.name)
        return compose(machine, self.plugins, {self.name: self.options} if self.options else None)

    def layers(self, runtime: Runtime) -> dict[str, str]:
        """Return nets of one layer, from blob ``x`` to ``y``, one for each of the plugin's layer types:
        the net's text, mapped to the type's name."""
        if "layer_types" not in self.roles:
            return {}
        names = sorted(each.name for each in self.asked_of(runtime, "layer_types")())
        return {f'layer {{ name: "l" type: "{n}" bottom: "x" top: "y" }}': n for n in names}

    def asked_of(self, runtime: Runtime, role: str) -> Any:
        """Return the plugin's hook for a role, bound to its options. Raises CompositionError if the
        runtime does not have it."""
        hooks = dict(runtime.serving(role))
        if self.name not in hooks:
            raise CompositionError(f"plugin {self.name!r} does not serve {role} there")
        return hooks[self.name]


def composed_with(name: str, others: Sequence[str] | None = None) -> tuple[str, ...]:
    """Return the plugins to compose: an installed plugin, preferred to all others, those that it
    requires, and ``others`` (None: those that plugins are compared with). Raises CompositionError if a
    plugin is not installed or cannot be used."""
    installed = {manifest.name: manifest for manifest in discover()}
    names = [name]
    for each in names:
        if each not in installed:
            raise CompositionError(unknown("plugin", each, installed))
        if installed[each].problem:
            raise CompositionError(f"plugin {each!r}: {installed[each].problem}")
        names += [other for other in installed[each].requires if other not in names]
    return tuple(dict.fromkeys((*names, *(BASE if others is None else others))))


def line(error: BaseException) -> str:
    """Return an error's message in one line, without the path of a generated net."""
    return re.sub(r"\S*/tmp\w+/net\.prototxt:\d+: ", "", " ".join(str(error).split()))


def outcome(
    role: str, subject: str, tried: Callable[[], str], passing: type[Exception] | tuple[()] = ()
) -> Outcome:
    """Call ``tried``, which returns a detail, and return the outcome. The promise is broken if it raises
    AssertionError, or anything else that comes out of a plugin's code; it is untried if something was
    missing. Errors of the type ``passing`` propagate to the caller."""
    try:
        return Outcome(role, subject, KEPT, tried())
    except passing:
        raise
    except UntriedError as why:
        return Outcome(role, subject, UNTRIED, line(why))
    except (AssertionError, PluginError) as error:
        return Outcome(role, subject, BROKEN, line(error))
    except (DemitasseError, MemoryError) as error:
        return Outcome(role, subject, UNTRIED, line(error))
    except Exception as error:  # noqa: BLE001  a plugin may raise anything
        return Outcome(role, subject, BROKEN, f"it raised {type(error).__name__}: {line(error)}")
