"""The hardware description: a tree of levels, their memories, links and workers, all with sources."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
import platform
import re
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from demitasse.errors import DescriptionError, Location, nearest, unknown

WORKERS = ("threads", "mpi", "streams", "simulated")
SOURCES = ("measured", "assumed", "vendor", "paper")
DIMENSIONS = {"latency": "s", "capacity": "B", "bandwidth": "B/s", "peak": "flop/s", "clock": "Hz"}
_EXAMPLES = {"s": "1 us", "B": "64 KiB", "B/s": "12 GB/s", "flop/s": "2 GFLOP/s", "Hz": "3 GHz"}
_LARGE = {p: Decimal(1000) ** i for i, p in enumerate(["", "k", "M", "G", "T", "P"])}
_BYTES = _LARGE | {f"{p}i": Decimal(1024) ** i for i, p in enumerate("KMGTP", 1)} | {"K": Decimal(1000)}
_SYMBOLS = {
    **{f"{p}s": ("s", Decimal(1000) ** -i) for p, i in (("", 0), ("m", 1), ("u", 2), ("µ", 2), ("n", 3))},
    **{f"{p}B": ("B", scale) for p, scale in _BYTES.items()},
    **{f"{p}B/s": ("B/s", scale) for p, scale in _BYTES.items()},
    **{f"{p}bit/s": ("B/s", scale / 8) for p, scale in _LARGE.items()},
    **{f"{p}FLOP/s": ("flop/s", scale) for p, scale in _LARGE.items()},
    **{f"{p}Hz": ("Hz", scale) for p, scale in _LARGE.items()},
}  # symbol: (unit, its size in that unit), in the order in which a printed value prefers them
_QUANTITY = re.compile(r"(-?\d+(?:\.\d+)?(?:[eE][+-]?\d{1,3})?) *([^\s()\d]+)(?: *\((\w+)\))?")


@dataclass(frozen=True)
class Quantity:
    """A number with its unit (s, B, B/s, flop/s or Hz) and source; prints as ``12 GB/s (paper)``."""

    value: float
    unit: str
    source: str = "assumed"

    @classmethod
    def parse(cls, text: str, source: str = "assumed") -> Quantity:
        """``12 GB/s``, or ``12 GB/s (paper)`` with a source of its own. Raises DescriptionError."""
        match = _QUANTITY.fullmatch(text.strip())
        if match is None:
            raise DescriptionError(f"{text!r} is not a number with a unit")
        number, symbol, own = match.groups()
        if symbol not in _SYMBOLS:
            raise DescriptionError(unknown("unit", symbol, _SYMBOLS))
        if (own or source) not in SOURCES:
            raise DescriptionError(unknown("source", own or source, SOURCES))
        unit, scale = _SYMBOLS[symbol]
        return cls(float(Decimal(number) * scale), unit, own or source)

    @property
    def text(self) -> str:
        """The value and unit in their shortest exact form, without the source."""
        exact, forms = Decimal(repr(self.value)), []
        for symbol, (unit, scale) in _SYMBOLS.items():
            form = f"{(exact / scale).normalize():f} {symbol}"
            if unit == self.unit and "bit" not in symbol and self.parse(form).value == self.value:
                forms.append(form)
        return min(forms, key=len)

    def __str__(self) -> str:
        return f"{self.text} ({self.source})"


@dataclass(frozen=True)
class Link:
    """What joins the siblings of a level, or a device to it; bandwidth is one sibling's, one way,
    divided by ``oversubscription`` when all of them talk across the level at once."""

    latency: Quantity | None = None
    bandwidth: Quantity | None = None
    oversubscription: float = 1


@dataclass(frozen=True)
class MemorySpace:
    """A memory, cache or storage of one sibling; ``count`` of them, the numbers of each one."""

    space: str
    capacity: Quantity | None = None
    bandwidth: Quantity | None = None
    latency: Quantity | None = None
    count: int = 1


@dataclass(frozen=True)
class SyncSpec:
    """The plugin that synchronises siblings, and its options."""

    plugin: str
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    location: Location | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Level:
    """``count`` siblings within each one of the parent; all else is what each sibling has. ``parent``
    is the level before when None; ``kernels`` names the plugin that its workers prefer."""

    name: str
    count: int = 1
    parent: str | None = None
    workers: str | None = None
    mesh: tuple[int, ...] = ()
    memory: tuple[MemorySpace, ...] = ()
    link: Link | None = None
    sync: SyncSpec | None = None
    kernels: str | None = None
    peak: Quantity | None = None
    clock: Quantity | None = None
    cores: int | None = None
    threads_per_core: int | None = None
    caches: tuple[MemorySpace, ...] = ()
    storage: tuple[MemorySpace, ...] = ()
    features: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    location: Location | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return "\n".join(["[[level]]", *(f"{k} = {_toml(v)}" for k, v in _plain(self).items())])


@dataclass(frozen=True)
class Machine:
    """Levels, outermost first, the plugins to compose (None: the automatic ones) and their options.
    Prints as its description. Raises DescriptionError for levels that are not a tree."""

    name: str
    levels: tuple[Level, ...]
    plugins: tuple[str, ...] | None = None
    fingerprint: str = ""
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False)
    path: Path | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        names, depth = [level.name for level in self.levels], {}
        levels = {}
        for level, before in zip(self.levels, [None, *names], strict=False):
            where = f"{level.location or self.origin}: level {level.name!r}"
            if level.name in levels:
                raise DescriptionError(f"{where} is there twice; give every level its own name")
            if before is None and level.parent is not None:
                raise DescriptionError(f"{where} is first, so outermost; it has no parent")
            if level.parent not in (None, *names):
                raise DescriptionError(unknown("parent", str(level.parent), names, where))
            if level.mesh and math.prod(level.mesh) != level.count:
                mesh = " x ".join(map(str, level.mesh))
                raise DescriptionError(f"{where}: a mesh of {mesh} does not make count {level.count}")
            levels[level.name] = replace(level, parent=level.parent or before)
        for name, level in levels.items():
            outwards = [name]
            while (parent := levels[outwards[-1]].parent) is not None:
                if parent in outwards:
                    cycle = " in ".join(repr(n) for n in [*outwards, parent])
                    raise DescriptionError(f"{level.location or self.origin}: parents in a cycle: {cycle}")
                outwards.append(parent)
            depth[name] = len(outwards)
        ordered = sorted(levels.values(), key=lambda level: depth[level.name])
        object.__setattr__(self, "levels", tuple(ordered))
        self.sync_groups()

    @property
    def origin(self) -> str:
        """Where it was described, for messages."""
        return str(self.path) if self.path else f"machine {self.name!r}"

    @property
    def simulated(self) -> bool:
        """True unless it was described here, or for anywhere (fingerprint ``any``)."""
        return self.fingerprint not in ("any", fingerprint())

    @property
    def workers(self) -> int:
        """How many workers it makes in one process."""
        return math.prod(level.count for level in self.levels if level.workers == "threads")

    def level(self, name: str) -> Level:
        """The level of that name. Raises DescriptionError."""
        return self.enclosing(name)[-1]

    def enclosing(self, name: str) -> tuple[Level, ...]:
        """A level and those around it, outermost first. Raises DescriptionError."""
        named, chain = {level.name: level for level in self.levels}, []
        at: str | None = name
        while at is not None:
            if at not in named:
                raise DescriptionError(unknown("level", at, named, self.origin))
            chain.append(named[at])
            at = named[at].parent
        return tuple(reversed(chain))

    def sync_groups(self) -> tuple[tuple[SyncSpec, tuple[Level, ...]], ...]:
        """Innermost first: each ``sync`` and the levels whose siblings it synchronises, outermost
        first: its own, and the enclosing ones up to the next ``sync`` that have siblings."""
        groups: list[tuple[SyncSpec, tuple[Level, ...]]] = []
        for level in reversed(self.levels):
            if level.sync is not None:
                members = [level]
                for outer in self.enclosing(level.name)[-2::-1]:
                    if outer.sync is not None:
                        break
                    members += [outer] if outer.count > 1 else []
                for other, taken in groups:
                    if both := [m.name for m in members if m in taken]:
                        raise DescriptionError(
                            f"{level.location or self.origin}: {both[0]!r} would be synchronised by "
                            f"both {other.plugin!r} and {level.sync.plugin!r}; give it its own sync"
                        )
                groups.append((level.sync, tuple(reversed(members))))
        return tuple(groups)
