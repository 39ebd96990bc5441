"""Files that users name: whether each can be read, and which one was meant if it does not exist."""

from __future__ import annotations

import codecs
import contextlib
from pathlib import Path

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

_LONGEST_LIST = 1 << 31
"""Bytes."""


def check_file(path: Path) -> None:
    """Raise ModelError unless the file exists; the error suggests the nearest name."""
    if is_folder(path):
        raise ModelError(f"{path} is a folder; a file is needed here: name one in it")
    if is_file(path):
        return
    check_plain(path, ModelError)
    raise ModelError(f"no such file: {path}{nearest_path(path)}")


def check_plain(path: str | Path, kind: type[DemitasseError] = DataError) -> None:
    """Raise an error of this kind if the path is a pipe or a device, which may have no end, or may not
    be examined."""
    try:
        special = is_special(path)
    except OSError as error:
        raise kind(f"{path}: cannot be read: {error.strerror}") from error
    if special:
        raise kind(f"{path} {SPECIAL_FILE}")


def file_text(path: Path, strict: bool = False) -> str:
    """Return the text of a list, without a byte order mark. File names in it need not be UTF-8: other
    bytes are kept (``surrogateescape``) unless ``strict``. Raises DataError if the file cannot be read,
    is too long or is not text."""
    check_plain(path)
    try:
        if path.stat().st_size > _LONGEST_LIST:
            raise DataError(f"{path}: is too long for a list ({path.stat().st_size:,} bytes)")
        data = path.read_bytes()
        if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):  # as PowerShell writes lists
            return data.decode("utf-16")
        return data.decode("utf-8-sig", "strict" if strict else "surrogateescape")
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is not text: byte {error.start} is not UTF-8") from error


def nearest_path(path: str | Path) -> str:
    """Return the end of a sentence about a path that does not exist: the first missing folder on the
    way, and the nearest name in the folder that should have it. Names are compared without the suffix,
    so that all files of one kind do not count as alike."""
    part, others = Path(path), list[str]()
    with contextlib.suppress(OSError):  # a folder that may not be read gives no hint
        while part.parent != part and not part.parent.is_dir():
            part = part.parent
        others = [other.name for other in part.parent.iterdir() if other.name != part.name]
        # Hidden files are meant only if a hidden one is asked for.
        others = [o for o in others if o[:1] != "." or part.name[:1] == "."]
    kin, missing = {o.removesuffix(part.suffix): o for o in others}, part != Path(path)
    close = kin.get(nearest(part.stem, kin) or "") or nearest(part.name, sorted({*kin} & {*others}))
    told = [f"there is no folder {str(part)!r}"] if missing else []
    told += [f"did you mean {str(part.parent / close)!r}?"] if close else []
    return f"; {', '.join(told)}" if told else ""
