"""The hardware description: a tree of levels, their memories, links and workers, all with sources."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import re
import tomllib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
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
_TEXTS = re.compile(r'"""[^\0]*?"""|\'\'\'[^\0]*?\'\'\'|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'|#[^\n]*')
_VALID = {
    "str": (lambda value: isinstance(value, str) and value, "a text"),
    "int": (lambda value: type(value) is int and value > 0, "a whole number from 1"),
    "float": (lambda value: type(value) in (int, float) and 1 <= value < math.inf, "a number from 1"),
}  # fmt: skip


@dataclass(frozen=True)
class Quantity:
    """A number in its unit (s, B, B/s, FLOP/s, Hz), with source; prints as ``12 GB/s (paper)``."""

    value: float
    unit: str
    source: str = "assumed"

    @classmethod
    def parse(cls, text: str, source: str = "assumed") -> Quantity:
        """``12 GB/s``, or ``12 GB/s (paper)`` with a source of its own. Raises DescriptionError."""
        if (match := _QUANTITY.fullmatch(text)) is None:
            raise DescriptionError("not a number and a unit")
        number, symbol, source = match[1], match[2], match[3] or source
        if symbol not in _SYMBOLS:
            raise DescriptionError(f"unknown unit, the nearest is {nearest(symbol, _SYMBOLS)!r}")
        if source not in SOURCES:
            raise DescriptionError(unknown("source", source, SOURCES))
        unit, size = _SYMBOLS[symbol]
        value = float(Decimal(number) * size)
        if not (0 < value < math.inf or (value == 0 and unit == "s")):
            raise DescriptionError("impossible")
        return cls(value, unit, source)

    def __str__(self) -> str:
        value = Decimal(repr(self.value))
        sizes = {symbol: size for symbol, (unit, size) in _SYMBOLS.items() if unit == self.unit}
        texts = (f"{(value / size).normalize():f} {symbol}" for symbol, size in sizes.items())
        exact = (text for text in texts if self.parse(text).value == self.value)
        return f"{min(exact, key=len)} ({self.source})"


@dataclass(frozen=True)
class Link:
    """What joins the siblings of a level: the bandwidth of one, each way, which is divided by
    ``oversubscription`` when all of them talk at once."""

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
        names = [level.name for level in self.levels]
        parents = [level.parent or before for level, before in zip(self.levels, [None, *names])]
        levels = [replace(x, parent=parent) for x, parent in zip(self.levels, parents)]
        object.__setattr__(self, "levels", tuple(levels))
        levels.sort(key=lambda level: len(self.enclosing(level.name)))
        object.__setattr__(self, "levels", tuple(levels))
        for level in levels:
            where = f"{level.location or self.origin}: level {level.name!r}"
            if names.count(level.name) > 1:
                raise DescriptionError(f"{where} is there twice; give each its own name")
            if level.mesh and math.prod(level.mesh) != level.count:
                raise DescriptionError(f"{where}: mesh {[*level.mesh]} is not count {level.count}")
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

    def enclosing(self, name: str | None) -> tuple[Level, ...]:
        """The level of that name and those around it, outermost first. Raises DescriptionError."""
        named, chain = {level.name: level for level in self.levels}, list[Level]()
        while name is not None:
            where = (chain and chain[0].location) or self.origin
            if name not in named:
                raise DescriptionError(unknown("parent" if chain else "level", name, named, where))
            if named[name] in chain:
                raise DescriptionError(f"{where}: level {name!r} is inside itself (the first has no parent)")
            chain.insert(0, named[name])
            name = chain[0].parent
        return tuple(chain)

    def sync_groups(self) -> tuple[tuple[SyncSpec, tuple[Level, ...]], ...]:
        """Innermost first, each ``sync`` with the levels it synchronises, outermost first: its own
        and those around it that have siblings, up to the next ``sync``."""
        groups, served = [], list[Level]()
        for level in reversed([level for level in self.levels if level.sync]):
            around = self.enclosing(level.name)
            first = max([i for i, outer in enumerate(around[:-1], 1) if outer.sync], default=0)
            members = tuple(x for x in around[first:] if x.count > 1 or x is level)
            if both := [x for x in members if x in served]:
                where = f"{both[0].location or self.origin}: level {both[0].name!r}"
                raise DescriptionError(f"{where} has two levels in it that synchronise; give it a sync")
            groups.append((level.sync, members))
            served += members
        return tuple(groups)

    def __str__(self) -> str:
        tables = [{"schema": 1} | _given(replace(self, levels=())), *map(_given, self.levels)]
        lines = [[f"{key} = {_toml(value)}" for key, value in table.items()] for table in tables]
        return "\n\n[[level]]\n".join(map("\n".join, lines)) + "\n"

    to_toml = __str__


def _given(record: Any) -> Any:
    if isinstance(record, Quantity):
        return str(record)
    if isinstance(record, SyncSpec):
        return {"plugin": record.plugin, **record.options}
    values = {f.name: (getattr(record, f.name), f.default) for f in fields(record) if f.compare}
    return {name: value for name, (value, default) in values.items() if value not in (default, {})}


def _toml(value: Any) -> str:
    # JSON with another separator is what TOML calls an inline table.
    text = json.dumps(value, ensure_ascii=False, separators=(", ", " = "), default=_given)
    return text.replace("\x7f", "\\u007f")


def load_machine(path: str | Path) -> Machine:
    """The machine that a TOML file describes. Raises DescriptionError with file and line."""
    path, text = Path(path), ""
    if not path.is_file():
        close = nearest(path.name, [other.name for other in path.parent.glob("*")])
        hint = f"; did you mean {str(path.parent / close)!r}?" if close else ""
        raise DescriptionError(f"{path}: {'a directory' if path.is_dir() else 'no such file'}{hint}")
    try:
        text = path.read_text(encoding="utf-8")
        return _Reader(path, text).record(Machine, tomllib.loads(text))
    except (OSError, ValueError, RecursionError) as error:
        line = re.search(r"at line (\d+)", str(error))
        where = Location(str(path), int(line[1]) if line else text.count("\n") + 1)
        raise DescriptionError(f"{where}: {error}") from error


class _Reader:
    """Tables to records, by the annotations of their fields, keeping count of the lines."""

    def __init__(self, path: Path, text: str) -> None:
        self.path, self.line, self.lines = path, 1, defaultdict[str, list[int]](list)
        bare = _TEXTS.sub(lambda match: "\n" * match[0].count("\n"), text)
        for number, line in enumerate(bare.split("\n"), 1):
            for key in re.findall(r"([\w-]+)\s*[]=]", line):
                self.lines[key].append(number)

    def error(self, message: str) -> DescriptionError:
        return DescriptionError(f"{self.path}:{self.line}: {message}")

    def record(self, kind: Any, table: Any) -> Any:
        if not isinstance(table, dict):
            raise self.error(f"{table!r} is not a table")
        known = {"location": Location(str(self.path), self.line), "path": self.path}
        values = {f.name: known[f.name] for f in fields(kind) if f.name in known}
        types = {f.name.replace("levels", "level"): f.type for f in fields(kind) if f.name not in known}
        source = table.pop("source", "assumed" if kind is Level else "")
        if kind is Machine and table.pop("schema", None) != 1: raise self.error("the schema")
        if kind is SyncSpec:
            table = {"plugin": table.pop("plugin", None), "options": table}
        for key, value in table.items():
            self.line = (self.lines[key] or [self.line]).pop(0)
            if key not in types:
                raise self.error(unknown("key", key, [*types, "source"]))
            values[key] = self.value(types[key].removesuffix(" | None"), key, value, source)
        return kind(**values)

    def value(self, kind: str, key: str, value: Any, source: str) -> Any:
        if kind.startswith("tuple") and isinstance(value, list):
            return tuple(self.value(kind[6:-6], key, item, source) for item in value)
        if kind in _RECORDS:
            return self.record(_RECORDS[kind], value)
        if kind == "Quantity" and isinstance(value, str):
            try: 
                quantity = Quantity.parse(value, source)
            except DescriptionError as error: 
                raise self.error(f"{key} = {value!r}: {error}; valid: like {example}") from None
            if quantity.unit == UNITS[key]:
                return quantity
        fits, valid = _VALID[kind]
        if not fits(value):
            raise self.error(f"{key} = {value!r}; valid: {valid}")
        if key == "workers" and value not in WORKERS: 
            raise self.error(unknown("workers", value, WORKERS))
        return value


def fingerprint(cpuinfo: str | Path = "/proc/cpuinfo") -> str:
    """A short name of this machine: architecture, CPUs, a digest of the CPU model and memory."""
    model = r"^(?:vendor_id|cpu family|model|model name|stepping|CPU \w+)\s*:.*"
    try:
        with Path(cpuinfo).open("rb", buffering=0) as file:
            facts = re.findall(model, file.read(2048).decode(), re.M)
    except OSError: 
        facts = []
    pages = 
    digest = hashlib.sha256(repr([facts, platform.processor()])).hexdigest()
    return f"{platform.machine()}-{os.cpu_count()}-{digest[:8]}"
