"""Files that users name, and who reads and writes those of nets, solvers and weights."""

from __future__ import annotations

import codecs
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from demitasse import (
    SPECIAL_FILE,
    DataError,
    DemitasseError,
    ModelError,
    is_file,
    is_folder,
    is_special,
    nearest,
)

if TYPE_CHECKING:
    from demitasse import Composition

_LONGEST_LIST = 1 << 31
"""Bytes."""


def check_file(path: Path) -> None:
    """Raise ModelError unless it is a file, with the nearest name where there is nothing."""
    if is_folder(path):
        raise ModelError(f"{path} is a folder; a file is needed here: name one in it")
    if is_file(path):
        return
    check_plain(path, ModelError)
    raise ModelError(f"no such file: {path}{nearest_path(path)}")


def check_plain(path: str | Path, kind: type[DemitasseError] = DataError) -> None:
    """Raise an error of this kind for what may be read without an end, or where nobody may look."""
    try:
        special = is_special(path)
    except OSError as error:
        raise kind(f"{path}: cannot be read: {error.strerror}") from error
    if special:
        raise kind(f"{path} {SPECIAL_FILE}")


def file_text(path: Path, strict: bool = False) -> str:
    """The text of a list or the like, without the mark of a byte order. Names of files in it need not be
    UTF-8: other bytes are kept as they are, unless ``strict``. Raises DataError for what cannot be read,
    is too long, or is no text."""
    check_plain(path)
    try:
        if path.stat().st_size > _LONGEST_LIST:
            raise DataError(f"{path}: is longer than any list ({path.stat().st_size:,} bytes)")
        data = path.read_bytes()
        if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):  # as PowerShell writes lists
            return data.decode("utf-16")
        return data.decode("utf-8-sig", "strict" if strict else "surrogateescape")
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is no text: byte {error.start} is not UTF-8") from error


def by_suffix(composition: Composition, role: str, path: Path) -> tuple[list[Any], list[Any], str]:
    """The hooks of plugins that declare the path's suffix, those of all, and what is declared."""
    plugins = [plugin for plugin in composition.plugins if role in plugin.roles]
    suffixes = {plugin.name: tuple(plugin.roles[role].get("suffixes", ())) for plugin in plugins}
    serving = list(composition.serving(role))
    named = [hook for name, hook in serving if path.name.endswith(suffixes[name])]
    known = ", ".join(sorted({suffix for each in suffixes.values() for suffix in each}))
    return named, [hook for _, hook in serving], known or "none"


def nearest_path(path: str | Path) -> str:
    """The end of a sentence about a path that is not there: the first part of it that is missing, if
    that is a folder, and the nearest name in the folder before it; to end alike is no likeness."""
    part, others = Path(path), list[str]()
    with contextlib.suppress(OSError):  # a folder that nobody may look into tells nothing
        while part.parent != part and not part.parent.is_dir():
            part = part.parent
        others = [other.name for other in part.parent.iterdir() if other.name != part.name]
        # Hidden ones are meant only where a hidden one is asked for.
        others = [o for o in others if o[:1] != "." or part.name[:1] == "."]
    kin, missing = {o.removesuffix(part.suffix): o for o in others}, part != Path(path)
    close = kin.get(nearest(part.stem, kin) or "") or nearest(part.name, sorted({*kin} & {*others}))
    told = [f"there is no folder {str(part)!r}"] if missing else []
    told += [f"did you mean {str(part.parent / close)!r}?"] if close else []
    return f"; {', '.join(told)}" if told else ""
