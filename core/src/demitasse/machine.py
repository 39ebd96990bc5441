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
from pathlib import Path
from typing import Any

from demitasse.errors import DescriptionError, Location, nearest, unknown
from demitasse.quantities import Quantity as Quantity

WORKERS = ("threads", "mpi", "streams", "simulated")
_UNITS = {"latency": "s", "capacity": "B", "bandwidth": "B/s", "peak": "FLOP/s", "clock": "Hz"}
_VALID = {"str": "a text", "int": "a whole number from 1", "float": "a number from 1"}
_STRINGS = r'"""[^\0]*?"""|\'\'\'[^\0]*?\'\'\'|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'|#[^\n]*'


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
    levels: tuple[Level, ...] = field(metadata={"key": "level"})  # as the file names it
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
                raise DescriptionError(unknown("parent", parent, levels, f"{where}, those before it"))
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
                *around, _ = self.enclosing(level.name)
                first = max((i for i, outer in enumerate(around, 1) if outer.sync), default=0)
                members = (*(outer for outer in around[first:] if outer.count > 1), level)
                for twice in {x for _, taken in groups for x in taken}.intersection(members):
                    where = f"{twice.location or self.origin}: level {twice.name!r}"
                    raise DescriptionError(f"{where} is synchronised twice; give it its own sync")
                groups.append((level.sync, members))
        return tuple(groups)

    def __str__(self) -> str:
        top = {key: value for key, value in _given(self).items() if key != "levels"}
        # JSON with another separator is what TOML calls an inline table.
        write = json.JSONEncoder(ensure_ascii=False, separators=(", ", " = "), default=_given).encode
        tables = [{"schema": 1} | top, *map(_given, self.levels)]
        texts = ["\n".join(f"{key} = {write(v)}" for key, v in table.items()) for table in tables]
        return "\n\n[[level]]\n".join(texts).replace("\x7f", "\\u007f") + "\n"

    to_toml = __str__


def _given(record: Any) -> Any:
    if isinstance(record, Quantity):
        return str(record)
    if isinstance(record, SyncSpec):
        return {"plugin": record.plugin, **record.options}
    values = [(f.name, getattr(record, f.name), f.default) for f in fields(record) if f.compare]
    return {name: value for name, value, default in values if value not in (default, {})}


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
        line = [*re.findall(r"at line (\d+)", str(error)), text.count("\n") + 1][0]
        raise DescriptionError(f"{path}:{line}: {error}") from error
    reader = _Reader(path, text)
    if (schema := table.pop("schema", None)) != 1:
        line = reader.lines.get("schema", [1])[0]
        raise DescriptionError(f"{path}:{line}: schema = {schema!r} (valid: 1)")
    machine: Machine = reader.record(Machine, table)
    return replace(machine, path=path)


class _Reader:
    """Tables to records, by the annotations of their fields; ``line`` is how far it has come."""

    def __init__(self, path: Path, text: str) -> None:
        self.path, self.line, self.lines = path, 1, dict[str, list[int]]()
        bare = re.sub(_STRINGS, lambda match: "\n" * match[0].count("\n"), text)
        for number, line in enumerate(bare.split("\n"), 1):
            for key in re.findall(r"([\w-]+)\s*[]=]", line):
                self.lines.setdefault(key, []).append(number)

    @property
    def at(self) -> Location:
        return Location(str(self.path), self.line)

    def record(self, kind: Any, table: dict[str, Any]) -> Any:
        known = {f.metadata.get("key", f.name): f for f in fields(kind) if f.compare}
        source = table.pop("source", "assumed" if kind is Level else "(none)")
        if kind is SyncSpec:
            table = {key: table.pop(key) for key in {"plugin"} & {*table}} | {"*": table}
        values, start = dict[str, Any](), self.at
        for key, value in table.items():
            later = [line for line in self.lines.get(key, []) if line >= self.line]
            self.line, *self.lines[key] = later or [self.line]
            if key not in known:
                raise DescriptionError(unknown("key", key, {*known, "source"}, self.at))
            start = start if values else self.at
            values[known[key].name] = self.value(known[key].type, key, value, source)
        for key, f in known.items():
            if f.default is f.default_factory and f.name not in values:
                raise DescriptionError(f"{start}: a {kind.__name__} needs {key!r}")
        return kind(**values, **({"location": start} if hasattr(kind, "location") else {}))

    def value(self, kind: str, key: str, value: Any, source: Any) -> Any:
        kind = kind.removesuffix(" | None")
        if kind.startswith("tuple") and isinstance(value, list):
            return tuple(self.value(kind[6:-6], key, item, source) for item in value)
        if kind in _RECORDS and isinstance(value, dict):
            return self.record(_RECORDS[kind], value)
        try:
            if kind == "Quantity":
                return Quantity.parse(str(value), source, _UNITS[key])
        except DescriptionError as error:
            raise DescriptionError(f"{self.at}: {key} = {error}") from error
        if key == "workers" and value not in WORKERS:
            raise DescriptionError(unknown("workers", str(value), WORKERS, self.at))
        if not (
            (kind == "str" and isinstance(value, str) and value != "")
            or (kind == "int" and type(value) is int and value > 0)
            or (kind == "float" and type(value) in (int, float) and 1 <= value < math.inf)
            or (kind.startswith("Mapping") and isinstance(value, dict))
        ):
            valid = _VALID.get(kind, "a list" if kind.startswith("tuple") else "a table")
            raise DescriptionError(f"{self.at}: {key} = {value!r} (valid: {valid})")
        return value


_RECORDS = {record.__name__: record for record in (Level, Link, MemorySpace, SyncSpec)}


def fingerprint() -> str:
    """A short name of this machine: architecture, processors, digest of their model and memory."""
    files = ("modalias", "cpu0/regs/identification/midr_el1")
    paths = [Path("/sys/devices/system/cpu", name) for name in files]
    model = [path.read_text().partition(":feature")[0] for path in paths if path.exists()]
    pages = os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 1
    digest = zlib.crc32(f"{model} {2 * math.log2(pages):.0f}".encode())
    return f"{platform.machine()}-{os.cpu_count()}-{digest:08x}"
