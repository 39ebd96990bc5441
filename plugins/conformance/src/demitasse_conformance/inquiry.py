"""What ``demitasse check`` is asked, and what it finds."""

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
"""Of kernels, unless some are named."""

SHAPE = (2, 4, 5, 3)
"""What a layer is tried on that takes one blob."""

KEPT, BROKEN, UNTRIED = "kept", "BROKEN", "untried"


class UntriedError(Exception):
    """Why something could not be tried."""


@dataclass(frozen=True)
class Outcome:
    """Whether a promise of a role is kept, broken or could not be tried, and what was found."""

    role: str
    subject: str
    status: str
    detail: str = ""


@dataclass(frozen=True)
class Inquiry:
    """A plugin, by name, composed with ``plugins`` on ``hw`` (None: a machine that it fits) with its
    options and those of its ``sync``; the precisions of kernels, further nets, sources of samples, and
    what its synchronisation promises to how many workers."""

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
        """The plugin's, by its manifest."""
        return roles_of(self.plugins, self.name)

    def facts(self, role: str, fact: str) -> tuple[str, ...]:
        """What the manifest names for a role: spaces, suffixes, ..."""
        return tuple(self.roles.get(role, {}).get(fact, ()))

    def runtime(self) -> Runtime:
        """Composed anew; the caller closes it."""
        machine = self.hw if self.hw is not None else machine_of(self.plugins, self.name)
        return compose(machine, self.plugins, {self.name: self.options} if self.options else None)

    def layers(self, runtime: Runtime) -> dict[str, str]:
        """Each of its layer types in a net of one layer, from a blob ``x`` to ``y``: the text, to the
        type's name."""
        if "layer_types" not in self.roles:
            return {}
        names = sorted(each.name for each in self.asked_of(runtime, "layer_types")())
        return {f'layer {{ name: "l" type: "{n}" bottom: "x" top: "y" }}': n for n in names}

    def asked_of(self, runtime: Runtime, role: str) -> Any:
        """The plugin's hook for a role, which is given its options. Raises CompositionError where the
        runtime does not have it."""
        hooks = dict(runtime.serving(role))
        if self.name not in hooks:
            raise CompositionError(f"plugin {self.name!r} does not serve {role} there")
        return hooks[self.name]


def composed_with(name: str, others: Sequence[str] | None = None) -> tuple[str, ...]:
    """An installed plugin, preferred to all, with what it requires, and ``others`` (None: what plugins
    are compared with). Raises CompositionError for one that is not installed or cannot be used."""
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
    """What an error says in one line, without the path of a net that was made up."""
    return re.sub(r"\S*/tmp\w+/net\.prototxt:\d+: ", "", " ".join(str(error).split()))


def outcome(
    role: str, subject: str, tried: Callable[[], str], passing: type[Exception] | tuple[()] = ()
) -> Outcome:
    """What comes of trying one thing, which gives a detail: a promise that an AssertionError breaks, or
    whatever else comes out of a plugin's code; or that could not be tried, for what is not there. Errors
    of the type ``passing``, which are whoever's that asks, are raised."""
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
