"""Hardware descriptions as TOML files: reading, with file and line in every error, and writing."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from numbers import Integral
from pathlib import Path
from typing import Any

from demitasse import (
    PRECISIONS,
    DescriptionError,
    Level,
    Link,
    Location,
    Machine,
    MemorySpace,
    ModelError,
    SyncSpec,
    check_file,
    shortened,
    unknown,
)
from demitasse_descriptions.known import DescribedMachine as DescribedMachine
from demitasse_descriptions.known import described_machines as described_machines
from demitasse_descriptions.known import find_machine as find_machine
from demitasse_descriptions.options import PluginNames
from demitasse_descriptions.options import PluginOptions as PluginOptions
from demitasse_descriptions.options import gathered_options as gathered_options
from demitasse_descriptions.options import option_place as option_place
from demitasse_descriptions.quantity import Quantity as Quantity
from demitasse_descriptions.quantity import Rate as Rate
from demitasse_descriptions.quantity import RatedOperation as RatedOperation
from demitasse_descriptions.sync import check_host_memory as check_host_memory
from demitasse_descriptions.sync import check_sync_options as check_sync_options
from demitasse_descriptions.sync import sync_place as sync_place
from demitasse_descriptions.unserved import unallocated as unallocated
from demitasse_descriptions.unserved import unoffered as unoffered
from demitasse_descriptions.unserved import unread as unread
from demitasse_descriptions.unserved import unstreamed as unstreamed

WORKERS = ("threads", "mpi", "streams", "simulated")
_UNITS = {"latency": "s", "capacity": "B", "bandwidth": "B/s", "clock": "Hz"}
_UNITS |= {"peak": "FLOP/s", "sustained": "FLOP/s", "launch": "s"}
_NAMES = {Machine: "description", Level: "level", Link: "link", MemorySpace: "memory", SyncSpec: "sync"}
"""What each record is called in messages about a file."""
_SINGLE = "a level begins with [[level]], not with [level]"
_LONG = re.compile(r"\d[\d_]{4000,}")
"""Matches a number with more digits than Python converts to a whole number."""
_STRINGS = r'"""[^\0]*?"""|\'\'\'[^\0]*?\'\'\'|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'|#[^\n]*'


def describe(machine: Machine) -> str:
    """Return a machine as the text of its description, without values that equal the defaults."""
    # A JSON object with another separator is an inline table in TOML.
    write = json.JSONEncoder(ensure_ascii=False, separators=(", ", " = "), default=_given).encode
    tables = [{"schema": 1} | _given(machine), *map(_given, machine.levels)]
    texts = ["\n".join(_lines(table, write)) for table in tables]
    whole = "\n\n[[level]]\n".join(texts).replace("\x7f", "\\u007f") + "\n"
    return re.sub(r'(?a)(?<!\\)"([\w-]+)" = ', r"\1 = ", whole)


def _lines(table: Mapping[str, Any], write: Callable[[Any], str]) -> Iterator[str]:
    """Yield the keys of a table, one per line; rates of operations are separate tables at the end."""
    known = {key: v for key, v in table.items() if isinstance(v, Rate) and v.operations}
    yield from (f"{key} = {write(v)}" for key, v in table.items() if key not in known)
    for key, rate in known.items():
        yield f"\n[level.{key}]"
        yield from (f"{name} = {write(v)}" for name, v in _given(rate).items())
        yield f"\n[level.{key}.operations]"
        yield from (f"{write(name)} = {write(v)}" for name, v in rate.operations.items())


def _given(record: Any) -> Any:
    if isinstance(record, Rate):
        return {"f32": str(Quantity(record.value, record.unit, record.source)), **record.others}
    if not isinstance(record, Link | MemorySpace | SyncSpec | Level | Machine):
        return int(record) if isinstance(record, Integral) else str(record)
    keys = [f for f in fields(record) if f.compare and not f.metadata]
    given = {f.name: v for f in keys if (v := getattr(record, f.name)) not in (f.default, {})}
    return {**given, **record.options} if isinstance(record, SyncSpec) else given


def load_machine(path: str | Path) -> Machine:
    """Return the machine that a TOML file describes, or the machine of that name in an installed
    package's descriptions. Raises DescriptionError with file and line."""
    try:
        path, text = find_machine(path), ""
        check_file(path)
    except TypeError as error:
        valid = "valid: 'auto', a description's path, a known machine's name, or a Machine"
        raise DescriptionError(f"{path!r} is not a machine ({valid})") from error
    except ModelError as error:
        raise DescriptionError(str(error)) from error
    try:
        text = path.read_text(encoding="utf-8-sig")
        table = tomllib.loads(text)
    except OSError as error:
        raise DescriptionError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise DescriptionError(f"{path}:{_told(error, text)}") from error
    reader = _Reader(path, text)
    if (schema := table.pop("schema", None)) != 1 or schema is True:
        line = reader.lines.get("schema", [1])[0]
        told = "needs 'schema'" if schema is None else f"schema = {shortened(schema, quoted=True)}"
        raise DescriptionError(f"{path}:{line}: {told} (valid: 1)")
    return replace(reader.record(Machine, table), path=path)  # type: ignore[no-any-return]


def _told(error: ValueError | RecursionError, text: str) -> str:
    """Return the line at which a file is not valid TOML, and why."""
    if isinstance(error, UnicodeDecodeError):
        line = error.object.count(b"\n", 0, error.start) + 1
        return f"{line}: is not UTF-8 text (it contains a byte 0x{error.object[error.start]:02x})"
    line = [*re.findall(r"at line (\d+)", str(error)), text.count("\n") + 1][0]
    if isinstance(error, RecursionError):
        return f"{line}: nested too deeply"
    if not isinstance(error, tomllib.TOMLDecodeError) and (long := _LONG.search(text)):
        line = text.count("\n", 0, long.start()) + 1
        return f"{line}: {shortened(long[0], 20)} has too many digits"
    if single := re.search(r"(?m)^\s*\[level\]", text):
        line = text.count("\n", 0, single.end()) + 1
        return f"{line}: {_SINGLE}"
    return f"{line}: " + re.sub(r" \(at line \d+, (column \d+)\)$", r" in \1", str(error))


def _elsewhere(kind: Any, key: str) -> str:
    """Return the end of a sentence about a key of the file in a level, or a key of a level outside."""
    if kind is Level and key in {"schema", *_keys(Machine)}:
        return f"; {key!r} is a key of the file: put it before the first [[level]]"
    if kind is Machine and key in _keys(Level):
        return f"; {key!r} is a key of a level: put it below its [[level]]"
    inside = [_NAMES[part] for part in (MemorySpace, Link, SyncSpec) if key in _keys(part)]
    if kind is Level and inside:
        return f"; {key!r} is a key of a {' or a '.join(inside)}: put it between its braces"
    return ""


def _keys(kind: Any) -> set[str]:
    """Return the names of the keys of a record."""
    return {f.name for f in fields(kind) if f.compare}


def _without_text(match: re.Match[str]) -> str:
    """Return a string or a comment without its text, so that only its line ends remain; a key in quotes
    stays."""
    behind = match.string[match.end() :].lstrip(" \t")[:1]
    text, line = match[0][1:-1], match.string.rfind("\n", 0, match.start()) + 1
    of_table = behind == "]" and match.string[line : match.start()].lstrip()[:1] == "["
    is_key = behind in ("=", ".") or of_table
    if is_key and match[0][0] in "\"'" and not set(text) & {'"', "\n", "\\"}:
        return f'"{text}"'
    return "\n" * match[0].count("\n")


class _Reader:
    """Turns tables into records, by the annotations of their fields. ``line`` is the current line."""

    def __init__(self, path: Path, text: str) -> None:
        self.path, self.line, self.lines = str(path), 1, dict[str, list[int]]()
        bare = re.sub(_STRINGS, _without_text, text)
        for number, line in enumerate(bare.split("\n"), 1):
            for quoted, key in re.findall(r"(?:\"([^\"]*)\"|([\w-]+))\s*[].=]", line):
                self.lines.setdefault(quoted or key, []).append(number)

    def record(self, kind: Any, table: dict[str, Any]) -> Any:
        known = {f.metadata.get("key", f.name): f for f in fields(kind) if f.compare}
        keys = {*known} if kind is Machine else {*known, "source"}
        if kind is SyncSpec:
            table = {key: table.pop(key) for key in {"plugin"} & {*table}} | {"*": table}
        default = "assumed" if kind is Level else "(none)"
        source = table.pop("source", default) if "source" in keys else default
        values, start = dict[str, Any](), Location(self.path, self.line)
        for key, value in table.items():
            self.place(key)
            start = start if values else Location(self.path, self.line)
            if key not in keys:
                told = unknown("key", key, keys, f"{self.path}:{self.line}")
                raise DescriptionError(f"{told}{_elsewhere(kind, key)}")
            values[known[key].name] = self.value(str(known[key].type), key, value, source)
        for key, f in known.items():
            if f.default is f.default_factory and f.name not in values:
                raise DescriptionError(f"{start}: a {_NAMES[kind]} needs {key!r}")
        return kind(**values, **({"location": start} if hasattr(kind, "location") else {}))

    def value(self, kind: str, key: str, value: Any, source: str) -> Any:
        kind, where = kind.removesuffix(" | None"), f"{self.path}:{self.line}"
        records = {"Level": Level, "Link": Link, "MemorySpace": MemorySpace, "SyncSpec": SyncSpec}
        if kind.startswith("tuple") and isinstance(value, list):
            items = tuple(self.value(kind[6:-6], key, item, source) for item in value)
            return self.plugins(items, where) if key == "plugins" else items
        if kind in records and isinstance(value, dict):
            return self.record(records[kind], value)
        if kind == "Quantity" and isinstance(value, dict) and _UNITS[key] == "FLOP/s":
            return self.rate(key, value, source)
        if kind == "Quantity":
            return Quantity.parse(str(value), source, _UNITS[key], f"{where}: {key} = ")
        if key == "workers" and value not in WORKERS:
            raise DescriptionError(unknown("workers", str(value), WORKERS, where))
        if key == "precision" and value not in PRECISIONS:
            raise DescriptionError(unknown("precision", str(value), PRECISIONS, where))
        rules = {
            "str": (isinstance(value, str) and value != "", "a string"),
            "int": (type(value) is int and value > 0, "a whole number, 1 or more"),
            "float": (type(value) in (int, float) and 1 <= value < math.inf, "a number, 1 or more"),
        }
        tables = [value, *(value.values() if isinstance(value, dict) and key == "options" else ())]
        fits = kind.startswith("Mapping") and all(isinstance(table, dict) for table in tables)
        fits, valid = rules.get(kind, (fits, "a list" if kind.startswith("tuple") else "a table"))
        if not fits:
            if key == "level":
                raise DescriptionError(f"{where}: {_SINGLE}")
            valid += " of tables, [{ ... }]" * (kind[6:-6] in records) + ", { ... }" * (kind in records)
            raise DescriptionError(f"{where}: {key} = {shortened(value, quoted=True)} (valid: {valid})")
        if key == "options":
            return {name: self.options(name, table) for name, table in value.items()}
        return value

    def rate(self, key: str, table: dict[str, Any], source: str) -> Rate:
        """Return a rate by precision; a sustained rate may also be given by operation."""
        own = {**table}
        self.check_rates(key, own)
        known = own.pop("operations", {}) if key == "sustained" else {}
        valid = {*PRECISIONS, "source", "operations"}
        for name in [each for each in own if key == "sustained" and each not in valid][:1]:
            raise DescriptionError(unknown("key", name, valid, f"{self.place(name)}: {key}"))
        rate, operations = self.by_precision(own, source, key), dict[str, Quantity]()
        source = str(table.get("source", source))
        if not isinstance(known, dict):
            told = f"{self.place('operations')}: operations = {shortened(known, quoted=True)}"
            raise DescriptionError(f"{told} (valid: a table of rates by operation)")
        self.check_rates(f"{key}.operations", known)
        source = str(known.pop("source", source))
        for name, value in known.items():
            where = f"{self.place(name)}: {key}: "
            operations[str(RatedOperation.parse(name, where))] = (
                self.by_precision(value, source, f"{key}: {name}")
                if isinstance(value, dict)
                else Quantity.parse(value, source, "FLOP/s", f"{where}{name} = ")
            )
        return replace(rate, operations=operations)

    def by_precision(self, table: dict[str, Any], source: str, what: str) -> Rate:
        """Return rates by precision; an error names the line of the rate in question."""
        where = f"{self.path}:{self.line}: {what}"
        return Rate.of(table, source, where, {key: f"{self.place(key)}: {what}" for key in table})

    def check_rates(self, key: str, table: dict[str, Any]) -> None:
        """Raise DescriptionError for a key among the rates that belongs to the level."""
        for name in _keys(Level) & table.keys():
            told = f"{self.place(name)}: {name!r} is among the rates of [level.{key}]"
            raise DescriptionError(f"{told}, but is a key of the level: put it above that line")

    def plugins(self, names: tuple[str, ...], place: str) -> PluginNames:
        """Return the plugins to compose, with the line that lists them."""
        listed = PluginNames(names)
        listed.place = place
        return listed

    def options(self, plugin: str, table: dict[str, Any]) -> PluginOptions:
        """Return a plugin's options, with the lines that give them."""
        places = {"": self.place(plugin)}
        places |= {key: self.place(key) for key in table}
        return PluginOptions(table, places)

    def place(self, key: str) -> str:
        """Return the place of the next ``key``, and go there."""
        later = [line for line in self.lines.get(key, []) if line >= self.line]
        self.line, *self.lines[key] = later or [self.line]
        return f"{self.path}:{self.line}"
