"""Syntax errors of protobuf's text parser, each as one line with its location and the field."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from demitasse_caffe.field_errors import layer_around

if TYPE_CHECKING:
    from demitasse_caffe.outline import Block, Outline

_HOLE = re.compile(
    r"""\$\#.*?\#\$ | \{\{.*?\}\} | \{%.*?%\}           # of tools for texts
    | \$\{.*?\} | \$\w+\$?                            # of shells, Python's string.Template, FlowNet
    | \{[\w.\[\]]*(?:![ars])?(?::[^\s{}]*)?\}           # of Python's str.format
    | %(?:\(\w+\))?[-+.\d]*[a-zA-Z]                     # of printf, and Python's %""",
    re.VERBOSE,
)
"""A template's placeholder in the place of a value."""


def unknown_escape(path: Path, text: str, error: Warning) -> str:
    """Return the message for a backslash in an unknown escape, most often in a Windows path."""
    found = re.search(r"""['"](\\.*?)['"]""", str(error))  # in ' before Python 3.14, in " since
    what = found[1] if found else ""
    place = text.find(what) if what else -1
    line = f":{text.count(chr(10), 0, place) + 1}" if place >= 0 else ""
    return (
        f"{path}{line}: a quoted string has an unknown escape: '{what}'; write a backslash twice, "
        f"and / in a path"
    )


def syntax_error(path: Path, text: str, outline: Outline, error: Any) -> str:
    """Return the parser's error as one line with the field that it is about."""
    line, column = error.GetLine(), error.GetColumn()
    if outline.unclosed is not None and (line is None or line >= text.rstrip().count("\n") + 1):
        opened = []
        block: Block | None = outline.unclosed
        while block is not None and block.parent is not None:
            opened.append(f"'{block.name} {{' of line {block.line}")
            block = block.parent
        return (
            f"{path}:{text.count(chr(10)) + 1}: the file ends while {' in '.join(opened)} is still "
            f"open: it is cut off, or a '}}' is missing"
        )
    reason = re.sub(r"^\d+:\d+ : ", "", str(error)).replace("caffe.", "")
    reason = re.sub(r"^'[^\n]*': (?=[A-Z])", "", reason, flags=re.DOTALL)
    if word := re.match(r'Message type "(\w+)" has no field named "(.*)"', reason):
        reason = f"{word[2]!r} is not a field of {word[1]}"
    if outside := re.match(r"Value out of range: (-?)(\d+)$", reason):
        few = outside[1] and int(outside[2]) <= 2**31  # so the field takes no negative numbers
        reason = (
            f"{outside[1]}{outside[2]} is out of range (valid: {'0 or more' if few else 'nearer to 0'})"
        )
    if line is None:  # for example for the value of a field that is left out
        return _value_of_none(path, outline, reason)
    written = "".join(text.split("\n")[line - 1 : line])
    rest = written[(column or 1) - 1 :]
    if rest.startswith(("//", "/*")):
        return f"{path}:{line}:{column}: {rest[:2]!r} does not begin a comment here; '#' does"
    if re.match(r"<{7}|={7}|>{7}", written):
        return (
            f"{path}:{line}: {written[:7]!r} marks two versions of the file (a merge conflict); choose "
            f"one"
        )
    here = (line, column or 0)
    before = [e for e in outline.entries if (e.line, e.column) <= here]
    # The parser takes the next line's first word as the value of a field that has none.
    own = before and (before[-1].line == line or reason.startswith("Couldn't parse"))
    layer = layer_around(before[-1], own=True) if own and before[-1].name != "name" else ""
    if rest.startswith("["):
        named = re.search(r"(\w+)\s*:\s*$", written[: (column or 1) - 1])
        list_of = f"{named[1]} " if named else ""
        return f"{path}:{line}:{column}: {layer}{list_of}takes one value, not a list"
    if rest.startswith("{") and written[: (column or 1) - 1].endswith("{"):
        reason = f"{reason.rstrip('.')}; '{{{{' is a placeholder of a template; have its tool fill it in"
    elif hole := _HOLE.match(rest):
        reason = (
            f"{reason.rstrip('.')}; {hole[0]!r} is a placeholder of a template; have its tool fill it in"
        )
    elif reason.startswith("Expected string") and re.match(r"[\w./\\~-]", rest):
        reason = f"write a string in quotes: {_bare(rest)}"
    elif re.match(r":[\\/]", rest) and (drive := re.search(r":\s*([A-Za-z])$", written[: column - 1])):
        reason = f"write a string in quotes: {_bare(drive[1] + rest)}"
    field = f"{before[-1].name}: " if own and before[-1].name else ""
    return f"{path}:{line}:{column}: {layer}{field}{reason}"


def _bare(rest: str) -> str:
    """Return the first word of the rest of a line, in quotes, as text that protobuf reads."""
    word = (rest.split() or [""])[0].rstrip("{};,")
    return '"' + word.replace("\\", "/") + '"'


def _value_of_none(path: Path, outline: Outline, reason: str) -> str:
    """Return the message for an error that comes without its location: a value of no kind at all."""
    token = reason.removeprefix("Invalid field value: ")
    for entry in outline.entries:
        value = entry.value or ""
        if value.startswith(token) and not re.match(r"[\w\"'+.-]", value):
            return (
                f"{path}:{entry.line}:{entry.column}: {entry.name}: {value!r} is neither a number nor a "
                f"string"
            )
    return f"{path}: {reason}"
