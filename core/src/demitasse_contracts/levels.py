"""Checks of a machine's levels: numbers must be quantities in the units that descriptions use."""

from __future__ import annotations

import math
from collections.abc import Iterator
from numbers import Integral
from typing import TYPE_CHECKING, Any

import demitasse
from demitasse import DescriptionError, PluginError, shortened

if TYPE_CHECKING:
    from demitasse import Machine

UNITS = {"capacity": "B", "bandwidth": "B/s", "latency": "s", "clock": "Hz"}
UNITS |= {"peak": "FLOP/s", "sustained": "FLOP/s", "launch": "s"}


COUNTS = ("count", "cores", "threads_per_core")


def check_levels(machine: Machine) -> None:
    """Raise DescriptionError if a count of a level or of its memories is not a whole number of at least
    1, a mesh does not multiply to the count, layers sustain more than the peak, or processes are inside
    threads or streams."""
    one_process: dict[str | None, str] = {}  # by level: the outermost of threads or streams around it
    for level in machine.levels:
        where = f"{level.location or machine.origin}: level {level.name!r}"
        _check_numbers(level, where)
        outer = one_process.get(level.parent)
        if outer is None and level.workers in ("threads", "streams"):
            outer = level.name
        elif outer is not None and level.workers == "mpi":
            told = f'has processes (workers = "mpi") inside level {outer!r}, whose'
            raise DescriptionError(
                f"{where} {told} {machine.level(outer).workers} belong to one process (valid: "
                f"processes outside threads or streams)"
            )
        if outer is not None:
            one_process[level.name] = outer


def _check_numbers(level: Any, where: str) -> None:
    for what, record in _records(level):
        for name in COUNTS:
            value = getattr(record, name, None)
            whole = isinstance(value, Integral) and not isinstance(value, bool)
            if value is not None and not (whole and 1 <= value < 2**63):
                given = shortened(value, quoted=True)
                told = f"{where}{what}: {name} = {given} (valid: a whole number, 1 or more)"
                raise DescriptionError(told)
    if level.mesh and math.prod(level.mesh) != level.count:
        raise DescriptionError(f"{where}: mesh {[*level.mesh]} does not multiply to count {level.count}")
    if getattr(level.peak, "operations", None):
        told = f"{where}: its peak has rates by operation (valid: a rate, or one by precision"
        raise DescriptionError(f"{told}; rates by operation belong in 'sustained')")
    peaks, reached = _rates(level.peak), _rates(level.sustained)
    for precision in peaks.keys() & reached.keys():
        peak, sustained = peaks[precision], reached[precision]
        if sustained.value > peak.value:
            told = f"sustained {sustained} is above its peak {peak}"
            told += f" in {precision}" if precision != "f32" else ""
            raise DescriptionError(
                f"{where}: {told} (valid: the rate that layers reach, at most the peak)"
            )


def _rates(rate: Any) -> dict[str, Any]:
    """Return the rates of a level's ``peak`` or ``sustained``, by precision."""
    if rate is None:
        return {}
    plain = demitasse.Quantity(rate.value, rate.unit, rate.source)
    return {"f32": plain, **(rate.others if isinstance(rate, demitasse.Rate) else {})}


def check_probed(plugin: str, level: Any) -> None:
    """Raise PluginError if a number of a level, its memories, storage or link has the wrong unit."""
    for what, record in _records(level):
        for name, unit in UNITS.items():
            value = getattr(record, name, None)
            if value is not None and getattr(value, "unit", None) != unit:
                valid = (
                    f"valid: a demitasse.Quantity in {unit}, like Quantity(1e9, {unit!r}, 'measured')"
                )
                told = f"level {level.name!r}{what}: {name} = {value!r:.99} ({valid})"
                raise PluginError(f"plugin {plugin!r}: hook probe returned {told}")


def _records(level: Any) -> Iterator[tuple[str, Any]]:
    yield "", level
    for kind in ("memory", "caches", "storage"):
        for space in getattr(level, kind, ()):
            yield f", {kind} {getattr(space, 'space', space)!r}", space
    yield ", link", getattr(level, "link", None)
