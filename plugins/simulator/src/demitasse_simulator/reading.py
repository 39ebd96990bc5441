"""The cost of a step's samples: copying them into the net, and reading the next ones meanwhile."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from demitasse import (
    CompositionError,
    DescriptionError,
    Level,
    Machine,
    MemorySpace,
    Runtime,
    uninstalled,
)
from demitasse_simulator.planning import Draft, network_levels

PROGRAM = "reading_cost"
"""The program of a plugin that knows how processes share storage targets (striped_io has it)."""


@dataclass(frozen=True)
class Reading:
    """The seconds in which a worker copies its samples (``copy``) and in which a step's samples are read
    ahead (``ahead``); ``facts`` about reading for reports, and ``lines`` about the sources of the
    numbers."""

    copy: float
    ahead: float = 0.0
    facts: Mapping[str, Any] = field(default_factory=dict)
    lines: tuple[str, ...] = ()


def reading(
    runtime: Runtime, made: Draft, nodes: int, bandwidth: float | None, stripes: int | None
) -> Reading:
    """Return the cost of samples for a worker whose share of the memory's bandwidth is ``bandwidth``.
    ``stripes`` is the number of targets that files lie on, by default that of the plugin that offers the
    cost. Raises DescriptionError for a number that the description lacks, CompositionError if no plugin
    can cost stripes."""
    machine = runtime.machine
    moved = sum(
        buffer.spec.nbytes
        for name, buffer in made.plan.buffers.items()
        if "." in name and buffer.region == "fixed"
    )
    if bandwidth is None:
        raise DescriptionError(
            f"{machine.origin}: level {made.worker.place.level!r} has no memory.bandwidth, which the "
            f"copy of samples needs; add it with its source"
        )
    copy, batch = 2 * moved / bandwidth, moved * made.workers
    found = _storage(machine)
    if found is None:
        if stripes is not None:
            raise CompositionError(
                f"{machine.origin}: no storage has a bandwidth, so --stripes has nothing to apply to"
            )
        return Reading(copy, lines=("reading ahead is not costed: no storage has a bandwidth",))
    level, storage, speed = found
    processes = _sharing(machine, level, nodes)
    told = f"storage {storage.space!r} {storage.bandwidth}"
    if not _offered(runtime):
        if stripes is not None:
            raise CompositionError(
                f"{stripes} stripes: no composed plugin has the program {PROGRAM!r}"
                + (uninstalled("programs", PROGRAM) or "; compose striped_io")
            )
        ahead = processes * batch / (speed * storage.count)
        even = f", {storage.count} read evenly" if storage.count > 1 else ""
        return Reading(copy, ahead, {"seconds": ahead, "processes": processes}, (told + even,))
    if not batch:
        return Reading(copy, lines=(told,))
    ends = [each.link for each in network_levels(machine)[-1:] if each.link is not None]
    links = [link.bandwidth.value for link in ends if link.bandwidth is not None]
    cost = runtime.program(
        PROGRAM, processes=processes, batch=batch, stripes=stripes, link=min(links, default=math.inf)
    )
    facts: dict[str, Any] = cost.to_dict()
    told += f", files on {facts['stripes']} of {storage.count}" if storage.count > 1 else ""
    return Reading(copy, cost.seconds, facts, (told,))


def _storage(machine: Machine) -> tuple[Level, MemorySpace, float] | None:
    for level in reversed(machine.levels):
        for storage in level.storage[:1]:
            if storage.bandwidth is not None:
                return level, storage, storage.bandwidth.value
    return None


def _sharing(machine: Machine, level: Level, nodes: int) -> int:
    """Return how many of the processes that take part read from the storage of one sibling of a
    level."""
    names = [each.name for each in machine.levels]
    inside = [
        each for each in network_levels(machine) if names.index(each.name) > names.index(level.name)
    ]
    return min(nodes, math.prod(each.count for each in inside))


def _offered(runtime: Runtime) -> bool:
    return any(True for _ in runtime.composition.serving("programs", program=PROGRAM))
