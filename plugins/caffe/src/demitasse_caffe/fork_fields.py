"""Fields and words that Caffe's forks have added to Caffe's own messages, and which fork each belongs
to.

A field that only affects how fast, where or how precisely a fork computes is ignored, with a note. One
that changes what is computed is an error, unless its value is the one that changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from demitasse_caffe.flow_forks import FLOWNET
from demitasse_caffe.forks import FORKS as OTHERS

FORKS = (*OTHERS, FLOWNET)

TYPES = {name: fork.name for fork in FORKS for name in fork.types.split()}
"""The fork of each layer type that Caffe does not have."""

POLICIES = {name: f"{fork.name}, {told}" for fork in FORKS for name, told in fork.policies.items()}
"""The fork of each ``lr_policy`` that Caffe does not have, and what the policy does."""

_ENGINES = {word: fork.name for fork in FORKS for word in fork.engines.split()}


@dataclass(frozen=True)
class ForkField:
    """A field that a fork has in one of Caffe's messages; the attributes are those of ``Fields``."""

    owner: str
    effect: str = ""
    idle: str = ""
    instead: str = ""
    training: bool = False

    def has_effect(self, value: str | None) -> bool:
        """Return whether the field changes what is computed, for a value as written in the file."""
        return bool(self.effect) and (value is None or _plain(value) != _plain(self.idle))

    def told(self, name: str, kind: str = "a field") -> str:
        """Return the sentence that the field (or word) is not one of Caffe's, and what it does."""
        here = f"has no counterpart here: {self.effect}" if self.effect else "has no effect here"
        return f"{name} is {kind} of {self.owner}, not of Caffe, and {here}"


_FIELDS = {
    (fields.message, name): ForkField(
        fork.name, fields.effect, fields.idle, fields.instead, fields.training
    )
    for fork in FORKS
    for fields in fork.fields
    for name in fields.names.split()
}


def fork_field(message: str, name: str) -> ForkField | None:
    """Return what a fork has under a name in one of Caffe's messages, or None if no fork is known to
    have it."""
    return _FIELDS.get((message.replace("V1LayerParameter", "LayerParameter"), name))


def old_type_owner(folded: str) -> str | None:
    """Return the fork of a V1 layer type that Caffe does not have, by its name in lower case
    without underscores."""
    return next((owner for name, owner in TYPES.items() if name.casefold() == folded), None)


def engine_word(name: str, value: str) -> ForkField | None:
    """Return what a fork has as a value of Caffe's ``engine``; None for Caffe's own values and
    for other fields."""
    return ForkField(_ENGINES[value]) if name == "engine" and value in _ENGINES else None


def notes(path: Path, passed_over: Iterable[tuple[ForkField, str, int]]) -> Iterator[str]:
    """Yield a sentence for each fork about the (what, name, line) that were read and
    have no effect here."""
    owners: dict[str, dict[str, list[int]]] = {}
    instead: dict[str, str] = {}
    for found, name, line in passed_over:
        owners.setdefault(found.owner, {}).setdefault(name, []).append(line)
        instead[name] = found.instead
    for owner, fields in owners.items():
        told = ", ".join(f"{name} ({_lines(lines, instead[name])})" for name, lines in fields.items())
        yield f"{path}: fields of {owner} that have no effect here: {told}"


def _lines(lines: list[int], instead: str) -> str:
    more = f" and {len(lines) - 1} more" if len(lines) > 1 else ""
    return f"line {lines[0]}{more}" + (f"; {instead}" if instead else "")


def _plain(value: str) -> str | float:
    """Return a value in the form that is compared: numbers and truth values as such, words in lower case
    without quotes."""
    word = value.strip("\"'").casefold()
    word = {"true": "1", "t": "1", "false": "0", "f": "0"}.get(word, word)
    try:
        return float(word)
    except ValueError:
        return word
