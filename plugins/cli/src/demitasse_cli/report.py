"""What commands print for people, and pictures, written whole."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

from demitasse import printable, replacing


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Yield a path whose file replaces ``path`` when the block ends; creates the folder. Raises OSError
    that names ``path``, not the temporary file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as partial:
            yield partial
    except OSError as error:
        raise OSError(f"{path} could not be written: {error.strerror or error}") from error


def table(head: Sequence[str], rows: Iterable[Sequence[Any]], right: str = "") -> str:
    """Return aligned columns under their names; a column is right-aligned if ``right`` has a ``>`` for
    it. Each row is one line, even if a name contains line breaks."""
    told = (tuple(printable(str(cell)).replace("\n", "\\n") for cell in row) for row in rows)
    cells = [tuple(head), *told]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    signs = right.ljust(len(head), "<")
    return "\n".join(
        "  ".join(
            f"{cell:{sign}{width}}" for cell, sign, width in zip(row, signs, widths, strict=True)
        ).rstrip()
        for row in cells
    )


def layer_name(name: str) -> str:
    """Return a layer's name as tables show it. Some exporters write names of hundreds of characters,
    which often differ only at their end."""
    return (
        name if len(name) <= _LONGEST else f"{name[: _LONGEST // 3]}...{name[3 - 2 * _LONGEST // 3 :]}"
    )


_LONGEST = 60
"""The most characters of a layer's name in a table."""


def scores_text(scores: Mapping[str, Any]) -> str:
    """Return scores as ``accuracy 0.9912  loss 0.0312``; the mean if a score is an array."""
    parts = []
    for name, value in scores.items():
        parts.append(f"{name} {_mean(value):.4f}")
    return "  ".join(parts)


def _mean(value: Any) -> float:
    return fmean(map(_mean, value)) if isinstance(value, Iterable) else float(value)


def pace(rate: float) -> str:
    """Return a rate per second, without decimals if it is 10 or more."""
    return f"{rate:.0f}" if rate >= 10 or not rate else f"{rate:.2g}"


def counted(number: int, noun: str) -> str:
    """Return a count with its noun: ``1 worker``, ``2 workers``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def human_time(seconds: float) -> str:
    """Return a duration as ``0:02:11``; a dash if it is not known."""
    if not math.isfinite(seconds) or seconds < 0:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


def human_bytes(count: float) -> str:
    """Return a size as ``3.52 MiB``."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.2f} {unit}"
        count /= 1024
    return f"{count:.2f} GiB"


def lines_to(json_path: str | None) -> Any:
    """Return the stream for people: standard output, unless the report is written there."""
    return sys.stderr if json_path == "-" else sys.stdout
