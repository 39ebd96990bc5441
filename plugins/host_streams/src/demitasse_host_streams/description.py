"""What a description says about stand-ins: the rates of their links, and whose memory is whose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from demitasse import (
    CompositionError,
    DescriptionError,
    Machine,
    Quantity,
    arrange,
    option_place,
    unknown,
)
from demitasse_host_streams.engine import HostEngine
from demitasse_host_streams.link import Rate

UNITS = {"bandwidth": "B/s", "d2h": "B/s", "h2d": "B/s", "latency": "s"}
"""The valid options and their units."""


@dataclass(frozen=True)
class Rates:
    """The rates of one stand-in's link: to the host (``d2h``) and from it (``h2d``)."""

    d2h: Rate
    h2d: Rate


def engine_of(space: str, machine: Machine, options: Mapping[str, Any]) -> HostEngine:
    """Return the engine of the stand-in whose tensors lie in ``space``. Raises DescriptionError for an
    unknown or invalid option, and CompositionError if the tensors of several workers lie in that
    space."""
    rates = rates_of(machine, options)
    here = [worker for worker in arrange(machine, "float32") if worker.streams and worker.space == space]
    if len(here) > 1:
        level = machine.level(here[0].place.level)
        raise CompositionError(
            f"{level.location or machine.origin}: level {level.name!r}: {len(here)} workers have "
            f"streams, but all of their tensors lie in {space!r}; give each its own memory: "
            f'memory = [{{ space = "host", at = "accelerator:*" }}]'
        )
    return HostEngine(space, rates.d2h, rates.h2d)


def rates_of(machine: Machine, options: Mapping[str, Any]) -> Rates:
    """Return the rates of the links of a machine's stand-ins. Options override the link of the level
    whose workers are streams. If neither gives a bandwidth, copies are as fast as memory. Raises
    DescriptionError for an unknown or invalid option."""
    given = {}
    for key, value in options.items():
        where = option_place(options, "host_streams", key, machine.origin)
        if key not in UNITS:
            raise DescriptionError(unknown("option", key, UNITS, where))
        if not isinstance(value, str):
            example = "10 us" if key == "latency" else "2 GB/s"
            raise DescriptionError(f"{where}: {key} = {value!r} (valid: a string like {example!r})")
        if value != "unlimited" or key == "latency":
            given[key] = Quantity.parse(value, unit=UNITS[key], where=f"{where}: {key} = ").value
        else:
            given[key] = float("inf")
    links = [level.link for level in machine.levels if level.workers == "streams" and level.link]
    link = links[-1] if links else None
    described = link.bandwidth.value if link and link.bandwidth else float("inf")
    bandwidth = given.get("bandwidth", described)
    latency = given.get("latency", link.latency.value if link and link.latency else 0.0)
    ways = (Rate(latency, given.get(way, bandwidth)) for way in ("d2h", "h2d"))
    return Rates(*ways)
