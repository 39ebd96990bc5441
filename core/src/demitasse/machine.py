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
from typing import Any, Self

from demitasse.errors import DescriptionError, Location, nearest, unknown

SOURCES = ("measured", "assumed", "vendor", "paper")
WORKERS = ("threads", "mpi", "streams", "simulated")
_EXAMPLES = {"s": "1 us", "B": "8 GiB", "B/s": "12 GB/s", "FLOP/s": "2 GFLOP/s", "Hz": "3 GHz"}
_SIZES = {p: Decimal(1000) ** i for i, p in enumerate(["n", "u", "m", "", *"kMGTPE"], -3)}
_SIZES |= {f"{p}i": Decimal(1024) ** i for i, p in enumerate("KMGTP", 1)}
_SYMBOLS = {f"{prefix}{unit}": (unit, size) for unit in _EXAMPLES for prefix, size in _SIZES.items()
            if size == 1 or (size < 1) == (unit == "s")}  # fmt: skip
_SYMBOLS |= {f"{prefix}bit/s": ("B/s", size / 8) for prefix, size in _SIZES.items() if size >= 1}
_FORM = re.compile(r"(-?\d+(?:\.\d+)?(?:[eE][+-]?\d{1,3})?) *([a-zA-Z/]+) *(?:\((\w+)\))?", re.A)
_UNITS = {"latency": "s", "capacity": "B", "bandwidth": "B/s", "peak": "FLOP/s", "clock": "Hz"}
_STRINGS = r'"""[^\0]*?"""|\'\'\'[^\0]*?\'\'\'|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'|#[^\n]*'


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
        return math.prod(level.count for level in self.levels if level.workers == "threads")

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
        # JSON with another separator is what TOML calls an inline table.
        write = json.JSONEncoder(ensure_ascii=False, separators=(", ", " = "), default=_given).encode
        tables = [{"schema": 1} | _given(self), *map(_given, self.levels)]
        texts = ["\n".join(f"{key} = {write(v)}" for key, v in table.items()) for table in tables]
        whole = "\n\n[[level]]\n".join(texts).replace("\x7f", "\\u007f") + "\n"
        return re.sub(r'(?a)(?<!\\)"([\w-]+)" = ', r"\1 = ", whole)


def _given(record: Any) -> Any:
    if not isinstance(record, Link | MemorySpace | SyncSpec | Level | Machine):
        return str(record)
    keys = [f for f in fields(record) if f.compare and not f.metadata]
    given = {f.name: v for f in keys if (v := getattr(record, f.name)) not in (f.default, {})}
    return {**given, **record.options} if isinstance(record, SyncSpec) else given


def load_machine(path: str | Path) -> Machine:
    """The machine that a TOML file describes. Raises DescriptionError with file and line."""
    path, text = Path(path), ""
    try:
        text = path.read_text(encoding="utf-8")
        table = tomllib.loads(text)
    except OSError as error:
        where, others = f"{path}: {error.strerror}", path.parent.glob("*.toml")
        raise DescriptionError(unknown("file", path.name, [x.name for x in others], where)) from error
    except (ValueError, RecursionError) as error:
        line = [*re.findall(r"at line (\d+)", str(error)), text.count("\n") + 1][0]
        raise DescriptionError(f"{path}:{line}: {error}") from error
    reader = _Reader(path, text)
    if (schema := table.pop("schema", None)) != 1:
        line = reader.lines.get("schema", [1])[0]
        raise DescriptionError(f"{path}:{line}: schema = {schema!r} (valid: 1)")
    return replace(reader.record(Machine, table), path=path)  # type: ignore[no-any-return]


class _Reader:
    """Tables to records, by the annotations of their fields; ``line`` is how far it has come."""

    def __init__(self, path: Path, text: str) -> None:
        self.path, self.line, self.lines = str(path), 1, dict[str, list[int]]()
        bare = re.sub(_STRINGS, lambda match: "\n" * match[0].count("\n"), text)
        for number, line in enumerate(bare.split("\n"), 1):
            for key in re.findall(r"([\w-]+)\s*[]=]", line):
                self.lines.setdefault(key, []).append(number)

    def record(self, kind: Any, table: dict[str, Any]) -> Any:
        known = {f.metadata.get("key", f.name): f for f in fields(kind) if f.compare}
        keys = {*known} if kind is Machine else {*known, "source"}
        if kind is SyncSpec:
            table = {key: table.pop(key) for key in {"plugin"} & {*table}} | {"*": table}
        default = "assumed" if kind is Level else "(none)"
        source = table.pop("source", default) if "source" in keys else default
        values, start = dict[str, Any](), Location(self.path, self.line)
        for key, value in table.items():
            later = [line for line in self.lines.get(key, []) if line >= self.line]
            self.line, *self.lines[key] = later or [self.line]
            start = start if values else Location(self.path, self.line)
            if key not in keys:
                raise DescriptionError(unknown("key", key, keys, f"{self.path}:{self.line}"))
            values[known[key].name] = self.value(str(known[key].type), key, value, source)
        for key, f in known.items():
            if f.default is f.default_factory and f.name not in values:
                raise DescriptionError(f"{start}: a {kind.__name__} needs {key!r}")
        return kind(**values, **({"location": start} if hasattr(kind, "location") else {}))

    def value(self, kind: str, key: str, value: Any, source: str) -> Any:
        kind, where = kind.removesuffix(" | None"), f"{self.path}:{self.line}"
        records = {"Level": Level, "Link": Link, "MemorySpace": MemorySpace, "SyncSpec": SyncSpec}
        if kind.startswith("tuple") and isinstance(value, list):
            return tuple(self.value(kind[6:-6], key, item, source) for item in value)
        if kind in records and isinstance(value, dict):
            return self.record(records[kind], value)
        if kind == "Quantity":
            return Quantity.parse(str(value), source, _UNITS[key], f"{where}: {key} = ")
        if key == "workers" and value not in WORKERS:
            raise DescriptionError(unknown("workers", str(value), WORKERS, where))
        rules = {
            "str": (isinstance(value, str) and value != "", "a text"),
            "int": (type(value) is int and value > 0, "a whole number from 1"),
            "float": (type(value) in (int, float) and 1 <= value < math.inf, "a number from 1"),
        }
        tables = [value, *(value.values() if isinstance(value, dict) and key == "options" else ())]
        fits = kind.startswith("Mapping") and all(isinstance(table, dict) for table in tables)
        fits, valid = rules.get(kind, (fits, "a list" if kind.startswith("tuple") else "a table"))
        if not fits:
            raise DescriptionError(f"{where}: {key} = {value!r} (valid: {valid})")
        return value


def fingerprint() -> str:
    """A short name of this machine: architecture, processors, digest of their model and memory."""
    file = Path("/sys/devices/system/cpu/modalias")
    model = file.read_text().partition(":feature")[0] if file.exists() else ""
    pages = os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 1
    digest = zlib.crc32(f"{model} {2 * math.log2(pages):.0f}".encode())
    return f"{platform.machine()}-{os.cpu_count()}-{digest:08x}"
