"""The hardware description: a tree of levels, their memories, links and workers, all with sources."""

from __future__ import annotations

import math
import os
import platform
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, Self

import demitasse
from demitasse.errors import DescriptionError, Location, nearest, unknown

OWN = ("threads", "streams")
"""Whose siblings are workers of one process, each with a thread; that of streams drives a device."""
SOURCES = ("measured", "assumed", "vendor", "paper")
_EXAMPLES = {"s": "1 us", "B": "8 GiB", "B/s": "12 GB/s", "FLOP/s": "2 GFLOP/s", "Hz": "3 GHz"}
_SIZES = {p: Decimal(1000) ** i for i, p in enumerate(["n", "u", "m", "", *"kMGTPE"], -3)}
_SIZES |= {f"{p}i": Decimal(1024) ** i for i, p in enumerate("KMGTP", 1)}
_SYMBOLS = {f"{prefix}{unit}": (unit, size) for unit in _EXAMPLES for prefix, size in _SIZES.items()
            if size == 1 or (size < 1) == (unit == "s")}  # fmt: skip
_SYMBOLS |= {f"{prefix}bit/s": ("B/s", size / 8) for prefix, size in _SIZES.items() if size >= 1}
_FORM = re.compile(r"(-?\d+(?:\.\d+)?(?:[eE][+-]?\d{1,3})?) *([a-zA-Z/]+) *(?:\((\w+)\))?", re.A)


@dataclass(frozen=True)
class Quantity:
    """A number in its unit (s, B, B/s, FLOP/s or Hz); prints as ``12 GB/s (paper)``."""

    value: float
    unit: str
    source: str = "assumed"

    @classmethod
    def parse(cls, text: str, source: str = "assumed", unit: str | None = None, where: str = "") -> Self:
        """``12 GB/s``, or ``12 GB/s (paper)`` with a source of its own; in ``unit``, if that is
        given. Raises DescriptionError, which begins with ``where``."""
        match = _FORM.fullmatch(text)
        number, symbol, own = match.groups() if match else ("0", text, None)
        found, size = _SYMBOLS.get(symbol, ("", Decimal(0)))
        value = float(Decimal(number) * size)
        valid = [other for other, (its, _) in _SYMBOLS.items() if unit in (its, None)]
        if symbol not in valid or not 0 <= value < math.inf or (value == 0 and found != "s"):
            close = None if found else nearest(symbol, valid)
            hint = f"; did you mean {close!r}?" if close else ""
            example = f"a number above 0 with its unit, like {_EXAMPLES[unit or found or 'B/s']!r}"
            raise DescriptionError(f"{where}{text!r}{hint} (valid: {example})")
        if (own or source) not in SOURCES:
            raise DescriptionError(unknown("source", own or source, SOURCES, f"{where}{text!r}"))
        return cls(value, found, own or source)

    def __str__(self) -> str:
        exact = Decimal(repr(self.value))
        sizes = {symbol: size for symbol, (unit, size) in _SYMBOLS.items() if unit == self.unit}
        texts = [f"{(exact / size).normalize():f} {symbol}" for symbol, size in sizes.items()]
        texts = [text for text in texts if self.parse(text).value == self.value]
        return f"{min(texts, key=len)} ({self.source})"


@dataclass(frozen=True)
class Link:
    """What joins a level's siblings: one's bandwidth, over ``oversubscription`` when all talk."""

    latency: Quantity | None = None
    bandwidth: Quantity | None = None
    oversubscription: float = 1


@dataclass(frozen=True)
class MemorySpace:
    """A memory, cache or storage: ``count`` of them in one sibling, the numbers of each. Allocators
    know it as ``at``, where ``*`` is the number of the sibling, kernels as ``space``."""

    space: str
    capacity: Quantity | None = None
    bandwidth: Quantity | None = None
    latency: Quantity | None = None
    count: int = 1
    at: str | None = None


@dataclass(frozen=True)
class SyncSpec:
    """The plugin that synchronises siblings, and its options."""

    plugin: str
    options: Mapping[str, Any] = field(default_factory=dict, hash=False, metadata={"key": "*"})
    location: Location | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Level:
    """``count`` siblings in each ``parent`` (None: the level before); the rest is of one sibling."""

    name: str
    count: int = 1
    parent: str | None = None
    workers: str | None = None
    mesh: tuple[int, ...] = ()
    memory: tuple[MemorySpace, ...] = ()
    link: Link | None = None
    sync: SyncSpec | None = None
    kernels: str | None = None  # the plugin whose kernels its workers prefer
    peak: Quantity | None = None
    clock: Quantity | None = None
    cores: int | None = None
    threads_per_core: int | None = None
    caches: tuple[MemorySpace, ...] = ()
    storage: tuple[MemorySpace, ...] = ()
    features: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    location: Location | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Machine:
    """Levels, outermost first, the plugins to compose (None: the automatic ones), their options, the
    precision of a run that names none. Prints as its description. Raises DescriptionError for levels
    that make no tree."""

    name: str
    levels: tuple[Level, ...] = field(metadata={"key": "level"})  # as the file names it
    plugins: tuple[str, ...] | None = None
    precision: str = "f32"
    fingerprint: str = ""
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False)
    path: Path | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        levels: dict[str, Level] = {}
        for level in self.levels:
            where = f"{level.location or self.origin}: level {level.name!r}"
            parent = level.parent or next(reversed(levels), None)
            if parent is not None and parent not in levels:
                raise DescriptionError(unknown("parent (a level before it)", parent, levels, where))
            if level.name in levels:
                raise DescriptionError(f"{where} is there twice; give each level its own name")
            if level.mesh and math.prod(level.mesh) != level.count:
                raise DescriptionError(f"{where}: mesh {[*level.mesh]} is not count {level.count}")
            levels[level.name] = replace(level, parent=parent)
        object.__setattr__(self, "levels", tuple(levels.values()))
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
        return math.prod(level.count for level in self.levels if level.workers in OWN)

    def level(self, name: str) -> Level:
        """The level of that name. Raises DescriptionError."""
        named = {level.name: level for level in self.levels}
        if name not in named:
            raise DescriptionError(unknown("level", name, named, self.origin))
        return named[name]

    def sync_groups(self) -> tuple[tuple[SyncSpec, tuple[Level, ...]], ...]:
        """Innermost first, each ``sync`` with the levels it synchronises, outermost first: its own
        and those around it that have siblings, up to the next ``sync``."""
        groups: list[tuple[SyncSpec, tuple[Level, ...]]] = []
        waiting: dict[str | None, tuple[Level, ...]] = {None: ()}
        for level in self.levels:
            levels = waiting[level.parent] + ((level,) if level.sync or level.count > 1 else ())
            waiting[level.name] = () if level.sync else levels
            groups[:0] = [(level.sync, levels)] if level.sync else []
        for level in self.levels:
            if sum(level in levels for _, levels in groups) > 1:
                where = f"{level.location or self.origin}: level {level.name!r}"
                raise DescriptionError(f"{where} is synchronised twice; give it a sync of its own")
        return tuple(groups)

    def __str__(self) -> str:
        return demitasse.describe(self)


def fingerprint() -> str:
    """A short name of this machine: architecture, processors, digest of their model and memory."""
    file = Path("/sys/devices/system/cpu/modalias")
    model = file.read_text().partition(":feature")[0] if file.exists() else ""
    pages = os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 1
    digest = zlib.crc32(f"{model} {2 * math.log2(pages):.0f}".encode())
    return f"{platform.machine()}-{os.cpu_count()}-{digest:08x}"
