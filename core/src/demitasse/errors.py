"""The one family of errors, and the words that every message needs: what is valid, what is nearest."""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass


class DemitasseError(Exception):
    """A mistake that a user can mend: says what was asked, found, and valid, and where."""


class DescriptionError(DemitasseError):
    """A hardware description that cannot be read or cannot be true."""


class PluginError(DemitasseError):
    """A plugin that is missing, broken, incompatible, or breaks the contract of its role."""


class CompositionError(DemitasseError):
    """Plugins and machine that do not make a runtime together."""


class ModelError(DemitasseError):
    """A net, solver or weights file that is malformed or asks for the impossible."""


class ShapeError(ModelError):
    """Blobs or parameters whose shapes do not fit each other."""


class PlanError(DemitasseError):
    """A net that cannot be planned: an operation without a kernel, a tensor without a place."""


class DataError(DemitasseError):
    """Samples that cannot be found, read or trusted."""


class SnapshotError(DemitasseError):
    """A snapshot that is corrupt, foreign, or could not be written."""


class NumericsError(DemitasseError):
    """A loss or parameter that is no longer a finite number."""


class WorkerError(DemitasseError):
    """A worker that failed, stalled or disagrees with its siblings."""


@dataclass(frozen=True)
class Location:
    """Where in a user's file something stands; prints as ``file:line``."""

    file: str
    line: int | None = None

    def __str__(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}"


def nearest(name: str, valid: Iterable[str]) -> str | None:
    """The valid name that is closest to ``name``, or None when none is close."""
    folded = {candidate.casefold(): candidate for candidate in reversed(list(valid))}
    close = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=0.5)
    return folded[close[0]] if close else None


def unknown(kind: str, name: str, valid: Iterable[str], where: object = None) -> str:
    """The sentence for a name that is not known: echoes it, suggests the nearest, lists the valid."""
    names = sorted(set(valid))
    prefix = f"{where}: " if where is not None else ""
    hint = f"; did you mean {guess!r}?" if (guess := nearest(name, names)) else ""
    return f"{prefix}unknown {kind} {name!r}{hint} (valid: {', '.join(names) or 'none'})"
