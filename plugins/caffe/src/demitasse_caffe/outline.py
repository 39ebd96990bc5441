"""The blocks and fields of a prototxt file, with their lines."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r"""\#[^\n]*                                        # a comment
    | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*'         # strings
    | [{}<>\[\]:;,] | [^\s{}<>\[\]:;,\#"']+ | ["']    # punctuation, words, quotes never closed""",
    re.VERBOSE,
)
_OPEN = {"{": "}", "<": ">"}
DEEPEST = 100
"""The maximum depth of nested blocks, which is that of protobuf's binary reader."""


@dataclass(eq=False)
class Block:
    """A message in the text. ``words`` holds its scalar fields as written, without their quotes;
    ``quoted`` those that had quotes."""

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
    """A field in the text: its location, and its value's first word unless the field is a block."""

    block: Block
    name: str
    line: int
    column: int
    opens: Block | None = None
    value: str | None = None


@dataclass(frozen=True)
class Change:
    """A fork's field that changes what the layer at a line computes, or only how it ``trains``. It
    carries the error for phases that have the layer."""

    line: int
    trains: bool
    told: str


class Outline:
    """The fields and blocks of a text, in order."""

    def __init__(self, text: str) -> None:
        self.root = Block("", 1, None)
        self.entries: list[Entry] = []
        self.unclosed: Block | None = None
        self.too_deep: int | None = None  # the line where blocks nest more deeply than in any message
        self.misfit = ""  # a field that no message has, reported if nothing worse is wrong with the net
        self.changes: list[Change] = []  # forks' fields that change results
        self.notes: tuple[str, ...] = ()  # forks' features that were ignored, in sentences
        self._read(text)

    def names(self) -> list[str]:
        """Return the fields of the file itself, in order."""
        return [entry.name for entry in self.entries if entry.block is self.root]

    def line(self, name: str, within: tuple[str, ...] = ()) -> int | None:
        """Return the line of the first field of a name, in the file itself or in a block at a path."""
        found = (e.line for e in self.entries if e.name == name and e.block.path == within)
        return next(found, None)

    def lines(self, path: tuple[str, ...]) -> list[int]:
        """Return the lines of all blocks at a path of names."""
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
                if not named:  # an element of a list, or a template's brace
                    name = lists[-1][1] if lists and lists[-1][0] is block else ""
                    position = (line, start - line_start + 1)
                inner = Block(name, line, block, depth=block.depth + 1)
                if inner.depth + len(lists) > DEEPEST:
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
                if block.depth + len(lists) > DEEPEST:
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
