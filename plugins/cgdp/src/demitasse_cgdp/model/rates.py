"""What a description says of the exchange between accelerators: links, the host's additions, waiting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, log2
from typing import Any

from demitasse import DescriptionError, Group, Level, Quantity, missing_number

OPTIONS = {"d2h": "B/s", "h2d": "B/s", "accumulate": "B/s", "synchronise": "s"}
"""Numbers of a description's ``sync`` that only predictions use, and the unit of each: how fast
gradients go to the host and back, how many bytes of contributions the host adds a second, and what one
synchronisation of the default stream costs."""

SHARES = ("interference", "interference_adding")
"""And two without a unit: by what share of the time of copies backward beside them is longer, as it
shares the accelerator's memory with them; and by what share of that of additions, as callbacks and
threads that add hold up those that drive accelerators. The second is the first where it is not given."""

PASSES = 3
"""Of memory for an addition on an accelerator or on the host: two operands are read, one is written."""


@dataclass(frozen=True)
class Rates:
    """Of CGDP: bytes a second from an accelerator to the host and back, and of contributions added
    there; seconds of a synchronisation; the shares of interference, of copies and of additions.
    ``sources`` are lines for people."""

    d2h: float
    h2d: float
    accumulate: float
    synchronise: float = 0.0
    interference: float = 0.0
    adding: float = 0.0
    sources: tuple[str, ...] = ()

    def transfers(self, size: float, replicas: int) -> tuple[float, float, float]:
        """Seconds in which ``size`` bytes of each replica go to the host, are added there, and the sum
        goes back; links are each replica's own, the additions the host's."""
        return size / self.d2h, replicas * size / self.accumulate, size / self.h2d

    def slower(self, size: float, replicas: int) -> float:
        """Seconds that backward is longer beside these transfers."""
        down, add, up = self.transfers(size, replicas)
        return self.interference * (down + up) + self.adding * add


@dataclass(frozen=True)
class Hop:
    """A round of the tree: pairs of accelerators that copy at once over links of their own."""

    latency: float
    bandwidth: float

    def seconds(self, size: float) -> float:
        """Of a copy."""
        return self.latency + size / self.bandwidth


@dataclass(frozen=True)
class Tree:
    """Typical data parallelism as BVLC/Caffe does it: accelerators in pairs, the nearest first
    (``hops``), add in memory of so many bytes a second."""

    hops: tuple[Hop, ...]
    memory: float
    sources: tuple[str, ...] = ()

    def collect(self, size: float) -> float:
        """Seconds to have the mean of all gradients on accelerator 0 (step T-3): a copy and an addition
        a round, then the division by the number of replicas, which reads and writes once."""
        rounds = sum(hop.seconds(size) + PASSES * size / self.memory for hop in self.hops)
        return rounds + 2 * size / self.memory

    def broadcast(self, size: float) -> float:
        """Seconds until all have its parameters (step T-5)."""
        return sum(hop.seconds(size) for hop in self.hops)

    def room(self, size: int) -> int:
        """Bytes on accelerator 0 for the gradients of those that it collects from: each has its own."""
        return len(self.hops) * size


def rates_of(group: Group, where: str) -> Rates:
    """The rates of a group's level: as its ``sync`` says, else the link's and the host memory's. Raises
    DescriptionError that names the number that lacks, or is none."""
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
    """The tree over a group's levels, the innermost siblings first. Raises DescriptionError for a link
    or number that lacks."""
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
    """The memory around the accelerators, and whose it is."""
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
