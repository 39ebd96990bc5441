"""Prototxt files as messages, with the line of every block and errors that say where.

protobuf's parser fills the message, but it keeps no positions and stops at the first unknown field.
Therefore the text is outlined first: its blocks and fields with their lines.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf import text_format

from demitasse import ModelError, nearest
from demitasse_caffe.field_errors import given_twice, strangers_field, unknown_field, wrong_value
from demitasse_caffe.fork_fields import ForkField, engine_word, fork_field, notes
from demitasse_caffe.outline import DEEPEST, Block, Change, Entry, Outline
from demitasse_caffe.schema import Schema, is_repeated
from demitasse_caffe.syntax_errors import syntax_error, unknown_escape
from demitasse_caffe.whole_file import read_whole
from demitasse_caffe.window_lists import LISTED, with_shapes

_CONFLICT = re.compile(r"^(?:<{7}|={7}|>{7})(?=\s)", re.MULTILINE)
"""What a version control tool leaves at the start of a line when it cannot merge two versions."""
_DEVICES = re.compile(r"^(\s*device_id\s*:?\s*)\[\s*(\w*)[^\]]*\]", re.MULTILINE)
"""A list of devices, which TSN's fork accepts where Caffe has a single one."""


def read_text(path: Path) -> str:
    """Return the text of a file. Raise ModelError if it is not text."""
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
        # Comments may be in their authors' national encodings; everything that Caffe reads is ASCII.
        return data.decode("latin-1")


def parse(
    path: Path, text: str, outline: Outline, name: str, schema: Schema, strict: bool = False
) -> Any:
    """Parse a text as the message called ``name``. Raise ModelError with file, line and column.

    Fields that a Caffe fork has for an unknown layer type are left out, unless ``strict``: the more
    helpful error is the one about the type, raised when the net is built. In a net with such a type,
    unknown fields of Caffe's own types and invalid words are left out as well. The first of them is
    recorded as the outline's ``misfit``, the error for phases of the net without such a type. Fork
    features that do not change results are left out, and reported in the outline's ``notes``.
    """
    if outline.too_deep is not None:
        raise ModelError(f"{path}:{outline.too_deep}: blocks are nested deeper than {DEEPEST}")
    if mark := _CONFLICT.search(text):
        where = f"{path}:{text.count(chr(10), 0, mark.start()) + 1}"
        raise ModelError(
            f"{where}: {mark[0]!r} marks two versions of the file (a merge conflict); choose one"
        )
    fields = _Fields(path, text, outline, name, schema, strict)
    fields.check()
    outline.notes = tuple(notes(path, fields.passed_over))
    text, message = fields.text, schema.message(name)
    try:
        with warnings.catch_warnings():
            # How Python warns of a backslash in an unknown escape; Caffe rejects it too.
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
    """The check of a text's fields against its message. ``check`` raises ModelError as ``parse`` does.
    It leaves the text for protobuf in ``text``, records in ``foreign`` whether any field is not Caffe's,
    and in ``passed_over`` what is left out of a fork's."""

    def __init__(
        self, path: Path, text: str, outline: Outline, name: str, schema: Schema, strict: bool
    ) -> None:
        self.text, self.foreign = text, False
        self.passed_over: list[tuple[ForkField, str, int]] = []
        self._path, self._outline, self._name, self._schema = path, outline, name, schema
        self._strict, self._strangers = strict, _has_strangers(outline, schema)
        self._first: dict[tuple[Block, str], Entry] = {}

    def check(self) -> None:
        """Check all fields whose message is known."""
        lists: dict[Block, None] = {}
        for entry, descriptor in _fields(self._outline, self._schema.descriptor(self._name)):
            if not re.fullmatch(r"[A-Za-z_]\w*", entry.name):
                continue
            if entry.name not in descriptor.fields_by_name:
                self._unknown(entry, descriptor)
                continue
            field = descriptor.fields_by_name[entry.name]
            first = self._first.setdefault((entry.block, entry.name), entry)
            again = (first.line, first.column) != (entry.line, entry.column)
            if again and descriptor.name == "PoolingParameter" and entry.name in LISTED:
                lists[entry.block] = None
            elif again and not is_repeated(field):
                raise ModelError(given_twice(self._path, entry, first, descriptor))
            if entry.value is not None:
                self._value(entry, field)
        for block in lists:
            self.text = with_shapes(self.text, self._outline.entries, block)
        if self._name == "SolverParameter":
            self.text = _DEVICES.sub(self._one_device, self.text)

    def _one_device(self, listed: re.Match[str]) -> str:
        """Return the first of several devices, padded to the same number of lines."""
        line = self.text.count("\n", 0, listed.end(1)) + 1
        self.passed_over.append((ForkField("TSN's fork"), "device_id of several", line))
        breaks = listed[0].count("\n") - listed[1].count("\n")
        return f"{listed[1]}{listed[2] or 0}" + "\n" * breaks

    def _unknown(self, entry: Entry, descriptor: Any) -> None:
        """Handle a field that Caffe's message does not have."""
        fork = fork_field(descriptor.name, entry.name)
        if fork is not None and not fork.has_effect(entry.value):
            if not fork.effect:
                self.passed_over.append((fork, entry.name, entry.line))
        elif _of_known_type(entry, self._schema):
            told = unknown_field(self._path, entry, descriptor)
            line = None if fork is None or self._strict else _line_of_layer(entry, self._outline)
            if fork is None or line is None:
                self._misfit(entry, told)
            else:
                self._outline.changes.append(Change(line, fork.training, told))
        elif self._strict:
            raise ModelError(strangers_field(self._path, entry, descriptor, self._schema))
        self.foreign = True

    def _value(self, entry: Entry, field: Any) -> None:
        """Check a field's value; if it is left out, a known value takes its place."""
        if fork := engine_word(entry.name, entry.value or ""):
            self.passed_over.append((fork, entry.name, entry.line))
        elif told := wrong_value(self._path, entry, field, self._schema):
            self._misfit(entry, told)
        else:
            return
        self.text = _with_a_known_value(self.text, entry, field)

    def _misfit(self, entry: Entry, told: str) -> None:
        """Raise the error, unless a layer of an unknown type explains the field better."""
        if self._strict or not self._strangers or _is_solvers(entry, self._name):
            raise ModelError(told)
        self._outline.misfit = self._outline.misfit or told


def _fields(outline: Outline, root: Any) -> Iterator[tuple[Entry, Any]]:
    """Yield entries with the descriptor of their enclosing message, where it is known."""
    descriptors = {outline.root: root}
    for entry in outline.entries:
        descriptor = descriptors.get(entry.block)
        if descriptor is not None:
            yield entry, descriptor
            inner = descriptor.fields_by_name.get(entry.name)
            if entry.opens is not None and inner is not None and inner.message_type is not None:
                descriptors[entry.opens] = inner.message_type


def _of_known_type(entry: Entry, schema: Schema) -> bool:
    """Return whether an unknown field is a mistake, and not the parameter of an unknown layer type."""
    block: Block | None = entry.block
    if block is not None and block.name == "layer" and not entry.name.endswith("_param"):
        return True
    while block is not None and block.name != "layer":
        block = block.parent
    return block is None or block.words.get("type") in (None, *schema.types)


def _has_strangers(outline: Outline, schema: Schema) -> bool:
    """Return whether some layer is of an unknown type."""
    opened = (e.opens for e in outline.entries if e.opens is not None and e.name == "layer")
    return any(block.words.get("type") not in (None, *schema.types) for block in opened)


def _line_of_layer(entry: Entry, outline: Outline) -> int | None:
    """Return the line of the layer that contains a field of a net's file, or None if none does."""
    block: Block | None = entry.block
    while block is not None and len(block.path) > 1:
        block = block.parent
    if block is None or block.name not in ("layer", "layers"):
        return None
    return next((each.line for each in outline.entries if each.opens is block), None)


def _is_solvers(entry: Entry, name: str) -> bool:
    """Return whether a field belongs to a solver, and not to a net."""
    return name != "NetParameter" and len(entry.block.path) < 2


def _with_a_known_value(text: str, entry: Entry, descriptor: Any) -> str:
    """Return the text with a field's word, which protobuf would reject, replaced by
    the first valid one."""
    lines = text.split("\n")
    line, start = lines[entry.line - 1], entry.column - 1 + len(entry.name)
    valid = descriptor.enum_type.values[0].name
    lines[entry.line - 1] = line[:start] + line[start:].replace(entry.value or "", valid, 1)
    return "\n".join(lines)


def which(outline: Outline, schema: Schema) -> str | None:
    """Return NetParameter or SolverParameter, by the file's fields, or None if it has
    fields of neither."""
    names = outline.names()
    scores = {
        kind: sum(name in schema.descriptor(kind).fields_by_name for name in names)
        for kind in ("NetParameter", "SolverParameter")
    }
    best = max(scores, key=lambda kind: scores[kind])
    return best if scores[best] else None


def not_a_model(path: Path, outline: Outline, schema: Schema) -> str:
    """Return the error message for a text that is neither a net nor a solver."""
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
