"""Prototxt files as messages, with the line of every block and errors that say where.

protobuf's parser fills the message; it keeps no positions and stops at the first unknown field. So
the text is outlined first: its blocks and fields with their lines.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf import text_format

from demitasse import ModelError, nearest, unknown
from demitasse_caffe.fork_fields import (
    TYPES,
    ForkField,
    engine_word,
    fork_field,
    notes,
    old_type_owner,
)
from demitasse_caffe.schema import Schema, is_repeated
from demitasse_caffe.syntax_errors import syntax_error, unknown_escape
from demitasse_caffe.whole_file import read_whole

_TOKEN = re.compile(
    r"""\#[^\n]*                                        # a comment
    | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*'         # strings
    | [{}<>\[\]:;,] | [^\s{}<>\[\]:;,\#"']+ | ["']    # punctuation, words, quotes never closed""",
    re.VERBOSE,
)
_CONFLICT = re.compile(r"^(?:<{7}|={7}|>{7})(?=\s)", re.MULTILINE)
"""What a tool for versions leaves at the beginning of a line where it cannot join two."""
_OPEN = {"{": "}", "<": ">"}
_LAYERS = ("layer", "layers")
_DEVICES = re.compile(r"^(\s*device_id\s*:?\s*)\[\s*(\w*)[^\]]*\]", re.MULTILINE)
"""Several devices, which TSN's fork takes where Caffe has one."""
_DEEPEST = 100
"""How deep blocks may nest: as protobuf's binary reader has it."""
SCHEMA = "as Caffe's caffe.proto lists them"
"""Where to see all of many names."""


@dataclass(eq=False)
class Block:
    """A message in the text. ``words`` are its scalar fields as they are written, less their quotes;
    ``quoted`` are those that had some."""

    name: str
    line: int
    parent: Block | None
    closed: bool = False
    words: dict[str, str] = field(default_factory=dict)
    quoted: set[str] = field(default_factory=set)
    depth: int = 0

    @property
    def path(self) -> tuple[str, ...]:
        """The names of the enclosing blocks and its own; empty for the file."""
        names: list[str] = []
        block = self
        while block.parent is not None:
            names.append(block.name)
            block = block.parent
        return tuple(reversed(names))


@dataclass(frozen=True)
class Entry:
    """A field in the text: where it stands, and its value's first word unless it is a block."""

    block: Block
    name: str
    line: int
    column: int
    opens: Block | None = None
    value: str | None = None


@dataclass(frozen=True)
class Change:
    """A field of a fork that changes what the layer in a line computes, or only how it ``trains``, and
    the error about it, for phases that have the layer."""

    line: int
    trains: bool
    told: str


class Outline:
    """The fields and blocks of a text in order."""

    def __init__(self, text: str) -> None:
        self.root = Block("", 1, None)
        self.entries: list[Entry] = []
        self.unclosed: Block | None = None
        self.too_deep: int | None = None  # the line where blocks nest deeper than any message does
        self.misfit = ""  # a field that no message has, told if nothing worse is wrong with the net
        self.changes: list[Change] = []  # fields of forks that change results
        self.notes: tuple[str, ...] = ()  # what of a fork's was read over, in sentences
        self._read(text)

    def names(self) -> list[str]:
        """The fields of the file itself, in order."""
        return [entry.name for entry in self.entries if entry.block is self.root]

    def line(self, name: str, within: tuple[str, ...] = ()) -> int | None:
        """The line of the first field of a name, in the file itself or a block at a path."""
        found = (e.line for e in self.entries if e.name == name and e.block.path == within)
        return next(found, None)

    def lines(self, path: tuple[str, ...]) -> list[int]:
        """The lines of all blocks at a path of names."""
        named = (e for e in self.entries if e.opens is not None and e.name == path[-1])
        return [entry.line for entry in named if entry.block.path == path[:-1]]

    def _read(self, text: str) -> None:
        block, name, line, line_start, end = self.root, "", 1, 0, 0
        position = (1, 1)
        named = after_colon = False
        lists: list[tuple[Block, str]] = []
        for match in _TOKEN.finditer(text):
            token, start = match.group(), match.start()
            if breaks := text.count("\n", end, start):
                line, line_start = line + breaks, text.rindex("\n", end, start) + 1
            end = start
            if token[0] == "#":
                continue
            if token in _OPEN:
                if not named:  # an element of a list, or a brace that a template has
                    name = lists[-1][1] if lists and lists[-1][0] is block else ""
                    position = (line, start - line_start + 1)
                inner = Block(name, line, block, depth=block.depth + 1)
                if inner.depth + len(lists) > _DEEPEST:
                    self.too_deep = self.too_deep or line
                self.entries.append(Entry(block, name, *position, opens=inner))
                block = inner
            elif token in "}>":
                while lists and lists[-1][0] is block:
                    lists.pop()
                block.closed = True
                block = block.parent or self.root
            elif token == "[":
                lists.append((block, name))
                if block.depth + len(lists) > _DEEPEST:
                    self.too_deep = self.too_deep or line
            elif token == "]":
                if lists and lists[-1][0] is block:
                    lists.pop()
            elif after_colon and token not in ":;,":
                self.entries.append(Entry(block, name, *position, value=token))
                block.words.setdefault(name, token.strip("\"'"))
                if token[0] in "\"'":
                    block.quoted.add(name)
            elif token not in ":;," and not (lists and lists[-1][0] is block):
                name, position = token, (line, start - line_start + 1)
                named, after_colon = True, False
                continue
            after_colon = token == ":"
            named = named and after_colon
        if block is not self.root:
            self.unclosed = block


def read_text(path: Path) -> str:
    """The text of a file. Raises ModelError when it is not text."""
    data = read_whole(path)
    strange = next((byte for byte in data if byte < 32 and byte not in b"\t\n\r\f\v"), None)
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ModelError(f"{path}: is text in UTF-16; save it as UTF-8, which Caffe's files are in")
    if strange is not None:
        raise ModelError(
            f"{path}: is not text (it holds a byte {strange:#04x}); weights end in .caffemodel"
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        # Comments in the national encodings of their authors; all that Caffe reads is ASCII.
        return data.decode("latin-1")


def parse(
    path: Path, text: str, outline: Outline, name: str, schema: Schema, strict: bool = False
) -> Any:
    """A text as the message called ``name``. Raises ModelError that says file, line and column.

    Fields that a fork of Caffe has for a layer type that nobody here knows are left out, unless
    ``strict``: the error that helps is the one about the type, when the net is built. In a net with such
    a type, those that it has for Caffe's own types are left out too, as are words that are no value, and
    the first is noted as the outline's ``misfit``: the error about a net's phase without such a type.
    What a fork has that changes no result is left out, and told in the outline's ``notes``.
    """
    if outline.too_deep is not None:
        raise ModelError(f"{path}:{outline.too_deep}: blocks are nested deeper than {_DEEPEST}")
    if mark := _CONFLICT.search(text):
        where = f"{path}:{text.count(chr(10), 0, mark.start()) + 1}"
        raise ModelError(
            f"{where}: {mark[0]!r} marks two versions of the file, of which one is to be chosen"
        )
    fields = _Fields(path, text, outline, name, schema, strict)
    fields.check()
    outline.notes = tuple(notes(path, fields.passed_over))
    text, message = fields.text, schema.message(name)
    try:
        with warnings.catch_warnings():
            # Python's own word for a backslash before what is no escape; Caffe refuses it too.
            warnings.simplefilter("error", DeprecationWarning)
            text_format.Parse(text, message, allow_unknown_field=fields.foreign)
    except text_format.ParseError as error:
        raise ModelError(syntax_error(path, text, outline, error)) from error
    except DeprecationWarning as error:
        raise ModelError(unknown_escape(path, text, error)) from error
    except (UnicodeDecodeError, ValueError) as error:
        raise ModelError(f"{path}: {error}") from error
    return message


class _Fields:
    """The fields of a text held against its message: ``check`` raises ModelError as ``parse`` does,
    and leaves in ``text`` what protobuf is to read, in ``foreign`` whether some of it is no field of
    Caffe's, and in ``passed_over`` what of a fork's is left out."""

    def __init__(
        self, path: Path, text: str, outline: Outline, name: str, schema: Schema, strict: bool
    ) -> None:
        self.text, self.foreign = text, False
        self.passed_over: list[tuple[ForkField, str, int]] = []
        self._path, self._outline, self._name, self._schema = path, outline, name, schema
        self._strict, self._strangers = strict, _has_strangers(outline, schema)
        self._first: dict[tuple[Block, str], Entry] = {}

    def check(self) -> None:
        """Go through all fields whose message is known."""
        for entry, descriptor in _fields(self._outline, self._schema.descriptor(self._name)):
            if not re.fullmatch(r"[A-Za-z_]\w*", entry.name):
                continue
            if entry.name not in descriptor.fields_by_name:
                self._unknown(entry, descriptor)
                continue
            field = descriptor.fields_by_name[entry.name]
            first = self._first.setdefault((entry.block, entry.name), entry)
            again = (first.line, first.column) != (entry.line, entry.column)
            if again and not is_repeated(field):
                raise ModelError(_given_twice(self._path, entry, first, descriptor))
            if entry.value is not None:
                self._value(entry, field)
        if self._name == "SolverParameter":
            self.text = _DEVICES.sub(self._one_device, self.text)

    def _one_device(self, listed: re.Match[str]) -> str:
        """The first of several, on as many lines."""
        line = self.text.count("\n", 0, listed.end(1)) + 1
        self.passed_over.append((ForkField("TSN's fork"), "device_id of several", line))
        breaks = listed[0].count("\n") - listed[1].count("\n")
        return f"{listed[1]}{listed[2] or 0}" + "\n" * breaks

    def _unknown(self, entry: Entry, descriptor: Any) -> None:
        """A field that Caffe's message has not."""
        fork = fork_field(descriptor.name, entry.name)
        if fork is not None and not fork.has_effect(entry.value):
            if not fork.effect:
                self.passed_over.append((fork, entry.name, entry.line))
        elif _of_known_type(entry, self._schema):
            told = _unknown_field(self._path, entry, descriptor)
            line = None if fork is None or self._strict else _line_of_layer(entry, self._outline)
            if fork is None or line is None:
                self._misfit(entry, told)
            else:
                self._outline.changes.append(Change(line, fork.training, told))
        elif self._strict:
            raise ModelError(_strangers_field(self._path, entry, descriptor, self._schema))
        self.foreign = True

    def _value(self, entry: Entry, field: Any) -> None:
        """A field's value, in whose place a known one stands where it is left out."""
        if fork := engine_word(entry.name, entry.value or ""):
            self.passed_over.append((fork, entry.name, entry.line))
        elif told := _wrong_value(self._path, entry, field, self._schema):
            self._misfit(entry, told)
        else:
            return
        self.text = _with_a_known_value(self.text, entry, field)

    def _misfit(self, entry: Entry, told: str) -> None:
        """A mistake, unless a layer of a type that nobody knows explains it better."""
        if self._strict or not self._strangers or _is_solvers(entry, self._name):
            raise ModelError(told)
        self._outline.misfit = self._outline.misfit or told


def _fields(outline: Outline, root: Any) -> Iterator[tuple[Entry, Any]]:
    """Entries with the descriptor of the message that they stand in, where that is known."""
    descriptors = {outline.root: root}
    for entry in outline.entries:
        descriptor = descriptors.get(entry.block)
        if descriptor is not None:
            yield entry, descriptor
            inner = descriptor.fields_by_name.get(entry.name)
            if entry.opens is not None and inner is not None and inner.message_type is not None:
                descriptors[entry.opens] = inner.message_type


def _of_known_type(entry: Entry, schema: Schema) -> bool:
    """Whether an unknown field is a mistake, and not the parameter of a type that nobody knows."""
    block: Block | None = entry.block
    if block is not None and block.name == "layer" and not entry.name.endswith("_param"):
        return True
    while block is not None and block.name != "layer":
        block = block.parent
    return block is None or block.words.get("type") in (None, *schema.types)


def _has_strangers(outline: Outline, schema: Schema) -> bool:
    """Whether a layer is of a type that nobody here knows."""
    opened = (e.opens for e in outline.entries if e.opens is not None and e.name == "layer")
    return any(block.words.get("type") not in (None, *schema.types) for block in opened)


def _line_of_layer(entry: Entry, outline: Outline) -> int | None:
    """The line of the layer that a field of a net's file stands in, None where it stands in none."""
    block: Block | None = entry.block
    while block is not None and len(block.path) > 1:
        block = block.parent
    if block is None or block.name not in ("layer", "layers"):
        return None
    return next((each.line for each in outline.entries if each.opens is block), None)


def _is_solvers(entry: Entry, name: str) -> bool:
    """Whether a field stands in a solver, and not in a net."""
    return name != "NetParameter" and len(entry.block.path) < 2


def _strangers_field(path: Path, entry: Entry, descriptor: Any, schema: Schema) -> str:
    """The sentence for a field of a layer of a type that nobody knows, which would be lost."""
    fork = fork_field(descriptor.name, entry.name)
    what = fork.told(entry.name) if fork else f"{entry.name} is no field of Caffe's {descriptor.name}"
    block = entry.block
    while block.name != "layer" and block.parent is not None:
        block = block.parent
    name, kind = block.words.get("name", ""), block.words.get("type", "")
    whose = f", which is of {TYPES[kind]} and no composed plugin knows" if kind in TYPES else ""
    if not whose:
        close = nearest(kind, schema.types)
        whose = ", which no composed plugin knows" + (f" (did you mean {close!r}?)" if close else "")
    return (
        f"{path}:{entry.line}:{entry.column}: {what}: layer {name!r} is of type {kind!r}{whose}. A "
        f"plugin whose layer_types have it declares its fields"
    )


def _unknown_field(path: Path, entry: Entry, descriptor: Any) -> str:
    where = f"{path}:{entry.line}:{entry.column}: {_layer_around(entry)}{descriptor.name}"
    if fork := fork_field(descriptor.name, entry.name):
        return f"{where}: {fork.told(entry.name)}"
    message = unknown("field", entry.name, list(descriptor.fields_by_name), where, SCHEMA)
    block: Block | None = entry.block
    if block is not None and block.name == "layers" and "type" in block.quoted:
        message += "; a layer with a quoted type is written 'layer {', not 'layers {'"
    while block is not None and block.parent is not None and entry.name in _LAYERS:
        if block.name in _LAYERS:
            where = f"{path}:{entry.line}:{entry.column}"
            return f"{where}: '{entry.name}' inside the block {_open(block)}"
        block = block.parent
    return message


def _given_twice(path: Path, entry: Entry, first: Entry, descriptor: Any) -> str:
    place = f"{path}:{entry.line}:{entry.column}: {_layer_around(entry, own=True)}{descriptor.name}"
    told = f"{place}: {entry.name} has one value, and is given again; it was given in line {first.line}"
    axes = [f"{entry.name.removesuffix('_size')}_{axis}" for axis in "hw"]
    if all(axis in descriptor.fields_by_name for axis in axes):
        told += f" (each axis has its own in {axes[0]} and {axes[1]})"
    return told


def _layer_around(entry: Entry, own: bool = False) -> str:
    """The layer in whose inner block a field stands, or also the one whose ``own`` it is, as the
    beginning of a sentence."""
    block: Block | None = entry.block
    while block is not None and block.name not in _LAYERS:
        block = block.parent
    name = block.words.get("name") if block is not None and (own or block is not entry.block) else None
    return f"layer {name!r}: " if name else ""


def _open(block: Block) -> str:
    return f"'{block.name} {{' of line {block.line}: is its '}}' missing?"


def _wrong_value(path: Path, entry: Entry, descriptor: Any, schema: Schema) -> str:
    """What is wrong with the value of a field of words, in a sentence; empty for nothing."""
    value = entry.value or ""
    if descriptor.enum_type is not None and re.fullmatch(r"\d+", value):
        numbers = descriptor.enum_type.values_by_number
        if int(value) not in numbers:
            told = ", ".join(f"{each.name} ({number})" for number, each in sorted(numbers.items()))
            where = f"{path}:{entry.line}:{entry.column}"
            return f"{where}: {_layer_around(entry)}{entry.name} has no value {value} (valid: {told})"
    if descriptor.enum_type is None or not re.fullmatch(r"[\"']?[A-Za-z_]\w*[\"']?", value):
        return ""
    bare = value.strip("\"'")
    valid = descriptor.enum_type.values_by_name
    where = f"{path}:{entry.line}:{entry.column}"
    if bare not in valid:
        of_layer = entry.name == "type" and entry.block.name == "layers"
        if of_layer:
            where += f": layer {entry.block.words.get('name', '')!r} ({bare})"
            folded = bare.replace("_", "").casefold()
            newer = {kind.casefold(): kind for kind in schema.types}.get(folded)
            if (
                newer
                and value == bare
                and folded not in {name.replace("_", "").casefold() for name in valid}
            ):
                return (
                    f"{where}: the type {newer} is newer than this form of layers: it is written "
                    f"layer {{ type: '{newer}' }}, as then all layers of the net are"
                )
        else:
            where += f": {_layer_around(entry)}".removesuffix(": ")
        message = unknown(
            "V1 layer type" if of_layer else f"value of {entry.name}", bare, valid, where, SCHEMA
        )
        if of_layer and (owner := old_type_owner(folded)):
            message = f"{where}: unknown V1 layer type {bare!r}, which is of {owner}"
        if value != bare and entry.name == "type":
            message += "; a layer with a quoted type is written 'layer {', not 'layers {'"
        elif of_layer:
            name = "".join(word.capitalize() for word in bare.split("_"))
            message += (
                f"; a type that is newer, or that a plugin adds with the layer_types hook, is written "
                f"layer {{ type: '{name}' }}"
            )
        return message
    if value != bare:
        return f"{where}: {entry.name} is written without quotes: {entry.name}: {bare}"
    return ""


def _with_a_known_value(text: str, entry: Entry, descriptor: Any) -> str:
    """The text with the first valid word in place of a field's, which protobuf would refuse."""
    lines = text.split("\n")
    line, start = lines[entry.line - 1], entry.column - 1 + len(entry.name)
    valid = descriptor.enum_type.values[0].name
    lines[entry.line - 1] = line[:start] + line[start:].replace(entry.value or "", valid, 1)
    return "\n".join(lines)


def which(outline: Outline, schema: Schema) -> str | None:
    """NetParameter or SolverParameter, by the file's fields; None when it has none of either."""
    names = outline.names()
    scores = {
        kind: sum(name in schema.descriptor(kind).fields_by_name for name in names)
        for kind in ("NetParameter", "SolverParameter")
    }
    best = max(scores, key=lambda kind: scores[kind])
    return best if scores[best] else None


def not_a_model(path: Path, outline: Outline, schema: Schema) -> str:
    """The sentence for a text that is neither a net nor a solver."""
    names = outline.names()
    if not names:
        return f"{path}: holds no field: neither a net nor a solver"
    valid = [
        name
        for kind in ("NetParameter", "SolverParameter")
        for name in schema.descriptor(kind).fields_by_name
    ]
    if set(names) == {"item"}:
        told = "it lists items, as a label map does"
    else:
        close = nearest(names[0], valid)
        told = f"its first field is {names[0]!r}" + (f"; did you mean {close!r}?" if close else "")
    return (
        f"{path}:{outline.entries[0].line}: neither a net (name, layer, ...) nor a solver (net, "
        f"base_lr, ...): {told}"
    )
