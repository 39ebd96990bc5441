"""The one family of errors, and what every message needs: the valid names and the nearest one."""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

MANY, FEW = 24, 8
"""A message lists all valid names if there are at most MANY, and otherwise the FEW nearest."""


class DemitasseError(Exception):
    """A mistake that a user can correct; the message says what was asked, found and valid, and where."""


class DescriptionError(DemitasseError):
    """A hardware description that cannot be read or cannot be true."""


class PluginError(DemitasseError):
    """A plugin that is missing, broken, incompatible, or breaks the contract of its role."""


class CompositionError(DemitasseError):
    """Plugins and a machine that cannot be composed into a runtime."""


class ModelError(DemitasseError):
    """A net, solver or weights file that is malformed or asks for something impossible."""


class ShapeError(ModelError):
    """Blobs or parameters whose shapes do not match."""


class PlanError(DemitasseError):
    """A net that cannot be planned: an operation has no kernel, or a memory space no allocator."""


class DataError(DemitasseError):
    """Samples that cannot be found, read or trusted."""


class SnapshotError(DemitasseError):
    """A snapshot that is corrupt, foreign, or could not be written."""


class NumericsError(DemitasseError):
    """A loss or parameter that is no longer a finite number."""


class WorkerError(DemitasseError):
    """A worker that failed, stalled or disagrees with its siblings."""


class Rooted:
    """An object that cannot leave its process: copying or pickling it raises WorkerError, whose message
    ends with ``elsewhere``, which says what to do instead."""

    elsewhere = ""

    def __reduce_ex__(self, protocol: object) -> str:
        raise WorkerError(f"{self!r} cannot be copied or pickled; {self.elsewhere}")


@dataclass(frozen=True)
class Location:
    """A place in a user's file; prints as ``file:line``."""

    file: str
    line: int | None = None

    def __str__(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}"


def nearest(name: str, valid: Iterable[str]) -> str | None:
    """Return the valid name that is closest to ``name``, or None if none is close."""
    return next(iter(_close(name, valid, 1, 0.6)), None)


def _close(name: str, valid: Iterable[str], most: int, likeness: float) -> list[str]:
    # All options begin with dashes, which must not count as a resemblance.
    folded = {candidate.casefold().lstrip("-"): candidate for candidate in reversed(list(valid))}
    asked = name.casefold().lstrip("-")
    return [folded[n] for n in difflib.get_close_matches(asked, folded, most, likeness)]


def unknown(kind: str, name: str, valid: Iterable[str], where: object = None, rest: str = "") -> str:
    """Return the message for an unknown name: it echoes the name, suggests the nearest valid one and
    lists the valid ones. If there are many, it lists the nearest few and says how many more there are
    and, in the words of ``rest``, what shows them."""
    names = sorted({f"{each:.99}" if each.isprintable() else f"{each!r:.99}" for each in valid})
    prefix = f"{where}: " if where is not None else ""
    hint = f"; did you mean {guess!r}?" if (guess := nearest(name, names)) else ""
    few = names if len(names) <= MANY else _close(name, names, FEW, 0)
    more = f" and {len(names) - len(few)} more{rest and f', {rest}'}" if few is not names else ""
    return f"{prefix}unknown {kind} {name!r:.99}{hint} (valid: {', '.join(few) or 'none'}{more})"
