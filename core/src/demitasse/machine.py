"""The hardware description: a tree of levels, their memories, links and workers, all with sources."""

from __future__ import annotations

import json
import math
import os
import platform
import re
import tomllib
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from demitasse.errors import DescriptionError, Location, nearest, unknown

WORKERS = ("threads", "mpi", "streams", "simulated")
SOURCES = ("measured", "assumed", "vendor", "paper")
UNITS = {"latency": "s", "capacity": "B", "bandwidth": "B/s", "peak": "FLOP/s", "clock": "Hz"}
_SIZES = {p: Decimal(1000) ** i for i, p in enumerate(["n", "u", "m", "", *"kMGTPE"], -3)}
_SIZES |= {f"{p}i": Decimal(1024) ** i for i, p in enumerate("KMGTP", 1)}
_SYMBOLS = {f"{p}{unit}": (unit, size) for unit in UNITS.values() for p, size in _SIZES.items()
            if size == 1 or (size < 1) == (unit == "s")}  # fmt: skip
_SYMBOLS |= {f"{p}bit/s": ("B/s", size / 8) for p, size in _SIZES.items() if size >= 1}
_QUANTITY = re.compile(r"(-?\d+(?:\.\d+)?(?:e[+-]?\d{1,3})?) *([a-zA-Z/]+) *(?:\((\w+)\))?", re.A)
_STRINGS = r'"""[^\0]*?"""|\'\'\'[^\0]*?\'\'\'|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'|#[^\n]*'


@dataclass(frozen=True)
class Quantity:
    """A number in its unit (s, B, B/s, FLOP/s, Hz), with source; prints as ``12 GB/s (paper)``."""

    value: float
    unit: str
    source: str = "assumed"

    @classmethod
    def parse(cls, text: str, source: str = "assumed") -> Quantity:
        """``12 GB/s``, or ``12 GB/s (paper)`` with a source of its own. Raises DescriptionError."""
        match = _QUANTITY.fullmatch(text)
        number, symbol, own = match.groups() if match else ("", text, "")
        if symbol not in _SYMBOLS:
            raise DescriptionError(f"no number and unit (nearest unit {nearest(symbol, _SYMBOLS)})")
        if (own or source) not in SOURCES:
            raise DescriptionError(unknown("source", own or source, SOURCES))
        unit, size = _SYMBOLS[symbol]
        value = float(Decimal(number) * size)
        if not 0 < value + (unit == "s") * math.ulp(0) < math.inf:
            raise DescriptionError("impossible")
        return cls(value, unit, own or source)

    def __str__(self) -> str:
        sizes = [(symbol, size) for symbol, (unit, size) in _SYMBOLS.items() if unit == self.unit]
        value = Decimal(repr(self.value))
        texts = [f"{(value / size).normalize():f} {symbol}" for symbol, size in sizes]
        exact = [text for text in texts if self.parse(text).value == self.value]
        return f"{min(exact, key=len)} ({self.source})"


@dataclass(frozen=True)
class Link:
    """What joins a level's siblings: one's bandwidth, over ``oversubscription`` when all talk."""

    latency: Quantity | None = None
    bandwidth: Quantity | None = None
    oversubscription: float = 1


@dataclass(frozen=True)
class MemorySpace:
    """A memory, cache or storage: ``count`` of them in one sibling, the numbers of each."""

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
    """``count`` siblings in each ``parent`` (None: the level before); the rest is of one sibling.
    ``kernels`` names the plugin that its workers prefer."""

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


@dataclass(frozen=True)
class Machine:
    """Levels, outermost first, the plugins to compose (None: the automatic ones), their options.
    Prints as its description. Raises DescriptionError for levels that make no tree."""

    name: str
    levels: tuple[Level, ...]
    plugins: tuple[str, ...] | None = None
    fingerprint: str = ""
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False)
    path: Path | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        levels: dict[str, Level] = {}
        for level in self.levels:
            where = f"{level.location or self.origin}: level {level.name!r}"
            parent = level.parent or next(reversed(levels), None)
            if parent is not None and parent not in levels:
                raise DescriptionError(unknown("parent", parent, levels, where))
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
        return math.prod(level.count for level in self.levels if level.workers == "threads")

    def level(self, name: str) -> Level:
        """The level of that name. Raises DescriptionError."""
        return self.enclosing(name)[-1]

    def enclosing(self, name: str) -> tuple[Level, ...]:
        """The level of that name and those around it, outermost first. Raises DescriptionError."""
        named = {level.name: level for level in self.levels}
        if name not in named:
            raise DescriptionError(unknown("level", name, named, self.origin))
        parent = named[name].parent
        return (*(self.enclosing(parent) if parent else ()), named[name])

    def sync_groups(self) -> tuple[tuple[SyncSpec, tuple[Level, ...]], ...]:
        """Innermost first, each ``sync`` with the levels it synchronises, outermost first: its own
        and those around it that have siblings, up to the next ``sync``."""
        groups: list[tuple[SyncSpec, tuple[Level, ...]]] = []
        for level in reversed(self.levels):
            if level.sync is not None:
                around = self.enclosing(level.name)
                first = max((i for i, x in enumerate(around[:-1], 1) if x.sync), default=0)
                members = tuple(x for x in around[first:] if x.count > 1 or x is level)
                if both := [x for x in members for _, taken in groups if x in taken]:
                    where = f"{both[0].location or self.origin}: level {both[0].name!r}"
                    raise DescriptionError(f"{where} is synchronised twice; give it its own sync")
                groups.append((level.sync, members))
        return tuple(groups)

    def __str__(self) -> str:
        tables = [{"schema": 1} | _given(replace(self, levels=())), *map(_given, self.levels)]
        # JSON with its separator changed is what TOML calls an inline table.
        write = json.JSONEncoder(ensure_ascii=False, separators=(", ", " = "), default=_given).encode
        texts = ["\n".join(f"{key} = {write(v)}" for key, v in table.items()) for table in tables]
        return "\n\n[[level]]\n".join(texts).replace("\x7f", "\\u007f") + "\n"

    to_toml = __str__


def _given(record: Any) -> Any:
    if isinstance(record, Quantity):
        return str(record)
    given = {f.name: getattr(record, f.name) for f in fields(record) if f.compare}
    ...
    if isinstance(record, SyncSpec):
        return {"plugin": record.plugin, **record.options}
    values = {f.name: (getattr(record, f.name), f.default) for f in fields(record) if f.compare}
    return {name: value for name, (value, default) in values.items() if value not in (default, {})}


def load_machine(path: str | Path) -> Machine:
    """The machine that a TOML file describes. Raises DescriptionError with file and line."""
    path, text = Path(path), ""
    try:
        text = path.read_text(encoding="utf-8")
        table = tomllib.loads(text)
    except OSError as error:
        close = nearest(path.name, [other.name for other in path.parent.glob("*.toml")])
        hint = f"; did you mean {str(path.parent / close)!r}?" if close else ""
        raise DescriptionError(f"{path}: {error.strerror}{hint}") from error
    except (ValueError, RecursionError) as error:
        line = re.search(r"at line (\d+)", f"{error} at line {text.count(chr(10)) + 1}")
        raise DescriptionError(f"{path}:{line and line[1]}: {error}") from error
    return _Reader(path, text).record(Machine, table)


class _Reader:
    """Tables to records by the annotations of their fields, with an eye on the line."""

    def __init__(self, path: Path, text: str) -> None:
        self.path, self.line, self.lines = path, 1, defaultdict(list)
        bare = re.sub(_STRINGS, lambda match: "\n" * match[0].count("\n"), text)
        for number, line in enumerate(bare.split("\n"), 1):
            for key in re.findall(r"([\w-]+)\s*[]=]", line):
                self.lines[key].append(number)

    def record(self, kind: Any, table: dict[str, Any]) -> Any:
        places = {"location": Location(str(self.path), self.line), "path": self.path}
        types = {f.name.replace("levels", "level"): f.type for f in fields(kind)}
        source = table.pop("source", "assumed" if kind is Level else "")
        if kind is SyncSpec:
            table = {"plugin": table.pop("plugin", ""), "options": table}
        values = {name: places[name] for name in types if name in places}
        for key, value in table.items():
            self.line = self.lines[key].pop(0) if self.lines[key] else self.line
            if key not in types or key in places:
                raise self.error(unknown("key", key, {*types, "source"} - {*places}, self.here))
            values[key] = self.value(types[key].removesuffix(" | None"), key, value, source)
        for f in fields(kind):
            if f.default is f.default_factory and f.name not in values:
                raise DescriptionError(f"{places['location']}: a {kind.__name__} needs {f.name!r}")
        return kind(**values)

    def value(self, kind: str, key: str, value: Any, source: str) -> Any:
        if kind.startswith("tuple") and isinstance(value, list):
            return tuple(self.value(kind[6:-6], key, item, source) for item in value)
        if kind in _RECORDS and isinstance(value, dict):
            return self.record(_RECORDS[kind], value)
        if kind == "Quantity" and isinstance(value, str):
            ...
        if not valid:
            raise
        return value


def fingerprint() -> str:
    """A short name of this machine: architecture, processors, digest of their model and memory."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as file:
            model = [line for line in islice(file, 9) if line.startswith(("vendor", "model", ...))]
    except OSError: 
        model = []
    memory = round(2 * math.log2(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")))
    digest = zlib.crc32(repr([model, memory]).encode())
    return f"{platform.machine()}-{os.cpu_count()}-{digest:08x}"
