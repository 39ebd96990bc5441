"""What a step's samples cost: copying them into the net, and reading the next ones meanwhile."""

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
"""Of a plugin that knows how processes share storage targets (striped_io's)."""


@dataclass(frozen=True)
class Reading:
    """Seconds in which a worker takes its samples (``copy``), and those in which a step's samples are
    read ahead; ``facts`` of that for reports, and ``lines`` that say where the numbers are from."""

    copy: float
    ahead: float = 0.0
    facts: Mapping[str, Any] = field(default_factory=dict)
    lines: tuple[str, ...] = ()


def reading(
    runtime: Runtime, made: Draft, nodes: int, bandwidth: float | None, stripes: int | None
) -> Reading:
    """For a worker whose memory has ``bandwidth`` of its own. ``stripes`` are targets that files lie on,
    by default as the plugin that offers the cost has it. Raises DescriptionError for a number that the
    description lacks, CompositionError for stripes that nobody can cost."""
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
    """How many of the processes that take part read from the storage of one sibling of a level."""
    names = [each.name for each in machine.levels]
    inside = [
        each for each in network_levels(machine) if names.index(each.name) > names.index(level.name)
    ]
    return min(nodes, math.prod(each.count for each in inside))


def _offered(runtime: Runtime) -> bool:
    return any(True for _ in runtime.composition.serving("programs", program=PROGRAM))
