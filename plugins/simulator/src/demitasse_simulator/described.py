"""Stand-ins for machines that are only described: kernels and synchronisations that never run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from demitasse import (
    Candidate,
    CompositionError,
    GradientSync,
    Group,
    Machine,
    PlanError,
    Request,
    Span,
    Work,
    check_sync_options,
    discover,
    nearest,
    sync_place,
)

ME = "simulator"

ACROSS = "sum_across_workers"
"""The operation that adds up numbers of all workers within a pass; the trainer itself computes it."""

AMONG_NODES = ("algorithm", "lower", "upper", "chain", "ranks", "overlap", "packed")
"""Options of a ``sync`` that describe what siblings on several nodes do, for every plugin."""


def candidates(request: Request) -> Iterable[Candidate]:
    """Return, at a described place, a kernel for every operation, in plain layouts. A roofline predicts
    its time. It serves places whose own kernels are not composed. At a real place, return nothing."""
    if not request.place.simulated or request.operation.name == ACROSS:
        return ()
    return (Candidate("roofline", partial(_never, request.operation.name, request.place.space)),)


def _never(operation: str, space: str, inputs: Any, outputs: Any, workspace: Any) -> Work:
    raise PlanError(
        f"no composed plugin computes {operation} in {space!r}, on a machine that is only described: "
        f"this plan can be simulated, but not run"
    )


class Described(GradientSync):
    """Siblings that synchronise as the description's options say, in simulations only. The first one of
    a process owns what was summed there. Raises DescriptionError for an unknown option."""

    def __init__(self, group: Group) -> None:
        check_sync_options(group, AMONG_NODES)
        self.index = group.index
        self.size = group.team.size if group.team is not None else 1
        self._where = sync_place(group)

    def bind(self, memory: Any) -> None:
        """Raise CompositionError, because this synchronisation cannot train."""
        raise CompositionError(
            f"{self._where}: plugin 'simulator' only predicts the cost of synchronising; to "
            f"train, name a plugin in its sync that synchronises"
        )

    def owned(self, span: Span) -> Span:
        """Return the whole span for the first sibling, and an empty span for the others."""
        return span if self.index == 0 else Span(span.start, span.start)


def standing_in(machine: Machine) -> tuple[Machine, list[str]]:
    """Return a machine that can be composed for a simulation, and notes about substitutions. This
    plugin is added to its plugins. If a plugin that synchronises a described machine is not installed,
    this one stands in for it, by the options of its ``sync``."""
    lines: list[str] = []
    if machine.fingerprint == "any" and any(
        level.workers == "streams" and memory.space != "host"
        for level in machine.levels
        for memory in level.memory
    ):  # accelerators need not be present to be simulated
        machine = replace(machine, fingerprint="described")
    if machine.plugins is None:
        return machine, lines
    there = {manifest.name: manifest for manifest in discover()}
    levels = []
    for level in machine.levels:
        sync = level.sync
        if machine.simulated and sync is not None and sync.plugin not in there:
            close = nearest(sync.plugin, there)
            meant = f" (did you mean {close!r}?)" if close else ""
            lines.append(
                f"{sync.plugin} is not installed{meant}: its work at level {level.name!r} is simulated "
                f"from its options in {machine.origin}{_besides(sync.options)}"
            )
            known = {key: value for key, value in sync.options.items() if key in AMONG_NODES}
            level = replace(level, sync=replace(sync, plugin=ME, options=known))
        levels.append(level)
    gone = {line.partition(" ")[0] for line in lines}
    names = [name for name in machine.plugins if name not in gone and name != ME]
    described = any(level.sync is not None and level.sync.plugin == ME for level in levels)
    if described and not any("collectives" in there[name].roles for name in names if name in there):
        names += [name for name, manifest in there.items() if "collectives" in manifest.roles]
    return replace(machine, levels=tuple(levels), plugins=(*names, ME)), lines


def _besides(options: Mapping[str, Any]) -> str:
    """Return words about the options that only the missing plugin would understand."""
    strange = [key for key in options if key not in AMONG_NODES]
    return f", without {', '.join(strange)}" if strange else ""
