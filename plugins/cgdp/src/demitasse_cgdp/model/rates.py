"""What a description says about the exchange: links, the host's additions, synchronisation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, log2
from typing import Any

from demitasse import DescriptionError, Group, Level, Quantity, missing_number

OPTIONS = {"d2h": "B/s", "h2d": "B/s", "accumulate": "B/s", "synchronise": "s"}
"""Options of a description's ``sync`` that only predictions use, and their units: how fast gradients go
to the host and back, how many bytes of contributions the host adds per second, and what one
synchronisation of the default stream costs."""

SHARES = ("interference", "interference_adding")
"""Two more, without a unit. The first: how much longer backward takes beside copies, as a share of the
copies' time, because they share the accelerator's memory. The second: the same beside additions, because
callbacks and threads that add hold up the threads that drive accelerators. The second defaults to the
first."""

PASSES = 3
"""Passes over memory for one addition, on an accelerator or the host: two reads and one write."""


@dataclass(frozen=True)
class Rates:
    """The rates of CGDP: bytes per second from an accelerator to the host (``d2h``) and back (``h2d``),
    and of contributions added there (``accumulate``); seconds of a synchronisation; the shares of
    interference by copies and by additions (``adding``). ``sources`` are lines for people."""

    d2h: float
    h2d: float
    accumulate: float
    synchronise: float = 0.0
    interference: float = 0.0
    adding: float = 0.0
    sources: tuple[str, ...] = ()

    def transfers(self, size: float, replicas: int) -> tuple[float, float, float]:
        """Return the seconds for copying ``size`` bytes of each replica to the host, adding them there,
        and copying the sum back. Each replica has links of its own; the additions share the host."""
        return size / self.d2h, replicas * size / self.accumulate, size / self.h2d

    def slower(self, size: float, replicas: int) -> float:
        """Return by how many seconds these transfers prolong backward."""
        down, add, up = self.transfers(size, replicas)
        return self.interference * (down + up) + self.adding * add


@dataclass(frozen=True)
class Hop:
    """One round of the tree, in which pairs of accelerators copy at once, each over links of its own."""

    latency: float
    bandwidth: float

    def seconds(self, size: float) -> float:
        """Return the seconds that a copy of ``size`` bytes takes."""
        return self.latency + size / self.bandwidth


@dataclass(frozen=True)
class Tree:
    """Typical data parallelism as in BVLC/Caffe: accelerators are paired, nearest first (``hops``), and
    add in memory with a bandwidth of ``memory`` bytes per second."""

    hops: tuple[Hop, ...]
    memory: float
    sources: tuple[str, ...] = ()

    def collect(self, size: float) -> float:
        """Return the seconds to have the mean of all gradients on accelerator 0 (step T-3): a copy and
        an addition per round, then the division by the number of replicas, which reads and writes
        once."""
        rounds = sum(hop.seconds(size) + PASSES * size / self.memory for hop in self.hops)
        return rounds + 2 * size / self.memory

    def broadcast(self, size: float) -> float:
        """Return the seconds until all accelerators have the parameters of accelerator 0 (step T-5)."""
        return sum(hop.seconds(size) for hop in self.hops)

    def room(self, size: int) -> int:
        """Return the bytes on accelerator 0 for the gradients of each that it collects from."""
        return len(self.hops) * size


def rates_of(group: Group, where: str) -> Rates:
    """Return the rates of a group's level: those of its ``sync``, otherwise those of the link and the
    host's memory. Raises DescriptionError that names a number that is missing or invalid."""
    given, levels = group.options, _levels(group)
    told, lines = _told(given, where), list[str]()
    inner = levels[-1]
    for way in ("d2h", "h2d"):
        if way not in told:
            link = inner.link.bandwidth if inner.link is not None else None
            if link is None:
                raise _missing(group, inner, f"{way} in its sync, nor a link.bandwidth", "a copy")
            told[way] = link
            lines.append(f"{way} is not given: the link of level {inner.name!r}, {link}")
        else:
            lines.append(f"{way} {told[way]}")
    if "accumulate" in told:
        add = told["accumulate"].value
        lines.append(f"accumulate {told['accumulate']}")
    else:
        level, memory = _host_memory(group, inner)
        add = memory.value / PASSES
        lines.append(f"accumulate is not given: {memory} of level {level.name!r}, {PASSES} passes")
    wait = told.get("synchronise")
    latency = inner.link.latency if inner.link else None
    if wait is None:
        if latency is None:
            raise _missing(group, inner, "synchronise in its sync, nor a link.latency", "a chunk")
        lines.append(f"synchronise is not given: the latency of level {inner.name!r}, {latency}")
    else:
        lines.append(f"synchronise {wait}")
    seconds = wait.value if wait else latency.value if latency else 0.0
    copies, adding = SHARES
    share = float(given.get(copies, 0.0))
    lines.append(f"{copies} {share:g}" if copies in given else f"{copies} 0 (assumed)")
    other = float(given.get(adding, share))
    lines.append(f"{adding} {other:g}" if adding in given else f"{adding} is not given: {copies}")
    return Rates(told["d2h"].value, told["h2d"].value, add, seconds, share, other, tuple(lines))


def tree_of(group: Group) -> Tree:
    """Return the tree over a group's levels, the innermost siblings first. Raises DescriptionError for a
    missing link or number."""
    hops, lines, levels = list[Hop](), list[str](), _levels(group)
    for level in reversed(levels):
        if level.count == 1:
            continue
        link = level.link
        if link is None or link.bandwidth is None:
            raise _missing(group, level, "link.bandwidth", "a copy between accelerators")
        if link.latency is None:
            raise _missing(group, level, "link.latency", "a copy between accelerators")
        rounds = ceil(log2(level.count))
        hops += [Hop(link.latency.value, link.bandwidth.value)] * rounds
        lines.append(
            f"{rounds} round(s) of the tree over {level.name}: {link.bandwidth}, {link.latency}"
        )
    memory = next((each.bandwidth for each in levels[-1].memory if each.bandwidth), None)
    if memory is None:
        raise _missing(group, levels[-1], "memory.bandwidth", "an addition on an accelerator")
    return Tree(tuple(hops), memory.value, (*lines, f"additions at {memory}, {PASSES} passes"))


def check(given: Mapping[str, Any], where: str) -> None:
    """Raise DescriptionError for an option that is not a valid rate."""
    _told(given, where)
    for name in SHARES:
        share = given.get(name, 0.0)
        if type(share) not in (int, float) or not 0 <= share < 100:
            raise DescriptionError(
                f"{where}: {name} = {share!r} (valid: a number, 0 or more and below 100, like 0.15)"
            )


def _told(given: Mapping[str, Any], where: str) -> dict[str, Quantity]:
    found = {}
    for name, unit in OPTIONS.items():
        if name in given:
            if not isinstance(given[name], str):
                example = "20 us" if unit == "s" else "15 GB/s"
                raise DescriptionError(
                    f"{where}: {name} = {given[name]!r} (valid: a string like {example!r})"
                )
            found[name] = Quantity.parse(given[name], unit=unit, where=f"{where}: {name} = ")
    return found


def _levels(group: Group) -> Sequence[Level]:
    if group.machine is None:
        raise DescriptionError("a synchronisation without a machine cannot be predicted")
    return [group.machine.level(name) for name in group.levels]


def _host_memory(group: Group, inner: Level) -> tuple[Level, Quantity]:
    """Return the bandwidth of the memory around the accelerators, and the level that has it."""
    machine, level = group.machine, inner
    assert machine is not None
    while level.parent is not None:
        level = machine.level(level.parent)
        for memory in level.memory:
            if memory.bandwidth is not None:
                count = memory.count
                if level.name in group.levels:
                    count *= level.count
                return level, Quantity(memory.bandwidth.value * count, "B/s", memory.bandwidth.source)
    raise _missing(group, inner, "accumulate in its sync, nor memory.bandwidth around it", "a sum")


def _missing(group: Group, level: Level, key: str, what: str) -> DescriptionError:
    assert group.machine is not None
    return missing_number(group.machine, level, key, f"{what} needs")
